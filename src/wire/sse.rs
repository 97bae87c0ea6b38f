//! Server-sent events (WHATWG HTML, server-sent events; spec of MCP transports).

use bytes::Bytes;

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
#[derive(Debug)]
pub struct SseDecoder {
    // H1
}

impl SseDecoder {
    /// `max_event`: most bytes of one event.
    pub fn new(max_event: usize) -> Self {
        let _ = max_event;
        todo!()
    }
    /// Takes the next received bytes.
    pub fn push(&mut self, chunk: Bytes) {
        let _ = chunk;
        todo!()
    }
    /// The next complete event, if there is one. After an error the decoder yields nothing more.
    pub fn next_event(&mut self) -> Option<Result<SseEvent, SseError>> {
        todo!()
    }
}

/// One event of type `message`. Line breaks inside the data become several `data:` lines.
pub fn encode_event(id: Option<&str>, data: &Chunks) -> Bytes {
    let _ = (id, data);
    todo!()
}
