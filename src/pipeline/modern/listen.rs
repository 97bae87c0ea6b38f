//! `subscriptions/listen`: one stream of changes for one client, fed by all upstreams (MCP digest §14).

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{FutureExt, join_all};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::config::RouteName;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Id, Message, RawObject, result_response};
use crate::mcp::{Era, ListKind, meta};
use crate::pipeline::call::{Context, Ended, cut_off};
use crate::pipeline::mcp::{Served, invalid_params};
use crate::pipeline::reply::Done;
use crate::pipeline::{Backend, Outlet, hub};

/// Most resources of one filter.
const MAX_URIS: usize = 1_000;
/// Most updates that wait for a slow client; then its stream ends, so that it asks anew.
const MAX_WAITING: usize = 1_000;
/// Most bytes of them.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// What a client wants to hear of; and the part of it that it will.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tools_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    prompts_list_changed: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resources_list_changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_subscriptions: Option<Vec<String>>,
}

impl Filter {
    fn wants(&self, kind: ListKind) -> bool {
        match kind {
            ListKind::Tools => self.tools_list_changed,
            ListKind::Prompts => self.prompts_list_changed,
            ListKind::Resources | ListKind::Templates => self.resources_list_changed,
        }
    }
}

/// One open `subscriptions/listen`, as the hub feeds it.
#[derive(Debug)]
pub(in crate::pipeline) struct Listener {
    number: u64,
    route: RouteName,
    /// Whose it is.
    holder: hub::Holder,
    filter: Filter,
    waiting: Mutex<Waiting>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    lists: Vec<ListKind>,
    /// `params` of updates, each text once.
    updates: VecDeque<Bytes>,
    /// Bytes of these.
    bytes: usize,
    over: bool,
}

/// What a listener is to be sent next.
enum Next {
    Changed(ListKind),
    Updated(Bytes),
    Over,
}

impl Listener {
    /// The number under which its subscriptions are kept.
    pub(in crate::pipeline) fn number(&self) -> u64 {
        self.number
    }

    /// Whose it is.
    pub(in crate::pipeline) fn holder(&self) -> &hub::Holder {
        &self.holder
    }

    /// A list of its route has changed.
    pub(in crate::pipeline) fn changed(&self, route: &RouteName, kind: ListKind) {
        let kind = if kind == ListKind::Templates { ListKind::Resources } else { kind };
        if *route != self.route || !self.filter.wants(kind) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if !waiting.lists.contains(&kind) {
            waiting.lists.push(kind);
        }
        drop(waiting);
        self.woken.notify_one();
    }

    /// A resource that it subscribed to was updated.
    pub(in crate::pipeline) fn updated(&self, message: &Message) {
        let Some(params) = message.params() else { return };
        let mut waiting = self.waiting.lock();
        if waiting.updates.contains(&params) {
            return;
        }
        let bytes = waiting.bytes.saturating_add(params.len());
        let one = waiting.updates.is_empty();
        if waiting.updates.len() >= MAX_WAITING || (bytes > MAX_WAITING_BYTES && !one) {
            waiting.over = true;
        } else {
            waiting.bytes = bytes;
            waiting.updates.push_back(params);
        }
        drop(waiting);
        self.woken.notify_one();
    }

    /// It ends, with its normal result.
    pub(in crate::pipeline) fn close(&self) {
        self.waiting.lock().over = true;
        self.woken.notify_one();
    }

    async fn next(&self) -> Next {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if let Some(kind) = waiting.lists.pop() {
                    return Next::Changed(kind);
                }
                if let Some(params) = waiting.updates.pop_front() {
                    waiting.bytes -= params.len();
                    return Next::Updated(params);
                }
                if waiting.over {
                    return Next::Over;
                }
            }
            self.woken.notified().await;
        }
    }
}

/// Takes a listener out of the hub, and its subscriptions back.
struct Registered<'a> {
    cx: &'a Context,
    listener: Arc<Listener>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        hub::deafen(self.cx, &self.listener);
    }
}

/// Serves one listener until it, its client or the gateway ends.
pub(in crate::pipeline) async fn listen(
    cx: &Context,
    message: &Message,
    id: &Id,
    outlet: &Outlet,
) -> Served {
    let params = message.params().and_then(|params| RawObject::parse(&params));
    let wanted = params.as_ref().and_then(|params| params.get("notifications"));
    let wanted = wanted.filter(|filter| filter.starts_with(b"{"));
    let wanted: Option<Filter> = wanted.and_then(|filter| serde_json::from_slice(filter).ok());
    let wanted = wanted.ok_or_else(|| {
        invalid_params("Invalid params: notifications must be a filter of change notifications")
    })?;
    if wanted.resource_subscriptions.as_ref().is_some_and(|uris| uris.len() > MAX_URIS) {
        return Err(invalid_params("Invalid params: resourceSubscriptions has too many entries"));
    }
    let (filter, owners) = honoured(cx, wanted).await;
    let number = cx.session.number();
    let route = cx.route.name.clone();
    let holder = match cx.session.principal() {
        Some(principal) => hub::Holder::Principal(Arc::clone(principal)),
        None => hub::Holder::at(cx.caller.peer()),
    };
    let (waiting, woken) = (Mutex::default(), Notify::new());
    let listener = Arc::new(Listener { number, route, holder, filter, waiting, woken });
    // Registered before it is acknowledged: no change is missed in between.
    if !hub::hear(cx, &listener) {
        let fault = Fault::new(Reason::Overloaded, "too many subscriptions are open");
        return Err(Ended::Fault(fault));
    }
    let registered = Registered { cx, listener };
    let listener = &registered.listener;
    outlet.send(acknowledged(id, &listener.filter).into()).await;

    let uris = listener.filter.resource_subscriptions.clone().unwrap_or_default();
    let watches = uris.iter().zip(owners).map(|(uri, owner)| hub::watch(cx, owner, uri).boxed());
    let watches: Vec<_> = watches.collect();
    // A few at a time, however many there are.
    let watches = stream::iter(watches).buffer_unordered(hub::AT_ONCE).collect::<Vec<_>>();
    let mut watches = pin!(watches.fuse());
    let mut held = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = cx.pipeline.cut_off() => return Err(Ended::Fault(cut_off(None))),
            kept = &mut watches => held = kept,
            next = listener.next() => match next {
                Next::Changed(kind) => outlet.send(changed(id, kind).into()).await,
                Next::Updated(params) => outlet.send(updated(id, &params).into()).await,
                Next::Over => break,
            }
        }
    }
    drop(held);
    let result = format!(
        r#"{{"resultType":"complete","_meta":{{"{}":{}}}}}"#,
        meta::SUBSCRIPTION_ID,
        String::from_utf8_lossy(id.text())
    );
    Ok((Done::ok(result_response(id, result.as_bytes())), Outcome::Ok))
}

