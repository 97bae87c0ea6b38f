//! Subscribing to resources of upstreams, and taking that back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::topics::Topic;
use super::{about, backend_of};
use crate::jsonrpc::{Answer, Message};
use crate::mcp::Era;
use crate::pipeline::call::Context;
use crate::pipeline::{Backend, Pipeline};
use crate::upstream::{Kept, LinkKey};

/// How many resources an upstream is asked about, or told of, at once for one client.
pub(in crate::pipeline) const AT_ONCE: usize = 8;
/// How long a subscription that got no slot of its upstream waits before it queues again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How far a subscription is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent.
    Fresh,
    /// The upstream may agree at any time.
    Asked,
    /// It is settled, or not ours to take back.
    Over,
}

/// A subscription that the upstream has not agreed to yet. Dropping it takes it back, also upstream, where that may have
/// agreed meanwhile.
pub(in crate::pipeline) struct Subscribing {
    pipeline: Arc<Pipeline>,
    backend: Arc<Backend>,
    topic: Topic,
    session: u64,
    known: bool,
    stage: Stage,
}

impl Subscribing {
    /// Whether the upstream agreed before: it need not be asked.
    pub(in crate::pipeline) fn is_known(&self) -> bool {
        self.known
    }

    /// The link, when it is of an upstream without `resources/subscribe`.
    pub(in crate::pipeline) fn modern(&self) -> Option<&LinkKey> {
        (self.topic.link.era == Era::Modern).then_some(&self.topic.link)
    }

    /// The upstream is asked from now on.
    pub(in crate::pipeline) fn ask(&mut self) {
        self.stage = Stage::Asked;
    }

    /// The upstream has agreed.
    pub(in crate::pipeline) fn confirm(mut self) {
        if self.pipeline.hub.topics.confirm(&self.topic) {
            self.stage = Stage::Over;
        }
    }

    /// The upstream has not agreed.
    pub(in crate::pipeline) fn refused(mut self) {
        self.stage = Stage::Fresh;
    }
}

impl Drop for Subscribing {
    fn drop(&mut self) {
        if self.stage == Stage::Over || self.known {
            return;
        }
        let unwatched = self.pipeline.hub.topics.part(&self.topic, self.session);
        if unwatched && self.stage == Stage::Asked {
            take_back(&self.pipeline, vec![(Arc::clone(&self.backend), self.topic.clone())]);
        }
    }
}

/// A session subscribes to a resource of an upstream; `None` when it may not.
pub(in crate::pipeline) fn subscribe(
    cx: &Context,
    backend: &Arc<Backend>,
    uri: &str,
) -> Option<Subscribing> {
    let upstream = backend.upstream.name().clone();
    let link = backend.upstream.link_of(&cx.link(backend));
    let topic = Topic { upstream, link, uri: uri.into() };
    let session = cx.session.number();
    let known = cx.pipeline.hub.topics.join(&topic, session)?;
    let (pipeline, backend) = (Arc::clone(&cx.pipeline), Arc::clone(backend));
    Some(Subscribing { pipeline, backend, topic, session, known, stage: Stage::Fresh })
}

/// Takes a subscription back; the upstream that must be told, where it was the last one on its link.
pub(in crate::pipeline) fn unsubscribe<'a>(cx: &'a Context, uri: &str) -> Option<&'a Arc<Backend>> {
    let mut orphans = cx.pipeline.hub.topics.leave(uri, cx.session.number());
    let legacy = |topic: &Topic| topic.link.era == Era::Legacy;
    let last = orphans.iter().rposition(legacy).map(|place| orphans.remove(place));
    // More than one only if the resource has moved to another upstream meanwhile.
    let others = orphans.into_iter().filter_map(|topic| {
        let backend = backend_of(&cx.route, &topic)?;
        Some((Arc::clone(backend), topic))
    });
    take_back(&cx.pipeline, others.collect());
    last.and_then(|topic| backend_of(&cx.route, &topic))
}

