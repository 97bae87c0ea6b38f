//! What upstreams say that belongs to no request, and who hears of it: list changes, resource updates, log
//! levels. And the sweep of idle sessions.

mod levels;
mod shares;
mod subscribing;
mod topics;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::levels::Levels;
pub(super) use self::levels::{lower as lower_level, relay as relay_level};
pub(super) use self::shares::Holder;
use self::shares::Shares;
pub(super) use self::subscribing::{AT_ONCE, subscribe, unsubscribe, watch};
use self::subscribing::{renew, take_back};
use self::topics::{Topic, Topics};
use super::call::Context;
use super::modern::Listener;
use super::{Backend, McpRoute, Pipeline, Route};
use crate::config::UpstreamName;
use crate::jsonrpc::{Member, Message};
use crate::mcp::{Era, ListKind, log_rank};
use crate::session::{Broadcast, Session};
use crate::upstream::{LinkKey, LinkScope, Notice, NoticeKind};

/// How long list changes are collected before sessions are told: one restart is one notice.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// Who subscribed to what.
#[derive(Debug, Default)]
pub(super) struct Hub {
    topics: Topics,
    /// Open `subscriptions/listen` requests by their number.
    listeners: DashMap<u64, Arc<Listener>>,
    /// How many of them are whose.
    shares: Shares,
    levels: Levels,
}

impl Hub {
    /// Forgets a session; upstreams are told of resources that nobody watches any more.
    pub(super) fn forget(&self, pipeline: &Arc<Pipeline>, route: &McpRoute, session: u64) {
        let orphans = self.topics.forget(session).into_iter().filter_map(|topic| {
            // The link of one session ends with it.
            let shared = topic.link.scope != LinkScope::Session(session);
            let backend = backend_of(route, &topic).filter(|_| shared)?;
            Some((Arc::clone(backend), topic))
        });
        take_back(pipeline, orphans.collect());
    }

    /// Lets go of what a session that has ended wanted of links that it shared.
    pub(super) fn released(pipeline: &Arc<Pipeline>, session: &Session) {
        levels::forget(pipeline, session);
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

/// How long what a listener wants is looked for, and its upstreams waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A listener is told of what concerns it from now on; `false` when there are too many, or too many of one client.
pub(super) fn hear(cx: &Context, listener: &Arc<Listener>) -> bool {
    let hub = &cx.pipeline.hub;
    let (listeners, most) = (&hub.listeners, cx.snapshot.server.max_sessions);
    if listeners.len() >= most || cx.pipeline.is_draining() {
        return false;
    }
    if !hub.shares.take(listener.holder(), most) {
        return false;
    }
    listeners.insert(listener.number(), Arc::clone(listener));
    cx.route.metrics.streams("listen").inc();
    true
}

/// A listener has ended.
pub(super) fn deafen(cx: &Context, listener: &Listener) {
    if cx.pipeline.hub.listeners.remove(&listener.number()).is_some() {
        cx.pipeline.hub.shares.give_back(listener.holder());
        cx.route.metrics.streams("listen").dec();
    }
    cx.pipeline.hub.forget(&cx.pipeline, &cx.route, listener.number());
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
    let Some(backend) = snapshot.backend(upstream) else { return };
    // A modern upstream hears of them with the listen request of the link.
    let uris = match link.era {
        Era::Modern => Vec::new(),
        Era::Legacy => pipeline.hub.topics.uris(upstream, link),
    };
    renew(pipeline, backend, link, uris);
    for_routes(pipeline, upstream, |_, route, index| {
        route.lists.reopened(pipeline, route, index, link);
    });
    levels::opened(pipeline, backend, link);
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
        levels::sweep(&pipeline);
        pipeline.promises.sweep();
    }
}
