//! Server-sent events (WHATWG HTML, server-sent events; spec of MCP transports).

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use memchr::{memchr, memchr2};

use crate::jsonrpc::Chunks;

/// A comment that keeps an idle stream open.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// One decoded event. Events with empty data are yielded too (they carry an id); callers skip them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// `event`, when not `message`.
    pub event: Option<Bytes>,
    /// `data` lines joined with LF. Shares the received chunk when it was one line in one chunk.
    pub data: Bytes,
    /// `id` of this event.
    pub id: Option<Bytes>,
    /// `retry` in milliseconds.
    pub retry: Option<u64>,
}

/// Why decoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event is larger than the limit.
    #[error("an event is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

/// Incremental decoder: CR, LF and CRLF, split anywhere; BOM; comments; bounded events.
///
/// An event that no blank line ends is not yielded. Between a `next_event` that gave `None` and
/// the next `push` it holds no more than one event of the limit.
#[derive(Debug)]
pub struct SseDecoder {
    max_event: usize,
    received: VecDeque<Bytes>,
    /// The first bytes (of earlier chunks) of the line whose end was not seen.
    partial: Vec<u8>,
    /// The last line ended with CR: a LF that follows belongs to it.
    after_cr: bool,
    /// No line was complete yet: a byte order mark may stand before it.
    at_start: bool,
    failed: bool,
    event: Pending,
}

/// The event whose blank line was not seen.
#[derive(Debug, Default)]
struct Pending {
    event: Option<Bytes>,
    data: Data,
    id: Option<Bytes>,
    retry: Option<u64>,
    /// Whether a field was seen; comments alone make no event.
    any: bool,
}

/// The `data` lines so far.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// One line, still a slice of what was received.
    One(Bytes),
    /// Several, joined with LF.
    Many(Vec<u8>),
}

impl SseDecoder {
    /// `max_event`: most bytes of one event: its fields' values and the line that is being read.
    pub fn new(max_event: usize) -> Self {
        Self {
            max_event,
            received: VecDeque::new(),
            partial: Vec::new(),
            after_cr: false,
            at_start: true,
            failed: false,
            event: Pending::default(),
        }
    }

    /// Takes the next received bytes. Read all events before the next push: what is pushed is
    /// kept until it is read.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() && !self.failed {
            self.received.push_back(chunk);
        }
    }

    /// The next complete event, if there is one. After an error the decoder yields nothing more.
    pub fn next_event(&mut self) -> Option<Result<SseEvent, SseError>> {
        while let Some(chunk) = self.received.front_mut() {
            if std::mem::take(&mut self.after_cr) && chunk.first() == Some(&b'\n') {
                chunk.advance(1);
            }
            let end = memchr2(b'\n', b'\r', chunk);
            let part = chunk.split_to(end.unwrap_or(chunk.len()));
            if end.is_some() {
                self.after_cr = chunk.first() == Some(&b'\r');
                chunk.advance(1);
            }
            if chunk.is_empty() {
                self.received.pop_front();
            }
            if self.partial.len() + part.len() + self.event.len() > self.max_event {
                return Some(Err(self.fail()));
            }
            match end {
                Some(_) => {
                    if let Some(event) = self.line(part) {
                        return Some(Ok(event));
                    }
                }
                None => self.partial.extend_from_slice(&part),
            }
        }
        None
    }

    /// Gives up, and what it holds with it.
    #[cold]
    fn fail(&mut self) -> SseError {
        self.failed = true;
        self.received = VecDeque::new();
        self.partial = Vec::new();
        self.event = Pending::default();
        SseError::TooLarge { limit: self.max_event }
    }

    /// The line that ends with `part` is complete.
    fn line(&mut self, part: Bytes) -> Option<SseEvent> {
        let mut line = part;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&line);
            line = std::mem::take(&mut self.partial).into();
        }
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xEF\xBB\xBF") {
            line.advance(3);
        }
        if line.is_empty() {
            return self.event.take();
        }
        self.event.field(&line);
        None
    }
}

