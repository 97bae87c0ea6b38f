//! One log line of our own: members with stable names, as text or as JSON, with every value escaped.

use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::LogFormat;
use crate::net::Peer;

/// Longest value of a member, in bytes; the rest is cut off.
const MAX_VALUE: usize = 256;

/// A line that is being written. It looks like a line of `tracing` in the same format.
#[derive(Debug)]
pub(super) struct Line<'b> {
    out: &'b mut Vec<u8>,
    format: LogFormat,
}

impl<'b> Line<'b> {
    /// Begins a line with the time, a level and a target.
    pub(super) fn begin(
        out: &'b mut Vec<u8>,
        format: LogFormat,
        level: &str,
        target: &str,
    ) -> Self {
        match format {
            LogFormat::Text => {
                stamp(out);
                // Levels are aligned to the right in five columns.
                let gap = if level.len() < 5 { "  " } else { " " };
                append(out, &[gap, level, " ", target, ":"]);
            }
            LogFormat::Json => {
                append(out, &["{\"timestamp\":\""]);
                stamp(out);
                append(out, &["\",\"level\":\"", level, "\",\"target\":\"", target, "\""]);
            }
        }
        Self { out, format }
    }

    /// A member with a text from anywhere, cut to a bounded length.
    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        let short = cut(value, MAX_VALUE);
        self.name(name);
        match self.format {
            LogFormat::Text if is_bare(short) => self.out.extend_from_slice(short.as_bytes()),
            LogFormat::Text | LogFormat::Json => {
                self.out.push(b'"');
                self.escaped(short, true);
                if short.len() < value.len() {
                    self.out.extend_from_slice("…".as_bytes());
                }
                self.out.push(b'"');
            }
        }
        self
    }

    /// The same, where there is one.
    pub(super) fn maybe(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.text(name, value);
        }
        self
    }

    /// Who is at the other end. The usual kind does without the machinery of formatting, which costs more than the rest of a line.
    pub(super) fn peer(&mut self, name: &str, value: Peer) -> &mut Self {
        self.raw(name, |out| {
            let Peer::Tcp(SocketAddr::V4(address)) = value else {
                // Writing to a vector cannot fail.
                let _ = write!(out, "{value}");
                return;
            };
            let mut digits = itoa::Buffer::new();
            for (octet, end) in address.ip().octets().into_iter().zip(*b"...:") {
                out.extend_from_slice(digits.format(octet).as_bytes());
                out.push(end);
            }
            out.extend_from_slice(digits.format(address.port()).as_bytes());
        })
    }

    /// A member whose value needs no escaping in either format once it is quoted: ids.
    pub(super) fn ascii(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.raw(name, |out| out.extend_from_slice(value))
    }

    fn raw(&mut self, name: &str, value: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.name(name);
        let quote = self.format == LogFormat::Json;
        if quote {
            self.out.push(b'"');
        }
        value(self.out);
        if quote {
            self.out.push(b'"');
        }
        self
    }

    /// A number.
    pub(super) fn number(&mut self, name: &str, value: impl itoa::Integer) -> &mut Self {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self
    }

    /// A duration in milliseconds with three decimals.
    pub(super) fn millis(&mut self, name: &str, value: Duration) -> &mut Self {
        let micros = value.as_micros();
        self.number(name, u64::try_from(micros / 1_000).unwrap_or(u64::MAX));
        self.out.push(b'.');
        // Less than a thousand.
        digits(self.out, (micros % 1_000) as u32, 3);
        self
    }

    /// The last member, which may be long and is cut by the caller. As text it is not quoted, so that JSON in it can
    /// be read.
    pub(super) fn tail(&mut self, name: &str, value: &str) {
        self.name(name);
        match self.format {
            LogFormat::Text => self.escaped(value, false),
            LogFormat::Json => {
                self.out.push(b'"');
                self.escaped(value, true);
                self.out.push(b'"');
            }
        }
    }

    /// Ends the line.
    pub(super) fn end(self) {
        if self.format == LogFormat::Json {
            self.out.push(b'}');
        }
        self.out.push(b'\n');
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Text => {
                self.out.push(b' ');
                self.out.extend_from_slice(name.as_bytes());
                self.out.push(b'=');
            }
            LogFormat::Json => {
                self.out.extend_from_slice(b",\"");
                self.out.extend_from_slice(name.as_bytes());
                self.out.extend_from_slice(b"\":");
            }
        }
    }

    /// Copies a text with control characters escaped as in JSON; with `quotes`, also quotes and backslashes.
    fn escaped(&mut self, text: &str, quotes: bool) {
        let mut copied = 0;
        for (at, c) in text.char_indices() {
            let escape = is_control(c) || (quotes && (c == '"' || c == '\\'));
            if !escape {
                continue;
            }
            self.out.extend_from_slice(&text.as_bytes()[copied..at]);
            copied = at + c.len_utf8();
            let _ = match c {
                '"' | '\\' => write!(self.out, "\\{c}"),
                '\n' => write!(self.out, "\\n"),
                '\r' => write!(self.out, "\\r"),
                '\t' => write!(self.out, "\\t"),
                // All of them lie in the basic plane.
                _ => write!(self.out, "\\u{:04x}", u32::from(c)),
            };
        }
        self.out.extend_from_slice(&text.as_bytes()[copied..]);
    }
}

fn append(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends the time in UTC with microseconds: `2026-11-29T23:39:01.123456Z`.
fn stamp(out: &mut Vec<u8>) {
    thread_local! {
        /// The last second that was printed, and how.
        static SECOND: Cell<(i64, [u8; 19])> = const { Cell::new((i64::MIN, [0; 19])) };
    }
    let now = jiff::Timestamp::now();
    let (second, mut text) = SECOND.get();
    if second != now.as_second() {
        // What does not fit is the zone.
        let _ = write!(&mut text[..], "{now:.0}");
        SECOND.set((now.as_second(), text));
    }
    out.extend_from_slice(&text);
    out.push(b'.');
    digits(out, now.subsec_nanosecond().unsigned_abs() / 1_000, 6);
    out.push(b'Z');
}

/// Appends a number with leading zeros.
fn digits(out: &mut Vec<u8>, value: u32, count: u32) {
    for place in (0..count).rev() {
        // A digit.
        out.push(b'0' + (value / 10_u32.pow(place) % 10) as u8);
    }
}

/// Characters that may move a cursor, break a line, or turn the direction of what follows.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Whether a value stands in a text line without quotes.
fn is_bare(value: &str) -> bool {
    !value.is_empty()
        && value.len() < MAX_VALUE
        && value.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'='))
}

/// The longest beginning of at most `limit` bytes that ends between two characters.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
