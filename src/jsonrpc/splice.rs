//! Replacing ranges of a received text.

use std::ops::Range;

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

impl Span {
    /// As a range of indices.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The span, unless it means absent.
    pub(super) fn present(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// One replacement: the range and what stands there afterwards.
pub type Edit = (Span, Bytes);

/// Texts shorter than this are written into one buffer; copying them costs less than what two more
/// slices cost on their way out.
const ONE_BUFFER: usize = 8 * 1024;

/// The text of one message as slices that are written one after the other.
///
/// Small messages are one slice; large ones share what was received.
#[derive(Clone, Debug, Default)]
pub struct Chunks(SmallVec<[Bytes; 4]>);

impl Chunks {
    /// Replaces `edits` (any order, not overlapping) in `text`. An empty span inserts. An edit that
    /// overlaps one before it, or lies outside of the text, is not made.
    pub fn splice(text: &Bytes, edits: &[Edit]) -> Self {
        let mut sorted: SmallVec<[&Edit; 8]> = edits.iter().collect();
        sorted.sort_by_key(|(span, _)| (span.start, span.end));
        let mut done = 0;
        sorted.retain(|(span, _)| {
            let Range { start, end } = span.range();
            let fits = done <= start && start <= end && end <= text.len();
            debug_assert!(fits, "edit {start}..{end} behind {done} in {} bytes", text.len());
            done = if fits { end } else { done };
            fits
        });
        let removed: usize = sorted.iter().map(|(span, _)| span.range().len()).sum();
        let added: usize = sorted.iter().map(|(_, new)| new.len()).sum();
        let length = text.len() - removed + added;
        if length < ONE_BUFFER {
            Self::copied(text, &sorted, length)
        } else {
            Self::shared(text, &sorted)
        }
    }

    fn copied(text: &Bytes, edits: &[&Edit], length: usize) -> Self {
        let mut buffer = Vec::with_capacity(length);
        let mut done = 0;
        for (span, new) in edits {
            let Range { start, end } = span.range();
            buffer.extend_from_slice(&text[done..start]);
            buffer.extend_from_slice(new);
            done = end;
        }
        buffer.extend_from_slice(&text[done..]);
        Self::from(Bytes::from(buffer))
    }

    fn shared(text: &Bytes, edits: &[&Edit]) -> Self {
        let mut slices = SmallVec::new();
        let mut push = |slice: Bytes| {
            if !slice.is_empty() {
                slices.push(slice);
            }
        };
        let mut done = 0;
        for (span, new) in edits {
            let Range { start, end } = span.range();
            push(text.slice(done..start));
            push(new.clone());
            done = end;
        }
        push(text.slice(done..));
        Self(slices)
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
    pub fn into_bytes(mut self) -> Bytes {
        if self.0.len() <= 1 {
            return self.0.pop().unwrap_or_default();
        }
        self.0.concat().into()
    }
}

impl FromIterator<Bytes> for Chunks {
    fn from_iter<I: IntoIterator<Item = Bytes>>(slices: I) -> Self {
        Self(slices.into_iter().collect())
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Self(SmallVec::from_iter([bytes]))
    }
}
