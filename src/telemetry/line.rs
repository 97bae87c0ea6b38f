//! One log line of our own: members with stable names, as text or as JSON, with every value escaped.

use std::io::Write;
use std::time::Duration;

use crate::config::LogFormat;

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
        let now = jiff::Timestamp::now();
        // Writing to a vector cannot fail.
        let _ = match format {
            LogFormat::Text => write!(out, "{now:.6} {level:>5} {target}:"),
            LogFormat::Json => {
                write!(out, r#"{{"timestamp":"{now:.6}","level":"{level}","target":"{target}""#)
            }
        };
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

    /// A member whose value needs no escaping in either format once it is quoted: ids, addresses.
    pub(super) fn plain(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.name(name);
        let _ = match self.format {
            LogFormat::Text => write!(self.out, "{value}"),
            LogFormat::Json => write!(self.out, "\"{value}\""),
        };
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
        self.number(name, micros / 1_000);
        let rest = micros % 1_000;
        self.out.push(b'.');
        for divisor in [100, 10, 1] {
            // A digit.
            self.out.push(b'0' + (rest / divisor % 10) as u8);
        }
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
