//! Texts of requests and answers in the log, where the configuration asks for them.
//!
//! `telemetry.payloads` is the switch, whatever the level; the filter `payload=off` silences it too. Lines are of the
//! level `TRACE` and look like access lines; `text` is the last member.

use std::borrow::Cow;

use super::families::Direction;
use super::line::{Line, cut};
use super::trace::RequestId;
use super::{log, mask};
use crate::config::Payloads;

/// Longest text that is logged, in bytes; the rest is cut off.
const MAX_TEXT: usize = 8 << 10;
/// How much of a text is looked at. More than is logged, since masking shortens.
const MAX_READ: usize = 64 << 10;

/// One text on its way through the gateway.
#[derive(Clone, Copy, Debug)]
pub struct PayloadLine<'a> {
    /// Which way it goes.
    pub direction: Direction,
    /// The route, where it is known.
    pub route: Option<&'a str>,
    /// The upstream, where there is one.
    pub upstream: Option<&'a str>,
    /// The exchange.
    pub request_id: RequestId,
    /// The message.
    pub text: &'a [u8],
}

impl PayloadLine<'_> {
    /// Writes the line if texts are wanted. Never waits; with [`Payloads::Off`] it is one comparison.
    pub fn write(&self, payloads: Payloads) {
        if payloads == Payloads::Off || !tracing::enabled!(target: "payload", tracing::Level::ERROR)
        {
            return;
        }
        log::emit("TRACE", "payload", |line| self.members(payloads, line));
    }

    fn members(&self, payloads: Payloads, line: &mut Line<'_>) {
        line.ascii("direction", self.direction.as_str().as_bytes())
            .maybe("route", self.route)
            .maybe("upstream", self.upstream)
            .ascii("request_id", &self.request_id.printed())
            .number("bytes", self.text.len())
            .tail("text", &shown(self.text, payloads));
    }
}

/// What is shown of a text.
fn shown(text: &[u8], payloads: Payloads) -> Cow<'_, str> {
    let head = String::from_utf8_lossy(&text[..text.len().min(MAX_READ)]);
    let head = match payloads {
        // Nothing asks for this.
        Payloads::Off => return Cow::Borrowed(""),
        Payloads::Masked => Cow::Owned(mask::mask(&head)),
        Payloads::Full => head,
    };
    if head.len() <= MAX_TEXT && text.len() <= MAX_READ {
        return head;
    }
    Cow::Owned(format!("{}…", cut(&head, MAX_TEXT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;

    fn render(text: &[u8], payloads: Payloads, format: LogFormat) -> String {
        let payload = PayloadLine {
            direction: Direction::UpstreamOut,
            route: None,
            upstream: Some("notes"),
            request_id: RequestId::next(),
            text,
        };
        let mut out = Vec::new();
        let mut line = Line::begin(&mut out, format, "TRACE", "payload");
        payload.members(payloads, &mut line);
        line.end();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_text_line_shows_json_as_it_is_with_secrets_masked() {
        let text = b"{\"password\":\"x1y2\",\n\"a\":\"\\u001b\"}";
        let line = render(text, Payloads::Masked, LogFormat::Text);
        assert!(line.contains(" TRACE payload: direction=upstream_out upstream=notes"), "{line}");
        assert!(
            line.ends_with(" bytes=33 text={\"password\":\"***\",\\n\"a\":\"\\u001b\"}\n"),
            "{line}"
        );
    }

    #[test]
    fn full_shows_everything_and_json_lines_are_json() {
        let text = "{\"password\":\"x1y2\"}\u{1b}[0m\r\n";
        let line = render(text.as_bytes(), Payloads::Full, LogFormat::Json);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(value["text"], text);
        assert_eq!(value["bytes"], text.len());
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn long_and_broken_texts_are_cut_and_do_not_break_a_line() {
        let long = format!("{{\"a\":\"{}\",\"password\":\"x1y2\"}}", "é\n".repeat(100_000));
        for payloads in [Payloads::Masked, Payloads::Full] {
            let line = render(long.as_bytes(), payloads, LogFormat::Text);
            assert!(line.ends_with("…\n") && line.lines().count() == 1);
            assert!(line.len() < 2 * MAX_TEXT, "{}", line.len());
        }
        let line = render(b"\xff\xfe\0\n", Payloads::Masked, LogFormat::Json);
        assert!(serde_json::from_str::<serde_json::Value>(line.trim_end()).is_ok(), "{line}");
    }

    #[test]
    fn a_secret_beyond_what_is_read_does_not_show_by_being_cut() {
        let long = format!("{{\"password\":\"{}\"}}", "x1y2".repeat(50_000));
        assert!(!render(long.as_bytes(), Payloads::Masked, LogFormat::Text).contains("x1y2"));
    }
}
