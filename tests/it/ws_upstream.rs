//! Upstreams over WebSocket: plain JSON-RPC on shared connections, MCP on a connection for each link.

use serde_json::{Value, json};

use crate::fake::ws::{ExampleWs, FakeWs, Peer};
use crate::gateway::{Gateway, Setup};
use crate::modern::Modern;

/// A gateway whose `/rpc` leads to that upstream.
fn plain(url: &str, lines: &str) -> Setup {
    let upstream = format!("protocol = \"jsonrpc\"\nurl = \"{url}\"\n{lines}");
    Setup::new().upstream("node", &upstream).rpc("\"*\" = \"node\"")
}

/// POSTs a request in the background; status and body.
fn post(gateway: &Gateway, body: &str) -> tokio::task::JoinHandle<(u16, Value)> {
    let (http, body) = (gateway.http(), body.to_owned());
    tokio::spawn(async move {
        let reply = http.post("/rpc", body).await;
        (reply.status, reply.json())
    })
}

const ASK: &str = r#"{"jsonrpc":"2.0","id":"a","method":"ask","params":[1.0]}"#;

fn reason(answer: &Value) -> &str {
    answer["error"]["data"]["reason"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn batches_and_single_calls_share_a_connection_and_keep_ids_bytes_and_order() {
    let example = ExampleWs::start().await;
    let gateway = plain(&format!("ws://{}/rpc", example.addr), "").start().await;
    let body = r#"[{"jsonrpc":"2.0","id":1.0,"method":"sleep","params":[50]},
        {"jsonrpc":"2.0","method":"echo","params":[0]},
        {"jsonrpc":"2.0","id":"1\u0030","method":"echo","params":[1.10,-0,{"b":1,"a":2}]},
        {"jsonrpc":"2.0","id":null,"method":"nothing"},
        {"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"sum","params":[1,2]}]"#;
    let reply = gateway.http().post("/rpc", body).await;
    assert_eq!(
        reply.text(),
        r#"[{"jsonrpc":"2.0","id":1.0,"result":{"slept_ms":50}},{"jsonrpc":"2.0","id":"1\u0030","result":[1.10,-0,{"b":1,"a":2}]},{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"unknown method: nothing"}},{"jsonrpc":"2.0","id":123456789012345678901234567890,"result":3}]"#
    );
    let seen = r#"{"jsonrpc":"2.0","id":1,"method":"notifications_seen"}"#;
    assert_eq!(gateway.http().post("/rpc", seen).await.json()["result"], 1);
    let metrics = gateway.metrics().await;
    let node = [("upstream", "node")];
    assert_eq!(metrics.value("trunkline_upstream_connections", &node), 1.0);
    assert_eq!(metrics.value("trunkline_upstream_up", &node), 1.0);
    assert_eq!(
        metrics.value("trunkline_upstream_calls_total", &[("upstream", "node"), ("outcome", "ok")]),
        5.0
    );
}

#[tokio::test]
async fn calls_on_a_cut_connection_fail_and_the_next_ones_are_served() {
    let up = FakeWs::start().await;
    let gateway = plain(&up.url(), "").start().await;
    let cut = [post(&gateway, ASK), post(&gateway, ASK)];
    let mut peer = up.accept().await;
    peer.asked("ask").await;
    peer.asked("ask").await;
    drop(peer);
    for call in cut {
        let (status, answer) = call.await.unwrap();
        assert_eq!((status, reason(&answer)), (502, "upstream_closed"), "{answer}");
        assert_eq!(answer["id"], "a");
    }
    let next = post(&gateway, ASK);
    let mut peer = up.accept().await;
    let id = peer.asked("ask").await;
    peer.answer(id, "true").await;
    assert_eq!(next.await.unwrap().1, json!({"jsonrpc": "2.0", "id": "a", "result": true}));
}

#[tokio::test]
async fn an_upstream_that_goes_silent_is_left_and_dialled_again() {
    let up = FakeWs::start().await;
    let lines = "ping_interval = \"50ms\"\nping_timeout = \"100ms\"";
    let gateway = plain(&up.url(), lines).start().await;
    let pending = post(&gateway, ASK);
    // It is never read, so nothing answers its pings.
    let _silent = up.accept().await;
    let (status, answer) = pending.await.unwrap();
    assert_eq!((status, reason(&answer)), (502, "upstream_closed"), "{answer}");
    let next = post(&gateway, ASK);
    let mut peer = up.accept().await;
    let id = peer.asked("ask").await;
    peer.answer(id, "1").await;
    assert_eq!(next.await.unwrap().1["result"], 1);
    let connections = [("upstream", "node")];
    gateway
        .until("only the live connection is left", |m| {
            m.value("trunkline_upstream_connections", &connections) == 1.0
        })
        .await;
}

#[tokio::test]
async fn what_is_no_answer_harms_nobody_and_what_is_too_large_is_told() {
    let up = FakeWs::start().await;
    let gateway = plain(&up.url(), "max_message = \"1KiB\"").start().await;
    let pending = post(&gateway, ASK);
    let mut peer = up.accept().await;
    let id = peer.asked("ask").await;
    for stray in [
        r#"{"jsonrpc":"2.0","id":99,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":"1","result":1}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":"?"},"id":null}"#,
        r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#,
        "{",
    ] {
        peer.write(stray).await;
    }
    peer.answer(id, "1").await;
    assert_eq!(pending.await.unwrap().1["result"], 1);
    peer.answer(id, "2").await;
    gateway
        .until("all strays are counted", |m| {
            m.value("trunkline_upstream_stray_messages_total", &[("upstream", "node")]) == 6.0
        })
        .await;
    // Rows of answers that are no answers: neither result nor error, an error that is a string.
    for (text, told) in [("", "neither"), (r#","error":"boom""#, "no object")] {
        let pending = post(&gateway, ASK);
        let id = peer.asked("ask").await;
        peer.write(format!(r#"{{"jsonrpc":"2.0","id":{id}{text}}}"#)).await;
        let (status, answer) = pending.await.unwrap();
        assert_eq!((status, reason(&answer)), (502, "upstream_protocol"), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(told), "{answer}");
    }
    let pending = post(&gateway, ASK);
    let id = peer.asked("ask").await;
    peer.answer(id, &format!("\"{}\"", "x".repeat(2000))).await;
    let (status, answer) = pending.await.unwrap();
    assert_eq!((status, reason(&answer)), (502, "upstream_protocol"), "{answer}");
    peer.ended().await;
    let next = post(&gateway, ASK);
    let mut peer = up.accept().await;
    let id = peer.asked("ask").await;
    peer.answer(id, "1").await;
    assert_eq!(next.await.unwrap().1["result"], 1);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_told_at_once_and_found_when_it_comes() {
    let (addr, socket) = crate::gateway::closed_port();
    let gateway = plain(&format!("ws://{addr}/rpc"), "").start().await;
    let (status, answer) = post(&gateway, ASK).await.unwrap();
    assert_eq!((status, reason(&answer)), (502, "upstream_unavailable"), "{answer}");
    assert_eq!(answer["error"]["message"], "upstream node is unavailable");
    let ready = gateway.admin().get("/readyz").await;
    assert!(ready.text().contains("connection refused"), "{}", ready.text());
    drop(socket);
    let _example = ExampleWs::start_at(&addr.to_string()).await;
    gateway
        .until("it is found though nobody calls", |m| {
            m.value("trunkline_upstream_up", &[("upstream", "node")]) == 1.0
        })
        .await;
    let sum = r#"{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}"#;
    assert_eq!(post(&gateway, sum).await.unwrap().1["result"], 3);
}

#[tokio::test]
async fn an_upstream_that_refuses_the_upgrade_is_told_by_its_status_alone() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let up = FakeWs::start().await;
    let headers = "headers = { Authorization = \"Bearer s3cret\" }";
    let gateway = plain(&up.url(), headers).start().await;
    let pending = post(&gateway, ASK);
    let mut stream = up.tcp().await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(String::from_utf8(head).unwrap().to_lowercase().contains("bearer s3cret"));
    let refusal = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(refusal).await.unwrap();
    let (status, answer) = pending.await.unwrap();
    assert_eq!((status, reason(&answer)), (503, "overloaded"), "{answer}");
    assert_eq!(answer["error"]["data"]["retryAfterMs"], 7000);
    // It wants to be left alone for that long, whoever calls.
    let (status, _) = post(&gateway, ASK).await.unwrap();
    assert_eq!(status, 503);
    assert_eq!(gateway.output().count("s3cret"), 0);
}

#[tokio::test]
async fn mcp_over_websocket_serves_clients_of_both_eras_and_survives_a_restart() {
    let example = ExampleWs::start().await;
    let addr = example.addr;
    let url = format!("url = \"ws://{addr}/mcp\"");
    let gateway = Setup::new().upstream("live", &url).mcp(&["live"]).start().await;
    let client = gateway.mcp().await;
    assert_eq!(client.call("add", json!({"a": 2, "b": 3})).await.said(), "5");
    let modern = Modern::new(gateway.http(), json!({}));
    assert_eq!(modern.call("echo", json!({"message": "hi"})).await.said(), "hi");
    let up = [("upstream", "live")];
    gateway.until("it is up", |m| m.value("trunkline_upstream_up", &up) == 1.0).await;
    drop(example);
    gateway.until("it is down", |m| m.value("trunkline_upstream_up", &up) == 0.0).await;
    let _again = ExampleWs::start_at(&addr.to_string()).await;
    gateway.until("it is up again", |m| m.value("trunkline_upstream_up", &up) == 1.0).await;
    assert_eq!(client.call("echo", json!({"message": "back"})).await.said(), "back");
}

#[tokio::test]
async fn an_older_server_over_websocket_is_greeted_as_such_and_its_news_are_heard() {
    let up = FakeWs::start().await;
    let lines = format!("url = \"{}\"\nisolation = \"shared\"", up.url());
    let gateway = Setup::new().upstream("old", &lines).mcp(&["old"]).start().await;
    let mut peer = up.accept().await;
    assert_eq!(peer.headers.get("sec-websocket-protocol").unwrap(), "mcp");
    let id = peer.asked("initialize").await;
    let hello = json!({
        "protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "s", "version": "1"},
    });
    peer.answer(id, &hello.to_string()).await;
    assert_eq!(peer.json().await["method"], "notifications/initialized");
    serve_list(&mut peer, "one").await;
    let client = gateway.mcp().await;
    client.until_tools("the first list", |tools| tools == ["one"]).await;
    peer.write(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    // It is fetched when somebody asks for it again.
    tokio::join!(
        serve_list(&mut peer, "two"),
        client.until_tools("the changed list", |tools| tools == ["two"])
    );
}

/// Answers one `tools/list`.
async fn serve_list(peer: &mut Peer, tool: &str) {
    let id = peer.asked("tools/list").await;
    let tool = format!(r#"{{"tools":[{{"name":"{tool}","inputSchema":{{"type":"object"}}}}]}}"#);
    peer.answer(id, &tool).await;
}

#[tokio::test]
async fn a_call_marked_idempotent_goes_over_the_next_connection_once() {
    let up = FakeWs::start().await;
    let upstream = format!("protocol = \"jsonrpc\"\nurl = \"{}\"", up.url());
    let methods = r#""ask" = { upstreams = ["node"], idempotent = true }"#;
    let gateway = Setup::new().upstream("node", &upstream).rpc(methods).start().await;
    let pending = post(&gateway, ASK);
    let mut peer = up.accept().await;
    peer.asked("ask").await;
    drop(peer);
    let mut peer = up.accept().await;
    let id = peer.asked("ask").await;
    peer.answer(id, "1").await;
    assert_eq!(pending.await.unwrap().1["result"], 1);
    let pending = post(&gateway, ASK);
    for _ in 0..2 {
        peer.asked("ask").await;
        drop(peer);
        peer = up.accept().await;
    }
    assert_eq!(reason(&pending.await.unwrap().1), "upstream_closed");
}
