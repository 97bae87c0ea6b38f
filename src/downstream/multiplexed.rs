//! One connection of HTTP/2: many requests at once, each a task of its own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

use super::connection::Limits;
use super::http::{Connection, serve as serve_request};
use super::paced::{Paced, Watch};
use super::peek::Peeked;
use super::watched::Watched;

/// How often a client is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);
/// How long it may take to say so.
const PONG: Duration = Duration::from_secs(20);
/// How long a client without open requests may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// How much of one body a client may send before it is read.
const WINDOW: u32 = 256 << 10;
/// The same for all bodies of a connection.
const WINDOWS: u32 = 1 << 20;
/// How much of one answer waits for a client that does not read it.
const UNSENT: usize = 64 << 10;
/// How many more requests than were answered a client may give up on. Opening and resetting streams is cheap for it
/// and dear for us.
const ABANDONED: usize = 200;

/// The requests of one connection.
#[derive(Debug, Default)]
struct Requests {
    /// Tasks that run: requests whose answers were not sent to their end.
    open: AtomicUsize,
    /// Given up before they were answered, less those that were answered.
    abandoned: AtomicUsize,
}

/// Runs the requests of one connection.
#[derive(Clone)]
struct Runner {
    requests: Arc<Requests>,
    tasks: TaskTracker,
    cut: CancellationToken,
    /// How long a client may leave an answer.
    write_timeout: Duration,
}

/// One more in a count while it lives.
struct Open(Arc<Requests>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<F> hyper::rt::Executor<F> for Runner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.requests.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(Arc::clone(&self.requests));
        let (cut, mut watch) = (self.cut.clone(), Watch::new(self.write_timeout));
        self.tasks.spawn(async move {
            let _open = open;
            let (mut future, mut cut) = (pin!(future), pin!(cut.cancelled()));
            std::future::poll_fn(|cx| {
                // Polled again, what still runs sees that it is cut off.
                let _ = cut.as_mut().poll(cx);
                watch.poll(future.as_mut(), cx)
            })
            .await;
        });
    }
}

/// A request that was not answered yet.
struct Asked<'r> {
    requests: &'r Requests,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let abandoned = &self.requests.abandoned;
        let count = |now: usize| {
            Some(if self.answered { now.saturating_sub(1) } else { now.saturating_add(1) })
        };
        let _ = abandoned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    }
}

/// Serves it to its end. It is told to end at a drain, and when nothing was asked on it for `header_timeout`.
pub(super) async fn serve(
    connection: Arc<Connection>,
    stream: Watched<Peeked>,
    limits: Limits,
    mut drained: Pin<&mut WaitForCancellationFuture<'_>>,
) -> hyper::Result<()> {
    let requests = Arc::<Requests>::default();
    let runner = Runner {
        requests: Arc::clone(&requests),
        tasks: connection.serving.connections.clone(),
        cut: connection.serving.cut.child_token(),
        write_timeout: limits.write_timeout,
    };
    let (own, counted) = (Arc::clone(&connection), Arc::clone(&requests));
    let service = service_fn(move |request| {
        let (connection, requests) = (Arc::clone(&own), Arc::clone(&counted));
        async move {
            let mut asked = Asked { requests: &requests, answered: false };
            let answer = serve_request(&connection, request).await;
            asked.answered = true;
            Ok::<_, Infallible>(answer.map(Paced::new))
        }
    });
    let mut builder = http2::Builder::new(runner);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_header).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS)
        .max_send_buf_size(UNSENT)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut unused = pin!(tokio::time::sleep(limits.header_timeout));
    let (mut idle, mut ending, mut registered) = (true, false, false);
    std::future::poll_fn(|cx| {
        let draining = connection.pipeline.is_draining();
        if !ending && (!registered || draining) {
            registered = true;
            ending = drained.as_mut().poll(cx).is_ready();
            if ending {
                serving.as_mut().graceful_shutdown();
                idle = false;
            }
        }
        loop {
            if let Poll::Ready(ended) = serving.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if requests.abandoned.load(Ordering::Relaxed) > ABANDONED {
                let peer = connection.peer;
                tracing::warn!(%peer, "a client gives up nearly all of its requests; its connection is closed");
                return Poll::Ready(Ok(()));
            }
            if requests.open.load(Ordering::Relaxed) > 0 {
                idle = false;
                return Poll::Pending;
            }
            if !idle {
                idle = true;
                let patience = if ending { GOODBYE } else { limits.header_timeout };
                unused.as_mut().reset(Instant::now() + patience);
            }
            if unused.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if ending {
                // It was told to end, and has nothing left to wait for.
                return Poll::Ready(Ok(()));
            }
            (ending, idle) = (true, false);
            serving.as_mut().graceful_shutdown();
        }
    })
    .await
}
