//! What upstreams say that belongs to no request, and who hears of it: list changes, resource updates, log
//! levels. And the sweep of idle sessions.

mod topics;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::topics::{Subscribing, Topic, Topics};
use super::call::Context;
use super::modern::Listener;
use super::{Backend, McpRoute, Pipeline, Route};
use crate::config::UpstreamName;
use crate::jsonrpc::{Answer, Member, Message};
use crate::mcp::{Era, LOG_LEVELS, ListKind, log_rank};
use crate::session::Broadcast;
use crate::upstream::{Kept, LinkKey, LinkScope, Notice, NoticeKind};

/// How long list changes are collected before sessions are told: one restart is one notice.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Most links of which a wanted log level is remembered.
const MAX_LEVELS: usize = 10_000;
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// Who subscribed to what.
#[derive(Debug, Default)]
pub(super) struct Hub {
    topics: Topics,
    /// Open `subscriptions/listen` requests by their number.
    listeners: DashMap<u64, Arc<Listener>>,
    /// The lowest log level that requests without a session have wanted on a legacy link.
    levels: DashMap<(UpstreamName, LinkKey), u8>,
}

impl Hub {
    /// Forgets a session; upstreams are told of resources that nobody watches any more.
    pub(super) fn forget(&self, pipeline: &Arc<Pipeline>, route: &McpRoute, session: u64) {
        for topic in self.topics.forget(session) {
            // The link of one session ends with it.
            if topic.link.scope != LinkScope::Session(session) {
                drop_topic(pipeline, route, topic);
            }
        }
    }
}

fn drop_topic(pipeline: &Arc<Pipeline>, route: &McpRoute, topic: Topic) {
    let Some(backend) = backend_of(route, &topic) else { return };
    if topic.link.era == Era::Modern {
        backend.upstream.unwatch(&topic.link, &topic.uri);
    } else {
        send_beside(pipeline, backend, topic.link, about("resources/unsubscribe", &topic.uri));
    }
}

fn backend_of<'a>(route: &'a McpRoute, topic: &Topic) -> Option<&'a Arc<Backend>> {
    route.backends.iter().find(|backend| *backend.upstream.name() == topic.upstream)
}

/// A request of the gateway's own about one resource.
fn about(method: &str, uri: &str) -> Message {
    let params = serde_json::json!({ "uri": uri }).to_string();
    Message::request(method, Some(params.as_bytes()))
}

/// A session subscribes to a resource of an upstream; `None` when it may not.
pub(super) fn subscribe<'a>(
    cx: &'a Context,
    backend: &Backend,
    uri: &str,
) -> Option<Subscribing<'a>> {
    let upstream = backend.upstream.name().clone();
    let link = backend.upstream.link_of(&cx.link(backend));
    let topic = Topic { upstream, link, uri: uri.into() };
    cx.pipeline.hub.topics.join(topic, cx.session.number())
}

/// Takes a subscription back; the upstream that must be told, where it was the last one on its link.
pub(super) fn unsubscribe<'a>(cx: &'a Context, uri: &str) -> Option<&'a Arc<Backend>> {
    let mut orphans = cx.pipeline.hub.topics.leave(uri, cx.session.number());
    let legacy = |topic: &Topic| topic.link.era == Era::Legacy;
    let last = orphans.iter().rposition(legacy).map(|place| orphans.remove(place));
    // More than one only if the resource has moved to another upstream meanwhile.
    for topic in orphans {
        drop_topic(&cx.pipeline, &cx.route, topic);
    }
    last.and_then(|topic| backend_of(&cx.route, &topic))
}

/// How long what a listener wants is looked for, and its upstreams waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A listener is told of what concerns it from now on; `false` when there are too many.
pub(super) fn hear(cx: &Context, listener: &Arc<Listener>) -> bool {
    let listeners = &cx.pipeline.hub.listeners;
    if listeners.len() >= cx.snapshot.server.max_sessions || cx.pipeline.is_draining() {
        return false;
    }
    listeners.insert(listener.number(), Arc::clone(listener));
    cx.route.metrics.streams("listen").inc();
    true
}

/// A listener has ended.
pub(super) fn deafen(cx: &Context, listener: &Listener) {
    if cx.pipeline.hub.listeners.remove(&listener.number()).is_some() {
        cx.route.metrics.streams("listen").dec();
    }
    cx.pipeline.hub.forget(&cx.pipeline, &cx.route, listener.number());
}

