//! The merged lists of one MCP route: fetched from each upstream with a deadline, kept, refreshed by one task
//! a list, served from the last good one.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::call::Context;
use super::{Backend, McpRoute, Pipeline, cursor, hub};
use crate::catalog::{Item, Listing, Merged, Naming, Source, merge, parse_page};
use crate::config::Isolation;
use crate::jsonrpc::{Answer, Member, Message};
use crate::mcp::{ClientCaps, ListKind};
use crate::session::Session;
use crate::telemetry::ToolMetrics;
use crate::upstream::{CallError, CallerId, Events, LinkKey, LinkScope, OutCall};

/// Who sees the same lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Audience {
    /// One session, where an upstream keeps its lists per session.
    session: Option<u64>,
    /// Upstreams may offer more to clients that can do more.
    caps: ClientCaps,
}

/// Most pages that are fetched of one list.
const MAX_PAGES: usize = 1_000;
/// Most items of one list of one upstream.
const MAX_ITEMS: usize = 100_000;
/// How long a failed list is not asked for again.
const COOL_DOWN: Duration = Duration::from_secs(2);
/// Older versions of lists with several pages that cursors may still point into.
const PAST_VIEWS: usize = 8;

/// One merged list as one audience sees it.
#[derive(Debug)]
pub(super) struct View {
    pub(super) merged: Merged,
    /// Metrics of each tool, by the running number of its origin.
    pub(super) tools: Vec<Arc<ToolMetrics>>,
    /// Metrics of tools that are in no list.
    pub(super) other: Arc<ToolMetrics>,
    number: u64,
    epoch: u64,
    fresh_until: Instant,
}

/// The list of one kind of one upstream for one audience.
#[derive(Debug, Default)]
struct Cell {
    /// Whose list it is, where it is that of one session only.
    owner: Option<Arc<Session>>,
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Debug)]
struct State {
    listing: Option<Arc<Listing>>,
    /// Counts invalidations; the listing is stale while `have` is behind.
    wanted: u64,
    have: u64,
    fetched: Option<Instant>,
    failed: Option<Instant>,
    running: bool,
    /// A merged list was served without it, or with what it was before: whoever saw that is told.
    missed: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            listing: None,
            wanted: 1,
            have: 0,
            fetched: None,
            failed: None,
            running: false,
            missed: false,
        }
    }
}

impl State {
    fn is_stale(&self) -> bool {
        self.have < self.wanted
    }

    fn may_start(&self) -> bool {
        !self.running && self.failed.is_none_or(|at| at.elapsed() >= COOL_DOWN)
    }
}

type CellKey = (usize, Audience, ListKind);

/// The lists of one route.
#[derive(Debug, Default)]
pub struct Lists {
    cells: DashMap<CellKey, Arc<Cell>>,
    views: DashMap<(Audience, ListKind), Arc<View>>,
    past: Mutex<VecDeque<Arc<View>>>,
    /// Counts changes of any cell: a view of another epoch is built anew.
    epoch: AtomicU64,
    numbers: AtomicU64,
}

impl Lists {
    /// Whether any upstream offers that kind, or may turn out to.
    pub(super) fn offered(&self, route: &McpRoute, kind: ListKind) -> bool {
        route
            .backends
            .iter()
            .any(|backend| backend.upstream.known().is_none_or(|hello| offers(&hello.caps, kind)))
    }

    /// Whether any upstream completes arguments, or may turn out to.
    pub(super) fn completes(&self, route: &McpRoute) -> bool {
        let completes = |backend: &Arc<Backend>| {
            backend.upstream.known().is_none_or(|hello| hello.caps.completions)
        };
        route.backends.iter().any(completes)
    }

