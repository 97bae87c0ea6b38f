//! Bodies: what is sent, and reading what was received.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::budget::{Budget, Full};
use crate::jsonrpc::Chunks;

/// The body of a request: nothing, or the slices of one text.
#[derive(Debug)]
pub(super) struct OutBody {
    next: Option<Bytes>,
    rest: Chunks,
    at: usize,
    left: u64,
}

impl OutBody {
    /// No body.
    pub(super) fn empty() -> Self {
        Self { next: None, rest: Chunks::default(), at: 0, left: 0 }
    }

    /// A text. One slice is moved, several are shared.
    pub(super) fn new(text: Chunks) -> Self {
        let left = text.len() as u64;
        if text.slices().len() > 1 {
            return Self { next: text.slices().first().cloned(), rest: text, at: 1, left };
        }
        let next = text.into_bytes();
        Self { next: (!next.is_empty()).then_some(next), rest: Chunks::default(), at: 0, left }
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(slice) = self.next.take() else { return Poll::Ready(None) };
        self.left = self.left.saturating_sub(slice.len() as u64);
        self.next = self.rest.slices().get(self.at).cloned();
        self.at += 1;
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Why a body could not be read whole.
#[derive(Debug)]
pub(super) enum Unread {
    /// It is larger than the limit.
    TooLarge,
    /// The connection broke.
    Broken(hyper::Error),
    /// The gateway holds too many bytes already.
    Full(Full),
}

/// Reads a whole body. One that came in a single frame is not copied. It counts as long as any of it is there.
pub(super) async fn read_all(
    body: &mut Incoming,
    limit: usize,
    budget: &Arc<Budget>,
) -> Result<Bytes, Unread> {
    let announced = body.size_hint().exact();
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Unread::TooLarge);
    }
    let first = loop {
        let Some(data) = next_data(body).await? else { return Ok(Bytes::new()) };
        if !data.is_empty() {
            break data;
        }
    };
    if first.len() > limit {
        return Err(Unread::TooLarge);
    }
    let mut held = budget.hold(first.len()).map_err(Unread::Full)?;
    if body.is_end_stream() {
        return Ok(held.keep(first));
    }
    let Some(second) = next_data(body).await? else { return Ok(held.keep(first)) };
    let length = announced.and_then(|length| usize::try_from(length).ok());
    let mut whole = BytesMut::with_capacity(length.unwrap_or(2 * (first.len() + second.len())));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(data) = next {
        if whole.len() + data.len() > limit {
            return Err(Unread::TooLarge);
        }
        held.grow(data.len()).map_err(Unread::Full)?;
        whole.extend_from_slice(&data);
        next = if body.is_end_stream() { None } else { next_data(body).await? };
    }
    Ok(held.keep(whole.freeze()))
}

/// The next bytes; `None` at the end.
pub(super) async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Unread> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(Unread::Broken(error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_text_of_several_slices_is_sent_whole_with_its_length() {
        let text = Bytes::from(vec![b'x'; 20_000]);
        let span = crate::jsonrpc::Span { start: 5, end: 6 };
        let chunks = Chunks::splice(&text, &[(span, Bytes::from_static(b"12"))]);
        assert!(chunks.slices().len() > 1, "the test needs a text in slices");
        let body = OutBody::new(chunks.clone());
        assert_eq!(body.size_hint().exact(), Some(20_001));
        let sent = body.collect().await.map(http_body_util::Collected::to_bytes);
        assert_eq!(sent.ok(), Some(chunks.into_bytes()));
    }
}
