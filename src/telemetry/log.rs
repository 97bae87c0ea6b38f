//! Start of logging.
//!
//! Everything goes to standard error, so that lines of all kinds interleave and standard output stays free for the
//! stdio transport and for what commands print. Targets besides module paths: `access` (one line an exchange, at
//! `info`) and `payload` (texts, when the configuration asks for them); a filter such as `info,access=off` tells them
//! apart.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use super::access_log;
use super::line::Line;
use super::sink::Sink;
use crate::config::{LogFormat, TelemetryConfig};

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("`{text}` in {origin} is not a filter such as `info` or `info,access=off`")]
    Filter {
        /// Where it stands: `telemetry.level` or `RUST_LOG`.
        origin: &'static str,
        /// The filter.
        text: String,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
    /// A word that is no level.
    #[error(
        "`{word}` in {origin} is not a level: one of off, error, warn, info, debug, trace, or target=level"
    )]
    Level {
        /// Where it stands.
        origin: &'static str,
        /// The word.
        word: String,
    },
    /// The thread that writes cannot be started.
    #[error("cannot start the log thread")]
    Thread(#[source] io::Error),
    /// Something has set up logging in this process already.
    #[error("logging is already set up")]
    Twice(#[source] TryInitError),
}

/// Keeps the log going; the last lines are written when it is dropped.
#[derive(Debug)]
pub struct LogGuard {
    sink: Sink,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.sink.finish();
    }
}

/// Where our own lines go, once logging has started.
#[derive(Debug)]
struct Output {
    sink: Sink,
    format: LogFormat,
}

static OUTPUT: OnceLock<Output> = OnceLock::new();

/// Starts logging for this process. `RUST_LOG`, when set, replaces the configured filter.
pub fn init(config: &TelemetryConfig) -> Result<LogGuard, TelemetryError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.trim().is_empty() => filter("RUST_LOG", &text)?,
        _ => filter("telemetry.level", &config.level)?,
    };
    let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let sink =
        Sink::start(io::stderr(), access_log::dropped().clone()).map_err(TelemetryError::Thread)?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(Writer(sink.clone())).with_ansi(ansi);
    match config.log {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .map_err(TelemetryError::Twice)?;
    // The subscriber was set for the first time just now, so this is too.
    OUTPUT.get_or_init(|| Output { sink: sink.clone(), format: config.log });
    Ok(LogGuard { sink })
}

/// Reads a filter. A bare word must be a level: to `tracing` a misspelt one would be a target, and everything else
/// would be off.
pub(super) fn filter(origin: &'static str, text: &str) -> Result<EnvFilter, TelemetryError> {
    for word in text.split(',').map(str::trim) {
        let bare = word.chars().all(|c| c.is_ascii_alphanumeric());
        if bare && !word.is_empty() && word.parse::<tracing::metadata::LevelFilter>().is_err() {
            return Err(TelemetryError::Level { origin, word: word.to_owned() });
        }
    }
    EnvFilter::builder().parse(text).map_err(|source| TelemetryError::Filter {
        origin,
        text: text.to_owned(),
        source,
    })
}

thread_local! {
    /// The line being written, kept for its memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Largest buffer a thread keeps between lines.
const KEPT: usize = 16 << 10;

/// Writes one line of our own; nothing before [`init`].
pub(super) fn emit(level: &str, target: &str, members: impl FnOnce(&mut Line<'_>)) {
    let Some(output) = OUTPUT.get() else { return };
    // The buffer is gone only while the thread ends; then there is nothing left to log.
    let _ = BUFFER.try_with(|buffer| {
        let mut buffer = buffer.borrow_mut();
        buffer.clear();
        let mut line = Line::begin(&mut buffer, output.format, level, target);
        members(&mut line);
        line.end();
        output.sink.push(&buffer);
        buffer.shrink_to(KEPT);
    });
}

struct Writer(Sink);

impl<'a> MakeWriter<'a> for Writer {
    type Writer = &'a Sink;

    fn make_writer(&'a self) -> Self::Writer {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_with_levels_and_targets_are_read() {
        for text in ["info", "INFO", "off", "info,access=off", "trunkline::upstream=debug,warn", ""]
        {
            assert!(filter("telemetry.level", text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_level_is_an_error_that_names_it() {
        let error = filter("telemetry.level", "inof").unwrap_err();
        assert!(error.to_string().starts_with("`inof` in telemetry.level"), "{error}");
        assert!(filter("RUST_LOG", "access=inof").is_err());
    }

    /// Runs [`child_that_logs`] in a process of its own, since logging is set up once a process; its standard error.
    fn logged_by_a_child(format: &str, rust_log: Option<&str>) -> String {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "telemetry::log::tests::child_that_logs",
            "--ignored",
            "--nocapture",
        ]);
        child.env("TRUNKLINE_TEST_LOG", format).env_remove("RUST_LOG");
        if let Some(filter) = rust_log {
            child.env("RUST_LOG", filter);
        }
        let output = child.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    #[test]
    #[ignore = "run by other tests, in a process of its own"]
    fn child_that_logs() {
        let format = match std::env::var("TRUNKLINE_TEST_LOG").as_deref() {
            Ok("json") => LogFormat::Json,
            _ => LogFormat::Text,
        };
        let config = TelemetryConfig { log: format, ..TelemetryConfig::default() };
        let guard = init(&config).unwrap();
        assert!(matches!(init(&config), Err(TelemetryError::Twice(_))));
        tracing::info!(n = 1, "before");
        tracing::debug!("hidden");
        access_log::tests::line().write();
        tracing::warn!("after");
        drop(guard);
    }

    #[test]
    fn lines_of_all_kinds_come_in_order_on_standard_error_as_json() {
        let text = logged_by_a_child("json", None);
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = lines.iter().map(|line| (&line["level"], &line["target"])).collect();
        let own = "trunkline::telemetry::log::tests";
        assert_eq!(kinds.len(), 3, "{text}");
        assert!(kinds[0].0 == "INFO" && kinds[0].1 == own && lines[0]["n"] == 1, "{text}");
        assert!(kinds[1].0 == "INFO" && kinds[1].1 == "access", "{text}");
        assert!(kinds[2].0 == "WARN" && kinds[2].1 == own, "{text}");
        assert!(lines.iter().all(|line| line["timestamp"].is_string()), "{text}");
    }

    #[test]
    fn text_lines_are_plain_when_nobody_looks_and_the_environment_filters_them() {
        let text = logged_by_a_child("text", None);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(" INFO access: route=/mcp ") && !text.contains('\u{1b}'), "{text}");
        let text = logged_by_a_child("text", Some("debug,access=off"));
        assert!(text.contains("hidden") && !text.contains("access:"), "{text}");
    }
}
