//! What a modern server tells unasked: one `subscriptions/listen`, open as long as the channel (MCP digest §14).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::CallError;
use super::super::link::NoticeKind;
use super::super::pending::Slot;
use super::super::subscription::{Heard, Wanted, agreed, honoured, missed, pause, request};
pub(in crate::upstream) use super::super::subscription::{Offers, Watched};
use super::channel::{Channel, Sort};
use crate::jsonrpc::{Id, Member, Message, RawObject};
use crate::mcp::{ProtocolVersion, meta};

/// The first pause before a subscription is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(256);
/// A subscription that lasted that long was a good one.
const STEADY: Duration = Duration::from_secs(30);

/// The subscriptions of one channel.
#[derive(Debug)]
pub(super) struct Feed {
    /// Those that are open, by id, with who waits for the acknowledgement.
    open: Mutex<HashMap<u64, Option<oneshot::Sender<Message>>>>,
    heard: watch::Sender<Heard>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { open: Mutex::default(), heard: watch::Sender::new(Heard::default()) }
    }
}

impl Feed {
    /// `notifications/subscriptions/acknowledged`; `false` when nobody waits for it.
    pub(super) fn acknowledged(&self, message: Message) -> bool {
        let waiting = subscription_of(&message)
            .and_then(|id| self.open.lock().get_mut(&id.as_number()?)?.take());
        waiting.is_some_and(|waiting| waiting.send(message).is_ok())
    }

    /// Whether that subscription is open.
    pub(super) fn has(&self, id: u64) -> bool {
        self.open.lock().contains_key(&id)
    }

    /// Whether a notification belongs to a subscription that is open, or does not say to which it belongs.
    pub(super) fn covers(&self, message: &Message) -> bool {
        let Some(id) = subscription_of(message) else { return true };
        id.as_number().is_some_and(|id| self.has(id))
    }
}

/// The subscription that a notification belongs to.
fn subscription_of(message: &Message) -> Option<Id> {
    let meta = RawObject::parse(&message.member(Member::Meta)?)?;
    Some(Id::from_text(meta.get(meta::SUBSCRIPTION_ID)?.clone()))
}

/// A subscription that the server has acknowledged, or is asked for. Dropping it ends it.
struct Subscription<'a> {
    channel: &'a Channel,
    slot: Slot,
    /// Whether the server has ended it.
    ended: bool,
}

impl Subscription<'_> {
    /// Resolves when the server ended it.
    async fn end(&mut self) {
        let _ = (&mut self.slot.answer).await;
        self.ended = true;
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.channel.feed.open.lock().remove(&self.slot.id);
        if !self.ended {
            self.channel.cancel(self.slot.id, "the subscription was replaced");
        }
    }
}

/// Resolves when a subscription ends that is there.
async fn end_of(subscription: &mut Option<Subscription<'_>>) {
    match subscription {
        Some(subscription) => subscription.end().await,
        None => std::future::pending().await,
    }
}

impl Channel {
    /// Keeps a subscription open for what the server offers and what is watched, until the channel ends.
    pub(in crate::upstream) async fn listen(self: Arc<Self>, watched: Arc<Watched>) {
        let Some(offers) = self.offers.get().copied() else { return };
        if offers.is_nothing() {
            return;
        }
        tokio::select! {
            () = self.keep_listening(offers, &watched) => {}
            () = self.closed() => {}
            () = self.broken() => {}
        }
    }