/// Tells upstreams that nobody watches these any more: a few at a time, and not at all where everything ends.
pub(super) fn take_back(pipeline: &Arc<Pipeline>, topics: Vec<(Arc<Backend>, Topic)>) {
    let (modern, legacy): (Vec<_>, Vec<_>) =
        topics.into_iter().partition(|(_, topic)| topic.link.era == Era::Modern);
    for (backend, topic) in modern {
        backend.upstream.unwatch(&topic.link, &topic.uri);
    }
    if legacy.is_empty() || pipeline.is_draining() || tokio::runtime::Handle::try_current().is_err()
    {
        return;
    }
    let telling = legacy.into_iter().map(|(backend, topic)| {
        let pipeline = Arc::clone(pipeline);
        async move {
            // Somebody may have come meanwhile, and what is not open has forgotten it.
            let watched = pipeline.hub.topics.is_watched(&topic);
            if !watched && backend.upstream.is_open(&topic.link) {
                tell(&backend, &topic.link, about("resources/unsubscribe", &topic.uri)).await;
            }
        }
    });
    beside(pipeline, telling.collect());
}

/// Asks an upstream anew for what was subscribed to on a link that was opened again.
pub(super) fn renew(
    pipeline: &Arc<Pipeline>,
    backend: &Arc<Backend>,
    link: &LinkKey,
    uris: Vec<Arc<str>>,
) {
    let asking = uris.into_iter().map(|uri| {
        let (backend, link) = (Arc::clone(backend), link.clone());
        async move { tell(&backend, &link, about("resources/subscribe", &uri)).await }
    });
    beside(pipeline, asking.collect());
}

/// Sees to these a few at a time, until the gateway stops.
fn beside(pipeline: &Arc<Pipeline>, work: Vec<impl Future<Output = ()> + Send + 'static>) {
    if work.is_empty() {
        return;
    }
    let stop = pipeline.stop.clone();
    let work = stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>();
    pipeline.tasks.spawn(async move { stop.run_until_cancelled(work).await });
}

/// A request of the gateway's own, whose answer is of no interest.
async fn tell(backend: &Backend, link: &LinkKey, request: Message) {
    let call = backend.plain_call(request);
    if let Err(error) = backend.upstream.call(link, call).await {
        tracing::debug!(upstream = %backend.upstream.name(), %error, "upstream was not told");
    }
}

/// Subscribes a listener to a resource of an upstream. The link is kept as long as what is returned lives. What was asked
/// is seen through though the listener ends meanwhile: what the upstream agrees to then is taken back.
pub(in crate::pipeline) async fn watch(
    cx: &Context,
    backend: &Arc<Backend>,
    uri: &str,
) -> Option<Kept> {
    let upstream = &backend.upstream;
    // Which link it is shows when it is open.
    upstream.hello(&cx.link(backend)).await.ok()?;
    let link = upstream.link_of(&cx.link(backend));
    let kept = upstream.keep(&link).ok()?;
    let mut subscribing = subscribe(cx, backend, uri)?;
    if subscribing.is_known() {
        return Some(kept);
    }
    let slot = match link.era {
        Era::Modern => None,
        Era::Legacy => loop {
            match backend.slots.take(backend.config().timeout).await {
                Ok(slot) => break Some(slot),
                Err(_) => sleep(AGAIN_AFTER).await,
            }
        },
    };
    let (teller, told) = oneshot::channel();
    let (asked, uri) = (Arc::clone(backend), uri.to_owned());
    subscribing.ask();
    let asking = async move {
        let _slot = slot;
        let agreed = agrees(&asked, &link, &uri).await;
        if agreed {
            subscribing.confirm();
        } else {
            subscribing.refused();
        }
        let _ = teller.send(agreed);
    };
    let stop = cx.pipeline.stop.clone();
    cx.pipeline.tasks.spawn(async move { stop.run_until_cancelled(asking).await });
    let agreed = told.await.unwrap_or(false);
    if !agreed {
        tracing::debug!(upstream = %upstream.name(), "upstream did not agree to a subscription");
    }
    agreed.then_some(kept)
}

/// Whether an upstream agrees to tell of a resource.
async fn agrees(backend: &Arc<Backend>, link: &LinkKey, uri: &str) -> bool {
    match link.era {
        Era::Modern => backend.upstream.watch(link, uri).await.is_ok(),
        Era::Legacy => {
            let request = about("resources/subscribe", uri);
            let answer = backend.upstream.call(link, backend.plain_call(request)).await;
            answer.is_ok_and(|answer| answer.message.answer() == Answer::Result)
        }
    }
}
