//! What is kept upstream for clients, and taken back: subscriptions, log levels, parked calls, promises; and which era an
//! upstream is asked for first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fake::modern::modern;
use crate::fake::{Call, Fake, said, tool};
use crate::gateway::{Gateway, Setup};
use crate::mcp::Mcp;
use crate::modern::Modern;

/// An upstream with so many resources that can be subscribed to.
fn with_resources(count: usize) -> crate::fake::Builder {
    Fake::mcp(["x"]).with(|lists| {
        lists.capabilities = json!({"tools": {}, "resources": {"subscribe": true}});
        let resource = |n| json!({"name": format!("r{n}"), "uri": format!("r://{n}")});
        lists.resources = (0..count).map(resource).collect();
    })
}

fn filter(count: usize) -> Value {
    json!({"resourceSubscriptions": (0..count).map(|n| format!("r://{n}")).collect::<Vec<_>>()})
}

/// Counts calls that are served at once.
#[derive(Clone, Default)]
struct Crowd(Arc<(AtomicUsize, AtomicUsize)>);

impl Crowd {
    /// Serves one, with enough time for others to come.
    async fn serve(self, call: Call) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
        call.result("{}").await;
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn one_listener_of_many_resources_asks_its_upstream_a_few_at_a_time() {
    const COUNT: usize = 100;
    let (came, went) = (Crowd::default(), Crowd::default());
    let (comes, goes) = (came.clone(), went.clone());
    let up = with_resources(COUNT)
        .on("resources/subscribe", move |call| comes.clone().serve(call))
        .on("resources/unsubscribe", move |call| goes.clone().serve(call))
        .start()
        .await;
    let gateway =
        Setup::new().fake_with("up", &up, "max_concurrency = 4").mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("resources/list", "resources").await;
    let (stream, _, honoured) = client.listen(filter(COUNT)).await;
    assert_eq!(honoured, filter(COUNT));
    up.until_count("resources/subscribe", COUNT).await;
    assert!(came.most() <= 4, "{} at once, past max_concurrency", came.most());
    up.until("all were answered", |_| came.0.0.load(Ordering::SeqCst) == 0).await;
    drop(stream);
    // The last few may have been agreed to as their listener went.
    up.until("nearly all are taken back", |up| up.count("resources/unsubscribe") >= COUNT - 8)
        .await;
    // Eight of those that were agreed to, and those that were still being asked for.
    assert!(went.most() <= 16, "{} at once", went.most());
}

#[tokio::test]
async fn subscriptions_that_nobody_answers_hold_up_no_end() {
    let up = with_resources(100)
        .on("resources/subscribe", |call: Call| async move { call.out.gone().await })
        .start()
        .await;
    let mut gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("resources/list", "resources").await;
    let (mut stream, id, _) = client.listen(filter(100)).await;
    up.until_count("resources/subscribe", 8).await;
    gateway.terminate();
    assert_eq!(stream.next_message().await.expect("its end")["id"], id);
    assert_eq!(gateway.ended().await, Some(0));
    assert_eq!(gateway.output().count("not everything ended in time"), 0);
    assert_eq!(up.count("resources/subscribe"), 8, "no more were asked for");
}

#[tokio::test]
async fn what_an_upstream_agrees_to_when_its_listener_has_gone_is_taken_back() {
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let up = with_resources(1)
        .on("resources/subscribe", move |call: Call| {
            let gate = Arc::clone(&waits);
            async move {
                gate.acquire().await.expect("it is never closed").forget();
                call.result("{}").await;
            }
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("resources/list", "resources").await;
    let (stream, _, _) = client.listen(filter(1)).await;
    up.until_count("resources/subscribe", 1).await;
    drop(stream);
    let gone =
        |m: &crate::metrics::Metrics| m.value("trunkline_streams", &[("kind", "listen")]) == 0.0;
    gateway.until("the listener is gone", gone).await;
    assert_eq!(up.count("resources/unsubscribe"), 0, "it has not agreed yet");
    gate.add_permits(1);
    up.until_count("resources/unsubscribe", 1).await;
    assert_eq!(up.of("resources/unsubscribe")[0].json()["params"]["uri"], "r://0");
}

#[tokio::test]
async fn nobody_takes_the_room_of_all_other_listeners() {
    let up = Fake::mcp(["x"]).start().await;
    let setup = Setup::new().server("max_sessions = 20");
    let gateway = setup.fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(client.listen(json!({})).await);
    }
    let params = json!({"notifications": {}});
    let answer = client.request("subscriptions/listen", params).await;
    assert_eq!((answer.status, answer.code()), (503, -31002), "{}", answer.text);
    streams.pop();
    let fewer =
        |m: &crate::metrics::Metrics| m.value("trunkline_streams", &[("kind", "listen")]) < 16.0;
    gateway.until("one is gone", fewer).await;
    client.listen(json!({})).await;
}

/// The level that an upstream was told last.
fn level(up: &crate::fake::Core) -> Option<String> {
    let last = up.of("logging/setLevel").pop()?;
    last.json()["params"]["level"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_level_rises_again_when_who_wanted_it_has_gone() {
    let up = Fake::mcp(["x"])
        .with(|lists| lists.capabilities = json!({"tools": {}, "logging": {}}))
        .start()
        .await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let wants = async |level: &str| {
        let client = gateway.mcp().await;
        client.call("x", json!({})).await.result();
        client.request("logging/setLevel", json!({ "level": level })).await.result();
        client
    };
    let quiet = wants("error").await;
    up.until("the first level", |up| level(up).as_deref() == Some("error")).await;
    let curious = wants("debug").await;
    up.until("the lower level", |up| level(up).as_deref() == Some("debug")).await;
    curious.delete().await;
    up.until("the first level again", |up| level(up).as_deref() == Some("error")).await;
    quiet.delete().await;
    up.until("what servers do untold", |up| level(up).as_deref() == Some("info")).await;
}

/// Asks for a name and says what it heard.
async fn ask(call: Call) {
    call.out.sse().await;
    let schema = json!({"type": "object", "properties": {}});
    let told =
        call.ask("elicitation/create", json!({"message": "?", "requestedSchema": schema})).await;
    let text = told["result"]["action"].as_str().unwrap_or("refused").to_owned();
    call.out.event(call.response(&said(&text).to_string())).await;
    call.out.end().await;
}

async fn parked(up: &Fake) -> Gateway {
    let gateway = Setup::new().fake("up", up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({"elicitation": {"form": {}}}));
    let answer = client.call("ask", json!({})).await;
    assert_eq!(answer.result()["resultType"], "input_required", "{}", answer.text);
    gateway
}

#[tokio::test]
async fn at_the_end_parked_calls_are_given_up_before_their_sessions_end() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let mut gateway = parked(&up).await;
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(0));
    let seen = up.requests();
    let cancel = |r: &crate::fake::http::Request| r.json()["result"]["action"] == "cancel";
    let told = seen.iter().position(cancel).expect("the upstream is told that nobody answers");
    let session = seen[told].header("mcp-session-id");
    let ended =
        seen.iter().position(|r| r.method == "DELETE" && r.header("mcp-session-id") == session);
    assert!(ended.expect("the session is ended") > told);
}

#[tokio::test]
async fn states_are_bounded_on_both_ways() {
    let up = modern(vec![tool("x")])
        .on("tools/call", |call: Call| async move {
            let length = call.arg("length").as_u64().unwrap_or_default();
            let state = "\"".repeat(usize::try_from(length).expect("a length"));
            let result = json!({"resultType": "input_required", "requestState": state});
            call.result(&result.to_string()).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("tools/list", "tools").await;
    // As JSON text it is twice as long.
    let answer = client.call("x", json!({"length": 33_000})).await;
    assert_eq!((answer.status, answer.reason()), (502, "upstream_protocol"), "{}", answer.text);
    let arguments = json!({"length": 32_000});
    let answer = client.call("x", arguments.clone()).await;
    let state = answer.result()["requestState"].as_str().expect("a state").to_owned();
    let retry = |state: &str| {
        client.request(
            "tools/call",
            json!({"name": "x", "arguments": arguments, "requestState": state}),
        )
    };
    let answer = retry(&state).await;
    assert_eq!(answer.result()["resultType"], "input_required", "the longest comes back whole");
    let calls = up.of("tools/call");
    let handed = calls.last().expect("a call").json()["params"]["requestState"].clone();
    assert_eq!(handed, json!("\"".repeat(32_000)));
    let count = calls.len();
    let answer = retry(&"s".repeat(300_000)).await;
    assert_eq!(answer.code(), -32602, "{}", answer.text);
    assert_eq!(up.count("tools/call"), count);
}

#[tokio::test]
async fn an_unknown_upstream_is_asked_for_no_session_first_and_once() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    up.until_count("tools/list", 1).await;
    assert_eq!(up.requests()[0].rpc().as_deref(), Some("server/discover"));
    let client = gateway.mcp().await;
    for _ in 0..3 {
        assert_eq!(client.call("x", json!({})).await.said(), "x");
        let modern = Modern::new(gateway.http(), json!({}));
        assert_eq!(modern.call("x", json!({})).await.said(), "x");
    }
    assert_eq!(up.count("server/discover"), 1, "it has refused");
}

#[tokio::test]
async fn an_upstream_without_sessions_is_asked_for_one_only_for_clients_that_have_one() {
    let up = modern(vec![tool("x")])
        .on("tools/call", |call: Call| async move {
            let mut result = said("x");
            result["resultType"] = json!("complete");
            call.result(&result.to_string()).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    up.until_count("tools/list", 1).await;
    let client = Modern::new(gateway.http(), json!({}));
    assert_eq!(client.list("tools/list", "tools").await.len(), 1);
    client.call("x", json!({})).await.result();
    assert_eq!((up.count("initialize"), up.count("server/discover")), (0, 1));
    let client = gateway.mcp().await;
    assert_eq!(client.call("x", json!({})).await.said(), "x");
    assert_eq!((up.count("initialize"), up.count("server/discover")), (1, 1));
}

#[tokio::test]
async fn an_upstream_of_both_eras_serves_each_client_in_its_own() {
    let up = Fake::mcp(["x"])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "prompts": {}, "logging": {}});
            lists.prompts = vec![json!({"name": "p"})];
        })
        .on("server/discover", |call: Call| async move {
            let result = json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28", "2025-11-25"],
                "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
            });
            call.result(&result.to_string()).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    up.until_count("tools/list", 1).await;
    assert_eq!(up.count("initialize"), 0);
    let client = Modern::new(gateway.http(), json!({}));
    let offered = async || {
        let discovered = client.request("server/discover", json!({})).await;
        discovered.result()["capabilities"].clone()
    };
    assert!(offered().await.get("prompts").is_none());
    let legacy = Mcp::open(&gateway, json!({})).await;
    assert_eq!(legacy.names("prompts/list", "prompts", "name").await, ["p"]);
    assert_eq!(legacy.call("x", json!({})).await.said(), "x");
    let called = up.of("tools/call").pop().expect("a call");
    assert!(called.header("mcp-session-id").is_some(), "it needs no bridge");
    assert!(offered().await.get("prompts").is_none(), "what one era has does not come and go");
    assert_eq!(client.request("prompts/list", json!({})).await.code(), -32601);
}
