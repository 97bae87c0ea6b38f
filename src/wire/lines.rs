//! Newline-delimited JSON of stdio servers.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use memchr::{memchr, memchr2};

use crate::jsonrpc::Chunks;

/// What the decoder found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// One line without its line end (LF or CRLF). May be empty, may be no JSON.
    Text(Bytes),
    /// A line over the limit was dropped; decoding goes on behind its end.
    TooLong {
        /// How many bytes it had.
        bytes: u64,
    },
}

/// Incremental line reader with a limit. Between a `next_line` that gave `None` and the next
/// `push` it holds no more than one line of the limit.
#[derive(Debug)]
pub struct LineDecoder {
    max_line: usize,
    received: VecDeque<Bytes>,
    state: State,
}

/// What is known of the line whose end was not seen.
#[derive(Debug)]
enum State {
    /// Its first bytes (of earlier chunks), not over the limit and a CR.
    Kept(Vec<u8>),
    /// It is over the limit: only counted.
    Dropped { bytes: u64, last: u8 },
}

impl LineDecoder {
    /// `max_line`: most bytes of one line, its end not counted.
    pub fn new(max_line: usize) -> Self {
        Self { max_line, received: VecDeque::new(), state: State::Kept(Vec::new()) }
    }

    /// Takes the next received bytes. Read all lines before the next push: what is pushed is kept
    /// until it is read.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.received.push_back(chunk);
        }
    }

    /// The next line, if one is complete. A `TooLong` is yielded once, when its end was seen.
    pub fn next_line(&mut self) -> Option<Line> {
        while let Some(chunk) = self.received.front_mut() {
            let Some(end) = memchr(b'\n', chunk) else {
                let part = self.received.pop_front()?;
                self.keep(&part);
                continue;
            };
            let part = chunk.split_to(end);
            chunk.advance(1);
            if chunk.is_empty() {
                self.received.pop_front();
            }
            return Some(self.complete(part));
        }
        None
    }

    /// What stands behind the last line end, when nothing more will come. Some servers end
    /// without one.
    pub fn finish(mut self) -> Option<Line> {
        let line = self.next_line().unwrap_or_else(|| self.complete(Bytes::new()));
        (line != Line::Text(Bytes::new())).then_some(line)
    }

    /// A part of a line whose end was not seen.
    fn keep(&mut self, part: &[u8]) {
        match &mut self.state {
            State::Kept(kept) => {
                let bytes = kept.len() + part.len();
                let last = part.last().or(kept.last()).copied().unwrap_or(0);
                // A CR may turn out to belong to the line end.
                if bytes - usize::from(last == b'\r') > self.max_line {
                    self.state = State::Dropped { bytes: bytes as u64, last };
                } else {
                    kept.extend_from_slice(part);
                }
            }
            State::Dropped { bytes, last } => {
                *bytes += part.len() as u64;
                *last = part.last().copied().unwrap_or(*last);
            }
        }
    }

    /// The line that ends with `part`.
    fn complete(&mut self, part: Bytes) -> Line {
        let whole = matches!(&self.state, State::Kept(kept) if kept.is_empty());
        if !whole {
            self.keep(&part);
        }
        match std::mem::replace(&mut self.state, State::Kept(Vec::new())) {
            State::Kept(kept) => self.bounded(if whole { part } else { kept.into() }),
            State::Dropped { bytes, last } => {
                Line::TooLong { bytes: bytes - u64::from(last == b'\r') }
            }
        }
    }

    fn bounded(&self, mut line: Bytes) -> Line {
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max_line {
            Line::TooLong { bytes: line.len() as u64 }
        } else {
            Line::Text(line)
        }
    }
}

/// One message as one line: raw line breaks (insignificant in JSON) become spaces, LF at the end.
pub fn to_line(message: &Chunks) -> Bytes {
    let mut line = Vec::with_capacity(message.len() + 1);
    for slice in message.slices() {
        line.extend_from_slice(slice);
    }
    let mut done = 0;
    while let Some(at) = memchr2(b'\n', b'\r', &line[done..]) {
        line[done + at] = b' ';
        done += at + 1;
    }
    line.push(b'\n');
    line.into()
}
