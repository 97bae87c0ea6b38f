//! One logical upstream: its links by key, opened lazily and once, retired when nobody uses them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::{Endpoint, Failed, HttpLink, Plain};
use super::link::{Inlet, LinkContext};
use super::links::{Flight, Found, Landed, Link, Slot, Visit};
use super::stdio::{Backoff, Process, StdioLink};
use super::{CallError, Hello, LinkKey, LinkScope, Notice, NoticeKind, OutCall};
use crate::config::{Protocol, UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
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
}

/// State for `/readyz` and the start-up summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was tried yet.
    Idle,
    /// Being opened.
    Starting,
    /// At least one link is up (plain JSON-RPC: the last call reached it).
    Up,
    /// The last attempt failed; the text names why, without addresses.
    Down(String),
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
    /// The child, of one that is started and dialled.
    process: OnceLock<Arc<Process>>,
    links: DashMap<LinkKey, Arc<Slot>>,
    /// The links of each client session.
    sessions: DashMap<u64, Vec<LinkKey>>,
    known: ArcSwapOption<Hello>,
    health: Health,
    /// When a child may be started again.
    backoff: Arc<Backoff>,
    /// Links report here: the pool takes note, and passes it on.
    notices: mpsc::Sender<Notice>,
    /// Taken by the task that passes notices on.
    reported: Mutex<Option<mpsc::Receiver<Notice>>>,
    begun: AtomicBool,
}

/// Whether the last attempt reached it.
#[derive(Debug, Default)]
struct Health {
    reached: AtomicBool,
    failed: AtomicBool,
    why: Mutex<String>,
}

