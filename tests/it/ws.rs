//! WebSocket clients of plain routes: many requests in flight on one connection, its limits, its end.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::ws_client::Ws;

/// `wait` answers `params[1]` after `params[0]` milliseconds, `never` not before its caller is gone.
async fn node() -> Fake {
    let node = Fake::plain().on("wait", |call: Call| async move {
        let params = call.req.json()["params"].clone();
        tokio::time::sleep(Duration::from_millis(params[0].as_u64().unwrap_or(0))).await;
        call.result(&params[1].to_string()).await;
    });
    node.on("never", |call: Call| async move { call.out.gone().await }).start().await
}

async fn serve(node: &Fake, server: &str) -> Gateway {
    Setup::new().server(server).plain("node", node, "").rpc(r#""*" = "node""#).start().await
}

fn request(id: impl Into<Value>, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

fn in_flight(count: f64) -> impl Fn(&crate::metrics::Metrics) -> bool {
    move |metrics| metrics.value("trunkline_exchanges_in_flight", &[]) == count
}

#[tokio::test]
async fn answers_come_as_they_are_ready_and_a_slow_one_delays_no_other() {
    let node = node().await;
    let gateway = serve(&node, "").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    ws.say(request("slow", "wait", &json!([1_500, "s"]))).await;
    for number in 0..40 {
        ws.say(request(number, "echo", &json!([number]))).await;
    }
    let mut seen = Vec::new();
    for _ in 0..40 {
        let answer = ws.json().await;
        assert_eq!(answer["result"], json!([answer["id"]]), "{answer}");
        seen.push(answer["id"].as_u64().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
    assert_eq!(ws.json().await, json!({"jsonrpc": "2.0", "id": "slow", "result": "s"}));
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_streams", &[("kind", "ws"), ("route", "/rpc")]), 1.0);
    let ok = [("route", "/rpc"), ("outcome", "ok")];
    assert_eq!(metrics.value("trunkline_exchanges_total", &ok), 41.0);
    assert!(metrics.value("trunkline_bytes_total", &[("direction", "in")]) > 41.0 * 40.0);
    drop(ws);
    gateway.until("the end is counted", |m| m.value("trunkline_streams", &[]) == 0.0).await;
}

#[tokio::test]
async fn a_batch_is_one_frame_both_ways_and_binary_is_read_as_text() {
    let node = node().await;
    let gateway = serve(&node, "max_batch = 3").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    let (slow, fast) = (request(1, "wait", &json!([200, 1])), request(2, "echo", &json!([2])));
    let note = r#"{"jsonrpc":"2.0","method":"tell","params":[7]}"#;
    ws.say(format!("[{slow},{note},{fast}]")).await;
    ws.send(Message::binary(request(3, "echo", &json!(["ä"])).into_bytes())).await;
    assert_eq!(ws.json().await["result"], json!(["ä"]), "a batch delays nothing either");
    let answers = ws.json().await;
    assert_eq!((&answers[0]["result"], &answers[1]["result"]), (&json!(1), &json!([2])));
    assert_eq!(answers.as_array().unwrap().len(), 2);
    node.until_count("tell", 1).await;
    // All notifications: nothing comes back; too many: one error.
    ws.say(format!("[{note},{note}]")).await;
    ws.say(note).await;
    let refused = ws.ask(format!("[{note},{note},{note},{note}]")).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-31007)));
    // What is no text at all leaves the connection as it is.
    assert_eq!(ws.ask("{").await["error"]["code"], -32700);
    ws.send(Message::binary(&b"\"\xff\""[..])).await;
    assert_eq!(ws.json().await["error"]["code"], -32700);
    let response = r#"{"jsonrpc":"2.0","id":4,"result":1}"#;
    assert_eq!(ws.ask(response).await["error"]["code"], -32600);
    assert_eq!(ws.ask(request(5, "echo", &json!([]))).await["id"], 5);
    node.until_count("tell", 4).await;
}

#[tokio::test]
async fn an_id_in_flight_is_refused_at_once_and_free_again_with_its_answer() {
    let node = node().await;
    let gateway = serve(&node, "").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    ws.say(request(1, "wait", &json!([600, "first"]))).await;
    let refused = ws.ask(request(1, "echo", &json!(["second"]))).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(1), &json!(-32600)));
    // The spelling counts: a text is no number. In a batch only the element with that id is refused.
    assert_eq!(ws.ask(request("1", "echo", &json!(["text"]))).await["result"], json!(["text"]));
    let batch = [request(1, "echo", &json!([])), request(2, "echo", &json!(["b"]))].join(",");
    let answers = ws.ask(format!("[{batch}]")).await;
    assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&json!(1), &json!(-32600)));
    assert_eq!(answers[1]["result"], json!(["b"]));
    assert_eq!(ws.json().await["result"], "first");
    assert_eq!(ws.ask(request(1, "echo", &json!(["again"]))).await["result"], json!(["again"]));
    assert_eq!(node.count("echo"), 3, "what is refused reaches no upstream");
}

