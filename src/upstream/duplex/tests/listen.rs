//! Subscriptions at a server of 2026-07-28.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::super::link::NoticeKind;
use super::super::listen::Watched;
use super::far::Far;
use super::*;
use crate::mcp::ListKind;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A server that offers everything, and the set of what is watched there.
async fn listening() -> (Far, Arc<Watched>) {
    let lists = json!({ "listChanged": true });
    let caps = json!({ "tools": lists, "prompts": {}, "resources": { "listChanged": true, "subscribe": true } });
    let far = Far::modern(caps).await;
    let watched = Arc::new(Watched::new());
    tokio::spawn(Arc::clone(&far.channel).listen(Arc::clone(&watched)));
    (far, watched)
}

/// Reads a `subscriptions/listen`: its id and what it asks for.
async fn listened(far: &mut Far) -> (u64, Value) {
    let line = far.line().await;
    assert_eq!(line["method"], "subscriptions/listen", "{line}");
    assert_eq!(line["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    (line["id"].as_u64().unwrap(), line["params"]["notifications"].clone())
}

async fn notify(far: &mut Far, id: impl Into<Value>, method: &str, mut params: Value) {
    params["_meta"] = json!({ SUBSCRIPTION: id.into() });
    let method = format!("notifications/{method}");
    far.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
}

async fn acknowledge(far: &mut Far, id: u64, filter: &Value) {
    notify(far, id, "subscriptions/acknowledged", json!({ "notifications": filter })).await;
}

async fn cancelled(far: &mut Far) -> u64 {
    let line = far.line().await;
    assert_eq!(line["method"], "notifications/cancelled", "{line}");
    line["params"]["requestId"].as_u64().unwrap()
}

async fn list_changed(far: &mut Far) -> ListKind {
    match far.notices.recv().await.unwrap().kind {
        NoticeKind::ListChanged(list) => list,
        other => panic!("{other:?}"),
    }
}

fn watch(
    far: &Far,
    watched: &Arc<Watched>,
    uri: &'static str,
) -> JoinHandle<Result<(), CallError>> {
    let (channel, watched) = (Arc::clone(&far.channel), Arc::clone(watched));
    tokio::spawn(async move { channel.watch(&watched, uri).await })
}

#[tokio::test(start_paused = true)]
async fn one_subscription_is_open_for_the_lists_that_are_offered() {
    let (mut far, _watched) = listening().await;
    let (id, filter) = listened(&mut far).await;
    assert_eq!(filter, json!({ "toolsListChanged": true, "resourcesListChanged": true }));
    acknowledge(&mut far, id, &filter).await;
    notify(&mut far, id, "tools/list_changed", json!({})).await;
    assert_eq!(list_changed(&mut far).await, ListKind::Tools);
    // Of another subscription, with an id of another type, without one.
    notify(&mut far, id + 1, "tools/list_changed", json!({})).await;
    notify(&mut far, id.to_string(), "tools/list_changed", json!({})).await;
    let bare = json!({ "jsonrpc": "2.0", "method": "notifications/resources/list_changed" });
    far.send(bare).await;
    assert_eq!(list_changed(&mut far).await, ListKind::Resources);
    assert_eq!(far.stray(), 2);
    // It is no call: it neither takes part in association nor runs into a limit.
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    let running = far.begin(1).await;
    far.answer(running.id, json!({})).await;
    assert!(running.end().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_opened_where_nothing_is_offered() {
    let mut far = Far::modern(json!({ "tools": {}, "resources": {} })).await;
    let watched = Arc::new(Watched::new());
    Arc::clone(&far.channel).listen(Arc::clone(&watched)).await;
    let refused = far.channel.watch(&watched, "a:b").await;
    assert!(matches!(refused, Err(CallError::Protocol { .. })));
    far.channel.close("done");
    assert!(far.at_end().await);
}

#[tokio::test(start_paused = true)]
async fn the_wider_subscription_is_acknowledged_before_the_narrower_ends() {
    let (mut far, watched) = listening().await;
    let (first, filter) = listened(&mut far).await;
    acknowledge(&mut far, first, &filter).await;
    let watching = watch(&far, &watched, "a:b");
    let (second, filter) = listened(&mut far).await;
    assert_eq!(filter["resourceSubscriptions"], json!(["a:b"]));
    assert_eq!(filter["toolsListChanged"], true);
    // Until then the first one tells.
    notify(&mut far, first, "tools/list_changed", json!({})).await;
    assert_eq!(list_changed(&mut far).await, ListKind::Tools);
    assert!(!watching.is_finished());
    acknowledge(&mut far, second, &filter).await;
    assert!(watching.await.unwrap().is_ok());
    assert_eq!(cancelled(&mut far).await, first);
    notify(&mut far, second, "resources/updated", json!({ "uri": "a:b" })).await;
    let kind = far.notices.recv().await.unwrap().kind;
    assert!(matches!(kind, NoticeKind::ResourceUpdated(_)), "{kind:?}");
    // A second time nothing is asked for.
    assert!(far.channel.watch(&watched, "a:b").await.is_ok());
    watched.remove("a:b");
    let (third, filter) = listened(&mut far).await;
    assert_eq!(filter.get("resourceSubscriptions"), None);
    acknowledge(&mut far, third, &filter).await;
    assert_eq!(cancelled(&mut far).await, second);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_the_server_does_not_agree_to_is_not_watched() {
    let (mut far, watched) = listening().await;
    let (first, filter) = listened(&mut far).await;
    acknowledge(&mut far, first, &filter).await;
    let watching = watch(&far, &watched, "a:b");
    let (second, _) = listened(&mut far).await;
    acknowledge(&mut far, second, &filter).await;
    assert!(matches!(watching.await.unwrap(), Err(CallError::Protocol { .. })));
    assert_eq!(cancelled(&mut far).await, first);
    let (third, narrow) = listened(&mut far).await;
    assert_eq!(narrow, filter);
    // Refused altogether: what was there stays.
    acknowledge(&mut far, third, &narrow).await;
    assert_eq!(cancelled(&mut far).await, second);
    let watching = watch(&far, &watched, "c:d");
    let (fourth, _) = listened(&mut far).await;
    far.refuse(fourth, json!({ "code": -32602, "message": "no" })).await;
    assert!(matches!(watching.await.unwrap(), Err(CallError::Protocol { .. })));
    notify(&mut far, third, "tools/list_changed", json!({})).await;
    assert_eq!(list_changed(&mut far).await, ListKind::Tools);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_the_server_ends_is_opened_again_and_changes_are_assumed() {
    let (mut far, _watched) = listening().await;
    let (first, filter) = listened(&mut far).await;
    acknowledge(&mut far, first, &filter).await;
    let begin = tokio::time::Instant::now();
    far.answer(first, json!({ "resultType": "complete" })).await;
    let cancel = |id| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    far.send(cancel(first)).await;
    let (second, filter) = listened(&mut far).await;
    assert!(begin.elapsed() >= Duration::from_secs(1));
    acknowledge(&mut far, second, &filter).await;
    assert_eq!(list_changed(&mut far).await, ListKind::Tools);
    assert_eq!(list_changed(&mut far).await, ListKind::Resources);
    far.send(cancel(second)).await;
    assert_ne!(listened(&mut far).await.0, second);
    assert_eq!(far.stray(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_blamed_on_the_only_call_though_a_subscription_is_open() {
    let (mut far, _watched) = listening().await;
    let (id, filter) = listened(&mut far).await;
    acknowledge(&mut far, id, &filter).await;
    let running = far.begin(1).await;
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..=far.channel.ctx.config.max_message >> 20 {
        far.write(&chunk).await;
    }
    far.write(b"\n").await;
    assert!(matches!(running.end().await, Err(CallError::Protocol { .. })));
}
