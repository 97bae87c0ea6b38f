//! Clients and upstreams of 2026-07-28, and of sessions beside them, that want what is not theirs, or too much.

use serde_json::json;

use crate::client::Http;
use crate::fake::scene::MODERN;
use crate::fake::{Call, Fake, said};
use crate::gateway::Setup;
use crate::mcp::{Mcp, NEWEST};
use crate::modern::Modern;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_session_share_what_is_kept_apart_for_sessions() {
    let up = Fake::mcp(["echo"]).start().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("tools/list", "tools").await;
    client.call("echo", json!({})).await.result();
    let counts = || (up.count("initialize"), up.count("tools/list"));
    let mut before = counts();
    // What the gateway asks for itself when it starts may still come, once.
    for _ in 0..3 {
        for _ in 0..10 {
            assert_eq!(client.list("tools/list", "tools").await.len(), 1);
            client.call("echo", json!({})).await.result();
        }
        let now = counts();
        if now == before {
            return;
        }
        before = now;
    }
    panic!("each request costs its own");
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn legacy(http: Http) -> Mcp {
    Mcp::open_at(http, "/mcp", NEWEST, json!({})).await
}

/// Tells what a task is of, whoever asks.
async fn tell_task(call: Call) {
    call.result(r#"{"taskId":"1","status":"working","tasks":[]}"#).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reaches_the_tasks_of_others_by_their_ids() {
    let methods = ["tasks/get", "tasks/list", "tasks/result", "tasks/cancel", "tasks/update"];
    let mut up = Fake::mcp(["echo"]);
    for method in methods {
        up = up.on(method, tell_task);
    }
    let up = up.start().await;
    let refuse = |answer: crate::mcp::Answer| {
        assert!([-32601, -32602, -32021].contains(&answer.code()), "{}", answer.text);
    };
    let shared =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let own =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    for method in methods {
        let params = json!({"taskId": "1"});
        refuse(legacy(shared.http()).await.request(method, params.clone()).await);
        for gateway in [&shared, &own] {
            let caps = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
            let client = Modern::new(gateway.http(), caps);
            let body = client.body(&json!(1), method, params.clone());
            let mut headers = client.headers(&body);
            headers.push(("Mcp-Name".into(), "1".into()));
            let reply = client.send(&headers, &body.to_string()).await.whole().await;
            assert!([-32601, -32602].contains(&reply.code()), "{method}: {}", reply.text());
        }
        assert_eq!(up.count(method), 0, "{method} reached the upstream");
    }
    // Those of its own session a client may have.
    let answer = legacy(own.http()).await.request("tasks/get", json!({"taskId": "1"})).await;
    assert_eq!(answer.result()["status"], "working", "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_legacy_client_reaches_no_task_of_a_modern_upstream() {
    let methods = ["tasks/get", "tasks/update", "tasks/cancel"];
    let mut up = Fake::plain()
        .on("initialize", |call: Call| async move {
            call.out.full(404, &[JSON], call.error_text(-32601, "Method not found")).await;
        })
        .on("server/discover", |call: Call| async move {
            let result = json!({
                "resultType": "complete", "supportedVersions": [MODERN], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
            });
            call.result(&result.to_string()).await;
        });
    for method in methods {
        up = up.on(method, tell_task);
    }
    let up = up.start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = legacy(gateway.http()).await;
    for method in methods {
        let answer = client.request(method, json!({"taskId": "1", "inputResponses": {}})).await;
        assert_eq!(answer.code(), -32601, "{method}: {}", answer.text);
        assert_eq!(up.count(method), 0, "{method} reached the upstream");
    }
    assert!(up.count("server/discover") > 0);
}

/// Asks for a name, with a text of some length.
async fn ask_at_length(call: Call) {
    call.out.sse().await;
    let length = call.arg("length").as_u64().unwrap_or_default();
    let message = "x".repeat(usize::try_from(length).expect("a length"));
    let params =
        json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}});
    let answer = call.ask("elicitation/create", params).await;
    let text = answer["result"]["action"].as_str().unwrap_or("refused").to_owned();
    call.out.event(call.response(&said(&text).to_string())).await;
    call.out.end().await;
}

/// Whether a call was parked.
async fn parks(client: &Modern, length: usize) -> bool {
    let answer = client.call("ask", json!({ "length": length })).await;
    answer.result()["resultType"] == "input_required"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_calls_are_bounded_in_number_and_in_bytes_of_what_they_ask() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask_at_length).start().await;
    let setup = Setup::new().server("max_parked = 12").fake("up", &up);
    let gateway = setup.mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({"elicitation": {"form": {}}}));
    let mut parked = 0;
    while parked <= 12 && parks(&client, 10).await {
        parked += 1;
    }
    assert_eq!(parked, 12, "all of them are for clients that nobody knows by name");

    let setup = Setup::new().fake("up", &up);
    let gateway = setup.mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({"elicitation": {"form": {}}}));
    let mut parked = 0;
    while parked <= 20 && parks(&client, 7 << 20).await {
        parked += 1;
    }
    assert_eq!(parked, 9, "64 MiB");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_parked_calls", &[]), 9.0);
}