    /// One page of the merged list, as the JSON text of the result without its closing brace, and the cursor of the next
    /// one. `None`: the cursor is not valid.
    pub(super) async fn page(
        &self,
        cx: &Context,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Option<(Bytes, Option<String>)> {
        let seal = cursor::Seal::new(&cx.snapshot.secret, cx.session.id().as_str(), kind);
        let (view, page) = match cursor {
            None => (Box::pin(self.current(cx, kind)).await, 0),
            Some(cursor) => {
                let (number, page) = seal.open(cursor)?;
                let past = self.past.lock();
                (past.iter().find(|view| view.number == number).cloned()?, page)
            }
        };
        let text = view.merged.pages.get(page)?.clone();
        let more = page + 1 < view.merged.pages.len();
        Some((text, more.then(|| seal.close(view.number, page + 1))))
    }

    /// A view to look a name up in. It does not wait while there is an older one, or names pass unchanged anyway.
    pub(super) async fn for_lookup(&self, cx: &Context, kind: ListKind) -> Arc<View> {
        let audience = audience(cx);
        let last = self.views.get(&(audience, kind)).map(|view| Arc::clone(&view));
        if let Some(view) = &last
            && self.is_current(view)
        {
            return Arc::clone(view);
        }
        let mut settled = true;
        for index in 0..cx.route.backends.len() {
            let cell = self.cell(cx, index, audience, kind);
            if cell.state.lock().is_stale() {
                settled = false;
                start(&cx.pipeline, &cx.route, (index, audience, kind), &cell);
            }
        }
        match last {
            Some(view) if !settled => view,
            None if !settled
                && cx.route.transparent().is_some()
                && cx.route.naming == Naming::Own =>
            {
                let view = Arc::new(self.build(&cx.pipeline, &cx.route, kind, &[]));
                self.views.insert((audience, kind), Arc::clone(&view));
                view
            }
            _ => Box::pin(self.current(cx, kind)).await,
        }
    }

    /// A view to look one public name up in. While nothing is known yet, only upstreams that can own the name are
    /// waited for.
    pub(super) async fn for_name(&self, cx: &Context, kind: ListKind, name: &str) -> Arc<View> {
        let audience = audience(cx);
        let route = &cx.route;
        if route.naming == Naming::Own || self.views.contains_key(&(audience, kind)) {
            return self.for_lookup(cx, kind).await;
        }
        let waits = route.backends.iter().enumerate().map(|(index, backend)| {
            let cell = self.cell(cx, index, audience, kind);
            let owns = Naming::can_own(backend.upstream.name().as_str(), name);
            async move {
                if owns {
                    settle(cx, (index, audience, kind), &cell, backend.config().list_timeout).await;
                }
                let listing = cell.state.lock().listing.clone();
                listing
            }
        });
        let listings = join_all(waits).await;
        Arc::new(self.build(&cx.pipeline, route, kind, &listings))
    }

    /// A newer view than the last one, if there can be one.
    pub(super) async fn renewed(&self, cx: &Context, kind: ListKind) -> Option<Arc<View>> {
        let audience = audience(cx);
        let last = self.views.get(&(audience, kind)).map(|view| Arc::clone(&view));
        if last.as_ref().is_some_and(|view| self.is_current(view)) {
            return None;
        }
        Some(Box::pin(self.current(cx, kind)).await)
    }

    /// The upstream that owns a URI: listed, shown in a result, by template, by configured scheme.
    pub(super) async fn uri_owner(&self, cx: &Context, uri: &str) -> Option<usize> {
        if cx.route.transparent().is_some() {
            return Some(0);
        }
        let listed = self.for_lookup(cx, ListKind::Resources).await;
        if let Some(origin) = listed.merged.owner(uri) {
            return Some(origin.upstream);
        }
        if let Some(upstream) = cx.session.link_owner(uri) {
            return Some(upstream);
        }
        let templates = self.for_lookup(cx, ListKind::Templates).await;
        if let Some(upstream) = templates.merged.template_owner(uri) {
            return Some(upstream);
        }
        let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
        let by_scheme = |backend: &Arc<Backend>| {
            backend.config().uri_schemes.iter().any(|known| known.eq_ignore_ascii_case(scheme))
        };
        if let Some(upstream) = cx.route.backends.iter().position(by_scheme) {
            return Some(upstream);
        }
        if let Some(listed) = self.renewed(cx, ListKind::Resources).await
            && let Some(origin) = listed.merged.owner(uri)
        {
            return Some(origin.upstream);
        }
        let templates = self.renewed(cx, ListKind::Templates).await?;
        templates.merged.template_owner(uri)
    }

    /// The upstream that listed this template (or this very resource), for completion.
    pub(super) async fn template_owner(&self, cx: &Context, uri: &str) -> Option<usize> {
        let templates = self.for_lookup(cx, ListKind::Templates).await;
        if let Some(origin) = templates.merged.owner(uri) {
            return Some(origin.upstream);
        }
        self.uri_owner(cx, uri).await
    }

    /// What an upstream lists of one kind has changed: nothing older is served while a fresh list can be had.
    pub(super) fn invalidate(&self, upstream: usize, kind: ListKind) {
        for entry in &self.cells {
            if entry.key().0 == upstream && entry.key().2 == kind {
                let mut state = entry.value().state.lock();
                state.wanted += 1;
                state.failed = None;
                state.missed = false;
            }
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// A link of an upstream is up (again): the lists that come over it are fetched beside, and whoever saw other
    /// ones is told.
    pub(super) fn reopened(
        &self,
        pipeline: &Arc<Pipeline>,
        route: &Arc<McpRoute>,
        upstream: usize,
        opened: &LinkKey,
    ) {
        let backend = &route.backends[upstream];
        let of_upstream = self.cells.iter().filter(|entry| {
            let (index, audience, _) = *entry.key();
            index == upstream && link(backend, audience) == *opened
        });
        let cells: Vec<_> =
            of_upstream.map(|entry| (*entry.key(), Arc::clone(entry.value()))).collect();
        for (key, cell) in cells {
            cell.state.lock().failed = None;
            start(pipeline, route, key, &cell);
        }
    }

    /// How many tools an upstream lists to clients that can do nothing special.
    pub(super) fn tools_of(&self, upstream: usize) -> Option<usize> {
        let audience = Audience { session: None, caps: ClientCaps::NONE };
        let cell = self.cells.get(&(upstream, audience, ListKind::Tools))?;
        let listing = cell.state.lock().listing.clone()?;
        Some(listing.items.len())
    }

    /// Forgets what was kept for one session.
    pub(super) fn forget(&self, session: u64) {
        self.cells.retain(|(_, audience, _), _| audience.session != Some(session));
        self.views.retain(|(audience, _), _| audience.session != Some(session));
    }

    fn is_current(&self, view: &View) -> bool {
        view.epoch == self.epoch.load(Ordering::Relaxed) && Instant::now() < view.fresh_until
    }

    /// The merged list now: from the cache, or from every upstream that answers in time.
    async fn current(&self, cx: &Context, kind: ListKind) -> Arc<View> {
        let audience = audience(cx);
        if let Some(view) = self.views.get(&(audience, kind))
            && self.is_current(&view)
        {
            return Arc::clone(&view);
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        let waits = cx.route.backends.iter().enumerate().map(|(index, backend)| {
            let cell = self.cell(cx, index, audience, kind);
            async move {
                settle(cx, (index, audience, kind), &cell, backend.config().list_timeout).await;
                cell
            }
        });
        let cells = join_all(waits).await;
        let now = Instant::now();
        let mut fresh_until = now + Duration::from_secs(3600);
        let mut listings = Vec::with_capacity(cells.len());
        for (cell, backend) in cells.iter().zip(&cx.route.backends) {
            let state = cell.state.lock();
            if state.is_stale() {
                fresh_until = now;
            } else if !announces(backend) {
                let until = state.fetched.map_or(now, |at| at + backend.config().list_ttl);
                fresh_until = fresh_until.min(until);
            }
            listings.push(state.listing.clone());
        }
        let mut view = self.build(&cx.pipeline, &cx.route, kind, &listings);
        view.epoch = epoch;
        // While a list is missing or due, it is merged anew at most once in this time; when it comes, at once.
        view.fresh_until = fresh_until.max(now + Duration::from_secs(1));
        let view = Arc::new(view);
        report(&cx.route, kind, &view.merged);
        if view.merged.pages.len() > 1 {
            let mut past = self.past.lock();
            past.truncate(PAST_VIEWS - 1);
            past.push_front(Arc::clone(&view));
        }
        self.views.insert((audience, kind), Arc::clone(&view));
        view
    }

    fn build(
        &self,
        pipeline: &Pipeline,
        route: &McpRoute,
        kind: ListKind,
        listings: &[Option<Arc<Listing>>],
    ) -> View {
        let sources: SmallVec<[Source<'_>; 8]> = route
            .backends
            .iter()
            .enumerate()
            .map(|(index, backend)| Source {
                upstream: backend.upstream.name().as_str(),
                upkeep: &backend.upkeep,
                listing: listings.get(index).and_then(Option::as_deref),
            })
            .collect();
        let merged = merge(kind, route.naming, &sources);
        let first = route.backends.first().map(|backend| backend.upstream.name());
        let other = first.map(|upstream| pipeline.metrics().tool(upstream, "other"));
        let other = other.unwrap_or_else(|| {
            unreachable!("a checked configuration has no MCP route without upstreams")
        });
        let mut tools = Vec::new();
        if kind == ListKind::Tools {
            tools = vec![Arc::clone(&other); merged.count];
            for (_, origin) in merged.owners() {
                let upstream = route.backends[origin.upstream].upstream.name();
                tools[origin.index] = pipeline.metrics().tool(upstream, &origin.own);
            }
        }
        View {
            merged,
            tools,
            other,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            epoch: 0,
            fresh_until: Instant::now(),
        }
    }

    fn cell(&self, cx: &Context, upstream: usize, audience: Audience, kind: ListKind) -> Arc<Cell> {
        let owner = || audience.session.map(|_| Arc::clone(&cx.session));
        let entry = self.cells.entry((upstream, audience, kind));
        Arc::clone(&entry.or_insert_with(|| Arc::new(Cell { owner: owner(), ..Cell::default() })))
    }

    fn own_cell(&self, upstream: usize, audience: Audience, kind: ListKind) -> Arc<Cell> {
        Arc::clone(&self.cells.entry((upstream, audience, kind)).or_default())
    }
}

/// Says what was merged.
fn report(route: &McpRoute, kind: ListKind, merged: &Merged) {
    for clash in &merged.clashes {
        tracing::warn!(
            route = %route.name, kind = kind.as_str(), name = clash.name, kept = clash.kept,
            dropped = clash.dropped, "two upstreams offer the same name; one is left out"
        );
    }
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    route.metrics.catalog_items(kind).set(number(merged.count));
    if kind == ListKind::Tools {
        // About four bytes of JSON a token.
        route.metrics.catalog_tokens().set(number(merged.bytes / 4));
    }
}

fn audience(cx: &Context) -> Audience {
    let session = cx.route.lists_per_session().then(|| cx.session.number());
    Audience { session, caps: cx.session.caps() }
}

/// Whether the upstream says when its lists change.
fn announces(backend: &Backend) -> bool {
    backend.upstream.known().is_some_and(|hello| hello.caps.list_changed)
}

fn offers(caps: &crate::mcp::ServerCaps, kind: ListKind) -> bool {
    match kind {
        ListKind::Tools => caps.tools,
        ListKind::Prompts => caps.prompts,
        ListKind::Resources | ListKind::Templates => caps.resources,
    }
}

/// The link that lists are fetched on: the one that everybody shares, or one of the gateway's own; the
/// session's where the upstream is told to keep sessions apart.
fn link(backend: &Backend, audience: Audience) -> LinkKey {
    let scope = match (backend.config().isolation(), backend.config().isolation, audience.session) {
        (Isolation::Shared, _, _) => LinkScope::Shared,
        (_, Some(Isolation::Session), Some(session)) => LinkScope::Session(session),
        _ => LinkScope::Session(0),
    };
    LinkKey { scope, caps: audience.caps }
}

/// Waits until the cell is as good as it gets within `patience`; starts a refresh where one is due.
async fn settle(cx: &Context, key: CellKey, cell: &Arc<Cell>, patience: Duration) {
    let finished = cell.finished.notified();
    let mut finished = std::pin::pin!(finished);
    // Registers for the notification before the state is looked at.
    finished.as_mut().enable();
    {
        let state = cell.state.lock();
        let backend = &cx.route.backends[key.0];
        let expired = state.fetched.is_none_or(|at| at.elapsed() >= backend.config().list_ttl);
        if !state.is_stale() && (announces(backend) || !expired) {
            return;
        }
        // Not waited for: an aged list (it is refreshed beside), and one that came too late before.
        let waits = state.is_stale() && !state.missed;
        drop(state);
        start(&cx.pipeline, &cx.route, key, cell);
        if !waits || !cell.state.lock().running {
            return;
        }
    }
    if tokio::time::timeout(patience, finished).await.is_err() {
        cell.state.lock().missed = true;
        let upstream = cx.route.backends[key.0].upstream.name();
        tracing::warn!(%upstream, list = key.2.as_str(), "list is late; served without it");
    }
}

/// Starts a refresh unless one runs or has just failed.
fn start(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>, key: CellKey, cell: &Arc<Cell>) {
    {
        let mut state = cell.state.lock();
        if !state.may_start() {
            return;
        }
        state.running = true;
    }
    let (pipeline, route, cell) = (Arc::clone(pipeline), Arc::clone(route), Arc::clone(cell));
    let tasks = pipeline.tasks.clone();
    tasks.spawn(async move {
        refresh(&pipeline, &route, key, &cell).await;
        // It may have opened what was let go of meanwhile.
        if let Some(owner) = cell.owner.as_ref().filter(|owner| owner.has_ended()) {
            pipeline.forget_session(&route, owner.number());
        }
    });
}

/// Marks the refresh as over even when its task is dropped.
struct Running<'a>(&'a Cell);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running = false;
        self.0.finished.notify_waiters();
    }
}

async fn refresh(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>, key: CellKey, cell: &Cell) {
    let (index, audience, kind) = key;
    let backend = &route.backends[index];
    let running = Running(cell);
    loop {
        let target = cell.state.lock().wanted;
        let link = link(backend, audience);
        let fetched = tokio::select! {
            fetched = fetch(backend, &link, kind) => fetched,
            () = pipeline.stop.cancelled() => return,
        };
        let tell;
        {
            let mut state = cell.state.lock();
            match fetched {
                Ok(listing) => {
                    let changed = state.listing.as_deref() != Some(&listing);
                    tell = changed && (state.listing.is_some() || state.missed);
                    if changed {
                        state.listing = Some(Arc::new(listing));
                    }
                    if changed || state.is_stale() {
                        route.lists.epoch.fetch_add(1, Ordering::Relaxed);
                    }
                    state.have = target;
                    state.fetched = Some(Instant::now());
                    state.failed = None;
                    state.missed = false;
                }
                Err(error) => {
                    let upstream = backend.upstream.name();
                    tracing::warn!(%upstream, list = kind.as_str(), %error, "list cannot be refreshed");
                    backend.metrics.list_failures.inc();
                    state.failed = Some(Instant::now());
                    state.missed = true;
                    tell = false;
                }
            }
            // Changed again meanwhile: what was fetched may be older than the notice.
            if state.is_stale() && state.failed.is_none() {
                continue;
            }
        }
        drop(running);
        if tell {
            hub::tell(pipeline, route, kind, audience.session);
        }
        return;
    }
}

/// Why a list could not be fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the upstream answered with error {0}")]
    Refused(String),
    #[error(transparent)]
    Page(#[from] crate::catalog::PageError),
    #[error("the upstream's cursor leads back to a page that was read already")]
    Loop,
    #[error("the list is longer than {MAX_ITEMS} items or {MAX_PAGES} pages")]
    TooLong,
}

/// All pages of one list. A kind that the upstream does not offer is empty.
async fn fetch(
    backend: &Arc<Backend>,
    link: &LinkKey,
    kind: ListKind,
) -> Result<Listing, FetchError> {
    let hello = backend.upstream.hello(link).await?;
    let mut items: Vec<Item> = Vec::new();
    if !offers(&hello.caps, kind) {
        return Ok(Listing::default());
    }
    let mut seen = HashSet::new();
    let mut keys = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params =
            cursor.as_ref().map(|cursor| serde_json::json!({ "cursor": cursor }).to_string());
        let request = Message::request(kind.method(), params.as_ref().map(String::as_bytes));
        let answer = backend.upstream.call(link, own_call(backend, request)).await?;
        if answer.answer() != Answer::Result {
            let code = answer.member(Member::ErrorCode).unwrap_or_default();
            if &code[..] == b"-32601" {
                return Ok(Listing::default());
            }
            return Err(FetchError::Refused(String::from_utf8_lossy(&code).into_owned()));
        }
        let result = answer.result().unwrap_or_default();
        let mut skipped = 0;
        let (page, next) = parse_page(kind, &result, &mut skipped)?;
        let before = items.len() + page.len();
        items.extend(page.into_iter().filter(|item| keys.insert(item.key.clone())));
        if skipped > 0 || items.len() < before {
            let upstream = backend.upstream.name();
            let twice = before - items.len();
            tracing::warn!(%upstream, list = kind.as_str(), skipped, twice, "items are left out");
        }
        if items.len() > MAX_ITEMS {
            return Err(FetchError::TooLong);
        }
        match next {
            None => return Ok(Listing { items }),
            Some(next) if !seen.insert(next.clone()) => return Err(FetchError::Loop),
            Some(next) => cursor = Some(next),
        }
    }
    Err(FetchError::TooLong)
}

/// A call of the gateway's own: it belongs to no client, so nothing may be asked on it.
pub(super) fn own_call(backend: &Backend, message: Message) -> OutCall {
    OutCall {
        message,
        edits: SmallVec::new(),
        caller: CallerId(0),
        timeout: backend.config().timeout,
        max_timeout: backend.config().max_timeout,
        events: Events::closed(),
    }
}

/// Tries every upstream of a route beside requests, so that its capabilities and lists are known early and one
/// that was down is found when it is up.
pub(super) fn warm(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>) {
    for index in 0..route.backends.len() {
        let (pipeline, route) = (Arc::clone(pipeline), Arc::clone(route));
        pipeline.clone().tasks.spawn(async move {
            let stop = pipeline.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = warm_one(&pipeline, &route, index) => {}
            }
        });
    }
}

async fn warm_one(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>, index: usize) {
    let backend = &route.backends[index];
    let audience = Audience { session: None, caps: ClientCaps::NONE };
    let mut pause = Duration::from_millis(500);
    while let Err(error) = backend.upstream.hello(&link(backend, audience)).await {
        let upstream = backend.upstream.name();
        tracing::warn!(%upstream, %error, retry_in = ?pause, "upstream is not available");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(15));
    }
    for kind in ListKind::ALL {
        let key = (index, audience, kind);
        start(pipeline, route, key, &route.lists.own_cell(index, audience, kind));
    }
}

/// The link that the gateway keeps for itself.
pub(super) fn home(backend: &Backend) -> LinkKey {
    link(backend, Audience { session: None, caps: ClientCaps::NONE })
}
