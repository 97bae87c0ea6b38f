//! Connections of HTTP/2 to one upstream: shared by as many requests as the upstream takes at once.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::body::OutBody;
use super::conn::{KEEP_FOR, REST, SETTLE};
use crate::net::Stream;
use crate::net::tls::{in_error, refusal};
use crate::telemetry::UpstreamMetrics;

/// How often an upstream is asked whether it is still there.
const PING: Duration = Duration::from_secs(20);
/// How long it may take to say so.
const PONG: Duration = Duration::from_secs(10);
/// How much of one answer may come before it is read.
const WINDOW: u32 = 1 << 20;
/// The same for all answers of a connection.
const WINDOWS: u32 = 4 << 20;
/// How much of one request waits to be written.
const UNSENT: usize = 256 << 10;
/// Largest head of an answer.
const LARGEST_HEAD: u32 = 64 << 10;

/// How many requests are put on a connection before it is known how many the upstream takes (RFC 9113 §6.5.2 wants no
/// fewer).
const UNTOLD: usize = 100;

/// Runs what belongs to a connection, owned like everything else.
#[derive(Clone, Debug)]
pub(super) struct Runner(pub(super) TaskTracker);

impl<F> hyper::rt::Executor<F> for Runner
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// A stream that notes when our certificate is refused: nothing is left of the cause where a connection ends under its
/// requests.
#[derive(Debug)]
pub(super) struct Noting {
    stream: Stream,
    refused: Arc<OnceLock<String>>,
}

impl Noting {
    /// With what it notes.
    pub(super) fn new(stream: Stream) -> (Self, Arc<OnceLock<String>>) {
        let refused = Arc::<OnceLock<String>>::default();
        (Self { stream, refused: Arc::clone(&refused) }, refused)
    }
}

impl Noting {
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result
            && let Some(what) = in_error(error).and_then(refusal)
        {
            let _ = self.refused.set(what);
        }
        result
    }
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.note(read)
    }
}

impl AsyncWrite for Noting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A new connection, and what drives it.
pub(super) async fn handshake(
    stream: Noting,
    tasks: &TaskTracker,
) -> hyper::Result<(SendRequest<OutBody>, Connection<TokioIo<Noting>, OutBody, Runner>)> {
    http2::Builder::new(Runner(tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS)
        .max_send_buf_size(UNSENT)
        .max_header_list_size(LARGEST_HEAD)
        .handshake(TokioIo::new(stream))
        .await
}

/// One shared connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: u64,
    sender: SendRequest<OutBody>,
    refused: Arc<OnceLock<String>>,
    metrics: Arc<UpstreamMetrics>,
    use_: Mutex<Use>,
    /// How many requests the upstream takes at once, as far as is known.
    most: AtomicUsize,
    /// Has `most` read again.
    driver: AtomicWaker,
}

/// How a line is used.
#[derive(Debug)]
struct Use {
    requests: usize,
    /// New requests may come.
    open: bool,
    unused_since: Instant,
}

impl Line {
    /// A line with its first request on it.
    pub(super) fn first(
        number: u64,
        sender: SendRequest<OutBody>,
        refused: Arc<OnceLock<String>>,
        metrics: &Arc<UpstreamMetrics>,
    ) -> Place {
        metrics.connections_active.inc();
        let use_ = Use { requests: 1, open: true, unused_since: Instant::now() };
        let metrics = Arc::clone(metrics);
        Place(Arc::new(Self {
            number,
            sender,
            refused,
            metrics,
            use_: Mutex::new(use_),
            most: AtomicUsize::new(UNTOLD),
            driver: AtomicWaker::new(),
        }))
    }

    /// Runs the connection until it ends.
    pub(super) async fn drive(
        line: std::sync::Weak<Self>,
        mut connection: Connection<TokioIo<Noting>, OutBody, Runner>,
    ) -> hyper::Result<()> {
        poll_fn(|cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            if let Some(line) = line.upgrade() {
                line.driver.register(cx.waker());
                line.most.store(connection.current_max_send_streams(), Ordering::Relaxed);
            }
            ended
        })
        .await
    }

    /// A place for one more request, while the upstream takes more at once.
    pub(super) fn join(self: &Arc<Self>) -> Option<Place> {
        let mut used = self.use_.lock();
        if !used.open || used.requests >= self.most.load(Ordering::Relaxed) {
            return None;
        }
        used.requests += 1;
        if used.requests == 1 {
            self.metrics.connections_idle.dec();
            self.metrics.connections_active.inc();
        }
        Some(Place(Arc::clone(self)))
    }

    /// Whether it is of no more use: ended, or not used for long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let used = self.use_.lock();
        let old = used.requests == 0 && now.duration_since(used.unused_since) > KEEP_FOR;
        !used.open || old || self.sender.is_closed()
    }

    /// Why the upstream wants nothing on it, if that is our certificate.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refused.get().cloned()
    }

    /// Takes no more requests; it ends with the last one on it.
    pub(super) fn close(&self) {
        let mut used = self.use_.lock();
        if used.open && used.requests == 0 {
            self.metrics.connections_idle.dec();
        }
        used.open = false;
    }
}

/// The place of one request on a line.
#[derive(Debug)]
pub(super) struct Place(Arc<Line>);

impl Place {
    pub(super) fn line(&self) -> &Arc<Line> {
        &self.0
    }

    /// Where the request is given to.
    pub(super) fn sender(&self) -> SendRequest<OutBody> {
        self.0.sender.clone()
    }

    /// The answer is there: reads what is left of its body, so that the upstream is not told that it is unwanted.
    pub(super) fn settle(self, mut rest: Incoming, tasks: &TaskTracker) {
        tasks.spawn(async move {
            let reading = async {
                for _ in 0..REST {
                    if rest.frame().await.is_none_or(|frame| frame.is_err()) {
                        return;
                    }
                }
            };
            let _ = timeout(SETTLE, reading).await;
            drop(self);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let line = &self.0;
        let mut used = line.use_.lock();
        used.requests -= 1;
        if used.requests == 0 {
            used.unused_since = Instant::now();
            line.metrics.connections_active.dec();
            if used.open {
                line.metrics.connections_idle.inc();
            }
        }
        drop(used);
        line.driver.wake();
    }
}

/// Whether an upstream said that it did not look at the request (RFC 9113 §8.7).
pub(super) fn is_unprocessed(error: &hyper::Error) -> bool {
    reason(error).is_some_and(|error| {
        let reason = error.reason();
        error.is_remote()
            && ((error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM))
                // Only requests that came after the last one that it looks at end so.
                || (error.is_go_away() && reason == Some(h2::Reason::NO_ERROR)))
    })
}

/// Whether only this request failed, and its connection goes on.
pub(super) fn is_of_request(error: &hyper::Error) -> bool {
    reason(error).is_some_and(h2::Error::is_reset)
}

/// What HTTP/2 says of it.
pub(super) fn reason(error: &hyper::Error) -> Option<&h2::Error> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
