//! WebSocket frames of a server (RFC 6455): bytes to whole messages within a limit, messages to bytes.
//!
//! Buffers live as long as there is something in them: a connection that is idle keeps none, and the largest message it
//! ever carried is not kept for the next one. Headers and codes are tungstenite's.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{FrameError, FrameReader, Received};
pub use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
pub use write::FrameWriter;
