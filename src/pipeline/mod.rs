//! The written order of steps of every request, whatever the transport it came on.
//!
//! ```text
//! listener → downstream::http | ws            connection and header limits; makes Inbound
//!  0 guard      policy::OriginGuard           Origin and Host, before the body is read
//!  1 parse      jsonrpc                       size, depth, batch length
//!  2 classify   mcp                           era, version, headers against body
//!  3 route      router::RouteTable            path → Route (plain routes: method → upstream)
//!  4 session    session                       resume, or 404 before any limit
//!  5 resolve    lists, catalog                public name → one upstream, or all
//!  8 open       exchange, ledger              deadline, cancel, permits
//! 10 call       upstream                      concurrency slot; rewrite, mint the id, send
//! 11 collect    exchange                      events and questions go to the client
//! 12 restore    jsonrpc                       the client's own id
//! 13 reply      downstream                    Reply::{One, Empty, Run, Stream}
//! 14 finish     ledger                        metrics, access line: once, whatever happened
//! ```
//!
//! Steps 6, 7 and 9 (access, rate, repeat) have their place between 5 and 10. A batch is steps 2 to 12 for
//! each element at bounded concurrency; plain routes take the same path without 4, 5 and 12.

mod attempts;
mod batch;
mod call;
mod collect;
mod cursor;
mod entry;
mod hub;
mod ledger;
mod legacy;
mod links;
mod lists;
mod mcp;
mod modern;
mod offer;
mod outlet;
mod plain;
mod reply;
mod rounds;
mod seal;
mod snapshot;
mod socket;
mod subscriptions;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use outlet::{Outlet, Receipt};
pub use reply::{Done, OnHangup, Reply, Run};
pub use snapshot::{
    Backend, McpRoute, MethodRule, Outside, PlainRoute, Route, Snapshot, SnapshotError,
};
pub use socket::Socket;
pub use work::Work;

/// What a path is of its route.
pub use crate::router::Spot;
/// The streams of a session, read and written.
pub use crate::session::{Listening, Recorder, Stream as Standing};

use crate::net::Peer;
use crate::session::{Channels, Session, Sessions};
use crate::telemetry::Metrics;
use crate::upstream::Notice;

/// How long upstreams may take to hear that parked calls are given up.
const PARTING: Duration = Duration::from_secs(2);

/// What came in, as the transport found it.
#[derive(Clone, Debug)]
pub struct Inbound {
    /// The route of its path.
    pub route: Arc<Route>,
    /// The configuration it began with.
    pub snapshot: Arc<Snapshot>,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Who sent it.
    pub peer: Peer,
    /// The body.
    pub payload: Bytes,
}

/// Everything that requests share.
#[derive(Debug)]
pub struct Pipeline {
    snapshot: ArcSwap<Snapshot>,
    sessions: Sessions,
    /// The streams of clients of HTTP+SSE.
    channels: Channels,
    hub: hub::Hub,
    holders: links::Holders,
    /// Calls that wait for their modern clients.
    parked: modern::Parked,
    /// Calls that will be made once more when their modern clients agree.
    promises: modern::Promises,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    stop: CancellationToken,
    draining: AtomicBool,
    cut: AtomicBool,
    /// Wakes exchanges that no connection polls, once `cut` is set.
    cutting: CancellationToken,
}