/// The part of a filter that will be served, and the owner of each resource in it. Slow upstreams are not waited for.
async fn honoured(cx: &Context, wanted: Filter) -> (Filter, Vec<&Arc<Backend>>) {
    let offered = |kind| cx.route.lists.offered(&cx.route, kind, Era::Modern);
    let mut filter = Filter {
        tools_list_changed: wanted.tools_list_changed && offered(ListKind::Tools),
        prompts_list_changed: wanted.prompts_list_changed && offered(ListKind::Prompts),
        resources_list_changed: wanted.resources_list_changed && offered(ListKind::Resources),
        resource_subscriptions: None,
    };
    let Some(uris) = wanted.resource_subscriptions else { return (filter, Vec::new()) };
    let owners = uris.iter().map(|uri| async move {
        let owner = cx.route.lists.uri_owner(cx, uri);
        let owner = tokio::time::timeout(hub::PATIENCE, owner).await.ok().flatten()?;
        let backend = &cx.route.backends[owner];
        let known = backend.upstream.known(Era::Modern);
        known.is_none_or(|hello| hello.caps.subscribe).then_some(backend)
    });
    let owners = join_all(owners).await;
    let mut seen = HashSet::new();
    let mut served = Vec::new();
    let mut of = Vec::new();
    for (uri, owner) in uris.iter().zip(owners) {
        if let Some(owner) = owner.filter(|_| seen.insert(uri)) {
            served.push(uri.clone());
            of.push(owner);
        }
    }
    filter.resource_subscriptions = Some(served);
    (filter, of)
}

fn acknowledged(id: &Id, filter: &Filter) -> Bytes {
    let filter = serde_json::to_vec(filter).unwrap_or_default();
    let mut params = RawObject::default();
    params.set("_meta", of_subscription(id));
    params.set("notifications", filter);
    notification("notifications/subscriptions/acknowledged", &params)
}

fn changed(id: &Id, kind: ListKind) -> Bytes {
    let mut params = RawObject::default();
    params.set("_meta", of_subscription(id));
    notification(kind.changed(), &params)
}

/// The upstream's params with the subscription of this client in their `_meta`.
fn updated(id: &Id, params: &Bytes) -> Bytes {
    let mut params = RawObject::parse(params).unwrap_or_default();
    let mut meta = params.get("_meta").and_then(RawObject::parse).unwrap_or_default();
    meta.set(meta::SUBSCRIPTION_ID, id.text().clone());
    params.set("_meta", meta.to_bytes());
    notification("notifications/resources/updated", &params)
}

fn of_subscription(id: &Id) -> Bytes {
    let mut meta = RawObject::default();
    meta.set(meta::SUBSCRIPTION_ID, id.text().clone());
    meta.to_bytes()
}

fn notification(method: &str, params: &RawObject) -> Bytes {
    Message::notification(method, Some(&params.to_bytes())).text().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> Listener {
        Listener {
            number: 1,
            route: RouteName::new("/mcp").expect("a name"),
            holder: hub::Holder::Principal("p".into()),
            filter: Filter::default(),
            waiting: Mutex::default(),
            woken: Notify::new(),
        }
    }

    fn update(number: usize, length: usize) -> Message {
        let params = format!(r#"{{"uri":"a:{number}","x":"{}"}}"#, "x".repeat(length));
        Message::notification("notifications/resources/updated", Some(params.as_bytes()))
    }

    async fn drain(listener: &Listener) -> usize {
        let mut count = 0;
        while let Next::Updated(_) = listener.next().await {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn what_waits_for_a_slow_listener_is_bounded_in_number_and_in_bytes() {
        let many = listener();
        (0..2 * MAX_WAITING).for_each(|number| many.updated(&update(number, 1)));
        assert_eq!(drain(&many).await, MAX_WAITING);
        let large = listener();
        // The largest message that upstreams may send still passes.
        large.updated(&update(0, 2 * MAX_WAITING_BYTES));
        assert!(matches!(large.next().await, Next::Updated(_)));
        (1..50).for_each(|number| large.updated(&update(number, MAX_WAITING_BYTES / 8)));
        assert_eq!(drain(&large).await, 7);
        assert_eq!(large.waiting.lock().bytes, 0);
    }
}