impl Pending {
    fn len(&self) -> usize {
        let data = match &self.data {
            Data::None => 0,
            Data::One(line) => line.len(),
            Data::Many(lines) => lines.len(),
        };
        let length = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
        data + length(&self.event) + length(&self.id)
    }

    /// Takes one line that is not empty.
    fn field(&mut self, line: &Bytes) {
        let colon = memchr(b':', line);
        let value = || {
            let start = colon.map_or(line.len(), |colon| colon + 1);
            let space = usize::from(line.get(start) == Some(&b' '));
            line.slice(start + space..)
        };
        match &line[..colon.unwrap_or(line.len())] {
            b"data" => self.data.push(value()),
            b"event" => self.event = Some(value()),
            b"id" if memchr(0, line).is_none() => self.id = Some(value()),
            b"retry" => match milliseconds(&value()) {
                Some(retry) => self.retry = Some(retry),
                None => return,
            },
            // A comment or a field that nobody knows.
            _ => return,
        }
        self.any = true;
    }

    /// The event, at its blank line.
    fn take(&mut self) -> Option<SseEvent> {
        if !self.any {
            return None;
        }
        let pending = std::mem::take(self);
        Some(SseEvent {
            event: pending.event.filter(|event| !event.is_empty() && event != "message"),
            data: match pending.data {
                Data::None => Bytes::new(),
                Data::One(line) => line,
                Data::Many(lines) => lines.into(),
            },
            id: pending.id,
            retry: pending.retry,
        })
    }
}

impl Data {
    fn push(&mut self, line: Bytes) {
        match self {
            Self::None => *self = Self::One(line),
            Self::One(first) => *self = Self::Many([first, &b"\n"[..], &line].concat()),
            Self::Many(lines) => {
                lines.push(b'\n');
                lines.extend_from_slice(&line);
            }
        }
    }
}

/// A `retry` of digits only; anything else is ignored.
fn milliseconds(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

/// One event of type `message`. Line breaks inside the data become several `data:` lines. An id
/// that has line breaks or NUL cannot be written and is left out.
pub fn encode_event(id: Option<&str>, data: &Chunks) -> Bytes {
    let id = id.filter(|id| !id.contains(['\n', '\r', '\0']));
    let mut text = Vec::with_capacity(40 + id.map_or(0, str::len) + data.len());
    text.extend_from_slice(b"event: message\n");
    if let Some(id) = id {
        text.extend_from_slice(b"id: ");
        text.extend_from_slice(id.as_bytes());
        text.push(b'\n');
    }
    text.extend_from_slice(b"data: ");
    let mut after_cr = false;
    for slice in data.slices() {
        push_data(&mut text, slice, &mut after_cr);
    }
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// An event without data that begins a stream: its id to resume from, and how long to wait before (MCP 2025-11-25,
/// transports).
pub fn encode_priming(id: &str, retry_millis: u64) -> Bytes {
    format!("id: {id}\nretry: {retry_millis}\ndata: \n\n").into()
}

/// The event that tells a client of HTTP+SSE where to POST (MCP 2024-11-05, transports). `uri` holds no line breaks.
pub fn encode_endpoint(uri: &str) -> Bytes {
    format!("event: endpoint\ndata: {uri}\n\n").into()
}

/// Writes one slice of the data; CRLF is one break, also when a slice ends between the two.
fn push_data(text: &mut Vec<u8>, slice: &[u8], after_cr: &mut bool) {
    let mut rest = slice;
    while !rest.is_empty() {
        if std::mem::take(after_cr) && rest[0] == b'\n' {
            rest = &rest[1..];
            continue;
        }
        let end = memchr2(b'\n', b'\r', rest);
        text.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
        let Some(end) = end else { return };
        text.extend_from_slice(b"\ndata: ");
        *after_cr = rest[end] == b'\r';
        rest = &rest[end + 1..];
    }
}
