//! Plain routes: where methods go, which are served at all, and when a call may go on with another upstream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup, closed_port};
use crate::metrics::Metrics;

/// Fails as the params say: the first of them is the mode.
async fn fail(call: Call) {
    let mode = call.req.json()["params"][0].as_str().unwrap_or_default().to_owned();
    match mode.as_str() {
        "closed" => call.out.close(),
        "502" | "503" | "504" | "429" | "500" => {
            call.out.full(mode.parse().unwrap(), &[], "").await;
        }
        "garbage" => call.out.json("{").await,
        "other id" => call.out.json(r#"{"jsonrpc":"2.0","id":"?","result":1}"#).await,
        "silent" => call.out.gone().await,
        _ => call.result("\"first\"").await,
    }
}

async fn named(name: &'static str) -> Fake {
    let text = format!("{name:?}");
    Fake::plain()
        .on("*", move |call: Call| {
            let text = text.clone();
            async move { call.result(&text).await }
        })
        .start()
        .await
}

fn ask(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

async fn result(gateway: &Gateway, method: &str) -> Value {
    gateway.http().post("/rpc", ask(1, method, &json!([]))).await.json()["result"].clone()
}

#[tokio::test]
async fn a_call_goes_on_elsewhere_only_where_that_is_safe() {
    let (first, second) = (Fake::plain().on("*", fail).start().await, named("second").await);
    let gateway = Setup::new()
        .plain("first", &first, "timeout = \"300ms\"")
        .plain("second", &second, "")
        .rpc(
            r#""read" = { upstreams = ["first", "second"], idempotent = true, timeout = "10s" }, "write" = ["first", "second"]"#,
        )
        .start()
        .await;
    let modes = [
        ("closed", "closed", -31005),
        ("502", "status", -31004),
        ("503", "status", -31002),
        ("504", "status", -31004),
        ("429", "status", -31002),
        ("silent", "timeout", -31003),
        ("garbage", "protocol", -31006),
        ("other id", "protocol", -31006),
    ];
    let mut counted = std::collections::BTreeMap::new();
    for (mode, reason, code) in modes {
        let before = second.requests().len();
        let reply = gateway.http().post("/rpc", ask(1, "write", &json!([mode]))).await;
        assert_eq!(reply.code(), code, "{mode}: {}", reply.text());
        assert_eq!(second.requests().len(), before, "{mode}: an unsafe call never runs twice");
        let reply = gateway.http().post("/rpc", ask(1, "read", &json!([mode]))).await;
        assert_eq!(reply.json()["result"], "second", "{mode}: {}", reply.text());
        *counted.entry(reason).or_insert(0.0) += 1.0;
    }
    let reply = gateway.http().post("/rpc", ask(1, "read", &json!(["500"]))).await;
    assert_eq!(reply.code(), -31004, "a refusal that says nothing of another upstream");
    let metrics = gateway.metrics().await;
    for (reason, count) in counted {
        let labels = [("upstream", "first"), ("reason", reason)];
        assert_eq!(metrics.value("trunkline_retries_total", &labels), count, "{reason}");
    }
    assert_eq!(metrics.value("trunkline_retries_total", &[("upstream", "second")]), 0.0);
    assert_eq!(result(&gateway, "read").await, "first", "the first one that is well wins");
}

#[tokio::test]
async fn a_call_that_was_never_written_goes_on_elsewhere_alone_and_in_batches() {
    let (addr, _held) = closed_port();
    let dead = format!("protocol = \"jsonrpc\"\nurl = \"http://{addr}/\"");
    let alive = named("alive").await;
    for batch in ["", "\nbatch = true"] {
        let gateway = Setup::new()
            .upstream("dead", &format!("{dead}{batch}"))
            .plain("alive", &alive, "")
            .rpc(r#""*" = ["dead", "alive"], "only" = "dead""#)
            .start()
            .await;
        assert_eq!(result(&gateway, "write").await, "alive");
        assert_eq!(result(&gateway, "only").await, Value::Null);
        let note = json!({"jsonrpc": "2.0", "method": "tell"}).to_string();
        let (one, two) = (ask(1, "x", &json!([])), ask(2, "only", &json!([])));
        let three = ask(3, "y", &json!([]));
        let body = format!("[{one},{two},{note},{three}]");
        let items = gateway.http().post("/rpc", body).await.json();
        assert_eq!((&items[0]["id"], &items[0]["result"]), (&json!(1), &json!("alive")));
        assert_eq!((&items[1]["id"], &items[1]["error"]["code"]), (&json!(2), &json!(-31004)));
        assert_eq!((&items[2]["id"], &items[2]["result"]), (&json!(3), &json!("alive")));
        let metrics = gateway.metrics().await;
        let labels = [("upstream", "dead"), ("reason", "connect")];
        assert!(metrics.value("trunkline_retries_total", &labels) >= 1.0);
    }
    alive.until_count("tell", 2).await;
}

#[tokio::test]
async fn one_deadline_holds_over_all_upstreams_that_are_tried() {
    let silent = |call: Call| async move { call.out.gone().await };
    let a = Fake::plain().on("*", silent).start().await;
    let b = Fake::plain().on("*", silent).start().await;
    let c = named("late").await;
    let gateway = Setup::new()
        .plain("a", &a, "timeout = \"400ms\"")
        .plain("b", &b, "timeout = \"30s\"")
        .plain("c", &c, "")
        .rpc(r#""*" = { upstreams = ["a", "b", "c"], idempotent = true, timeout = "1s" }"#)
        .start()
        .await;
    let begun = Instant::now();
    let reply = gateway.http().post("/rpc", ask(1, "x", &json!([]))).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!((reply.status, reply.code()), (504, -31003));
    assert_eq!(reply.json()["error"]["data"]["upstream"], "b", "{}", reply.text());
    assert_eq!((a.requests().len(), b.requests().len(), c.requests().len()), (1, 1, 0));
}

#[tokio::test]
async fn a_pattern_may_have_a_timeout_of_its_own() {
    let up = Fake::plain().on("slow", |call: Call| async move { call.out.gone().await });
    let up = up.start().await;
    let gateway = Setup::new()
        .plain("up", &up, "timeout = \"60s\"")
        .rpc(r#""slow" = { upstreams = ["up"], timeout = "300ms" }, "*" = "up""#)
        .start()
        .await;
    let reply = gateway.http().post("/rpc", ask(1, "slow", &json!([]))).await;
    assert_eq!((reply.status, reply.code()), (504, -31003));
    assert!(reply.text().contains("300ms"), "{}", reply.text());
    let items = gateway.http().post("/rpc", format!("[{}]", ask(1, "slow", &json!([])))).await;
    assert_eq!(items.json()[0]["error"]["code"], -31003);
}

#[tokio::test]
async fn the_timeout_of_a_pattern_covers_the_wait_for_a_slot_too() {
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let up = Fake::plain()
        .on("first", move |call: Call| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                call.result("1").await;
            }
        })
        .on("slow", |call: Call| async move { call.out.gone().await })
        .start()
        .await;
    let gateway = Setup::new()
        .plain("up", &up, "max_concurrency = 1")
        .rpc(r#""slow" = { upstreams = ["up"], timeout = "3s" }, "*" = "up""#)
        .start()
        .await;
    let first = gateway.http();
    let first = first.post("/rpc", ask(1, "first", &json!([])));
    let rest = async {
        up.until_count("first", 1).await;
        let slow = gateway.http();
        let slow = slow.post("/rpc", ask(2, "slow", &json!([])));
        let release = async {
            let waits = |m: &Metrics| m.value("trunkline_exchanges_in_flight", &[]) == 2.0;
            gateway.until("it waits", waits).await;
            go_on.notify_one();
        };
        tokio::join!(slow, release).0
    };
    let (first, slow) = tokio::join!(first, rest);
    assert_eq!((first.json()["result"].clone(), slow.code()), (json!(1), -31003));
    assert_eq!(up.count("slow"), 1, "it came to be called");
    let text = slow.text();
    assert!(!text.contains("within 3s"), "less than all of it was left for the call: {text}");
}

#[tokio::test]
async fn calls_are_balanced_in_turn_or_by_load() {
    let (a, b) = (named("a").await, named("b").await);
    let busy = Fake::plain()
        .on("hang", |call: Call| async move { call.out.gone().await })
        .on("*", |call: Call| async move { call.result("\"busy\"").await })
        .start()
        .await;
    let gateway = Setup::new()
        .plain("a", &a, "")
        .plain("b", &b, "")
        .plain("busy", &busy, "")
        .rpc(
            r#""turn" = { upstreams = ["a", "b"], balance = "round_robin" }, "load" = { upstreams = ["busy", "a"], balance = "least_requests" }, "hang" = "busy""#,
        )
        .start()
        .await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(result(&gateway, "turn").await);
    }
    assert_eq!(seen, [json!("a"), json!("b"), json!("a"), json!("b")]);
    let http = gateway.http();
    let hanging = tokio::spawn(async move { http.post("/rpc", ask(1, "hang", &json!([]))).await });
    busy.until_count("hang", 1).await;
    for _ in 0..3 {
        assert_eq!(result(&gateway, "load").await, "a", "the other one has a call in flight");
    }
    hanging.abort();
}

#[tokio::test]
async fn replicas_are_asked_in_turn_and_a_dead_one_is_passed_over() {
    let (a, b) = (named("a").await, named("b").await);
    let (addr, _held) = closed_port();
    let endpoints = |more: &str| {
        format!("protocol = \"jsonrpc\"\nendpoints = [{:?}, {more}{:?}]", a.url(), b.url())
    };
    let dead = format!("\"http://{addr}/\", ");
    let gateway = Setup::new()
        .upstream("both", &endpoints(""))
        .upstream("three", &endpoints(&dead))
        .rpc(r#""both" = "both", "three" = "three""#)
        .start()
        .await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(result(&gateway, "both").await);
    }
    assert_eq!(seen, [json!("a"), json!("b"), json!("a"), json!("b")]);
    for _ in 0..6 {
        assert_ne!(result(&gateway, "three").await, Value::Null, "another replica answers");
    }
    let metrics = gateway.metrics().await;
    let labels = [("upstream", "three"), ("reason", "connect")];
    assert!(metrics.value("trunkline_retries_total", &labels) >= 1.0);
    assert_eq!(metrics.value("trunkline_upstream_up", &[("upstream", "three")]), 2.0);
    let ready = gateway.admin().get("/readyz").await.json();
    assert_eq!(ready["upstreams"]["three"]["state"], "up", "{ready}");
}

#[tokio::test]
async fn row_41_what_is_denied_is_unknown_however_its_name_is_written() {
    let up = named("ran").await;
    let gateway = Setup::new()
        .plain("up", &up, "")
        .toml(
            "[[routes]]\npath = \"/rpc\"\nprotocol = \"jsonrpc\"\nmethods = { \"*\" = \"up\" }\n\
             allow = [\"eth_*\", \"net_version\"]\ndeny = [\"eth_send*\", \"eth_sign\"]",
        )
        .start()
        .await;
    for served in ["eth_call", "net_version", "eth_signTypedData", r"\u0065th_call"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{served}"}}"#);
        let reply = gateway.http().post("/rpc", body).await;
        assert_eq!(reply.json()["result"], "ran", "{served}: {}", reply.text());
    }
    let before = up.requests().len();
    for refused in [
        "eth_sign",
        r"eth_\u0073ign",
        r"\u0065\u0074\u0068_sendTransaction",
        "eth_sendRawTransaction",
        "admin_peers",
        "Eth_call",
        "net_versions",
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"x","method":"{refused}","params":[1]}}"#);
        let reply = gateway.http().post("/rpc", body.clone()).await;
        assert_eq!((reply.status, reply.code()), (200, -32601), "{refused}");
        assert_eq!(reply.json()["id"], "x");
        let good = ask(2, "eth_call", &json!([]));
        let items = gateway.http().post("/rpc", format!("[{body},{good}]")).await.json();
        assert_eq!(items[0]["error"]["code"], -32601, "{refused}");
        assert_eq!(items[1]["result"], "ran", "{refused}");
        let note = format!(r#"{{"jsonrpc":"2.0","method":"{refused}"}}"#);
        let reply = gateway.http().post("/rpc", note).await;
        assert_eq!((reply.status, reply.text()), (204, ""), "{refused}");
    }
    assert_eq!(up.requests().len(), before + 7, "only the good ones arrived");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("method", "other")]), 21.0);
}

