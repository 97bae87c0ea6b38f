//! Bytes to messages and back: SSE events and newline-delimited JSON. Pure.

mod lines;
mod sse;
#[cfg(test)]
mod tests;

pub use lines::{Line, LineDecoder, to_line};
pub use sse::{
    KEEP_ALIVE, SseDecoder, SseError, SseEvent, encode_endpoint, encode_event, encode_priming,
};
