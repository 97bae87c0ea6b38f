//! The merged lists of one MCP route: fetched from each upstream with a deadline, kept, refreshed by one task
//! a list, served from the last good one.

mod cell;
mod refresh;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::cell::Cell;
use self::refresh::{announces, link, offers, settle, start};
pub(super) use self::refresh::{home, warm};
use super::call::Context;
use super::{Backend, McpRoute, Pipeline, cursor, links};
use crate::catalog::{Hints, Listing, Merged, Naming, Source, merge};
use crate::fault::{Fault, Reason};
use crate::mcp::{ClientCaps, Era, ListKind};
use crate::telemetry::ToolMetrics;
use crate::upstream::LinkKey;

/// Who sees the same lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Audience {
    /// One session, where an upstream keeps its lists per session.
    session: Option<u64>,
    /// Upstreams may offer more to clients that can do more.
    caps: ClientCaps,
    /// Upstreams that know both eras may offer something else in each.
    era: Era,
}

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
    /// Whether any upstream has said what it lists.
    known: bool,
    /// The upstreams that had not, by their places in the route.
    silent: SmallVec<[usize; 4]>,
    number: u64,
    epoch: u64,
    fresh_until: Instant,
    /// Until when clients may keep it, and whether it is the same for everybody (MCP digest §15.2).
    kept_until: Option<Instant>,
    public: bool,
    /// Upstreams that have not said what they list.
    missing: Vec<String>,
}

/// One page of a merged list.
#[derive(Debug)]
pub(super) struct Page {
    /// The result as JSON text, without its closing brace.
    pub(super) text: Bytes,
    /// The cursor of the next page.
    pub(super) next: Option<String>,
    /// For how long and for whom it may be kept.
    pub(super) hints: Hints,
    /// Upstreams without which it was merged.
    pub(super) missing: Vec<String>,
}

impl View {
    /// The upstream that would own a public name by its prefix, if it had not said yet what it lists.
    pub(super) fn unheard<'a>(&self, route: &'a McpRoute, name: &str) -> Option<&'a Arc<Backend>> {
        let mut silent = self.silent.iter().filter_map(|index| route.backends.get(*index));
        let owns =
            |backend: &&Arc<Backend>| Naming::can_own(backend.upstream.name().as_str(), name);
        silent.find(owns).filter(|_| route.naming == Naming::Prefixed)
    }
}

type CellKey = (usize, Audience, ListKind);

/// The lists of one route.
#[derive(Debug, Default)]
pub struct Lists {
    cells: DashMap<CellKey, Arc<Cell>>,
    views: DashMap<(Audience, ListKind), Arc<View>>,
    /// What could be merged where a name was looked up before every list was there.
    parts: DashMap<(Audience, ListKind), Arc<View>>,
    past: Mutex<VecDeque<Arc<View>>>,
    /// Counts changes of any cell: a view of another epoch is built anew.
    epoch: AtomicU64,
    numbers: AtomicU64,
}

impl Lists {
    /// Whether any upstream offers that kind to clients of that era, or may turn out to.
    pub(super) fn offered(&self, route: &McpRoute, kind: ListKind, era: Era) -> bool {
        let known = |backend: &Arc<Backend>| backend.upstream.known(era);
        let offers = |backend| known(backend).is_none_or(|hello| offers(&hello.caps, kind));
        route.backends.iter().any(offers)
    }

    /// Whether any upstream completes arguments for clients of that era, or may turn out to.
    pub(super) fn completes(&self, route: &McpRoute, era: Era) -> bool {
        let known = |backend: &Arc<Backend>| backend.upstream.known(era);
        let completes = |backend| known(backend).is_none_or(|hello| hello.caps.completions);
        route.backends.iter().any(completes)
    }

