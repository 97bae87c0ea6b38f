//! What a modern server tells unasked: one `subscriptions/listen`, open as long as the channel (MCP digest §14).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::CallError;
use super::super::link::NoticeKind;
use super::super::pending::Slot;
use super::channel::{Channel, Sort};
use crate::jsonrpc::{Id, Member, Message, RawObject};
use crate::mcp::{ListKind, ProtocolVersion, meta};

/// Most resources that are watched on one link.
const MAX_WATCHED: usize = 10_000;
/// The first pause before a subscription is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest pause is this many times the first doubled.
const MAX_DOUBLINGS: u32 = 8;
/// A subscription that lasted that long was a good one.
const STEADY: Duration = Duration::from_secs(30);

/// What a server offers to tell unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offers {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: bool,
}

impl Offers {
    /// Reads the `capabilities` of a `DiscoverResult`.
    pub(super) fn parse(result: &[u8]) -> Self {
        let result: Value = serde_json::from_slice(result).unwrap_or_default();
        let caps = &result["capabilities"];
        let offers = |list: &str, member: &str| caps[list][member] == Value::Bool(true);
        Self {
            tools: offers("tools", "listChanged"),
            prompts: offers("prompts", "listChanged"),
            resources: offers("resources", "listChanged"),
            updates: offers("resources", "subscribe"),
        }
    }

    fn lists(self) -> impl Iterator<Item = ListKind> {
        let offered = [
            (self.tools, ListKind::Tools),
            (self.prompts, ListKind::Prompts),
            (self.resources, ListKind::Resources),
        ];
        offered.into_iter().filter_map(|(offered, list)| offered.then_some(list))
    }
}

type Uris = Arc<BTreeSet<Box<str>>>;

/// The resources that are watched on one link. It outlives the children.
#[derive(Debug)]
pub(in crate::upstream) struct Watched(watch::Sender<Wanted>);

/// One state of the set. The number grows with each change.
#[derive(Clone, Debug, Default)]
struct Wanted {
    number: u64,
    uris: Uris,
}

impl Watched {
    pub(in crate::upstream) fn new() -> Self {
        Self(watch::Sender::new(Wanted::default()))
    }

    /// Adds one. Says since which state it is in, and whether it was not before; `None` when there are too many.
    fn add(&self, uri: &str) -> Option<(u64, bool)> {
        let mut added = None;
        self.0.send_if_modified(|wanted| {
            if wanted.uris.contains(uri) {
                added = Some((wanted.number, false));
                return false;
            }
            if wanted.uris.len() >= MAX_WATCHED {
                return false;
            }
            Arc::make_mut(&mut wanted.uris).insert(uri.into());
            wanted.number += 1;
            added = Some((wanted.number, true));
            true
        });
        added
    }

    /// Takes one out.
    pub(in crate::upstream) fn remove(&self, uri: &str) {
        self.0.send_if_modified(|wanted| {
            let removed = wanted.uris.contains(uri);
            if removed {
                Arc::make_mut(&mut wanted.uris).remove(uri);
                wanted.number += 1;
            }
            removed
        });
    }
}

/// The subscriptions of one channel.
#[derive(Debug)]
pub(super) struct Feed {
    /// Those that are open, by id, with who waits for the acknowledgement.
    open: Mutex<HashMap<u64, Option<oneshot::Sender<Message>>>>,
    heard: watch::Sender<Heard>,
}

/// What the last attempt to subscribe came to.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Which state of [`Watched`] it was for; those begin at 0.
    number: Option<u64>,
    /// The resources that the server tells of.
    uris: Uris,
    /// Why it failed.
    why: Option<Arc<CallError>>,
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
        if offers == Offers::default() {
            return;
        }
        tokio::select! {
            () = self.keep_listening(offers, &watched) => {}
            () = self.closed() => {}
            () = self.broken() => {}
        }
    }

    async fn keep_listening(self: &Arc<Self>, offers: Offers, watched: &Watched) {
        let mut wanted = watched.0.subscribe();
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
                        () = sleep(pause(failures)) => failures += 1,
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
                    sleep(pause(failures)).await;
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
        for uri in uris {
            let params = serde_json::json!({ "uri": uri }).to_string();
            let updated =
                Message::notification("notifications/resources/updated", Some(params.as_bytes()));
            self.tell(NoticeKind::ResourceUpdated(updated));
        }
    }

    /// Wants to hear of updates of a resource; resolves when the server has agreed.
    pub(in crate::upstream) async fn watch(
        &self,
        watched: &Watched,
        uri: &str,
    ) -> Result<(), CallError> {
        if !self.offers.get().is_some_and(|offers| offers.updates) {
            return Err(self.ctx.protocol("it does not tell of updates of resources"));
        }
        let Some((number, added)) = watched.add(uri) else {
            return Err(CallError::Busy { upstream: self.ctx.name.clone() });
        };
        let mut taken_back = TakenBack { watched, uri: added.then_some(uri) };
        let mut heard = self.feed.heard.subscribe();
        let limit = self.ctx.config.timeout;
        let heard = tokio::select! {
            biased;
            heard = timeout(limit, heard.wait_for(|heard| heard.number >= Some(number))) => heard,
            () = self.closed() => return Err(self.ctx.closed(true, "its input was closed")),
            () = self.broken() => return Err(self.ctx.closed(true, "its output was closed")),
        };
        let heard = match heard {
            Ok(Ok(heard)) => heard.clone(),
            Ok(Err(_)) => return Err(self.ctx.closed(true, "it was forgotten")),
            Err(_) => return Err(self.ctx.timeout(limit)),
        };
        if heard.uris.contains(uri) {
            taken_back.uri = None;
            return Ok(());
        }
        Err(match heard.why {
            Some(why) => why.again(),
            None => self.ctx.protocol("it does not tell of updates of this resource"),
        })
    }
}

/// Takes a resource out again that the server did not agree to tell of.
struct TakenBack<'a> {
    watched: &'a Watched,
    uri: Option<&'a str>,
}

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.watched.remove(uri);
        }
    }
}

/// Our `subscriptions/listen`.
fn request(offers: Offers, uris: &BTreeSet<Box<str>>) -> Message {
    let mut filter: Map<String, Value> = Map::new();
    for list in offers.lists() {
        filter.insert(flag(list).to_owned(), true.into());
    }
    if !uris.is_empty() {
        let uris = uris.iter().map(|uri| Value::from(&**uri)).collect();
        filter.insert("resourceSubscriptions".to_owned(), uris);
    }
    let params = serde_json::json!({ "notifications": filter }).to_string();
    Message::request("subscriptions/listen", Some(params.as_bytes()))
}

fn flag(list: ListKind) -> &'static str {
    match list {
        ListKind::Tools => "toolsListChanged",
        ListKind::Prompts => "promptsListChanged",
        ListKind::Resources | ListKind::Templates => "resourcesListChanged",
    }
}

/// The resources that an acknowledgement agrees to.
fn honoured(acknowledged: &Message) -> Uris {
    #[derive(serde::Deserialize)]
    struct Params {
        notifications: Filter,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Filter {
        #[serde(default)]
        resource_subscriptions: Vec<Box<str>>,
    }
    let params = acknowledged.params().unwrap_or_default();
    let params = serde_json::from_slice::<Params>(&params);
    let uris = params.map(|params| params.notifications.resource_subscriptions);
    Arc::new(uris.unwrap_or_default().into_iter().collect())
}

fn pause(failures: u32) -> Duration {
    AGAIN_AFTER.saturating_mul(1 << failures.min(MAX_DOUBLINGS))
}
