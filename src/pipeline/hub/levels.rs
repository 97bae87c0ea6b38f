//! Log levels of legacy upstreams that clients share: the lowest that anybody on a link wants, and no lower.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::Instant;

use super::{for_routes, send_beside};
use crate::config::UpstreamName;
use crate::jsonrpc::Message;
use crate::mcp::{Era, LOG_LEVELS};
use crate::pipeline::call::Context;
use crate::pipeline::{Backend, Pipeline};
use crate::session::Session;
use crate::upstream::{LinkKey, LinkScope};

/// Most links of which a level is remembered.
const MAX_LEVELS: usize = 10_000;
/// How long a level that only requests without a session wanted is kept for the next one.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// What is set when nobody wants anything any more: what servers that were told nothing commonly do.
const USUAL: u8 = 1;

/// One link.
type Place = (UpstreamName, LinkKey);

/// The levels of links.
#[derive(Debug, Default)]
pub(super) struct Levels(DashMap<Place, Level>);

/// What one link was told, and what requests without a session want of it.
#[derive(Clone, Debug, Default)]
struct Level {
    /// Rank of what the upstream was told last; nothing yet since the link was opened.
    told: Option<u8>,
    /// How many requests that run now want which rank.
    running: [u32; LOG_LEVELS.len()],
    /// The rank that one of them wanted which has ended, and when.
    lately: Option<(u8, Instant)>,
}

impl Level {
    /// The lowest rank that requests without a session want.
    fn wanted(&self, now: Instant) -> Option<u8> {
        let running = self.running.iter().position(|count| *count > 0);
        let running = running.and_then(|rank| u8::try_from(rank).ok());
        running.into_iter().chain(self.lately(now)).min()
    }

    fn lately(&self, now: Instant) -> Option<u8> {
        let (rank, at) = self.lately?;
        (now.saturating_duration_since(at) < KEPT_FOR).then_some(rank)
    }

    fn begin(&mut self, rank: u8) {
        if let Some(count) = self.running.get_mut(usize::from(rank)) {
            *count += 1;
        }
    }

    fn end(&mut self, rank: u8, now: Instant) {
        if let Some(count) = self.running.get_mut(usize::from(rank)) {
            *count = count.saturating_sub(1);
        }
        let lowest = self.lately(now).map_or(rank, |lately| lately.min(rank));
        self.lately = Some((lowest, now));
    }

    /// Nothing is to be remembered.
    fn is_idle(&self, now: Instant) -> bool {
        self.told.is_none() && self.wanted(now).is_none()
    }
}

/// A request without a session that wants a level, as long as it runs.
pub(in crate::pipeline) struct Wanting {
    pipeline: Arc<Pipeline>,
    place: Place,
    rank: u8,
}

impl Drop for Wanting {
    fn drop(&mut self) {
        if let Some(mut level) = self.pipeline.hub.levels.0.get_mut(&self.place) {
            level.end(self.rank, Instant::now());
        }
    }
}

impl Levels {
    /// Notes what a link is told; `false` when it was told that already. Links that belong to one session end with it.
    fn tell(&self, place: &Place, rank: u8) -> bool {
        if matches!(place.1.scope, LinkScope::Session(_)) {
            return true;
        }
        self.make_room();
        let mut level = self.0.entry(place.clone()).or_default();
        level.told.replace(rank) != Some(rank)
    }

    fn make_room(&self) {
        if self.0.len() >= MAX_LEVELS {
            let now = Instant::now();
            self.0.retain(|_, level| level.wanted(now).is_some());
        }
    }

    /// The link is a new one, which was told nothing.
    fn reset(&self, place: &Place) {
        if let Some(mut level) = self.0.get_mut(place) {
            level.told = None;
        }
    }

    fn wanted(&self, place: &Place) -> Option<u8> {
        self.0.get(place)?.wanted(Instant::now())
    }

    /// The links of that kind that were told something.
    fn places(&self, concerns: impl Fn(&Place) -> bool) -> Vec<Place> {
        let told = self.0.iter().filter(|entry| entry.value().told.is_some());
        told.map(|entry| entry.key().clone()).filter(|place| concerns(place)).collect()
    }
}

/// Sees to it that a legacy upstream logs what a request without a session wants to see (MCP digest §5.2), as long as
/// what is returned lives, and a while longer.
pub(in crate::pipeline) async fn lower(cx: &Context, backend: &Arc<Backend>) -> Option<Wanting> {
    let rank = cx.session.log_rank()?;
    let upstream = &backend.upstream;
    let hello = upstream.hello(&cx.link(backend)).await.ok()?;
    let link = upstream.link_of(&cx.link(backend));
    if link.era == Era::Modern || !hello.caps.logging {
        return None;
    }
    let place = (upstream.name().clone(), link);
    let levels = &cx.pipeline.hub.levels;
    levels.make_room();
    let told = {
        let mut level = levels.0.entry(place.clone()).or_default();
        level.begin(rank);
        level.told
    };
    let wanting = Wanting { pipeline: Arc::clone(&cx.pipeline), place, rank };
    if told.is_none_or(|told| told > rank) {
        let request = set_level(rank)?;
        let call = backend.plain_call(request);
        if upstream.call(&wanting.place.1, call).await.is_ok() {
            levels.tell(&wanting.place, rank);
        }
    }
    Some(wanting)
}