    /// One page of the merged list.
    ///
    /// # Errors
    /// The cursor is not valid, or no upstream could be asked.
    pub(super) async fn page(
        &self,
        cx: &Context,
        kind: ListKind,
        cursor: Option<&str>,
    ) -> Result<Page, Fault> {
        let seal = cursor::Seal::new(&cx.snapshot.secret, &cx.holder(), kind);
        let (view, page) = match cursor {
            None => (Box::pin(self.current(cx, kind)).await, 0),
            Some(cursor) => {
                let place = seal.open(cursor);
                let found = place.and_then(|(number, page)| {
                    Some((self.numbered((audience(cx), kind), number)?, page))
                });
                found.ok_or_else(|| {
                    let text = "Invalid params: the cursor is not valid (any more)";
                    Fault::new(Reason::InvalidParams, text)
                })?
            }
        };
        if !view.known {
            return Err(nothing_known(&cx.route, kind));
        }
        let pages = view.merged.pages_for(cx.session.era());
        let text = pages.get(page).cloned().unwrap_or_default();
        let next = (page + 1 < pages.len()).then(|| seal.close(view.number, page + 1));
        let left = view.kept_until.map(|until| until.saturating_duration_since(Instant::now()));
        let hints = Hints { ttl: left.unwrap_or_default(), public: view.public };
        Ok(Page { text, next, hints, missing: view.missing.clone() })
    }

