//! Connections to one upstream: dialled, kept, and given back in good order.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::OutBody;
use super::shared::{self, Line, Place};
use super::worker::worker;
use crate::net::Stream;
use crate::net::tls::HTTP2;
use crate::telemetry::UpstreamMetrics;
use crate::upstream::dial::{Dialer, NoConnection};

/// Fewest connections that one worker may keep waiting; more when the upstream is allowed more calls at once.
const KEPT: usize = 64;
/// Most connections that one worker keeps waiting.
const MOST_KEPT: usize = 1024;
/// How long a waiting connection is kept.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(60);
/// How long an answered connection may take to become ready for the next request.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// Most frames that may follow an answer.
pub(super) const REST: usize = 16;

/// Which HTTP is spoken on new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speak {
    /// HTTP/1.1.
    One,
    /// HTTP/2 if it was agreed on while TLS was set up, else HTTP/1.1.
    Agreed,
    /// HTTP/2, without asking.
    Two,
}

/// The connections to one address: one list for each worker thread and one for all others, so that a request
/// stays on the runtime whose driver serves its connection. The last one used is used next; the others grow old and are closed.
#[derive(Debug)]
pub(super) struct Pool {
    dialer: Dialer,
    speak: Speak,
    kept: usize,
    metrics: Arc<UpstreamMetrics>,
    tasks: TaskTracker,
    shards: Box<[Shard]>,
    numbers: AtomicU64,
    /// Requests are expected to share connections: the last one dialled was of HTTP/2.
    shares: AtomicBool,
    closed: AtomicBool,
}

/// The connections of one worker.
#[derive(Debug)]
struct Shard {
    waiting: Mutex<Waiting>,
    /// While requests share connections, one dials and the others wait for what comes of it.
    dialling: Semaphore,
    /// When that failed last, and why.
    failed: Mutex<Option<(Instant, String)>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Of HTTP/1.1, between two requests.
    idle: Vec<Idle>,
    /// Of HTTP/2.
    lines: Vec<Arc<Line>>,
}

impl Default for Shard {
    fn default() -> Self {
        Self { waiting: Mutex::default(), dialling: Semaphore::new(1), failed: Mutex::default() }
    }
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<OutBody>,
    number: u64,
    /// The end of the last answer's body, which has still to arrive.
    rest: Option<Incoming>,
    /// Until when it may become ready.
    settles: Instant,
    /// Until when it is kept.
    until: Instant,
}

/// What may be done with a waiting connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Now,
    Later,
    Never,
}

impl Idle {
    fn may_be_used(&mut self, now: Instant) -> Use {
        if self.sender.is_closed() || self.until <= now {
            return Use::Never;
        }
        let wait = if self.settles <= now { Use::Never } else { Use::Later };
        for _ in 0..REST {
            let Some(rest) = &mut self.rest else {
                return if self.sender.is_ready() { Use::Now } else { wait };
            };
            match rest.frame().now_or_never() {
                Some(None) => self.rest = None,
                Some(Some(Ok(_))) => {}
                Some(Some(Err(_))) => return Use::Never,
                None => return wait,
            }
        }
        Use::Never
    }
}

impl Pool {
    /// Dials nothing yet. `workers`: how many threads number themselves with [`super::set_worker`].
    pub(super) fn new(
        (dialer, speak): (Dialer, Speak),
        max_concurrency: usize,
        workers: usize,
        shared: (Arc<UpstreamMetrics>, TaskTracker),
    ) -> Arc<Self> {
        let (metrics, tasks) = shared;
        Arc::new(Self {
            dialer,
            speak,
            kept: max_concurrency.clamp(KEPT, MOST_KEPT),
            metrics,
            tasks,
            shards: (0..=workers).map(|_| Shard::default()).collect(),
            numbers: AtomicU64::new(0),
            shares: AtomicBool::new(speak != Speak::One),
            closed: AtomicBool::new(false),
        })
    }