/// Subscribes a listener to a resource of an upstream. The link is kept as long as what is returned lives.
pub(super) async fn watch(cx: &Context, backend: &Arc<Backend>, uri: &str) -> Option<Kept> {
    let upstream = &backend.upstream;
    // Which link it is shows when it is open.
    upstream.hello(&cx.link(backend)).await.ok()?;
    let link = upstream.link_of(&cx.link(backend));
    let kept = upstream.keep(&link).ok()?;
    let subscribing = subscribe(cx, backend, uri)?;
    if subscribing.is_known() {
        return Some(kept);
    }
    let agreed = match link.era {
        Era::Modern => upstream.watch(&link, uri).await.is_ok(),
        Era::Legacy => {
            let request = about("resources/subscribe", uri);
            let answer = upstream.call(&link, backend.plain_call(request)).await;
            answer.is_ok_and(|answer| answer.message.answer() == Answer::Result)
        }
    };
    if !agreed {
        tracing::debug!(upstream = %upstream.name(), "upstream did not agree to a subscription");
        return None;
    }
    subscribing.confirm();
    Some(kept)
}

/// Sees to it that a legacy upstream logs what a request without a session wants to see (MCP digest §5.2).
pub(super) async fn lower_level(cx: &Context, backend: &Arc<Backend>) {
    let Some(rank) = cx.session.log_rank() else { return };
    let upstream = &backend.upstream;
    let Ok(hello) = upstream.hello(&cx.link(backend)).await else { return };
    let link = upstream.link_of(&cx.link(backend));
    if link.era == Era::Modern || !hello.caps.logging {
        return;
    }
    let levels = &cx.pipeline.hub.levels;
    let place = (upstream.name().clone(), link.clone());
    if levels.get(&place).is_some_and(|known| *known <= rank) {
        return;
    }
    let Some(level) = LOG_LEVELS.get(usize::from(rank)) else { return };
    let params = serde_json::json!({ "level": level }).to_string();
    let request = Message::request("logging/setLevel", Some(params.as_bytes()));
    if upstream.call(&link, backend.plain_call(request)).await.is_ok() {
        if levels.len() >= MAX_LEVELS {
            levels.clear();
        }
        levels.insert(place, rank);
    }
}

/// Tells the upstreams of a session which log level its client asked for.
pub(super) fn relay_level(cx: &Context) {
    for backend in &cx.route.backends {
        let link = backend.upstream.link_of(&cx.link(backend));
        // A link that is not open yet is told when it opens.
        if backend.upstream.is_open(&link) {
            send_level(&cx.pipeline, backend, link);
        }
    }
}

/// Sets the level that a link needs: the lowest that any of its sessions asked for, on whatever route.
fn send_level(pipeline: &Arc<Pipeline>, backend: &Arc<Backend>, link: LinkKey) {
    // Modern upstreams are told with each request.
    if link.era == Era::Modern
        || backend.upstream.known(link.era).is_some_and(|hello| !hello.caps.logging)
    {
        return;
    }
    let rank = match link.scope {
        LinkScope::Session(number) => {
            pipeline.sessions.numbered(number).and_then(|session| session.log_rank())
        }
        LinkScope::Shared | LinkScope::Principal(_) | LinkScope::Anonymous => {
            let mut routes = Vec::new();
            for_routes(pipeline, backend.upstream.name(), |_, route, _| {
                routes.push(route.name.clone());
            });
            let sessions = pipeline
                .sessions
                .collect(|session| session.caps() == link.caps && routes.contains(session.route()));
            let place = (backend.upstream.name().clone(), link.clone());
            let wanted = pipeline.hub.levels.get(&place).map(|rank| *rank);
            sessions.iter().filter_map(|session| session.log_rank()).chain(wanted).min()
        }
    };
    let Some(level) = rank.and_then(|rank| LOG_LEVELS.get(usize::from(rank))) else { return };
    let params = serde_json::json!({ "level": level }).to_string();
    let request = Message::request("logging/setLevel", Some(params.as_bytes()));
    send_beside(pipeline, backend, link, request);
}

/// Sends a request of the gateway's own; nobody waits for the answer.
fn send_beside(pipeline: &Arc<Pipeline>, backend: &Arc<Backend>, link: LinkKey, request: Message) {
    let backend = Arc::clone(backend);
    pipeline.tasks.spawn(async move {
        let call = backend.plain_call(request);
        if let Err(error) = backend.upstream.call(&link, call).await {
            tracing::debug!(upstream = %backend.upstream.name(), %error, "upstream was not told");
        }
    });
}

/// Tells sessions of a route that a list changed: all of them, or the one whose list it is.
pub(super) fn tell(pipeline: &Pipeline, route: &McpRoute, kind: ListKind, only: Option<u64>) {
    let sessions = pipeline.sessions.collect(|session| {
        *session.route() == route.name && only.is_none_or(|number| session.number() == number)
    });
    for session in sessions {
        session.publish(&Broadcast::ListChanged(kind));
    }
    if only.is_none() {
        for listener in &pipeline.hub.listeners {
            listener.changed(&route.name, kind);
        }
    }
}

