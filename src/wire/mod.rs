//! Bytes to messages and back: SSE events, newline-delimited JSON, WebSocket frames. Pure.

mod lines;
mod sse;
#[cfg(test)]
mod tests;
mod websocket;

pub use lines::{Line, LineDecoder, to_line};
pub use sse::{
    KEEP_ALIVE, SseDecoder, SseError, SseEvent, encode_endpoint, encode_event, encode_priming,
};
pub use websocket::{CloseCode, FrameError, FrameReader, FrameWriter, Received};