    fn shard(&self) -> &Shard {
        let others = self.shards.len() - 1;
        &self.shards[worker().map_or(others, |index| index.min(others))]
    }

    /// A connection of this worker that is there: one that is shared, or of those that wait the last one used.
    pub(super) fn reuse(self: &Arc<Self>) -> Option<Lease> {
        let mut waiting = self.shard().waiting.lock();
        if let Some(lease) = self.shared(&mut waiting) {
            return Some(lease);
        }
        let now = Instant::now();
        let idle = &mut waiting.idle;
        for index in (0..idle.len()).rev() {
            let found = idle[index].may_be_used(now);
            if found == Use::Later {
                continue;
            }
            let idle = idle.remove(index);
            self.metrics.connections_idle.dec();
            if found == Use::Now {
                return Some(self.lease(idle.sender, idle.number));
            }
        }
        None
    }

    /// A shared connection of this worker.
    pub(super) fn join(self: &Arc<Self>) -> Option<Lease> {
        self.shared(&mut self.shard().waiting.lock())
    }

    fn shared(self: &Arc<Self>, waiting: &mut Waiting) -> Option<Lease> {
        if waiting.lines.is_empty() {
            return None;
        }
        let now = Instant::now();
        waiting.lines.retain(|line| keep_line(line, !line.is_over(now)));
        let place = waiting.lines.iter().find_map(Line::join)?;
        Some(Lease::Shared(place, Arc::clone(self)))
    }

    /// A connection for a request that found none: a new one, or one that another request has just made and shares.
    pub(super) async fn dial(self: &Arc<Self>) -> Result<Lease, NoConnection> {
        if !self.shares.load(Ordering::Relaxed) {
            return self.dial_alone().await;
        }
        let (shard, begun) = (self.shard(), Instant::now());
        let turn = shard.dialling.acquire().await;
        if let Some(lease) = self.join() {
            return Ok(lease);
        }
        if !self.shares.load(Ordering::Relaxed) {
            drop(turn);
            return self.dial_alone().await;
        }
        if let Some((at, what)) = &*shard.failed.lock()
            && *at >= begun
        {
            return Err(NoConnection { what: what.clone(), source: None });
        }
        let dialled = self.dial_alone().await;
        if let Err(failure) = &dialled {
            *shard.failed.lock() = Some((Instant::now(), failure.what.clone()));
        }
        dialled
    }

    async fn dial_alone(self: &Arc<Self>) -> Result<Lease, NoConnection> {
        let stream = self.dialer.dial().await?;
        let agreed = stream.alpn() == Some(HTTP2);
        if self.dialer.is_tls() && self.speak == Speak::Two && !agreed {
            let what = "it does not agree on HTTP/2; take `http2 = true` out".to_owned();
            return Err(NoConnection { what, source: None });
        }
        let shares = agreed || self.speak == Speak::Two;
        self.shares.store(shares, Ordering::Relaxed);
        let made = if shares { self.make_shared(stream).await } else { self.make(stream).await };
        made.map_err(|error| NoConnection { what: error.to_string(), source: None })
    }

