//! Batches: fanned out in parallel, with limits, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup, closed_port};
use crate::mcp::{Mcp, request};

/// A plain upstream whose methods wait `params[0]` milliseconds and answer `params[1]`.
async fn slow() -> (Fake, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (running, peak) = (Arc::new(AtomicUsize::new(0)), most.clone());
    let up = Fake::plain().on("*", move |call: Call| {
        let (running, peak) = (running.clone(), peak.clone());
        async move {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let params = call.req.json()["params"].clone();
            tokio::time::sleep(Duration::from_millis(params[0].as_u64().unwrap_or(0))).await;
            running.fetch_sub(1, Ordering::SeqCst);
            call.result(&params[1].to_string()).await;
        }
    });
    (up.start().await, most)
}

fn element(id: usize, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

async fn post(gateway: &Gateway, elements: &[Value]) -> Vec<Value> {
    let reply = gateway.http().post("/rpc", json!(elements).to_string()).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    reply.json().as_array().unwrap_or_else(|| panic!("no array: {}", reply.text())).clone()
}

#[tokio::test]
async fn c110_elements_run_in_parallel_up_to_the_limit_and_answers_keep_their_order() {
    let (up, most) = slow().await;
    let gateway = Setup::new()
        .server("batch_concurrency = 4\nmax_batch = 100")
        .plain("up", &up, "")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let elements: Vec<_> = (0..40).map(|n| element(n, "wait", &json!([(40 - n) * 5, n]))).collect();
    let begun = Instant::now();
    let answers = post(&gateway, &elements).await;
    let took = begun.elapsed();
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["id"], &answer["result"]), (&json!(n), &json!(n)));
    }
    assert_eq!(answers.len(), 40);
    assert!(took < Duration::from_millis(2500), "4100 ms of waiting took {took:?}");
    assert_eq!(most.load(Ordering::SeqCst), 4, "in flight at once");
    let metrics = gateway.metrics().await;
    assert!(metrics.has("trunkline_batch_elements", &[]));
}

#[tokio::test]
async fn elements_go_to_different_upstreams_and_a_dead_one_costs_only_its_own() {
    let (a, b) = (slow().await.0, slow().await.0);
    let (addr, _held) = closed_port();
    let dead = format!("protocol = \"jsonrpc\"\nurl = \"http://{addr}/\"");
    let gateway = Setup::new()
        .plain("a", &a, "")
        .plain("b", &b, "")
        .upstream("dead", &dead)
        .rpc(r#""a_*" = "a", "b_*" = "b", "dead" = "dead""#)
        .start()
        .await;
    let elements = [
        element(1, "a_x", &json!([0, "a"])),
        element(2, "dead", &json!([0, "d"])),
        element(3, "b_x", &json!([0, "b"])),
        element(4, "nobody", &json!([0, "n"])),
        json!({"jsonrpc": "2.0", "method": "a_note", "params": [0, "x"]}),
        json!({"jsonrpc": "2.0", "method": "dead", "params": [0, "x"]}),
        element(5, "a_y", &json!([0, "a"])),
    ];
    let answers = post(&gateway, &elements).await;
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5], "{answers:?}");
    assert_eq!(answers[0]["result"], "a");
    assert_eq!(answers[1]["error"]["code"], -31004);
    assert_eq!(answers[1]["error"]["data"]["upstream"], "dead");
    assert_eq!(answers[2]["result"], "b");
    assert_eq!(answers[3]["error"]["code"], -32601);
    assert_eq!(answers[4]["result"], "a");
    a.until_count("a_note", 1).await;
    assert_eq!((a.requests().len(), b.requests().len()), (3, 1));
}

#[tokio::test]
async fn row_32_a_slow_element_times_out_alone() {
    let (up, _) = slow().await;
    let gateway =
        Setup::new().plain("up", &up, "timeout = \"500ms\"").rpc(r#""*" = "up""#).start().await;
    let begun = Instant::now();
    let answers = post(
        &gateway,
        &[
            element(1, "x", &json!([0, "a"])),
            element(2, "x", &json!([60_000, "b"])),
            element(3, "x", &json!([0, "c"])),
        ],
    )
    .await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!((&answers[0]["result"], &answers[2]["result"]), (&json!("a"), &json!("c")));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!(2), &json!(-31003)));
}

#[tokio::test]
async fn one_deadline_holds_for_the_whole_batch() {
    let (up, _) = slow().await;
    let gateway = Setup::new()
        .server("batch_concurrency = 1")
        .plain("up", &up, "timeout = \"1s\"")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let elements: Vec<_> = (0..10).map(|n| element(n, "x", &json!([400, n]))).collect();
    let begun = Instant::now();
    let answers = post(&gateway, &elements).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(answers[0]["result"], 0, "finished ones are kept");
    assert_eq!(answers[9]["error"]["code"], -31003, "{answers:?}");
    assert_eq!(answers[9]["id"], 9);
}

