//! Revision 2026-07-28 on a line.

use super::super::modern;
use super::*;
use crate::mcp::meta;

#[tokio::test]
async fn requests_of_both_eras_share_a_line() {
    let mut client = Client::start().await;
    client.send(&request(1, "tools/list", modern(json!({}), json!({})))).await;
    assert_eq!(client.next().await.unwrap()["result"]["resultType"], "complete");
    client.send(&request(2, "tools/list", json!({}))).await;
    let legacy = client.next().await.unwrap();
    assert!(legacy["result"]["tools"].is_array() && legacy["result"].get("resultType").is_none());
    client.send(&request(3, "tools/call", modern(tool("ask_user", json!({})), json!({})))).await;
    let refused = client.next().await.unwrap();
    assert_eq!(refused["error"]["code"], -32021, "the session's capabilities are not its own");
}

#[tokio::test]
async fn a_request_is_cancelled_by_notification_and_not_answered() {
    let mut client = Client::connect(Offered::Modern);
    let mut params = tool("slow", json!({"steps": 1000, "delay_ms": 10}));
    params["_meta"] = json!({"progressToken": 1});
    client.send(&request(1, "tools/call", modern(params, json!({})))).await;
    client
        .send(&request(2, "subscriptions/listen", modern(json!({"notifications": {}}), json!({}))))
        .await;
    let mut progress = false;
    let mut listens = false;
    while !(progress && listens) {
        let message = client.next().await.unwrap();
        progress |= message["method"] == "notifications/progress";
        listens |= message["method"] == "notifications/subscriptions/acknowledged";
    }
    for id in [1, 2] {
        let cancel = notification("notifications/cancelled", json!({"requestId": id}));
        client.send(&cancel).await;
    }
    client.send(&request(3, "server/discover", modern(json!({}), json!({})))).await;
    while client.next().await.unwrap()["id"] != 3 {}
    client.input = None;
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn a_line_that_ends_ends_its_listeners_in_good_order() {
    let mut client = Client::connect(Offered::All);
    let wish = json!({"notifications": {"toolsListChanged": true}});
    client.send(&request(1, "subscriptions/listen", modern(wish, json!({})))).await;
    let first = client.next().await.unwrap();
    assert_eq!(first["params"]["_meta"][meta::SUBSCRIPTION_ID], 1);
    client.send(&request(2, "tools/call", modern(tool("grow", json!({})), json!({})))).await;
    let mut methods = Vec::new();
    for _ in 0..2 {
        methods.push(client.next().await.unwrap()["method"].clone());
    }
    assert!(methods.contains(&json!("notifications/tools/list_changed")));
    client.input = None;
    let last = client.next().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(1), &json!("complete")));
    let ended = client.next().await.unwrap();
    assert_eq!(ended["method"], "notifications/cancelled");
    assert_eq!(ended["params"]["requestId"], 1);
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn a_server_that_knows_no_sessions_says_what_it_knows() {
    let mut client = Client::connect(Offered::Modern);
    client.send(&request(1, "initialize", hello("2025-06-18"))).await;
    let error = client.next().await.unwrap()["error"].clone();
    assert_eq!(error["code"], -32022);
    let data = json!({"supported": ["2026-07-28"], "requested": "2025-06-18"});
    assert_eq!(error["data"], data);
    client.send(&request(2, "tools/list", json!({}))).await;
    assert_eq!(client.next().await.unwrap()["error"]["code"], -32602);
    client.send(&format!("[{}]", request(3, "tools/list", json!({})))).await;
    let refused = client.next().await.unwrap();
    assert!(refused["error"]["code"] == -32600 && refused.get("id").is_none());
}
