//! What a server of 2026-07-28 is asked to tell unasked, whatever the transport (MCP digest §14): what it offers, what is
//! watched, and what it agreed to.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::CallError;
use super::link::{LinkContext, NoticeKind};
use crate::jsonrpc::Message;
use crate::mcp::ListKind;

/// Most resources that are watched on one link.
const MAX_WATCHED: usize = 4096;

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

    /// The lists whose changes it tells.
    pub(super) fn lists(self) -> impl Iterator<Item = ListKind> {
        let offered = [
            (self.tools, ListKind::Tools),
            (self.prompts, ListKind::Prompts),
            (self.resources, ListKind::Resources),
        ];
        offered.into_iter().filter_map(|(offered, list)| offered.then_some(list))
    }

    /// Whether it tells of updates of resources.
    pub(super) fn updates(self) -> bool {
        self.updates
    }

    /// Whether there is anything to ask for, now or later.
    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// URIs of resources.
pub(super) type Uris = Arc<BTreeSet<Box<str>>>;

/// The resources that are watched on one link. It outlives connections and children.
#[derive(Debug)]
pub(super) struct Watched(watch::Sender<Wanted>);

/// One state of the set. The number grows with each change.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) number: u64,
    pub(super) uris: Uris,
}

impl Watched {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Wanted::default()))
    }

    /// Tells of each change.
    pub(super) fn subscribe(&self) -> watch::Receiver<Wanted> {
        self.0.subscribe()
    }

    /// Whether nothing is watched.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().uris.is_empty()
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
    pub(super) fn remove(&self, uri: &str) {
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

/// What the last attempt to subscribe came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    /// Which state of [`Watched`] it was for; those begin at 0.
    pub(super) number: Option<u64>,
    /// The resources that the server tells of.
    pub(super) uris: Uris,
    /// Why it failed.
    pub(super) why: Option<Arc<CallError>>,
}

/// Adds a resource to those that are watched, and waits until the server has agreed, or `gone` says that it never will. On
/// error, it is not watched.
pub(super) async fn agreed(
    context: &LinkContext,
    watched: &Watched,
    uri: &str,
    mut heard: watch::Receiver<Heard>,
    gone: impl Future<Output = CallError>,
) -> Result<(), CallError> {
    let Some((number, added)) = watched.add(uri) else {
        return Err(CallError::Busy { upstream: context.name.clone() });
    };
    let mut taken_back = TakenBack { watched, uri: added.then_some(uri) };
    let limit = context.config.timeout;
    let heard = tokio::select! {
        biased;
        heard = timeout(limit, heard.wait_for(|heard| heard.number >= Some(number))) => heard,
        error = gone => return Err(error),
    };
    let heard = match heard {
        Ok(Ok(heard)) => heard.clone(),
        Ok(Err(_)) => return Err(context.closed(true, "it was forgotten")),
        Err(_) => return Err(context.timeout(limit)),
    };
    if heard.uris.contains(uri) {
        taken_back.uri = None;
        return Ok(());
    }
    Err(match heard.why {
        Some(why) => why.again(),
        None => context.protocol("it does not tell of updates of this resource"),
    })
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
pub(super) fn request(offers: Offers, uris: &BTreeSet<Box<str>>) -> Message {
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
pub(super) fn honoured(acknowledged: &Message) -> Uris {
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

/// What is to be told of watched resources when changes may have been missed: that each was updated.
pub(super) fn missed(uris: &BTreeSet<Box<str>>) -> impl Iterator<Item = NoticeKind> {
    uris.iter().map(|uri| {
        let params = serde_json::json!({ "uri": uri }).to_string();
        let updated =
            Message::notification("notifications/resources/updated", Some(params.as_bytes()));
        NoticeKind::ResourceUpdated(updated)
    })
}

/// The pause after so many failures in a row: doubled each time, up to `most`.
pub(super) fn pause(first: Duration, failures: u32, most: Duration) -> Duration {
    first.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(most)
}
