//! Fetching lists: when, over which link, all pages of it, and what follows.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::cell::{Cell, Fetched};
use super::{Audience, CellKey, everybody};
use crate::catalog::{Hints, Item, Listing, parse_page};
use crate::config::Isolation;
use crate::exchange::bridge::{self, Shown};
use crate::jsonrpc::{Answer, Member, Message, RawObject};
use crate::mcp::{
    BadAnnotation, Era, ListKind, ParamHeader, ProtocolVersion, ServerCaps, param_headers,
    strip_annotations,
};
use crate::pipeline::call::Context;
use crate::pipeline::{Backend, McpRoute, Pipeline, hub, links};
use crate::upstream::{Answered, CallError, LinkKey, LinkScope};

/// Most pages that are fetched of one list.
const MAX_PAGES: usize = 1_000;
/// Most items of one list of one upstream.
const MAX_ITEMS: usize = 100_000;
/// How often in a row a list is fetched anew that changes while it is fetched: some upstreams say so whenever they
/// are asked.
const MAX_ROUNDS: usize = 3;

/// Whether the upstream says to clients of that era when its lists change.
pub(super) fn announces(backend: &Backend, era: Era) -> bool {
    backend.upstream.known(era).is_some_and(|hello| hello.caps.list_changed)
}

pub(super) fn offers(caps: &ServerCaps, kind: ListKind) -> bool {
    match kind {
        ListKind::Tools => caps.tools,
        ListKind::Prompts => caps.prompts,
        ListKind::Resources | ListKind::Templates => caps.resources,
    }
}

/// The link that lists are fetched on: the one that everybody shares, or one of the gateway's own; where the upstream is
/// told to keep sessions apart, the session's, or the one that serves those who have none.
pub(super) fn link(backend: &Backend, audience: Audience) -> LinkKey {
    let scope = match (backend.config().isolation(), backend.config().isolation, audience.session) {
        (Isolation::Shared, _, _) => LinkScope::Shared,
        (_, Some(Isolation::Session), Some(session)) => LinkScope::Session(session),
        (_, Some(Isolation::Session), None) if audience.era == Era::Modern => LinkScope::Anonymous,
        _ => LinkScope::Session(0),
    };
    LinkKey { scope, caps: audience.caps, era: audience.era }
}