#[tokio::test]
async fn row_30_a_batch_over_the_limit_is_refused_before_any_work() {
    let (up, _) = slow().await;
    let mcp = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .server("max_batch = 3")
        .plain("up", &up, "")
        .fake("mcp", &mcp)
        .rpc(r#""*" = "up""#)
        .mcp(&["mcp"])
        .start()
        .await;
    let elements: Vec<_> = (0..4).map(|n| element(n, "x", &json!([0, n]))).collect();
    let reply = gateway.http().post("/rpc", json!(elements).to_string()).await;
    assert_eq!((reply.status, reply.code()), (400, -31007));
    assert_eq!(reply.json()["id"], Value::Null);
    assert_eq!(reply.json()["error"]["data"]["reason"], "batch_too_large");
    assert_eq!(up.requests().len(), 0);
    assert_eq!(post(&gateway, &elements[..3]).await.len(), 3);
    let client = gateway.mcp().await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let reply = client.post(&json!([ping, ping, ping, ping]).to_string()).await;
    assert_eq!(reply.code(), -31007);
    let many = format!("[{}]", vec!["1"; 10_001].join(","));
    assert_eq!(gateway.http().post("/rpc", many).await.code(), -31007);
}

#[tokio::test]
async fn a_batching_upstream_gets_its_elements_together_and_others_one_by_one() {
    let together = Fake::plain()
        .on("*", |call: Call| async move {
            let body = call.req.json();
            let answers: Vec<_> = body
                .as_array()
                .expect("it travels as a batch")
                .iter()
                .filter(|item| item.get("id").is_some())
                .map(|item| json!({"jsonrpc": "2.0", "id": item["id"], "result": item["params"]}))
                .collect();
            call.out.json(json!(answers).to_string()).await;
        })
        .start()
        .await;
    let alone = Fake::plain().start().await;
    let gateway = Setup::new()
        .plain("together", &together, "batch = true")
        .plain("alone", &alone, "")
        .rpc(r#""t_*" = "together", "a_*" = "alone""#)
        .start()
        .await;
    let elements = [
        element(1, "t_1", &json!([1])),
        element(2, "a_1", &json!([2])),
        element(1, "t_2", &json!([3])),
        json!({"jsonrpc": "2.0", "method": "t_note", "params": [9]}),
        element(4, "a_2", &json!([4])),
    ];
    let answers = post(&gateway, &elements).await;
    let results: Vec<_> = answers.iter().map(|answer| answer["result"][0].clone()).collect();
    assert_eq!(results, [json!(1), json!(2), json!(3), json!(4)], "{answers:?}");
    assert_eq!((together.requests().len(), alone.requests().len()), (1, 2));
    let sent = together.requests()[0].json();
    let ids: std::collections::HashSet<_> =
        sent.as_array().unwrap().iter().filter_map(|e| e.get("id")).map(Value::to_string).collect();
    assert_eq!(ids.len(), 2, "ids towards the upstream are unique: {sent}");
}

async fn mcp_route(lines: &str) -> (Gateway, Fake, Fake) {
    let wait = |call: Call| async move {
        tokio::time::sleep(Duration::from_millis(call.arg("ms").as_u64().unwrap_or(0))).await;
        call.say(call.arg("tag").as_str().unwrap_or("")).await;
    };
    let a = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let b = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let gateway = Setup::new()
        .fake_with("a", &a, "timeout = \"2s\"")
        .fake("b", &b)
        .mcp_with(&["a", "b"], lines)
        .start()
        .await;
    (gateway, a, b)
}

fn call(id: Value, tool: &str, tag: &str, ms: u64) -> Value {
    let params = json!({"name": tool, "arguments": {"tag": tag, "ms": ms}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[tokio::test]
async fn c108_mcp_batches_are_served_at_every_legacy_revision() {
    let (gateway, _a, _b) = mcp_route("").await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = Mcp::open_at(gateway.http(), "/mcp", revision, json!({})).await;
        client.until_tools("both", |tools| tools.len() == 2).await;
        let elements = json!([
            call(json!(1), "a__wait", "slow", 400),
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}},
            call(json!("1"), "b__wait", "quick", 0),
            {"jsonrpc": "2.0", "id": 2, "method": "ping"},
            1,
            {},
            call(json!(1), "a__wait", "again", 0),
            call(json!(3), "nobody", "", 0),
            {"jsonrpc": "2.0", "id": 4, "method": "tools/list"},
        ]);
        let begun = Instant::now();
        let answer = client.exchange(&elements.to_string()).await;
        assert!(begun.elapsed() < Duration::from_millis(1500));
        let answers = answer.json.as_array().expect("an array").clone();
        let said = |n: usize| answers[n]["result"]["content"][0]["text"].clone();
        assert_eq!(answers.len(), 8, "{answers:?}");
        assert_eq!((&answers[0]["id"], said(0)), (&json!(1), json!("slow")));
        assert_eq!((&answers[1]["id"], said(1)), (&json!("1"), json!("quick")));
        assert_eq!(answers[2]["result"], json!({}));
        assert_eq!(answers[3]["error"]["code"], -32600);
        assert_eq!(answers[4]["error"]["code"], -32600);
        assert_eq!((&answers[5]["id"], said(5)), (&json!(1), json!("again")));
        assert_eq!(answers[6]["error"]["code"], -32602);
        assert_eq!(answers[7]["result"]["tools"].as_array().unwrap().len(), 2);
        let one = client.exchange(&json!([call(json!(9), "b__wait", "one", 0)]).to_string()).await;
        assert_eq!(one.json[0]["id"], 9, "one element still comes as an array");
        let notes = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
        let reply = client.post(&notes.to_string()).await;
        assert_eq!((reply.status, reply.text()), (202, ""));
        let reply = client.post("[]").await;
        assert_eq!((reply.status, reply.code()), (400, -32600));
    }
}

#[tokio::test]
async fn a_slow_upstream_costs_an_mcp_batch_only_its_own_elements() {
    let (gateway, _a, _b) = mcp_route("").await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let elements =
        json!([call(json!(1), "a__wait", "never", 60_000), call(json!(2), "b__wait", "quick", 0),]);
    let answer = client.exchange(&elements.to_string()).await;
    assert_eq!(answer.json[0]["id"], 1);
    assert_eq!(answer.json[0]["error"]["code"], -31003, "{}", answer.text);
    assert_eq!(answer.json[1]["result"]["content"][0]["text"], "quick");
}

#[tokio::test]
async fn batches_can_be_switched_off_for_a_route() {
    let (gateway, a, b) = mcp_route("batches = false").await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let reply = client.post(&json!([call(json!(1), "a__wait", "x", 0)]).to_string()).await;
    assert_eq!((reply.status, reply.code()), (400, -32600));
    assert_eq!(a.count("tools/call") + b.count("tools/call"), 0);
    let params = json!({"name": "a__wait", "arguments": {"tag": "single"}});
    assert_eq!(client.exchange(&request(1, "tools/call", &params)).await.said(), "single");
}

#[tokio::test]
async fn a_batch_of_responses_settles_questions() {
    let ask = |call: Call| async move {
        call.out.sse().await;
        let answer = call.ask("roots/list", json!({})).await;
        let text =
            call.response(&crate::fake::said(&answer["result"]["roots"].to_string()).to_string());
        call.out.event(text).await;
        call.out.end().await;
    };
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Mcp::open_at(gateway.http(), "/mcp", "2025-03-26", json!({"roots": {}})).await;
    let mut stream = client.open_call(1, "ask", json!({}), json!({})).await;
    let question = stream.next_message().await.unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": ["r"]}});
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    let mixed = json!([answer, ping]);
    assert_eq!(client.post(&mixed.to_string()).await.code(), -32600, "answers beside requests");
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let answers = json!([answer, notice]);
    assert_eq!(client.post(&answers.to_string()).await.status, 202);
    let answer = stream.next_message().await.unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "[\"r\"]");
}

#[tokio::test]
async fn the_example_servers_plain_service_is_driven_in_batches() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let lines = format!(
        "protocol = \"jsonrpc\"\ncommand = [\"{{self}}\", \"example-server\", \"--http\", \"{addr}\"]\n\
         url = \"http://{addr}/rpc\""
    );
    let gateway = Setup::new().upstream("calc", &lines).rpc(r#""*" = "calc""#).start().await;
    let sum = element(1, "sum", &json!([1, 2, 3]));
    let begun = Instant::now();
    while post(&gateway, std::slice::from_ref(&sum)).await[0]["result"].is_null() {
        assert!(begun.elapsed() < crate::gateway::PATIENCE, "the service does not come up");
    }
    let answers = post(&gateway, &[sum, element(2, "echo", &json!(["x"]))]).await;
    assert_eq!(answers[0]["result"], 6, "{answers:?}");
    assert_eq!(answers[1]["id"], 2);
}
