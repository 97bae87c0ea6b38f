//! One answer on a connection of HTTP/2, which waits for its client alone: others go on. One that its client does not
//! take ends, and with it what its request holds.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::body::{CutShort, OutBody};

/// How much is handed over at once. What was handed over waits outside of any clock.
const PIECE: usize = 16 << 10;

tokio::task_local! {
    /// Of the request whose task runs.
    static OWN: Arc<Pace>;
}

/// How far an answer was taken.
#[derive(Debug, Default)]
struct Pace {
    /// Pieces that were handed over.
    pieces: AtomicUsize,
    /// The next one is for the client to ask for.
    owed: AtomicBool,
}

/// A body that notes how far it was taken.
pub(super) struct Paced {
    body: OutBody,
    /// Of what the body gave already.
    rest: Bytes,
    pace: Arc<Pace>,
}

impl Paced {
    /// The answer of the request whose task runs.
    pub(super) fn new(body: OutBody) -> Self {
        let pace = OWN.try_with(Arc::clone).unwrap_or_default();
        pace.owed.store(true, Ordering::Relaxed);
        Self { body, rest: Bytes::new(), pace }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        if self.rest.is_empty() {
            self.pace.owed.store(false, Ordering::Relaxed);
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        self.pace.pieces.fetch_add(1, Ordering::Relaxed);
        self.pace.owed.store(true, Ordering::Relaxed);
        let piece = match self.rest.len() {
            // A copy: a piece that waits is not to hold all that it was cut from.
            PIECE.. => Bytes::copy_from_slice(&self.rest.split_to(PIECE)),
            _ => std::mem::take(&mut self.rest),
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let hint = self.body.size_hint();
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => hint,
        }
    }
}

/// The clock of one request's task.
pub(super) struct Watch {
    pace: Arc<Pace>,
    limit: Duration,
    /// Since so many pieces were handed over.
    waiting: Option<(usize, Pin<Box<Sleep>>)>,
}

impl Watch {
    /// A client may leave an answer for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { pace: Arc::default(), limit, waiting: None }
    }

    /// Polls the task; ready, too, when its client has left the answer for too long.
    pub(super) fn poll(
        &mut self,
        future: Pin<&mut impl Future<Output = ()>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if OWN.sync_scope(Arc::clone(&self.pace), || future.poll(cx)).is_ready() {
            return Poll::Ready(());
        }
        if !self.pace.owed.load(Ordering::Relaxed) {
            self.waiting = None;
            return Poll::Pending;
        }
        let pieces = self.pace.pieces.load(Ordering::Relaxed);
        let limit = self.limit;
        let (since, sleep) =
            self.waiting.get_or_insert_with(|| (pieces, Box::pin(tokio::time::sleep(limit))));
        if *since != pieces {
            *since = pieces;
            sleep.as_mut().reset(Instant::now() + limit);
        }
        sleep.as_mut().poll(cx)
    }
}