/// Waits until the cell is as good as it gets within `patience`; starts a refresh where one is due.
pub(super) async fn settle(cx: &Context, key: CellKey, cell: &Arc<Cell>, patience: Duration) {
    let finished = cell.finished.notified();
    let mut finished = std::pin::pin!(finished);
    // Registers for the notification before the state is looked at.
    finished.as_mut().enable();
    {
        let state = cell.state.lock();
        let backend = &cx.route.backends[key.0];
        let now = Instant::now();
        let expired = state.aged_at(backend.config().list_ttl, now) <= now;
        if !state.is_stale() && (announces(backend, key.1.era) || !expired) {
            return;
        }
        // Not waited for: one that is older than was configured (it is refreshed beside), and one that came too late
        // before. What the upstream itself said is kept to.
        let waits = (state.is_stale() || state.hints.is_some()) && !state.missed;
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
pub(super) fn start(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    key: CellKey,
    cell: &Arc<Cell>,
) {
    {
        let mut state = cell.state.lock();
        if !state.may_start(Instant::now()) {
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

async fn refresh(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>, key: CellKey, cell: &Arc<Cell>) {
    let running = Running(cell);
    let mut tell = false;
    for _ in 0..MAX_ROUNDS {
        let target = cell.state.lock().target();
        let backend = &route.backends[key.0];
        let link = link(backend, key.1);
        let fetched = tokio::select! {
            fetched = fetch(backend, &link, key.2) => fetched,
            () = pipeline.stop.cancelled() => return,
        };
        match fetched {
            Ok(fetched) => {
                let mut state = cell.state.lock();
                let taken = state.take(fetched, target, Instant::now());
                if taken.renews {
                    route.lists.epoch.fetch_add(1, Ordering::Release);
                }
                tell |= taken.tell;
                // Changed again meanwhile: what was fetched may be older than the notice.
                if state.is_stale() {
                    continue;
                }
            }
            Err(error) => failed(backend, key.2, cell, &error),
        }
        break;
    }
    drop(running);
    if tell {
        hub::tell(pipeline, route, key.2, key.1.session);
    }
    let pause = cell.state.lock().plan_retry(Instant::now());
    if let Some(pause) = pause {
        retry(pipeline, route, key, cell, pause);
    }
}

fn failed(backend: &Backend, kind: ListKind, cell: &Cell, error: &FetchError) {
    let (upstream, list) = (backend.upstream.name(), kind.as_str());
    backend.metrics.list_failures.inc();
    let wait = match error {
        FetchError::Call(CallError::Status { retry_after, .. }) => *retry_after,
        _ => None,
    };
    match cell.state.lock().fail(Instant::now(), wait) {
        1 => tracing::warn!(%upstream, list, %error, "list cannot be refreshed"),
        times => tracing::debug!(%upstream, list, %error, times, "list cannot be refreshed"),
    }
}

/// Tries a list again that somebody had to do without: nobody asks for it until told that it has changed.
fn retry(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    key: CellKey,
    cell: &Arc<Cell>,
    pause: Duration,
) {
    let (pipeline, route, cell) = (Arc::clone(pipeline), Arc::clone(route), Arc::downgrade(cell));
    pipeline.clone().tasks.spawn(async move {
        let mut pause = pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = pipeline.stop.cancelled() => return,
            }
            // Forgotten with its session.
            let Some(cell) = cell.upgrade() else { return };
            {
                let mut state = cell.state.lock();
                state.retrying = false;
                if !state.is_stale() {
                    return;
                }
            }
            start(&pipeline, &route, key, &cell);
            // It failed just now for somebody who asked: later, then.
            let planned = cell.state.lock().plan_retry(Instant::now());
            match planned {
                Some(later) => pause = later,
                None => return,
            }
        }
    });
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
) -> Result<Fetched, FetchError> {
    let hello = backend.upstream.hello(link).await?;
    let mut items: Vec<Item> = Vec::new();
    if !offers(&hello.caps, kind) {
        return Ok((Listing::default(), None));
    }
    let mut hints = None;
    let mut seen = HashSet::new();
    let mut keys = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params =
            cursor.as_ref().map(|cursor| serde_json::json!({ "cursor": cursor }).to_string());
        let request = Message::request(kind.method(), params.as_ref().map(String::as_bytes));
        let Answered { message: answer, version } =
            backend.upstream.call(link, backend.plain_call(request)).await?;
        if answer.answer() != Answer::Result {
            let code = answer.member(Member::ErrorCode).unwrap_or_default();
            if &code[..] == b"-32601" {
                return Ok((Listing::default(), None));
            }
            return Err(FetchError::Refused(String::from_utf8_lossy(&code).into_owned()));
        }
        let result = answer.result().unwrap_or_default();
        let mut skipped = 0;
        let (page, next) = parse_page(kind, &result, &mut skipped)?;
        if version.era() == Era::Modern {
            let said = Hints::parse(&result);
            hints = Some(hints.map_or(said, |hints: Hints| hints.and(said)));
        }
        let page = match kind {
            ListKind::Tools => shape(backend, version, page),
            _ => page,
        };
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
            None => return Ok((Listing { items }, hints)),
            Some(next) if !seen.insert(next.clone()) => return Err(FetchError::Loop),
            Some(next) => cursor = Some(next),
        }
    }
    Err(FetchError::TooLong)
}

/// Tools as clients are shown them (MCP digest §8.2, §20.4).
fn shape(backend: &Backend, version: ProtocolVersion, page: Vec<Item>) -> Vec<Item> {
    let strict = version.era() == Era::Modern && backend.config().url.is_some();
    let shaped = page.into_iter().filter_map(|item| {
        let (text, params) = match annotations(&item.text) {
            Ok(params) => (item.text.clone(), params),
            // Every client over HTTP would have to leave it out.
            Err(error) if strict => {
                let upstream = backend.upstream.name();
                tracing::warn!(%upstream, tool = item.key, %error, "a tool is left out");
                return None;
            }
            Err(_) => (without_annotations(&item.text), Vec::new()),
        };
        let mut shown = bridge::tool(&text);
        if version.era() == Era::Legacy {
            // Between legacy peers nothing is changed.
            let changed = shown.text != text;
            shown = Shown { legacy: changed.then_some(text), wrapped: false, ..shown };
        }
        let mut item = item.shown(ListKind::Tools, shown.text, shown.legacy);
        item.wrapped = shown.wrapped;
        item.params = (!params.is_empty()).then(|| params.into());
        item.page = ui_page(&item.text);
        Some(item)
    });
    shaped.collect()
}

/// The page that a tool shows its results on (extension `io.modelcontextprotocol/ui`): it need not be in any list.
fn ui_page(tool: &Bytes) -> Option<Arc<str>> {
    memchr::memmem::find(tool, b"resourceUri")?;
    links::ui_page(&RawObject::parse(tool)?).map(Into::into)
}

fn annotations(tool: &Bytes) -> Result<Vec<ParamHeader>, BadAnnotation> {
    let schema = RawObject::parse(tool).and_then(|mut tool| tool.remove("inputSchema"));
    schema.map_or(Ok(Vec::new()), |schema| param_headers(&schema))
}

/// The tool without any annotation of a header.
fn without_annotations(tool: &Bytes) -> Bytes {
    let Some(mut members) = RawObject::parse(tool) else { return tool.clone() };
    if let Some(schema) = members.get("inputSchema").map(strip_annotations) {
        members.set("inputSchema", schema);
    }
    members.to_bytes()
}

/// Tries every upstream of a route beside requests, so that its capabilities and lists are known early and one
/// that was down is found when it is up.
pub(in crate::pipeline) fn warm(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>) {
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
    let first = backend.upstream.first_era();
    let mut era = first;
    let mut pause = Duration::from_millis(500);
    while let Err(error) = backend.upstream.hello(&home(backend, era)).await {
        let upstream = backend.upstream.name();
        tracing::warn!(%upstream, %error, retry_in = ?pause, "upstream is not available");
        // One that is there and bears no question of this era may bear that of the other.
        if first == Era::Modern && !matches!(error, CallError::Connect { .. }) {
            era = era.other();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(15));
    }
    if first == Era::Modern {
        era = backend.upstream.link_of(&home(backend, era)).era;
    }
    let audience = everybody(era);
    for kind in ListKind::ALL {
        let key = (index, audience, kind);
        start(pipeline, route, key, &route.lists.own_cell(index, audience, kind));
    }
}

/// The link that the gateway keeps for itself, to speak as a client of that era: the same in both, where the upstream
/// has sessions.
pub(in crate::pipeline) fn home(backend: &Backend, era: Era) -> LinkKey {
    LinkKey { era, ..link(backend, everybody(Era::Legacy)) }
}
