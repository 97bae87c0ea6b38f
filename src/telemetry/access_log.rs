//! One line for each exchange.
//!
//! Written by our own code, not by a layer of `tracing`, which costs more than the rest of a short exchange. Names
//! of members are stable, the same in both formats:
//!
//! ```text
//! 2026-11-29T23:39:01.123456Z  INFO access: route=/mcp method=tools/call tool=echo upstream=notes outcome=ok
//!   duration_ms=1.234 upstream_ms=1.100 session=9f86d081 request_id=5c1f09aa-1a trace_id=4bf9… client=127.0.0.1:5000
//!   bytes_in=120 bytes_out=300 batch_index=3 error_code=-31003
//! ```

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::IntCounter;
use sha2::{Digest, Sha256};

use super::line::Line;
use super::trace::{RequestId, TraceId, hex};
use super::{families, log};
use crate::fault::Outcome;
use crate::net::Peer;

static DROPPED: LazyLock<IntCounter> = LazyLock::new(families::log_dropped);

/// Lines that were dropped because the writer was behind, in this process.
pub(super) fn dropped() -> &'static IntCounter {
    &DROPPED
}

/// What one exchange leaves in the log. Texts may come from anywhere; they are escaped and cut.
#[derive(Clone, Copy, Debug)]
pub struct AccessLine<'a> {
    /// The route's path.
    pub route: &'a str,
    /// The method as the client sent it.
    pub method: &'a str,
    /// The tool's public name.
    pub tool: Option<&'a str>,
    /// Where it went, where it went to one upstream.
    pub upstream: Option<&'a str>,
    /// How it ended.
    pub outcome: Outcome,
    /// From the request to the end of the answer.
    pub took: Duration,
    /// The part of it that was spent waiting for upstreams.
    pub upstream_took: Duration,
    /// The session.
    pub session: Option<SessionTag>,
    /// The gateway's own id of the exchange.
    pub request_id: RequestId,
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Who asked.
    pub client: Option<Peer>,
    /// Size of the request, or of the element of a batch.
    pub bytes_in: u64,
    /// Size of the answer.
    pub bytes_out: u64,
    /// Place in its batch, from 0.
    pub batch_index: Option<usize>,
    /// Code of the JSON-RPC error that was answered.
    pub error_code: Option<i64>,
}

impl AccessLine<'_> {
    /// Whether access lines are wanted; costs next to nothing. Worth asking before a line is put together.
    pub fn enabled() -> bool {
        tracing::enabled!(target: "access", tracing::Level::INFO)
    }

    /// Writes the line if such lines are wanted. Never waits.
    pub fn write(&self) {
        if Self::enabled() {
            log::emit("INFO", "access", |line| self.members(line));
        }
    }

    pub(super) fn members(&self, line: &mut Line<'_>) {
        line.text("route", self.route)
            .text("method", self.method)
            .maybe("tool", self.tool)
            .maybe("upstream", self.upstream)
            .ascii("outcome", self.outcome.as_str().as_bytes())
            .millis("duration_ms", self.took)
            .millis("upstream_ms", self.upstream_took);
        if let Some(session) = self.session {
            line.ascii("session", &hex::<8>(session.0.into()));
        }
        line.ascii("request_id", &self.request_id.printed())
            .ascii("trace_id", &self.trace_id.hex());
        if let Some(client) = self.client {
            line.peer("client", client);
        }
        line.number("bytes_in", self.bytes_in).number("bytes_out", self.bytes_out);
        if let Some(index) = self.batch_index {
            line.number("batch_index", index);
        }
        if let Some(code) = self.error_code {
            line.number("error_code", code);
        }
    }
}

/// Names a session in logs: eight hexadecimal digits that tell sessions apart and do not let anybody into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionTag(u32);

impl SessionTag {
    /// The tag of a session id. It costs a hash, so sessions keep theirs.
    pub fn of(session: &str) -> Self {
        let digest = Sha256::digest(session);
        Self(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
    }
}

impl std::fmt::Display for SessionTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::config::LogFormat;

    fn render(access: &AccessLine<'_>, format: LogFormat) -> String {
        let mut out = Vec::new();
        let mut line = Line::begin(&mut out, format, "INFO", "access");
        access.members(&mut line);
        line.end();
        String::from_utf8(out).unwrap()
    }

    const SESSION: &str = "a-session-id-that-must-not-show";

