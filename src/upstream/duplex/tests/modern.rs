//! Calls to a server of 2026-07-28.

use serde_json::json;

use super::far::{Far, Running};
use super::*;
use crate::upstream::Client;

async fn begin_logging(far: &mut Far, caller: u64) -> Running {
    let (mut call, events) = call(caller);
    call.client.log_rank = Some(1);
    far.begin_with(call, events).await
}

#[tokio::test(start_paused = true)]
async fn a_call_tells_of_its_own_client() {
    let mut far = Far::modern(json!({})).await;
    let (mut call, _events) = call(1);
    call.client = Client {
        caps: ClientCaps::parse(br#"{"sampling":{}}"#),
        info: Some(r#"{"name":"desk"}"#.into()),
        log_rank: Some(1),
    };
    let channel = Arc::clone(&far.channel);
    let task = tokio::spawn(async move { channel.call(call).await });
    let line = far.line().await;
    let meta = json!({
        "progressToken": line["id"],
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "sampling": {} },
        "io.modelcontextprotocol/clientInfo": { "name": "desk" },
        "io.modelcontextprotocol/logLevel": "info",
    });
    assert_eq!(line["params"], json!({ "name": "echo", "arguments": {}, "_meta": meta }));
    let needed =
        json!({ "resultType": "input_required", "inputRequests": {}, "requestState": "s" });
    far.answer(line["id"].as_u64().unwrap(), needed.clone()).await;
    assert_eq!(result(&task.await.unwrap()), needed);
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_its_call_and_a_dropped_call_is_cancelled() {
    let mut far = Far::modern(json!({})).await;
    let (mut one, two) = (far.begin(1).await, far.begin(2).await);
    far.progress(one.id, 3).await;
    assert_eq!(one.progress().await, json!({ "progressToken": 1, "progress": 3 }));
    two.task.abort();
    let line = far.line().await;
    assert_eq!(line["method"], "notifications/cancelled");
    assert_eq!(line["params"]["requestId"], two.id);
    far.answer(one.id, json!({})).await;
    assert!(one.end().await.is_ok());
    far.channel.close("done");
    assert!(far.at_end().await, "nothing follows");
}

#[tokio::test(start_paused = true)]
async fn questions_are_refused_and_counted_and_ping_is_answered() {
    let mut far = Far::modern(json!({})).await;
    let mut running = far.begin(1).await;
    for method in ["sampling/createMessage", "elicitation/create", "roots/list", "x/y"] {
        far.send(json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": {} })).await;
        let line = far.line().await;
        assert_eq!((&line["id"], &line["error"]["code"]), (&json!(method), &json!(-32601)));
    }
    assert_eq!(far.stray(), 4);
    far.send(json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" })).await;
    assert_eq!(far.line().await, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    assert!(running.events.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn log_messages_go_to_the_one_caller_that_asked_for_them() {
    let mut far = Far::modern(json!({})).await;
    let log = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": 1 } });
    let mut quiet = far.begin(1).await;
    far.send(log.clone()).await;
    let mut asking = begin_logging(&mut far, 2).await;
    far.send(log.clone()).await;
    assert!(matches!(asking.event().await, CallEvent::Notification(_)));
    let mut other = begin_logging(&mut far, 3).await;
    far.send(log.clone()).await;
    // Still so when one of the two was cancelled, but not answered.
    asking.task.abort();
    assert_eq!(far.line().await["method"], "notifications/cancelled");
    far.send(log.clone()).await;
    far.answer(asking.id, json!({})).await;
    far.send(log).await;
    assert!(matches!(other.event().await, CallEvent::Notification(_)));
    assert!(other.events.try_recv().is_err() && quiet.events.try_recv().is_err());
    assert!(far.notices.try_recv().is_err());
    // Three without a call, and the late answer.
    assert_eq!(far.stray(), 4);
}