#[tokio::test]
async fn row_59_a_client_that_leaves_cancels_all_it_had_in_flight_and_holds_no_slot() {
    let node = node().await;
    let gateway = Setup::new()
        .plain("node", &node, "max_concurrency = 2")
        .rpc(r#""*" = "node""#)
        .start()
        .await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    for number in 0..4 {
        ws.say(request(number, "never", &json!([]))).await;
    }
    node.until_count("never", 2).await;
    drop(ws);
    let metrics = gateway.until("all are cancelled", in_flight(0.0)).await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("outcome", "cancelled")]), 4.0);
    let mut other = Ws::open(&gateway, "/rpc").await;
    assert_eq!(other.ask(request(1, "echo", &json!([1]))).await["result"], json!([1]));
}

#[tokio::test]
async fn over_the_limit_in_flight_nothing_more_is_read_until_one_has_ended() {
    let node = node().await;
    let gateway = serve(&node, "ws_max_in_flight = 3").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    for number in 0..9 {
        ws.say(request(number, "wait", &json!([150, number]))).await;
    }
    // Nobody is refused, and never are more than three on their way.
    let mut seen = Vec::new();
    while seen.len() < 9 {
        assert!(node.count("wait") <= seen.len() + 3, "{} after {seen:?}", node.count("wait"));
        seen.push(ws.json().await["result"].as_u64().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..9).collect::<Vec<_>>());
}

#[tokio::test]
async fn c124_a_drain_lets_calls_finish_takes_no_more_and_says_why_it_closes() {
    let node = node().await;
    let mut gateway = serve(&node, "drain_timeout = \"10s\"").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    let mut idle = Ws::open(&gateway, "/rpc").await;
    ws.say(request(1, "wait", &json!([1_500, "done"]))).await;
    node.until_count("wait", 1).await;
    gateway.terminate();
    assert_eq!(idle.closed().await.0, 1001);
    let refused = ws.ask(request(2, "echo", &json!([]))).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(2), &json!(-31002)));
    assert_eq!(refused["error"]["data"]["retryable"], true, "{refused}");
    assert_eq!(ws.json().await["result"], "done");
    assert_eq!(ws.closed().await, (1001, "the gateway is shutting down".into()));
    assert_eq!(gateway.ended().await, Some(0));
    assert_eq!(node.count("echo"), 0);
}

#[tokio::test]
async fn when_the_drain_must_end_calls_are_answered_that_they_are_cut_off() {
    let node = node().await;
    let mut gateway = serve(&node, "drain_timeout = \"300ms\"").await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    ws.say(request(1, "never", &json!([]))).await;
    ws.say(format!("[{}]", request(2, "never", &json!([])))).await;
    node.until_count("never", 2).await;
    gateway.terminate();
    let answers = [ws.json().await, ws.json().await];
    let codes = answers.map(|answer| match answer {
        Value::Array(batch) => batch[0]["error"]["code"].clone(),
        one => one["error"]["code"].clone(),
    });
    assert_eq!(codes, [json!(-31005), json!(-31005)]);
    assert_eq!(ws.closed().await.0, 1001);
    assert_eq!(gateway.ended().await, Some(0));
}