    /// A line with every member.
    pub(in crate::telemetry) fn line() -> AccessLine<'static> {
        AccessLine {
            route: "/mcp",
            method: "tools/call",
            tool: Some("notes__echo"),
            upstream: Some("notes"),
            outcome: Outcome::Timeout,
            took: Duration::from_micros(30_001_002),
            upstream_took: Duration::from_nanos(999),
            session: Some(SessionTag::of(SESSION)),
            request_id: RequestId::next(),
            trace_id: TraceId::mint(),
            client: Some(Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 5000)))),
            bytes_in: 120,
            bytes_out: 300,
            batch_index: Some(0),
            error_code: Some(-31003),
        }
    }

    #[test]
    fn a_json_line_has_stable_names_and_types() {
        let access = line();
        let text = render(&access, LogFormat::Json);
        let mut value: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        let stamp = value.as_object_mut().unwrap().shift_remove("timestamp").unwrap();
        assert!(stamp.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{stamp}");
        let expected = serde_json::json!({
            "level": "INFO", "target": "access", "route": "/mcp", "method": "tools/call",
            "tool": "notes__echo", "upstream": "notes", "outcome": "timeout",
            "duration_ms": 30001.002, "upstream_ms": 0.0,
            "session": SessionTag::of(SESSION).to_string(),
            "request_id": access.request_id.to_string(), "trace_id": access.trace_id.to_string(),
            "client": "127.0.0.1:5000", "bytes_in": 120, "bytes_out": 300,
            "batch_index": 0, "error_code": -31003,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn a_text_line_is_for_people() {
        let access = AccessLine { session: None, batch_index: None, error_code: None, ..line() };
        let text = render(&access, LogFormat::Text);
        let (_, rest) = text.split_once("Z ").unwrap();
        let expected = format!(
            " INFO access: route=/mcp method=tools/call tool=notes__echo upstream=notes \
             outcome=timeout duration_ms=30001.002 upstream_ms=0.000 request_id={} trace_id={} \
             client=127.0.0.1:5000 bytes_in=120 bytes_out=300\n",
            access.request_id, access.trace_id
        );
        assert_eq!(rest, expected);
    }

    #[test]
    fn addresses_of_clients_are_written_as_they_print() {
        for client in ["0.0.0.0:0", "255.10.9.100:65535", "[::1]:9", "[fe80::1%3]:80"] {
            let client: SocketAddr = client.parse().unwrap();
            let access = AccessLine { client: Some(Peer::Tcp(client)), ..line() };
            let text = render(&access, LogFormat::Text);
            assert!(text.contains(&format!(" client={client} ")), "{text}");
        }
        let text = render(&AccessLine { client: Some(Peer::Unix), ..line() }, LogFormat::Text);
        assert!(text.contains(" client=unix "), "{text}");
    }

    #[test]
    fn the_session_id_never_shows() {
        for format in [LogFormat::Json, LogFormat::Text] {
            assert!(!render(&line(), format).contains("session-id"));
        }
        assert_eq!(SessionTag::of("x"), SessionTag::of("x"));
        assert_ne!(SessionTag::of("x"), SessionTag::of("y"));
    }

    #[test]
    fn a_value_with_a_space_or_a_sign_is_quoted() {
        let access = AccessLine { method: "x outcome=ok", tool: Some(""), ..line() };
        let text = render(&access, LogFormat::Text);
        assert!(text.contains(r#" method="x outcome=ok" tool="" "#), "{text}");
    }

    proptest! {
        #[test]
        fn no_value_breaks_out_of_its_line_or_its_member(method in any::<String>(), tool in ".{0,400}") {
            let access = AccessLine { method: &method, tool: Some(&tool), ..line() };
            for format in [LogFormat::Json, LogFormat::Text] {
                let text = render(&access, format);
                prop_assert!(text.ends_with('\n'));
                prop_assert!(!text[..text.len() - 1].chars().any(char::is_control));
                prop_assert!(text.len() < 6 * 512 + 1_000);
            }
            let json: serde_json::Value = serde_json::from_str(&render(&access, LogFormat::Json)).unwrap();
            if method.len() <= 256 {
                prop_assert_eq!(json["method"].as_str(), Some(method.as_str()));
            }
            prop_assert_eq!(json["outcome"].as_str(), Some("timeout"));
        }
    }
}
