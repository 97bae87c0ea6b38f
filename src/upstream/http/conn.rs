//! Connections to one upstream: dialled, kept, and given back in good order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::body::OutBody;
use super::worker::worker;
use crate::telemetry::UpstreamMetrics;
use crate::upstream::dial::{Dialer, NoConnection};

/// Fewest connections that one worker may keep waiting; more when the upstream is allowed more calls at once.
const KEPT: usize = 64;
/// Most connections that one worker keeps waiting.
const MOST_KEPT: usize = 1024;
/// How long a waiting connection is kept.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(60);
/// How long an answered connection may take to become ready for the next request.
const SETTLE: Duration = Duration::from_secs(1);
/// Most frames that may follow an answer.
const REST: usize = 16;

/// The connections to one address: one list for each worker thread and one for all others, so that a request
/// stays on the runtime whose driver serves its connection. The last one used is used next; the others grow old and are closed.
#[derive(Debug)]
pub(super) struct Pool {
    dialer: Dialer,
    kept: usize,
    metrics: Arc<UpstreamMetrics>,
    tasks: TaskTracker,
    shards: Box<[Mutex<Vec<Idle>>]>,
    numbers: AtomicU64,
    closed: AtomicBool,
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
        dialer: Dialer,
        max_concurrency: usize,
        workers: usize,
        shared: (Arc<UpstreamMetrics>, TaskTracker),
    ) -> Arc<Self> {
        let (metrics, tasks) = shared;
        Arc::new(Self {
            dialer,
            kept: max_concurrency.clamp(KEPT, MOST_KEPT),
            metrics,
            tasks,
            shards: (0..=workers).map(|_| Mutex::default()).collect(),
            numbers: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    fn shard(&self) -> &Mutex<Vec<Idle>> {
        let others = self.shards.len() - 1;
        &self.shards[worker().map_or(others, |index| index.min(others))]
    }

    /// A waiting connection of this worker, the last one used.
    pub(super) fn reuse(self: &Arc<Self>) -> Option<Lease> {
        let mut shard = self.shard().lock();
        let now = Instant::now();
        for index in (0..shard.len()).rev() {
            let found = shard[index].may_be_used(now);
            if found == Use::Later {
                continue;
            }
            let idle = shard.remove(index);
            self.metrics.connections_idle.dec();
            if found == Use::Now {
                return Some(self.lease(idle.sender, idle.number));
            }
        }
        None
    }

    /// A new connection.
    pub(super) async fn dial(self: &Arc<Self>) -> Result<Lease, NoConnection> {
        let stream = self.dialer.dial().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| NoConnection { what: error.to_string(), source: None })?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let pool = Arc::downgrade(self);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an upstream ended");
            }
            if let Some(pool) = pool.upgrade() {
                pool.forget(number);
            }
        });
        Ok(self.lease(sender, number))
    }

    fn lease(self: &Arc<Self>, sender: SendRequest<OutBody>, number: u64) -> Lease {
        self.metrics.connections_active.inc();
        Lease { sender, number, active: Active(Arc::clone(self)) }
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
        let mut shard = self.shard().lock();
        let full = shard.len() >= self.kept || self.closed.load(Ordering::Acquire);
        if full || sender.is_closed() {
            return;
        }
        let now = Instant::now();
        shard.push(Idle { sender, number, rest, settles: now + SETTLE, until: now + keep_for });
        self.metrics.connections_idle.inc();
    }

    /// The connection with that number ended.
    fn forget(&self, number: u64) {
        self.retain(|idle| idle.number != number);
    }

    /// Closes connections that waited too long.
    pub(super) fn sweep(&self, now: Instant) {
        self.retain(|idle| idle.may_be_used(now) != Use::Never);
    }

    /// Closes what waits, and what is given back from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.retain(|_| false);
    }

    fn retain(&self, keep: impl Fn(&mut Idle) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain_mut(&keep);
            let gone = before - shard.len();
            if gone > 0 {
                self.metrics.connections_idle.sub(i64::try_from(gone).unwrap_or(i64::MAX));
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

/// One connection in use. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    sender: SendRequest<OutBody>,
    number: u64,
    active: Active,
}

/// Counts a connection in use.
#[derive(Debug)]
struct Active(Arc<Pool>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.metrics.connections_active.dec();
    }
}

impl Lease {
    /// Where the request is given to.
    pub(super) fn sender(&mut self) -> &mut SendRequest<OutBody> {
        &mut self.sender
    }

    /// The answer is there: the connection may serve the next request, once what is left of its body (`rest`) has
    /// arrived.
    pub(super) fn release(self, rest: Option<Incoming>, keep_for: Duration) {
        let Self { sender, number, active } = self;
        active.0.keep(sender, number, rest, keep_for);
    }
}
