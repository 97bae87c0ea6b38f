//! Newline-delimited JSON of stdio servers.

use bytes::Bytes;

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

/// Incremental line reader with a limit; memory never exceeds limit + one chunk.
#[derive(Debug)]
pub struct LineDecoder {
    // H1
}

impl LineDecoder {
    /// `max_line`: most bytes of one line.
    pub fn new(max_line: usize) -> Self {
        let _ = max_line;
        todo!()
    }
    /// Takes the next received bytes.
    pub fn push(&mut self, chunk: Bytes) {
        let _ = chunk;
        todo!()
    }
    /// The next line, if one is complete. A `TooLong` is yielded once, when its end was seen.
    pub fn next_line(&mut self) -> Option<Line> {
        todo!()
    }
}

/// One message as one line: raw line breaks (insignificant in JSON) become spaces, LF at the end.
pub fn to_line(message: &Chunks) -> Bytes {
    let _ = message;
    todo!()
}