    async fn keep_listening(self: &Arc<Self>, offers: Offers, watched: &Watched) {
        let mut wanted = watched.subscribe();
        let mut open: Option<Subscription<'_>> = None;
        let mut missed = false;
        let mut failures = 0;
        loop {
            let want = wanted.borrow_and_update().clone();
            let began = Instant::now();
            match self.subscribe(offers, &want).await {
                Ok(next) => {
                    if std::mem::take(&mut missed) {
                        self.tell_all(offers, &want.uris);
                    }
                    // The one before ends only now, so that nothing is missed between them.
                    open = next;
                }
                Err(error) => {
                    tracing::debug!(upstream = %self.ctx.name, %error, "a subscription failed");
                    let uris = open.as_ref().map(|_| self.feed.heard.borrow().uris.clone());
                    self.feed.heard.send_replace(Heard {
                        number: Some(want.number),
                        uris: uris.unwrap_or_default(),
                        why: Some(Arc::new(error)),
                    });
                    tokio::select! {
                        _ = wanted.changed() => failures = 0,
                        () = sleep(pause(AGAIN_AFTER, failures, LONGEST_PAUSE)) => failures += 1,
                    }
                    continue;
                }
            }
            tokio::select! {
                _ = wanted.changed() => failures = 0,
                () = end_of(&mut open) => {
                    open = None;
                    missed = true;
                    failures = if began.elapsed() >= STEADY { 0 } else { failures + 1 };
                    sleep(pause(AGAIN_AFTER, failures, LONGEST_PAUSE)).await;
                }
            }
        }
    }

    /// Opens one subscription and waits for its acknowledgement; `None` when there is nothing to hear.
    async fn subscribe(
        self: &Arc<Self>,
        offers: Offers,
        want: &Wanted,
    ) -> Result<Option<Subscription<'_>>, CallError> {
        if offers.lists().next().is_none() && want.uris.is_empty() {
            self.feed.heard.send_replace(Heard { number: Some(want.number), ..Heard::default() });
            return Ok(None);
        }
        let limit = self.ctx.config.timeout;
        let slot =
            self.pending.stand(Instant::now()).map_err(|why| self.ctx.closed(false, &*why))?;
        let (acknowledge, acknowledged) = oneshot::channel();
        self.feed.open.lock().insert(slot.id, Some(acknowledge));
        let mut subscription = Subscription { channel: self, slot, ended: true };
        let call = self.ctx.own_call(request(offers, &want.uris), limit);
        let id = subscription.slot.id;
        self.post(&call.text(id, ProtocolVersion::NEWEST_MODERN), Sort::Request(id))?;
        subscription.ended = false;
        let acknowledged = tokio::select! {
            biased;
            acknowledged = timeout(limit, acknowledged) => acknowledged,
            answer = &mut subscription.slot.answer => {
                subscription.ended = true;
                let code = answer.ok().and_then(|answer| answer.ok()?.member(Member::ErrorCode));
                let code = code.as_deref().map_or("no error".into(), String::from_utf8_lossy);
                return Err(self.ctx.protocol(format!("its subscription ended with {code}")));
            }
        };
        match acknowledged {
            Ok(Ok(message)) => {
                let uris = honoured(&message);
                self.feed.heard.send_replace(Heard { number: Some(want.number), uris, why: None });
                Ok(Some(subscription))
            }
            Ok(Err(_)) => Err(self.ctx.protocol("its subscription ended")),
            Err(_) => Err(self.ctx.timeout(limit)),
        }
    }

    /// Whatever is told may have changed while nobody listened.
    fn tell_all(self: &Arc<Self>, offers: Offers, uris: &BTreeSet<Box<str>>) {
        for list in offers.lists() {
            self.tell(NoticeKind::ListChanged(list));
        }
        for kind in missed(uris) {
            self.tell(kind);
        }
    }

    /// Wants to hear of updates of a resource; resolves when the server has agreed.
    pub(in crate::upstream) async fn watch(
        &self,
        watched: &Watched,
        uri: &str,
    ) -> Result<(), CallError> {
        if !self.offers.get().is_some_and(|offers| offers.updates()) {
            return Err(self.ctx.protocol("it does not tell of updates of resources"));
        }
        let gone = async {
            tokio::select! {
                () = self.closed() => self.ctx.closed(true, "its input was closed"),
                () = self.broken() => self.ctx.closed(true, "its output was closed"),
            }
        };
        agreed(&self.ctx, watched, uri, self.feed.heard.subscribe(), gone).await
    }
}