#[tokio::test]
async fn a_pattern_may_have_a_smaller_body_limit() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .plain("up", &up, "")
        .rpc(r#""small" = { upstreams = ["up"], max_body = "1KiB" }, "*" = "up""#)
        .start()
        .await;
    let big = json!(["x".repeat(2000)]);
    let reply = gateway.http().post("/rpc", ask(7, "small", &big)).await;
    assert_eq!((reply.status, reply.code()), (413, -31010));
    assert_eq!(reply.json()["id"], 7);
    assert_eq!(reply.json()["error"]["data"]["reason"], "message_too_large");
    let body = format!("[{},{}]", ask(1, "small", &big), ask(2, "other", &big));
    let items = gateway.http().post("/rpc", body).await.json();
    assert_eq!(items[0]["error"]["code"], -31010);
    assert_eq!(items[1]["result"], big);
    let reply = gateway.http().post("/rpc", ask(1, "small", &json!([1]))).await;
    assert_eq!(reply.json()["result"], json!([1]));
}

#[tokio::test]
async fn params_by_position_and_by_name_arrive_as_they_were_written() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .plain("up", &up, "")
        .rpc(r#""*" = { upstreams = ["up"], idempotent = true }"#)
        .start()
        .await;
    for params in [r#"[ 1.0, "\u0061" ,{} ]"#, r#"{"b" : 1e2, "a":[null ] }"#] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#);
        let reply = gateway.http().post("/rpc", body).await;
        assert!(reply.text().contains(params), "{}", reply.text());
        assert_eq!(up.requests().last().unwrap().params().as_deref(), Some(params));
    }
}