    async fn make(self: &Arc<Self>, stream: Stream) -> hyper::Result<Lease> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.drive(number, connection);
        Ok(self.lease(sender, number))
    }

    async fn make_shared(self: &Arc<Self>, stream: Stream) -> hyper::Result<Lease> {
        let (stream, refused) = shared::Noting::new(stream);
        let (sender, connection) = shared::handshake(stream, &self.tasks).await?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let place = Line::first(number, sender, refused, &self.metrics);
        {
            // Under the lock that [`Pool::close`] takes after it said so.
            let mut waiting = self.shard().waiting.lock();
            match self.closed.load(Ordering::Acquire) {
                true => place.line().close(),
                false => waiting.lines.push(Arc::clone(place.line())),
            }
        }
        self.drive(number, Line::drive(Arc::downgrade(place.line()), connection));
        Ok(Lease::Shared(place, Arc::clone(self)))
    }

    /// Runs a connection until it ends.
    fn drive(
        self: &Arc<Self>,
        number: u64,
        connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
    ) {
        let pool = Arc::downgrade(self);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an upstream ended");
            }
            if let Some(pool) = pool.upgrade() {
                pool.forget(number);
            }
        });
    }

    fn lease(self: &Arc<Self>, sender: SendRequest<OutBody>, number: u64) -> Lease {
        self.metrics.connections_active.inc();
        Lease::Own { sender, number, active: Active(Arc::clone(self)) }
    }

    /// Keeps a connection for the next request. One whose driver ended is refused under the same lock that
    /// [`Pool::forget`] takes, so none is left behind.
    fn keep(
        &self,
        sender: SendRequest<OutBody>,
        number: u64,
        rest: Option<Incoming>,
        keep_for: Duration,
    ) {
        let mut waiting = self.shard().waiting.lock();
        let full = waiting.idle.len() >= self.kept || self.closed.load(Ordering::Acquire);
        if full || sender.is_closed() {
            return;
        }
        let now = Instant::now();
        waiting.idle.push(Idle {
            sender,
            number,
            rest,
            settles: now + SETTLE,
            until: now + keep_for,
        });
        self.metrics.connections_idle.inc();
    }

    /// The connection with that number ended.
    fn forget(&self, number: u64) {
        self.retain(|idle| idle.number != number, |line| line.number != number);
    }

    /// Closes connections that waited too long.
    pub(super) fn sweep(&self, now: Instant) {
        self.retain(|idle| idle.may_be_used(now) != Use::Never, |line| !line.is_over(now));
    }

    /// Closes what waits, and what is given back from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.retain(|_| false, |_| false);
    }

    fn retain(&self, keep: impl Fn(&mut Idle) -> bool, keep_shared: impl Fn(&Line) -> bool) {
        for shard in &self.shards {
            let mut waiting = shard.waiting.lock();
            let before = waiting.idle.len();
            waiting.idle.retain_mut(&keep);
            let gone = before - waiting.idle.len();
            if gone > 0 {
                self.metrics.connections_idle.sub(i64::try_from(gone).unwrap_or(i64::MAX));
            }
            waiting.lines.retain(|line| keep_line(line, keep_shared(line)));
        }
    }
}

/// A line that is not kept takes no more requests.
fn keep_line(line: &Line, keep: bool) -> bool {
    if !keep {
        line.close();
    }
    keep
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.retain(|_| false, |_| false);
    }
}

/// A connection in use. Dropping it ends the request: one that is not shared is closed.
#[derive(Debug)]
pub(super) enum Lease {
    /// Nobody else uses it.
    Own { sender: SendRequest<OutBody>, number: u64, active: Active },
    /// Others use it at the same time.
    Shared(Place, Arc<Pool>),
}

/// Counts a connection in use.
#[derive(Debug)]
pub(super) struct Active(Arc<Pool>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.metrics.connections_active.dec();
    }
}

impl Lease {
    /// Whether others use it at the same time (HTTP/2).
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(..))
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: Request<OutBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<OutBody>>> {
        match self {
            Self::Own { sender, .. } => sender.try_send_request(request).await,
            Self::Shared(place, _) => place.sender().try_send_request(request).await,
        }
    }

    /// The answer is there: the connection may serve the next request, once what is left of its body (`rest`) has
    /// arrived.
    pub(super) fn release(self, rest: Option<Incoming>, keep_for: Duration) {
        match self {
            Self::Own { sender, number, active } => active.0.keep(sender, number, rest, keep_for),
            Self::Shared(place, pool) => {
                if let Some(rest) = rest {
                    place.settle(rest, &pool.tasks);
                }
            }
        }
    }

    /// Why the upstream wants nothing on this connection, if that is its certificate.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            Self::Own { .. } => None,
            Self::Shared(place, _) => place.line().refusal(),
        }
    }

    /// No further request is put on the connection.
    pub(super) fn give_up(&self) {
        if let Self::Shared(place, _) = self {
            place.line().close();
        }
    }
}
