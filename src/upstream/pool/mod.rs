//! One logical upstream: its links by key, opened lazily and once, retired when nobody uses them.

mod era;
mod greetings;
mod health;
mod opening;
mod reopening;
mod retiring;
mod slot;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::greetings::Greetings;
use self::health::Health;
pub use self::health::State;
use self::opening::Hold;
use self::slot::{Link, Slot, Visit};
use super::backoff::Backoff;
use super::http::{Endpoint, Plain};
use super::stdio::Process;
use super::subscription::Watched;
use super::verdict::Verdict;
use super::ws::{self, Target};
use super::{
    Answered, CallError, Feed, FeedKind, Hello, LinkKey, Listener, Notice, OutCall, PlainAnswer,
};
use crate::budget::Budget;
use crate::config::{UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
use crate::mcp::Era;
use crate::telemetry::UpstreamMetrics;

/// Most links of one upstream.
const MAX_LINKS: usize = 100_000;
/// When a link that nobody uses is closed, unless it is the last one or the configuration says otherwise.
const UNUSED: Duration = Duration::from_secs(60);
/// How often unused links and connections are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// How long the end of everything may take.
const SHUTDOWN: Duration = Duration::from_secs(6);
/// Links that are ended at once.
const ENDED_AT_ONCE: usize = 64;
/// Notices on their way through the pool.
const NOTICES: usize = 16;

/// What an upstream needs from outside.
#[derive(Debug)]
pub struct UpstreamDeps {
    /// Its metrics.
    pub metrics: Arc<UpstreamMetrics>,
    /// Where notices go.
    pub notices: mpsc::Sender<Notice>,
    /// Owns every task that is spawned.
    pub tasks: TaskTracker,
    /// Ends everything.
    pub stop: CancellationToken,
    /// How many worker threads there are (shards of connection pools).
    pub workers: usize,
    /// How many bytes of answers may be held at once.
    pub budget: Arc<Budget>,
}

/// Keeps a link from being retired though no call uses it.
#[derive(Debug)]
pub struct Kept {
    _now: Visit,
    _other: Option<Visit>,
}

/// What an upstream over WebSocket is dialled with.
#[derive(Debug)]
struct Ws {
    /// Where its connections lead; or why it cannot be spoken to.
    target: Result<Arc<Target>, String>,
    /// Those of plain JSON-RPC.
    plain: OnceLock<ws::Plain>,
}

impl Ws {
    /// The connections of plain JSON-RPC, once there were any.
    fn shared(&self) -> Option<&ws::Plain> {
        self.plain.get()
    }
}

/// One logical upstream.
#[derive(Debug)]
pub struct Upstream {
    name: UpstreamName,
    config: Arc<UpstreamConfig>,
    deps: UpstreamDeps,
    /// Ends what belongs to this upstream.
    stop: CancellationToken,
    /// Its address and the counters of plain calls; or why it cannot be spoken to over HTTP.
    http: Result<(Arc<Endpoint>, Plain), String>,
    /// The same of one that is spoken to over WebSocket.
    ws: Option<Ws>,
    /// The child, of one that is started and dialled.
    process: OnceLock<Arc<Process>>,
    links: DashMap<LinkKey, Arc<Slot>>,
    /// The links of each client session.
    sessions: DashMap<u64, Vec<LinkKey>>,
    known: Greetings,
    health: Health,
    /// Which eras it speaks.
    verdict: Arc<Verdict>,
    /// Whether its sessions were found to be of the older binding to HTTP.
    older: AtomicBool,
    /// The resources that are watched over HTTP where there are no sessions.
    watched: Arc<Watched>,
    /// Streams in a row that soon ended, or were not opened again.
    relapses: AtomicU32,
    /// When a child may be started again.
    backoff: Arc<Backoff>,
    /// When a link may be opened again.
    hold: Hold,
    /// Nothing is opened any more.
    closing: AtomicBool,
    /// Links report here: the pool takes note, and passes it on.
    notices: mpsc::Sender<Notice>,
    /// Taken by the task that passes notices on.
    reported: Mutex<Option<mpsc::Receiver<Notice>>>,
    begun: AtomicBool,
}

impl Upstream {
    /// Sets it up; opens nothing.
    pub fn new(name: UpstreamName, config: Arc<UpstreamConfig>, deps: UpstreamDeps) -> Arc<Self> {
        let stop = deps.stop.child_token();
        let owners = (&deps.tasks, &stop);
        let http = match Target::serves(&config) {
            true => Err("it is spoken to over WebSocket".to_owned()),
            false => Endpoint::new(&name, &config, &deps.metrics, owners, deps.workers),
        };
        let http = http.map(|endpoint| {
            let endpoint = endpoint.within(&deps.budget);
            let plain = Plain::new(&endpoint);
            (Arc::new(endpoint), plain)
        });
        let ws = Target::serves(&config).then(|| Ws {
            target: Target::new(&name, &config, owners).map(Arc::new),
            plain: OnceLock::new(),
        });
        let (notices, reported) = mpsc::channel(NOTICES);
        Arc::new(Self {
            verdict: Arc::new(Verdict::new(config.revision)),
            name,
            config,
            stop,
            http,
            ws,
            deps,
            process: OnceLock::new(),
            links: DashMap::new(),
            sessions: DashMap::new(),
            known: Greetings::default(),
            health: Health::default(),
            watched: Arc::new(Watched::new()),
            backoff: Arc::default(),
            hold: Hold::default(),
            older: AtomicBool::new(false),
            relapses: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            notices,
            reported: Mutex::new(Some(reported)),
            begun: AtomicBool::new(false),
        })
    }
    /// Its name.
    pub fn name(&self) -> &UpstreamName {
        &self.name
    }
    /// Its configuration.
    pub fn config(&self) -> &Arc<UpstreamConfig> {
        &self.config
    }
    /// MCP: calls on the link with that key, opening it first when needed (single flight, bounded by the
    /// call's timeout). A lost upstream session is opened anew once and the refused call sent again. Dropping the future cancels
    /// the call upstream. Tasks of concurrent callers run in parallel.
    pub async fn call(
        self: &Arc<Self>,
        key: &LinkKey,
        mut call: OutCall,
    ) -> Result<Answered, CallError> {
        let began = Instant::now();
        let mut again = true;
        loop {
            let (visit, link) = self.reach(key, call.timeout.min(call.max_timeout)).await?;
            let version = link.hello().version;
            let result = match &link {
                Link::Http(link) => link.call(&call).await,
                Link::Modern(link) => link.call(&call).await,
                Link::Sse(link) => Box::pin(link.call(&call)).await,
                Link::Ws(link) => Box::pin(link.call(&call)).await,
                Link::Stdio(link) => {
                    let result = Box::pin(link.call(call)).await;
                    return self.noted(result.map(|message| Answered { message, version }));
                }
            };
            let failed = match result {
                Ok(message) => return self.noted(Ok(Answered { message, version })),
                Err(failed) => failed,
            };
            let lost = self.drop_lost(&visit.slot, &link, &failed);
            if !(lost && again) {
                return self.noted(Err(failed.into_error()));
            }
            again = false;
            call.max_timeout = call.max_timeout.saturating_sub(began.elapsed());
        }
    }
    /// MCP: sends a notification if the link is open; otherwise does nothing.
    pub async fn notify(
        self: &Arc<Self>,
        key: &LinkKey,
        message: &Message,
    ) -> Result<(), CallError> {
        let visit = self.links.get(&*self.place_now(key)).map(|slot| Visit::begin(&slot));
        match visit.as_ref().and_then(|visit| visit.slot.open_link()) {
            Some(link) if link.is_up() => link.notify(message).await,
            Some(_) | None => Ok(()),
        }
    }
    /// MCP: opens the link if it is not open and tells what the upstream said.
    pub async fn hello(self: &Arc<Self>, key: &LinkKey) -> Result<Arc<Hello>, CallError> {
        let limit = self.config.timeout.max(self.config.start_timeout);
        let (_visit, link) = self.reach(key, limit).await?;
        let hello = link.hello();
        self.known.note(Arc::clone(&hello));
        Ok(hello)
    }
    /// MCP: whether the link with that key is open now.
    pub fn is_open(&self, key: &LinkKey) -> bool {
        let link = self.links.get(&*self.place_now(key)).and_then(|slot| slot.open_link());
        link.is_some_and(|link| link.is_up())
    }
    /// MCP: what a link that serves clients of that era last heard, else one of the other era; kept while it is down.
    pub fn known(&self, client: Era) -> Option<Arc<Hello>> {
        self.known.best(self.spoken(client))
    }
    /// Plain JSON-RPC: one request or notification. The answer is validated (JSONRPC rows 24 to 29, 47);
    /// `Ok(None)` for notifications.
    pub async fn call_plain(self: &Arc<Self>, call: OutCall) -> Result<Option<Message>, CallError> {
        if let Some(plain) = self.ws_plain().await? {
            return self.noted(plain.call(&call).await);
        }
        let (endpoint, plain) = self.dialled().await?;
        self.noted(plain.call(endpoint, &call).await)
    }
    /// The same, but an answer that is larger than `stream_above` may be given while it still comes.
    pub async fn call_plain_large(
        self: &Arc<Self>,
        call: OutCall,
    ) -> Result<PlainAnswer, CallError> {
        // Connections that calls share are never held up by one of them.
        if let Some(plain) = self.ws_plain().await? {
            return self.noted(plain.call(&call).await).map(PlainAnswer::from);
        }
        let (endpoint, plain) = self.dialled().await?;
        self.noted(plain.ask(endpoint, &call, Some(self.config.stream_above)).await)
    }
    /// Plain JSON-RPC with `batch = true`: the elements travel as one array; answers in the order of `calls`,
    /// `Ok(None)` for notifications.
    pub async fn call_batch(
        self: &Arc<Self>,
        calls: Vec<OutCall>,
    ) -> Vec<Result<Option<Message>, CallError>> {
        let outcomes = match (self.ws_plain().await, self.dialled().await) {
            (Ok(Some(plain)), _) => plain.call_batch(&calls).await,
            (Ok(None), Ok((endpoint, plain))) => plain.call_batch(endpoint, &calls).await,
            (Err(error), _) | (Ok(None), Err(error)) => {
                calls.iter().map(|_| Err(error.again())).collect()
            }
        };
        outcomes.into_iter().map(|outcome| self.noted(outcome)).collect()
    }
    /// Plain JSON-RPC over WebSocket: subscribes. The upstream's answer, a result or an error, and what keeps the subscription
    /// up; `listener` hears of it from then on, if the answer is a result.
    ///
    /// # Errors
    /// As for a call; [`CallError::Protocol`] when it is not spoken to over WebSocket.
    pub async fn subscribe(
        self: &Arc<Self>,
        call: &OutCall,
        kind: &Arc<FeedKind>,
        listener: Arc<dyn Listener>,
    ) -> Result<(Message, Feed), CallError> {
        let Some(plain) = self.ws_plain().await? else {
            let what = "only over WebSocket it can be subscribed to".to_owned();
            return Err(CallError::Protocol {
                upstream: self.name.clone(),
                what,
                upstream_error: None,
            });
        };
        self.noted(plain.subscribe(call, kind, listener).await)
    }
    /// Ends the links of one client session (DELETE upstream, children stopped).
    pub fn end_session(self: &Arc<Self>, session: u64) {
        let Some((_, keys)) = self.sessions.remove(&session) else { return };
        for key in keys {
            if let Some((_, slot)) = self.links.remove(&key) {
                self.close_later(&slot);
            }
        }
    }
    /// The key of the link that calls with `key` go over: of the era in which the upstream is really spoken to.
    pub fn link_of(&self, key: &LinkKey) -> LinkKey {
        self.place_now(key).into_owned()
    }
    /// MCP: wants to hear of updates of a resource, for upstreams without `resources/subscribe` (2026-07-28): their
    /// `subscriptions/listen` is widened. `key` as [`Upstream::link_of`] gives it.
    ///
    /// # Errors
    /// The upstream cannot be reached, or does not offer that.
    pub async fn watch(self: &Arc<Self>, key: &LinkKey, uri: &str) -> Result<(), CallError> {
        let limit = self.config.timeout.max(self.config.start_timeout);
        let (_visit, link) = self.reach(key, limit).await?;
        link.watch(uri).await
    }
    /// MCP: takes [`Upstream::watch`] back.
    pub fn unwatch(self: &Arc<Self>, key: &LinkKey, uri: &str) {
        self.watched.remove(uri);
        let slot = self.links.get(&*self.place_now(key)).map(|slot| Arc::clone(&slot));
        if let Some(link) = slot.and_then(|slot| slot.open_link()) {
            link.unwatch(uri);
        }
    }
    /// MCP: the link with that key, opened or not, is not retired as long as what is returned lives.
    pub fn keep(self: &Arc<Self>, key: &LinkKey) -> Result<Kept, CallError> {
        let now = self.place_now(key);
        let visit = self.visit(&now)?;
        // As long as nothing is open it may turn out to be that of the other era.
        let other = match visit.slot.open_link() {
            Some(_) => None,
            None => Some(self.visit(&self.place(key, now.era.other()))?),
        };
        Ok(Kept { _now: visit, _other: other })
    }
    /// Whether it has not said yet what it offers to clients of that era, and has not failed either: its answer may be near.
    /// No child is started, and no connection opened, for that beside one that serves.
    pub fn may_come_up(&self, client: Era) -> bool {
        let era = self.spoken(client);
        let heard = self.known.has(era) || (self.is_one_stream() && self.known.has(era.other()));
        !heard && !matches!(self.state(), State::Down(_))
    }
    /// The era of the first question to an upstream of which nothing is known, while no client waits for it. What serves one
    /// stream may bear nothing before `initialize`, or ignore what it does not know.
    pub fn first_era(&self) -> Era {
        if self.is_one_stream() { Era::Legacy } else { Era::Modern }
    }
    /// Whether one stream carries everything: the pipes of a child, or a WebSocket.
    fn is_one_stream(&self) -> bool {
        self.is_child() || self.ws.is_some()
    }
    /// Ends every link and child: graceful, bounded to a few seconds.
    pub async fn shutdown(&self) {
        self.closing.store(true, Ordering::Release);
        let mut links = Vec::new();
        self.links.retain(|_, slot| {
            links.extend(slot.end());
            false
        });
        self.sessions.clear();
        let close = async {
            let closing = stream::iter(links);
            closing
                .for_each_concurrent(ENDED_AT_ONCE, |link| async move { link.close().await })
                .await;
            if let Some(process) = self.process.get() {
                process.stop().await;
            }
        };
        let _ = timeout(SHUTDOWN, close).await;
        if let Ok((endpoint, _)) = &self.http {
            endpoint.close();
        }
        self.stop.cancel();
        self.show(false);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