impl Pipeline {
    /// Sets it up on a compiled configuration. Call [`Pipeline::start`] within a runtime.
    pub fn new(
        snapshot: Snapshot,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let server = &snapshot.server;
        let sessions = Sessions::new(server.max_sessions, server.session_idle_timeout);
        let channels = Channels::new(server.max_sessions);
        Arc::new(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            sessions,
            channels,
            hub: hub::Hub::default(),
            holders: links::Holders::default(),
            parked: modern::Parked::new(metrics.parked_calls()),
            promises: modern::Promises::default(),
            metrics,
            tasks,
            stop,
            draining: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            cutting: CancellationToken::new(),
        })
    }

    /// Starts what runs beside requests: upstreams are tried, notices distributed, idle sessions ended.
    pub fn start(self: &Arc<Self>, notices: mpsc::Receiver<Notice>) {
        self.tasks.spawn(hub::run(Arc::clone(self), notices));
        self.tasks.spawn(hub::sweep(Arc::clone(self)));
        for route in &self.snapshot().routes {
            if let Route::Mcp(route) = &**route {
                lists::warm(self, route);
            }
        }
    }

    /// The configuration in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Owns every task that outlives its request.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// All metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// From now on no session is opened.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether it is draining.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// From now on calls that still run are answered with an error when their exchange is next polled; whoever
    /// polls them (the connections) must be woken.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.cutting.cancel();
    }

    /// Returns once calls are to be cut off. It wakes nobody, see [`Pipeline::cut`].
    async fn cut_off(&self) {
        std::future::poll_fn(|_| match self.cut.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Ends the standing streams of every session; calls go on. The streams of HTTP+SSE, which bring the answers, end
    /// with them.
    pub fn close_streams(&self) {
        for session in self.sessions.collect(|_| true) {
            session.close_streams();
        }
        hub::close_listeners(self);
        for channel in self.channels.all() {
            channel.finish();
        }
    }

    /// Ends every call that waits for its client to come back. Its upstream is told while it can still be told.
    pub async fn end_parked(&self) {
        if tokio::time::timeout(PARTING, self.parked.give_up()).await.is_err() {
            tracing::warn!("not every parked call ended in time");
        }
    }

    /// Ends every session: standing streams close, open calls are cancelled.
    pub fn end_sessions(self: &Arc<Self>) {
        for session in self.sessions.collect(|_| true) {
            self.end_session(&session);
        }
        for channel in self.channels.all() {
            channel.close();
        }
    }

    /// How many tools an upstream lists; `None` until that is known.
    pub fn tools_of(&self, upstream: &crate::config::UpstreamName) -> Option<usize> {
        self.snapshot().routes.iter().find_map(|route| match &**route {
            Route::Mcp(route) => {
                let place = route.backends.iter().position(|b| b.upstream.name() == upstream)?;
                route.lists.tools_of(place)
            }
            Route::Plain(_) => None,
        })
    }

    /// A POST.
    pub async fn post(self: &Arc<Self>, inbound: Inbound) -> Reply {
        match &*inbound.route {
            Route::Mcp(route) => {
                let route = Arc::clone(route);
                entry::post(self, route, inbound).await
            }
            Route::Plain(route) => {
                let route = Arc::clone(route);
                plain::post(self, route, inbound)
            }
        }
    }

    /// A GET: a standing stream of a session.
    pub fn open_stream(self: &Arc<Self>, inbound: &Inbound) -> Reply {
        match &*inbound.route {
            Route::Mcp(route) => legacy::open_stream(self, route, inbound),
            Route::Plain(_) => Reply::method_not_allowed("POST, OPTIONS"),
        }
    }

    /// A GET of HTTP+SSE: a session begins with its stream. `slashed`: the path that was asked for ends with a slash.
    pub fn connect(self: &Arc<Self>, inbound: &Inbound, slashed: bool) -> Reply {
        match &*inbound.route {
            Route::Mcp(route) => legacy::sse::connect(self, route, inbound, slashed),
            Route::Plain(_) => Reply::method_not_allowed("POST, OPTIONS"),
        }
    }

    /// A POST of HTTP+SSE to the stream of a token.
    pub fn deliver(self: &Arc<Self>, inbound: Inbound, token: Option<&str>) -> Reply {
        match &*inbound.route {
            Route::Mcp(route) => {
                let route = Arc::clone(route);
                legacy::sse::deliver(self, &route, inbound, token)
            }
            Route::Plain(_) => Reply::method_not_allowed("POST, OPTIONS"),
        }
    }

    /// A DELETE: the end of a session.
    pub fn delete(self: &Arc<Self>, inbound: &Inbound) -> Reply {
        match &*inbound.route {
            Route::Mcp(route) => legacy::delete(self, route, inbound),
            Route::Plain(_) => Reply::method_not_allowed("POST, OPTIONS"),
        }
    }

    /// Ends a session and what upstreams keep for it.
    fn end_session(self: &Arc<Self>, session: &Session) {
        if self.sessions.end(session) {
            self.released(session);
        }
    }

    /// Lets go of what was kept for a session that has ended.
    fn released(self: &Arc<Self>, session: &Session) {
        let snapshot = self.snapshot();
        let route = snapshot.routes.iter().find_map(|route| match &**route {
            Route::Mcp(route) if route.name == *session.route() => Some(route),
            _ => None,
        });
        if let Some(route) = route {
            route.metrics.sessions(crate::mcp::Era::Legacy).dec();
            self.forget_session(route, session.number());
            hub::Hub::released(self, session);
        }
    }

    /// Lets go of everything that was kept under a session's number.
    fn forget_session(self: &Arc<Self>, route: &Arc<McpRoute>, number: u64) {
        if route.lists_per_session() {
            route.lists.forget(number);
        }
        self.hub.forget(self, route, number);
        for backend in &route.backends {
            backend.upstream.end_session(number);
        }
    }
}