impl Upstream {
    /// Sets it up; opens nothing.
    pub fn new(name: UpstreamName, config: Arc<UpstreamConfig>, deps: UpstreamDeps) -> Arc<Self> {
        let http = Endpoint::new(&name, &config, &deps.metrics, &deps.tasks, deps.workers);
        let http = http.map(|endpoint| {
            let plain = Plain::new(&endpoint);
            (Arc::new(endpoint), plain)
        });
        let (notices, reported) = mpsc::channel(NOTICES);
        Arc::new(Self {
            name,
            config,
            stop: deps.stop.child_token(),
            http,
            deps,
            process: OnceLock::new(),
            links: DashMap::new(),
            sessions: DashMap::new(),
            known: ArcSwapOption::empty(),
            health: Health::default(),
            backoff: Arc::default(),
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
    ) -> Result<Message, CallError> {
        let visit = self.visit(key)?;
        let began = Instant::now();
        let mut again = true;
        loop {
            let link = match self.link(&visit.slot, key, call.timeout.min(call.max_timeout)).await?
            {
                Link::Http(link) => link,
                Link::Stdio(link) => {
                    let result = link.call(call).await;
                    return self.noted(result);
                }
            };
            match link.call(&call).await {
                Err(Failed::SessionLost(_)) if again => self.lose(&visit.slot, &link),
                Err(failed) => {
                    if matches!(failed, Failed::SessionLost(_)) {
                        self.lose(&visit.slot, &link);
                    }
                    return self.noted(Err(failed.into_error()));
                }
                Ok(answer) => return self.noted(Ok(answer)),
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
        let visit = self.links.get(key).map(|slot| Visit::begin(&slot));
        match visit.as_ref().and_then(|visit| visit.slot.open_link()) {
            Some(link) if link.is_up() => link.notify(message).await,
            Some(_) | None => Ok(()),
        }
    }
    /// MCP: opens the link if it is not open and tells what the upstream said.
    pub async fn hello(self: &Arc<Self>, key: &LinkKey) -> Result<Arc<Hello>, CallError> {
        let visit = self.visit(key)?;
        let limit = self.config.timeout.max(self.config.start_timeout);
        let hello = self.link(&visit.slot, key, limit).await?.hello();
        self.known.store(Some(Arc::clone(&hello)));
        Ok(hello)
    }
    /// MCP: whether the link with that key is open now.
    pub fn is_open(&self, key: &LinkKey) -> bool {
        let link = self.links.get(key).and_then(|slot| slot.open_link());
        link.is_some_and(|link| link.is_up())
    }
    /// MCP: what any link of this upstream last heard; kept while it is down.
    pub fn known(&self) -> Option<Arc<Hello>> {
        self.known.load_full()
    }
    /// Plain JSON-RPC: one request or notification over HTTP. The answer is validated (JSONRPC rows 24 to 29, 47);
    /// `Ok(None)` for notifications.
    pub async fn call_plain(self: &Arc<Self>, call: OutCall) -> Result<Option<Message>, CallError> {
        let (endpoint, plain) = self.dialled().await?;
        self.noted(plain.call(endpoint, &call).await)
    }
    /// Plain JSON-RPC with `batch = true`: the elements travel as one array; answers in the order of `calls`,
    /// `Ok(None)` for notifications.
    pub async fn call_batch(
        self: &Arc<Self>,
        calls: Vec<OutCall>,
    ) -> Vec<Result<Option<Message>, CallError>> {
        let outcomes = match self.dialled().await {
            Ok((endpoint, plain)) => plain.call_batch(endpoint, &calls).await,
            Err(error) => calls.iter().map(|_| Err(error.again())).collect(),
        };
        outcomes.into_iter().map(|outcome| self.noted(outcome)).collect()
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
    /// How it is.
    pub fn state(&self) -> State {
        let failed = self.health.failed.load(Ordering::Relaxed);
        let down = || State::Down(self.health.why.lock().clone());
        // Whether an address is reached is known from the last attempt only; a child is known to live.
        if failed && self.http.is_ok() {
            return down();
        }
        if self.config.protocol == Protocol::JsonRpc {
            let reached = self.health.reached.load(Ordering::Relaxed);
            return if reached { State::Up } else { State::Idle };
        }
        let (mut opening, mut restarting) = (false, false);
        for slot in &self.links {
            match slot.open_link() {
                Some(link) if link.is_up() => return State::Up,
                Some(_) => restarting = true,
                None => opening |= slot.is_opening(),
            }
        }
        match (opening, failed, restarting) {
            (true, ..) => State::Starting,
            (false, true, _) => down(),
            (false, false, true) => State::Down("the child is being restarted".to_owned()),
            (false, false, false) => State::Idle,
        }
    }
    /// Whether nothing is known of it yet, and it has not failed either: its first answer may be near.
    pub fn may_come_up(&self) -> bool {
        self.known().is_none() && !matches!(self.state(), State::Down(_))
    }
    /// Ends every link and child: graceful, bounded to a few seconds.
    pub async fn shutdown(&self) {
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
        self.deps.metrics.up.set(0);
    }
}

/// Coming by a link.
impl Upstream {
    /// Begins to use the slot of a key.
    fn visit(self: &Arc<Self>, key: &LinkKey) -> Result<Visit, CallError> {
        if let Some(slot) = self.links.get(key) {
            return Ok(Visit::begin(&slot));
        }
        if self.links.len() >= MAX_LINKS && !self.evict() {
            return Err(CallError::Busy { upstream: self.name.clone() });
        }
        self.begin();
        if let LinkScope::Session(session) = key.scope {
            let mut keys = self.sessions.entry(session).or_default();
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        let slot = self.links.entry(key.clone()).or_default();
        Ok(Visit::begin(&slot))
    }

    /// The link of a slot, opened if it is not; waits no longer than `limit`.
    async fn link(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        key: &LinkKey,
        limit: Duration,
    ) -> Result<Link, CallError> {
        let mut flight = match slot.find() {
            Found::Open(link) => return Ok(link),
            Found::Opening(flight) => flight,
            Found::Yours(sender, flight) => {
                self.take_off(slot, key, sender);
                flight
            }
        };
        match timeout(limit, landing(&mut flight)).await {
            Ok(Some(Ok(link))) => Ok(link),
            Ok(Some(Err(error))) => Err(error.again()),
            Ok(None) => Err(self.unreachable("opening it was interrupted")),
            Err(_) => Err(CallError::Timeout { upstream: self.name.clone(), after: limit }),
        }
    }

    /// Opens a link in a task of its own: no caller's hanging up interrupts it for the others.
    fn take_off(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        key: &LinkKey,
        sender: watch::Sender<Option<Landed>>,
    ) {
        let (upstream, slot, key) = (Arc::clone(self), Arc::clone(slot), key.clone());
        self.deps.tasks.spawn(async move {
            let landed = tokio::select! {
                () = upstream.stop.cancelled() => Err(upstream.unreachable("it is being stopped")),
                landed = upstream.open(&key) => landed,
            };
            let notice = upstream.land(&slot, landed.map_err(Arc::new), sender).await;
            if let Some(notice) = notice {
                upstream.inlet(&key).send(notice).await;
            }
        });
    }

    /// Notes what an opening came to, and tells those who wait. What is returned is to be reported.
    async fn land(
        &self,
        slot: &Slot,
        landed: Landed,
        sender: watch::Sender<Option<Landed>>,
    ) -> Option<NoticeKind> {
        let wanted = slot.land(&landed);
        if let (Ok(link), false) = (&landed, wanted) {
            link.close().await;
        }
        let notice = match &landed {
            Ok(link) => {
                self.known.store(Some(link.hello()));
                self.reached();
                slot.was_open(true);
                // A child says so itself, each time that it serves again.
                matches!(link, Link::Http(_)).then_some(NoticeKind::Opened)
            }
            Err(error) => {
                self.failed(error);
                slot.was_open(false).then_some(NoticeKind::Lost)
            }
        };
        sender.send_replace(Some(landed));
        notice.filter(|_| wanted)
    }

    async fn open(self: &Arc<Self>, key: &LinkKey) -> Result<Link, CallError> {
        if self.config.url.is_none() && self.config.command.is_some() {
            return StdioLink::open(self.context(key)).await.map(Link::Stdio);
        }
        let (endpoint, _) = self.dialled().await?;
        HttpLink::open(self.context(key), Arc::clone(endpoint)).await.map(Link::Http)
    }

    /// What is dialled over HTTP; its child, if it has one, is started and waited for.
    async fn dialled(self: &Arc<Self>) -> Result<&(Arc<Endpoint>, Plain), CallError> {
        let http = self.http.as_ref().map_err(|what| self.unreachable(what))?;
        self.begin();
        if let Some(command) = &self.config.command {
            let key = LinkKey { scope: LinkScope::Shared, caps: crate::mcp::ClientCaps::NONE };
            let start = || Process::start(self.context(&key), command.clone());
            self.process.get_or_init(start).ready().await?;
        }
        Ok(http)
    }

    fn context(&self, key: &LinkKey) -> LinkContext {
        LinkContext {
            name: self.name.clone(),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.deps.metrics),
            inlet: self.inlet(key),
            caps: key.caps,
            tasks: self.deps.tasks.clone(),
            stop: self.stop.child_token(),
            backoff: Arc::clone(&self.backoff),
        }
    }

    fn inlet(&self, key: &LinkKey) -> Inlet {
        let (upstream, link) = (self.name.clone(), key.clone());
        Inlet { upstream, link, notices: self.notices.clone() }
    }

    fn unreachable(&self, what: &str) -> CallError {
        CallError::Connect { upstream: self.name.clone(), what: what.to_owned(), source: None }
    }
}

/// Waits for the outcome of an opening.
async fn landing(flight: &mut Flight) -> Option<Landed> {
    flight.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone())
}

/// Giving up links.
impl Upstream {
    /// The upstream does not know the session of that link any more.
    fn lose(&self, slot: &Slot, link: &Arc<HttpLink>) {
        link.abandon();
        slot.lose(link);
    }

    /// Closes the link of a slot that was taken out of the table.
    fn close_later(self: &Arc<Self>, slot: &Slot) {
        let Some(link) = slot.end() else { return };
        let upstream = Arc::clone(self);
        self.deps.tasks.spawn(async move {
            link.close().await;
            upstream.refresh();
        });
    }

    /// Makes room for one link: the one that was unused longest goes.
    fn evict(self: &Arc<Self>) -> bool {
        let unused =
            self.links.iter().filter_map(|slot| Some((slot.unused_for()?, slot.key().clone())));
        let Some((_, key)) = unused.max_by_key(|(unused, _)| *unused) else { return false };
        self.retire(&key, Duration::ZERO)
    }

    /// Closes a link that nobody has used for that long.
    fn retire(self: &Arc<Self>, key: &LinkKey, limit: Duration) -> bool {
        let unused = |slot: &Arc<Slot>| slot.unused_for().is_some_and(|unused| unused >= limit);
        let Some((key, slot)) = self.links.remove_if(key, |_, slot| unused(slot)) else {
            return false;
        };
        if let LinkScope::Session(session) = key.scope {
            self.sessions.remove_if_mut(&session, |_, keys| {
                keys.retain(|kept| *kept != key);
                keys.is_empty()
            });
        }
        self.close_later(&slot);
        true
    }

    /// Starts what looks after the links, once.
    fn begin(self: &Arc<Self>) {
        if self.begun.load(Ordering::Relaxed) || self.begun.swap(true, Ordering::AcqRel) {
            return;
        }
        let period = self.config.idle_timeout.map_or(SWEEP, |idle| (idle / 4).min(SWEEP));
        let sweep = keep_sweeping(Arc::downgrade(self), period.max(Duration::from_millis(20)));
        let stop = self.stop.clone();
        self.deps.tasks.spawn(async move { stop.run_until_cancelled(sweep).await });
        if let Some(reported) = self.reported.lock().take() {
            let pass_on = pass_on(Arc::downgrade(self), reported, self.deps.notices.clone());
            let stop = self.stop.clone();
            self.deps.tasks.spawn(async move { stop.run_until_cancelled(pass_on).await });
        }
    }

    fn sweep(self: &Arc<Self>) {
        if let Ok((endpoint, _)) = &self.http {
            endpoint.sweep();
        }
        let limit = self.config.idle_timeout.unwrap_or(UNUSED);
        let mut open = 0;
        let mut unused = Vec::new();
        for slot in &self.links {
            let is_open = slot.open_link().is_some();
            open += usize::from(is_open);
            // A session's link ends with the session; a slot that holds nothing may go at any time.
            let of_a_session = matches!(slot.key().scope, LinkScope::Session(_));
            match slot.unused_for() {
                Some(idle) if idle >= limit && !(is_open && of_a_session) => {
                    unused.push((idle, is_open, slot.key().clone()));
                }
                Some(_) | None => {}
            }
        }
        // The one unused longest goes first; the last link stays unless the configuration says when it ends.
        unused.sort_unstable_by(|(a, ..), (b, ..)| b.cmp(a));
        for (_, is_open, key) in unused {
            if is_open && open == 1 && self.config.idle_timeout.is_none() {
                continue;
            }
            if self.retire(&key, limit) && is_open {
                open -= 1;
            }
        }
        self.refresh();
    }
}

async fn keep_sweeping(upstream: Weak<Upstream>, period: Duration) {
    loop {
        sleep(period).await;
        let Some(upstream) = upstream.upgrade() else { return };
        upstream.sweep();
    }
}

/// Passes notices on, once the state agrees with them.
async fn pass_on(
    upstream: Weak<Upstream>,
    mut reported: mpsc::Receiver<Notice>,
    notices: mpsc::Sender<Notice>,
) {
    while let Some(notice) = reported.recv().await {
        if matches!(notice.kind, NoticeKind::Opened | NoticeKind::Lost)
            && let Some(upstream) = upstream.upgrade()
        {
            upstream.refresh();
        }
        if notices.send(notice).await.is_err() {
            return;
        }
    }
}

/// Keeping its state true.
impl Upstream {
    /// Notes what a call came to.
    fn noted<T>(&self, result: Result<T, CallError>) -> Result<T, CallError> {
        match &result {
            Err(error @ (CallError::Connect { .. } | CallError::Closed { written: false, .. })) => {
                self.failed(error);
            }
            Err(CallError::Timeout { .. } | CallError::Busy { .. }) => {}
            Ok(_)
            | Err(
                CallError::Closed { .. } | CallError::Protocol { .. } | CallError::Status { .. },
            ) => {
                self.reached();
            }
        }
        result
    }

    fn reached(&self) {
        let health = &self.health;
        if !health.reached.load(Ordering::Relaxed) || health.failed.load(Ordering::Relaxed) {
            health.reached.store(true, Ordering::Relaxed);
            health.failed.store(false, Ordering::Relaxed);
            self.refresh();
        }
    }

    fn failed(&self, error: &CallError) {
        let why = match error {
            CallError::Connect { what, .. }
            | CallError::Closed { what, .. }
            | CallError::Protocol { what, .. } => what.clone(),
            CallError::Timeout { after, .. } => format!("no answer within {after:?}"),
            CallError::Status { status, .. } => format!("HTTP status {status}"),
            CallError::Busy { .. } => "overloaded".to_owned(),
        };
        *self.health.why.lock() = why;
        self.health.failed.store(true, Ordering::Relaxed);
        self.refresh();
    }

    /// Sets the metric to what [`Upstream::state`] says.
    fn refresh(&self) {
        self.deps.metrics.up.set(i64::from(self.state() == State::Up));
    }
}
