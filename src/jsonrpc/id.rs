//! Ids of messages.

use bytes::Bytes;

/// An id as the sender spelt it: JSON text that is echoed byte for byte and never parsed to a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// From JSON text that is known to be a legal id.
    pub fn from_text(text: Bytes) -> Self {
        Self(text)
    }
    /// An id of ours.
    pub fn from_number(number: u64) -> Self {
        Self(Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes()))
    }
    /// The JSON text.
    pub fn text(&self) -> &Bytes {
        &self.0
    }
    /// The number, when the text is a plain non-negative integer that fits: for ids that we minted.
    pub fn as_number(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
    /// Which kind of id it is.
    pub fn kind(&self) -> IdKind {
        match self.0.first() {
            Some(b'"') => IdKind::String,
            Some(b'n') => IdKind::Null,
            _ if self.0.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) => IdKind::Fraction,
            _ => IdKind::Integer,
        }
    }
}

/// The JSON type of an id, as far as rules differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// A string.
    String,
    /// A number without fraction or exponent.
    Integer,
    /// Any other number: legal in JSON-RPC, not in MCP.
    Fraction,
    /// `null`: legal in JSON-RPC (it is a request), not in MCP.
    Null,
}