    /// The version of a list that a cursor points into, while it is kept.
    fn numbered(&self, seen: (Audience, ListKind), number: u64) -> Option<Arc<View>> {
        let last = self.views.get(&seen).map(|view| Arc::clone(&view));
        last.filter(|view| view.number == number)
            .or_else(|| self.past.lock().iter().find(|view| view.number == number).cloned())
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
        let cells: SmallVec<[Arc<Cell>; 8]> =
            (0..route.backends.len()).map(|index| self.cell(cx, index, audience, kind)).collect();
        if cells.iter().all(|cell| !cell.state.lock().is_stale()) {
            return Box::pin(self.current(cx, kind)).await;
        }
        let waits =
            cells.iter().zip(&route.backends).enumerate().filter_map(|(index, (cell, b))| {
                let owns = Naming::can_own(b.upstream.name().as_str(), name);
                owns.then(|| settle(cx, (index, audience, kind), cell, b.config().list_timeout))
            });
        join_all(waits).await;
        // Read before the cells, as in `current`.
        let epoch = self.epoch.load(Ordering::Acquire);
        if let Some(part) = self.parts.get(&(audience, kind))
            && part.epoch == epoch
        {
            return Arc::clone(&part);
        }
        let listings: Vec<_> = cells.iter().map(|cell| cell.state.lock().listing.clone()).collect();
        let part = View { epoch, ..self.build(&cx.pipeline, route, kind, &listings) };
        let part = Arc::new(part);
        self.parts.insert((audience, kind), Arc::clone(&part));
        part
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
        if let Some(upstream) = links::owner(cx, uri) {
            return Some(upstream);
        }
        if uri.starts_with("ui:")
            && let Some(upstream) =
                self.for_lookup(cx, ListKind::Tools).await.merged.page_owner(uri)
        {
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
                entry.value().state.lock().invalidate();
            }
        }
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// A link of an upstream is up (again): the lists that come over it are fetched beside, and those that somebody
    /// has had to do without; whoever saw other ones is told.
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
            let over = || backend.upstream.link_of(&link(backend, audience));
            let wanted = || over() == *opened || entry.value().state.lock().missed;
            index == upstream && wanted()
        });
        let cells: Vec<_> =
            of_upstream.map(|entry| (*entry.key(), Arc::clone(entry.value()))).collect();
        for (key, cell) in cells {
            cell.state.lock().forgive();
            start(pipeline, route, key, &cell);
        }
    }

    /// How many tools an upstream lists to clients that can do nothing special.
    pub(super) fn tools_of(&self, upstream: usize) -> Option<usize> {
        let listed = |era| {
            let cell = self.cells.get(&(upstream, everybody(era), ListKind::Tools))?;
            let listing = cell.state.lock().listing.clone()?;
            Some(listing.items.len())
        };
        listed(Era::Legacy).or_else(|| listed(Era::Modern))
    }

    /// Forgets what was kept for one session.
    pub(super) fn forget(&self, session: u64) {
        self.cells.retain(|(_, audience, _), _| audience.session != Some(session));
        self.views.retain(|(audience, _), _| audience.session != Some(session));
        self.parts.retain(|(audience, _), _| audience.session != Some(session));
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
        let waits = cx.route.backends.iter().enumerate().map(|(index, backend)| {
            let cell = self.cell(cx, index, audience, kind);
            async move {
                settle(cx, (index, audience, kind), &cell, backend.config().list_timeout).await;
                cell
            }
        });
        let cells = join_all(waits).await;
        // Read before the cells: a change of one that is not seen any more makes the view outdated.
        let epoch = self.epoch.load(Ordering::Acquire);
        let now = Instant::now();
        let mut fresh_until = now + Duration::from_secs(3600);
        let mut due_at = fresh_until;
        let mut hints: Option<Hints> = None;
        let mut listings = Vec::with_capacity(cells.len());
        for (cell, backend) in cells.iter().zip(&cx.route.backends) {
            let state = cell.state.lock();
            if state.is_stale() {
                fresh_until = now;
            } else if !announces(backend, audience.era) {
                let aged_at = state.aged_at(backend.config().list_ttl, now);
                let until = if state.hints.is_some() { &mut due_at } else { &mut fresh_until };
                *until = (*until).min(aged_at);
            }
            let left = state.left(now);
            hints = Some(hints.map_or(left, |hints| hints.and(left)));
            listings.push(state.listing.clone());
        }
        let hints = hints.unwrap_or(Hints::NONE);
        let mut view = self.build(&cx.pipeline, &cx.route, kind, &listings);
        view.epoch = epoch;
        view.kept_until = (!hints.ttl.is_zero()).then(|| now + hints.ttl);
        view.public = hints.public;
        let missing =
            listings.iter().zip(&cx.route.backends).filter(|(listing, _)| listing.is_none());
        view.missing =
            missing.map(|(_, backend)| backend.upstream.name().as_str().to_owned()).collect();
        // While a list is missing or due, it is merged anew at most once in this time; when it comes, at once. What an
        // upstream itself said of its list is kept to.
        view.fresh_until = fresh_until.max(now + Duration::from_secs(1)).min(due_at);
        self.replace(&cx.route, (audience, kind), view)
    }

    /// Puts a view in the place of the last one. The same list again keeps its number, so that cursors stay valid.
    fn replace(&self, route: &McpRoute, seen: (Audience, ListKind), mut view: View) -> Arc<View> {
        self.parts.remove(&seen);
        let last = self.views.get(&seen).map(|view| Arc::clone(&view));
        match last {
            Some(last) if last.merged.pages == view.merged.pages => view.number = last.number,
            last => {
                report(route, seen.1, &view.merged);
                if let Some(last) = last.filter(|last| last.merged.pages.len() > 1) {
                    let mut past = self.past.lock();
                    past.truncate(PAST_VIEWS - 1);
                    past.push_front(last);
                }
            }
        }
        let view = Arc::new(view);
        self.views.insert(seen, Arc::clone(&view));
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
            known: listings.iter().any(Option::is_some),
            silent: (0..listings.len()).filter(|index| listings[*index].is_none()).collect(),
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            epoch: 0,
            fresh_until: Instant::now(),
            kept_until: None,
            public: false,
            missing: Vec::new(),
        }
    }

    fn cell(&self, cx: &Context, upstream: usize, audience: Audience, kind: ListKind) -> Arc<Cell> {
        let owner = || audience.session.map(|_| Arc::clone(&cx.session));
        let entry = self.cells.entry((upstream, audience, kind));
        Arc::clone(&entry.or_insert_with(|| Arc::new(Cell { owner: owner(), ..Cell::default() })))
    }

    /// A list that the gateway fetches for itself.
    fn own_cell(&self, upstream: usize, audience: Audience, kind: ListKind) -> Arc<Cell> {
        Arc::clone(&self.cells.entry((upstream, audience, kind)).or_default())
    }
}

/// No upstream of the route could be asked for its list: that is not the same as an empty one.
fn nothing_known(route: &McpRoute, kind: ListKind) -> Fault {
    let text = format!("no upstream has said yet which {} it has", kind.as_str());
    let fault = Fault::new(Reason::UpstreamUnavailable, text);
    match route.transparent() {
        Some(backend) => fault.at(backend.upstream.name().as_str()),
        None => fault,
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

/// Clients of that era that can do nothing special.
fn everybody(era: Era) -> Audience {
    Audience { session: None, caps: ClientCaps::NONE, era }
}

fn audience(cx: &Context) -> Audience {
    // A request without a session comes once: nothing would be found again under its number.
    let standing = cx.session.era() == Era::Legacy && cx.route.lists_per_session();
    let session = standing.then(|| cx.session.number());
    Audience { session, caps: cx.session.caps(), era: cx.session.era() }
}
