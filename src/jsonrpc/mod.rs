//! JSON-RPC 2.0 messages as byte ranges over the text that was received.
//!
//! Pure: no tokio, no clock, no randomness, no logging. A message is scanned once, strictly
//! (UTF-8, JSON grammar, depth, duplicate members), and never turned into a tree: what is forwarded
//! is the received text with a few ranges replaced.

mod body;
mod classify;
mod envelope;
mod error;
mod id;
mod member;
mod message;
mod object;
mod path;
#[cfg(test)]
mod properties;
mod relay;
mod scan;
mod splice;
mod steps;
#[cfg(test)]
mod tests;
mod tokens;

pub use body::{Body, Element, parse_answers, parse_body};
pub use error::{ErrorObject, NullId, Rejected, error_response, result_response};
pub use id::{Id, IdKind};
pub use member::Member;
pub use message::{Answer, Kind, Message, ParamsKind};
pub use object::{RawObject, raw_elements};
pub use path::{ParamsPath, compact};
pub use relay::{Flaw, Relay};
pub use splice::{Chunks, Edit, Span};

/// Limits on the shape of a text; its size is limited by the transport that read it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deepest nesting of arrays and objects, counted from the message itself.
    pub max_depth: u16,
    /// Most elements in one batch.
    pub max_batch: usize,
}