/// Ends every listener with its normal result.
pub(super) fn close_listeners(pipeline: &Pipeline) {
    for listener in &pipeline.hub.listeners {
        listener.close();
    }
}

/// A route, the kind of list, and the session if it is only that one's.
type Change = (usize, ListKind, Option<u64>);

/// Distributes notices until the gateway stops.
pub(super) async fn run(pipeline: Arc<Pipeline>, mut notices: mpsc::Receiver<Notice>) {
    let mut changes: HashSet<Change> = HashSet::new();
    let mut due: Option<Instant> = None;
    loop {
        let told = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pipeline.stop.cancelled() => return,
            notice = notices.recv() => match notice {
                Some(notice) => take(&pipeline, notice, &mut changes),
                None => return,
            },
            () = told => {
                due = None;
                let snapshot = pipeline.snapshot();
                for (index, kind, only) in changes.drain() {
                    if let Some(Route::Mcp(route)) = snapshot.routes.get(index).map(|route| &**route) {
                        tell(&pipeline, route, kind, only);
                    }
                }
            }
        }
        if due.is_none() && !changes.is_empty() {
            due = Some(Instant::now() + DEBOUNCE);
        }
    }
}

fn take(pipeline: &Arc<Pipeline>, notice: Notice, changes: &mut HashSet<Change>) {
    let Notice { upstream, link, kind } = notice;
    match kind {
        NoticeKind::Opened => opened(pipeline, &upstream, &link),
        NoticeKind::Lost => tracing::info!(%upstream, "link to upstream is lost"),
        NoticeKind::ListChanged(kind) => {
            for_routes(pipeline, &upstream, |number, route, index| {
                route.lists.invalidate(index, kind);
                if kind == ListKind::Resources {
                    route.lists.invalidate(index, ListKind::Templates);
                }
                let only = match (route.lists_per_session(), &link.scope) {
                    (true, LinkScope::Session(session)) if *session != 0 => Some(*session),
                    _ => None,
                };
                changes.insert((number, kind, only));
            });
        }
        NoticeKind::ResourceUpdated(message) => {
            let Some(uri) = message.member_str(Member::Uri) else { return };
            for number in pipeline.hub.topics.watchers(&upstream, &link, &uri) {
                if let Some(session) = pipeline.sessions.numbered(number) {
                    session.publish(&Broadcast::Updated(message.text().clone()));
                } else if let Some(listener) = pipeline.hub.listeners.get(&number) {
                    listener.updated(&message);
                }
            }
        }
        NoticeKind::Log(message) => {
            // Only the one session that a link belongs to may see what was logged outside of calls.
            let LinkScope::Session(number) = link.scope else { return };
            let Some(session) = pipeline.sessions.numbered(number) else { return };
            let rank = message.member_str(Member::Level).and_then(|level| log_rank(&level));
            if rank >= session.log_rank() {
                session.publish(&Broadcast::Message(message.text().clone()));
            }
        }
    }
}

/// A link is up: what was set on an earlier one is set again, and lists may have changed.
fn opened(pipeline: &Arc<Pipeline>, upstream: &UpstreamName, link: &LinkKey) {
    let snapshot = pipeline.snapshot();
    let Some(backend) = snapshot.backends.get(upstream) else { return };
    // A modern upstream hears of them with the listen request of the link.
    let uris = match link.era {
        Era::Modern => Vec::new(),
        Era::Legacy => pipeline.hub.topics.uris(upstream, link),
    };
    for uri in uris {
        send_beside(pipeline, backend, link.clone(), about("resources/subscribe", &uri));
    }
    for_routes(pipeline, upstream, |_, route, index| {
        route.lists.reopened(pipeline, route, index, link);
    });
    send_level(pipeline, backend, link.clone());
}

/// Every MCP route that an upstream serves: its number, itself, and the upstream's place in it.
fn for_routes(
    pipeline: &Pipeline,
    upstream: &UpstreamName,
    mut each: impl FnMut(usize, &Arc<McpRoute>, usize),
) {
    let snapshot = pipeline.snapshot();
    for (number, route) in snapshot.routes.iter().enumerate() {
        let Route::Mcp(route) = &**route else { continue };
        let place = route.backends.iter().position(|b| b.upstream.name() == upstream);
        if let Some(place) = place {
            each(number, route, place);
        }
    }
}

/// Ends idle sessions until the gateway stops.
pub(super) async fn sweep(pipeline: Arc<Pipeline>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            () = pipeline.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        for session in pipeline.sessions.sweep() {
            pipeline.released(&session);
        }
    }
}