/// Tells the upstreams of a session which log level its client asked for.
pub(in crate::pipeline) fn relay(cx: &Context) {
    for backend in &cx.route.backends {
        let link = backend.upstream.link_of(&cx.link(backend));
        // A link that is not open yet is told when it opens.
        if backend.upstream.is_open(&link) {
            send(&cx.pipeline, backend, link);
        }
    }
}

/// A link is new: it is told what is wanted of it.
pub(super) fn opened(pipeline: &Arc<Pipeline>, backend: &Arc<Backend>, link: &LinkKey) {
    pipeline.hub.levels.reset(&(backend.upstream.name().clone(), link.clone()));
    send(pipeline, backend, link.clone());
}

/// Sets the level that a link needs: the lowest that any of its clients asked for, on whatever route.
fn send(pipeline: &Arc<Pipeline>, backend: &Arc<Backend>, link: LinkKey) {
    // Modern upstreams are told with each request.
    let known = backend.upstream.known(link.era);
    if link.era == Era::Modern || known.is_some_and(|hello| !hello.caps.logging) {
        return;
    }
    let place = (backend.upstream.name().clone(), link);
    if let Some(rank) = wanted(pipeline, backend, &place) {
        pipeline.hub.levels.tell(&place, rank);
        if let Some(request) = set_level(rank) {
            send_beside(pipeline, backend, place.1, request);
        }
    }
}

/// The lowest rank that anybody wants of a link.
fn wanted(pipeline: &Arc<Pipeline>, backend: &Backend, place: &Place) -> Option<u8> {
    let link = &place.1;
    if let LinkScope::Session(number) = link.scope {
        return pipeline.sessions.numbered(number).and_then(|session| session.log_rank());
    }
    let mut routes = Vec::new();
    for_routes(pipeline, backend.upstream.name(), |_, route, _| routes.push(route.name.clone()));
    let sessions = pipeline
        .sessions
        .collect(|session| session.caps() == link.caps && routes.contains(session.route()));
    let passing = pipeline.hub.levels.wanted(place);
    sessions.iter().filter_map(|session| session.log_rank()).chain(passing).min()
}

/// A session has ended: what it alone wanted to see is not logged any more.
pub(super) fn forget(pipeline: &Arc<Pipeline>, session: &Session) {
    if session.log_rank().is_some() {
        raise(pipeline, |(_, link)| link.caps == session.caps());
    }
}

/// Raises what nobody has wanted for a while.
pub(super) fn sweep(pipeline: &Arc<Pipeline>) {
    let levels = &pipeline.hub.levels.0;
    if levels.is_empty() {
        return;
    }
    let now = Instant::now();
    let mut lapsed = Vec::new();
    levels.retain(|place, level| {
        if level.lately.is_some() && level.lately(now).is_none() {
            level.lately = None;
            lapsed.push(place.clone());
        }
        !level.is_idle(now)
    });
    if !lapsed.is_empty() {
        raise(pipeline, |place| lapsed.contains(place));
    }
}

/// Sets anew what links were told that want something else by now.
fn raise(pipeline: &Arc<Pipeline>, concerns: impl Fn(&Place) -> bool) {
    let snapshot = pipeline.snapshot();
    for place in pipeline.hub.levels.places(concerns) {
        let Some(backend) = snapshot.backend(&place.0) else { continue };
        let rank = wanted(pipeline, backend, &place);
        let changes = pipeline.hub.levels.tell(&place, rank.unwrap_or(USUAL));
        if rank.is_none() {
            // Nobody is left who would set it another time.
            pipeline.hub.levels.reset(&place);
        }
        if changes
            && let Some(request) = set_level(rank.unwrap_or(USUAL))
            && backend.upstream.is_open(&place.1)
        {
            send_beside(pipeline, backend, place.1, request);
        }
    }
}

fn set_level(rank: u8) -> Option<Message> {
    let level = LOG_LEVELS.get(usize::from(rank))?;
    let params = serde_json::json!({ "level": level }).to_string();
    Some(Message::request("logging/setLevel", Some(params.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_requests_want_counts_as_long_as_they_run_and_a_while_longer() {
        let mut level = Level::default();
        assert_eq!(level.wanted(Instant::now()), None);
        level.begin(3);
        level.begin(0);
        assert_eq!(level.wanted(Instant::now()), Some(0));
        level.end(0, Instant::now());
        tokio::time::advance(KEPT_FOR / 2).await;
        assert_eq!(level.wanted(Instant::now()), Some(0), "the next one may want the same");
        tokio::time::advance(KEPT_FOR).await;
        assert_eq!(level.wanted(Instant::now()), Some(3), "it runs for long");
        level.end(3, Instant::now());
        tokio::time::advance(KEPT_FOR).await;
        assert!(level.is_idle(Instant::now()));
    }
}
