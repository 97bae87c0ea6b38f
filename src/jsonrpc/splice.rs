//! Replacing ranges of a received text.

use bytes::Bytes;
use smallvec::SmallVec;

/// Byte range in the text of one message. `0..0` means absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// One replacement: the range and what stands there afterwards.
pub type Edit = (Span, Bytes);

/// The text of one message as slices that are written one after the other.
///
/// Small messages are one slice; large ones share what was received.
#[derive(Clone, Debug, Default)]
pub struct Chunks(SmallVec<[Bytes; 4]>);

impl Chunks {
    /// Replaces `edits` (any order, not overlapping) in `text`.
    pub fn splice(text: &Bytes, edits: &[Edit]) -> Self {
        let _ = (text, edits);
        todo!()
    }
    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The slices, in order.
    pub fn slices(&self) -> &[Bytes] {
        &self.0
    }
    /// One contiguous buffer (no copy when there is one slice).
    pub fn into_bytes(self) -> Bytes {
        todo!()
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Self(SmallVec::from_iter([bytes]))
    }
}
