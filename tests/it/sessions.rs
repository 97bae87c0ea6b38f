//! Sessions of legacy clients: how they begin, what they need, how they end.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::MCP_HEADERS;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::mcp::{Mcp, NEWEST, hello, request};

async fn one() -> (Gateway, Fake) {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

#[tokio::test]
async fn initialize_is_answered_at_once_whatever_the_upstreams_do() {
    let good = Fake::mcp(["do"]).start().await;
    let hole = Fake::mcp(["never"])
        .on("*", |_: Call| std::future::pending())
        .on("initialize", |_: Call| std::future::pending())
        .start()
        .await;
    let gateway = Setup::new()
        .fake("good", &good)
        .fake_with("hole", &hole, "start_timeout = \"60s\"\nconnect_timeout = \"60s\"")
        .mcp(&["good", "hole"])
        .start()
        .await;
    let begun = Instant::now();
    let client = gateway.mcp().await;
    assert!(begun.elapsed() < Duration::from_millis(500), "it took {:?}", begun.elapsed());
    assert_eq!(client.revision, NEWEST);
    assert_eq!(client.hello["capabilities"]["tools"]["listChanged"], true, "{}", client.hello);
    assert!(client.hello["serverInfo"]["name"].is_string());
}

#[tokio::test]
async fn each_legacy_revision_is_spoken_and_an_unknown_one_becomes_the_newest() {
    let (gateway, _up) = one().await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = Mcp::open_at(gateway.http(), "/mcp", revision, json!({})).await;
        assert_eq!(client.revision, revision);
        assert_eq!(client.call("do", json!({})).await.said(), "do");
    }
    for unknown in ["2099-01-01", "2026-07-28", "nonsense"] {
        let client = Mcp::open_at(gateway.http(), "/mcp", unknown, json!({})).await;
        assert_eq!(client.revision, NEWEST, "{unknown}");
    }
}

#[tokio::test]
async fn session_ids_are_unguessable_and_visible_ascii() {
    let (gateway, _up) = one().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    assert_ne!(a.session, b.session);
    assert!(a.session.len() >= 20, "{}", a.session);
    assert!(a.session.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{}", a.session);
}

#[tokio::test]
async fn a_request_without_a_session_is_400_and_with_a_dead_one_404() {
    let (gateway, up) = one().await;
    let list = request(1, "tools/list", &json!({}));
    let reply = gateway.http().send("POST", "/mcp", &MCP_HEADERS, list.clone()).await;
    assert_eq!((reply.status, reply.code()), (400, -32600));
    let mut headers = MCP_HEADERS.to_vec();
    headers.push(("mcp-session-id", "never-given-out"));
    let reply = gateway.http().send("POST", "/mcp", &headers, list).await;
    assert_eq!(reply.status, 404);
    let refused = [("method", "tools/list"), ("outcome", "rpc_error")];
    let counted = |m: &crate::metrics::Metrics| m.value("trunkline_exchanges_total", &refused);
    gateway.until("both are counted", |m| counted(m) == 2.0).await;
    for method in ["GET", "DELETE"] {
        let dead = [("accept", "text/event-stream"), ("mcp-session-id", "never-given-out")];
        assert_eq!(gateway.http().send(method, "/mcp", &dead, "").await.status, 404, "{method}");
        let none = [("accept", "text/event-stream")];
        assert_eq!(gateway.http().send(method, "/mcp", &none, "").await.status, 400, "{method}");
    }
    assert_eq!(up.count("tools/call"), 0);
}

#[tokio::test]
async fn delete_ends_a_session_and_its_streams() {
    let (gateway, up) = one().await;
    let client = gateway.mcp().await;
    client.call("do", json!({})).await.said();
    let mut stream = client.stream().await;
    let other = gateway.mcp().await;
    let status = client.delete().await;
    assert!(matches!(status, 200 | 202 | 204), "{status}");
    let body = request(1, "tools/list", &json!({}));
    assert_eq!(client.post(&body).await.status, 404);
    assert_eq!(client.delete().await, 404);
    assert_eq!(stream.next_message().await, None, "its stream ends");
    assert_eq!(other.tools().await, ["do"], "nobody else is disturbed");
    gateway
        .until("one session is left", |m| {
            m.value("trunkline_sessions", &[("route", "/mcp"), ("era", "legacy")]) == 1.0
        })
        .await;
    up.until("the upstream's session is ended too", |core| {
        core.requests().iter().any(|r| r.method == "DELETE")
    })
    .await;
}

#[tokio::test]
async fn an_unused_session_ends_and_a_used_one_does_not() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new()
        .server("session_idle_timeout = \"1s\"")
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let sessions = [("route", "/mcp"), ("era", "legacy")];
    let (idle, watching) = (gateway.mcp().await, gateway.mcp().await);
    let mut stream = watching.stream().await;
    gateway.until("both are counted", |m| m.value("trunkline_sessions", &sessions) == 2.0).await;
    gateway.until("one has ended", |m| m.value("trunkline_sessions", &sessions) == 1.0).await;
    let body = request(1, "tools/list", &json!({}));
    assert_eq!(idle.post(&body).await.status, 404, "C005");
    assert_eq!(stream.message_within(Duration::from_millis(1500)).await, None);
    assert_eq!(watching.tools().await, ["do"], "an open stream counts as use");
}

#[tokio::test]
async fn initialize_with_a_dead_or_foreign_session_gets_a_fresh_one() {
    let (gateway, _up) = one().await;
    let other = gateway.mcp().await;
    for given in ["never-given-out", other.session.as_str()] {
        let mut headers = MCP_HEADERS.to_vec();
        headers.push(("mcp-session-id", given));
        let body = request(0, "initialize", &hello(NEWEST, &json!({})));
        let reply = gateway.http().send("POST", "/mcp", &headers, body).await;
        assert_eq!(reply.status, 200);
        let fresh = reply.header("mcp-session-id");
        assert!(!fresh.is_empty() && fresh != given, "{fresh}");
    }
    assert_eq!(other.tools().await, ["do"], "the foreign one lives on");
}

#[tokio::test]
async fn c007_what_is_refused_allocates_nothing() {
    let (gateway, up) = one().await;
    let (http, json_only) = (gateway.http(), MCP_HEADERS);
    let accept = [("accept", "text/event-stream")];
    let empty: [(&str, &str); 0] = [];
    for _ in 0..50 {
        for method in ["GET", "DELETE", "HEAD", "OPTIONS", "PUT"] {
            for headers in [&empty[..], &accept[..]] {
                let reply = http.send(method, "/mcp", headers, "").await;
                let fine = if method == "OPTIONS" { 200..500 } else { 400..500 };
                assert!(fine.contains(&reply.status), "{method} gave {}", reply.status);
            }
        }
        for body in ["{", "[]", r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#] {
            let reply = http.send("POST", "/mcp", &json_only, body).await;
            assert!(reply.header("mcp-session-id").is_empty(), "{body}");
            assert!(!reply.json()["error"].is_null(), "{body}");
        }
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_sessions", &[]), 0.0);
    assert_eq!(metrics.value("trunkline_streams", &[]), 0.0);
    assert_eq!(up.count("tools/call"), 0);
}

#[tokio::test]
async fn c065_the_version_header_is_checked_after_initialize_only() {
    let (gateway, _up) = one().await;
    let http = gateway.http();
    let mut headers = MCP_HEADERS.to_vec();
    headers.push(("mcp-protocol-version", "2099-01-01"));
    let body = request(0, "initialize", &hello("2099-01-01", &json!({})));
    let reply = http.send("POST", "/mcp", &headers, body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json()["result"]["protocolVersion"], NEWEST);
    let session = reply.header("mcp-session-id").to_owned();

    let list = request(1, "ping", &json!({}));
    let with = async |version: Option<&str>| {
        let mut headers = MCP_HEADERS.to_vec();
        headers.push(("mcp-session-id", &session));
        headers.extend(version.map(|version| ("mcp-protocol-version", version)));
        http.send("POST", "/mcp", &headers, list.clone()).await.status
    };
    assert_eq!(with(Some("2099-01-01")).await, 400);
    assert_eq!(with(Some("x")).await, 400);
    assert_eq!(with(None).await, 200);
    assert_eq!(with(Some(NEWEST)).await, 200);
    assert_eq!(with(Some("2025-03-26")).await, 200, "another known one: the negotiated one holds");
    let raw = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: */*\r\n\
         mcp-session-id: {session}\r\nconnection: close\r\ncontent-length: {}\r\n",
        gateway.addr(),
        list.len()
    );
    let raw = [raw.as_bytes(), b"mcp-protocol-version: x\xff\r\n\r\n", list.as_bytes()].concat();
    let answer = http.raw(&raw).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn ping_is_answered_by_the_gateway() {
    let (gateway, up) = one().await;
    let client = gateway.mcp().await;
    let answer = client.exchange(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    assert_eq!(answer.text, r#"{"jsonrpc":"2.0","id":"p","result":{}}"#);
    assert_eq!(up.count("ping"), 0);
}

#[tokio::test]
async fn initialize_twice_or_in_a_batch_is_refused() {
    let (gateway, _up) = one().await;
    let client = gateway.mcp().await;
    let body = request(0, "initialize", &hello(NEWEST, &json!({})));
    let reply = gateway.http().send("POST", "/mcp", &MCP_HEADERS, format!("[{body}]")).await;
    assert!(reply.header("mcp-session-id").is_empty(), "{:?}", reply.headers);
    let text = reply.text();
    assert!(text.contains("-32600"), "{text}");
    assert_eq!(client.tools().await, ["do"]);
}

#[tokio::test]
async fn with_optional_sessions_one_request_is_enough() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().fake("up", &up).mcp_with(&["up"], "sessions = \"optional\"").start().await;
    let call = request(1, "tools/call", &json!({"name": "do", "arguments": {}}));
    let headers = [("content-type", "application/json")];
    for _ in 0..3 {
        let reply = gateway.http().send("POST", "/mcp", &headers, call.clone()).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json()["result"]["content"][0]["text"], "do", "{}", reply.text());
        assert!(reply.header("mcp-session-id").is_empty());
    }
    let client = gateway.mcp().await;
    assert_eq!(client.call("do", json!({})).await.said(), "do", "sessions work beside it");
    client.delete().await;
    gateway.until("no session is left", |m| m.value("trunkline_sessions", &[]) == 0.0).await;
    let mut dead = headers.to_vec();
    dead.push(("mcp-session-id", "never-given-out"));
    assert_eq!(gateway.http().send("POST", "/mcp", &dead, call).await.status, 404);
}

#[tokio::test]
async fn a_session_limit_refuses_new_sessions_and_frees_them_again() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().server("max_sessions = 2").fake("up", &up).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    let body = request(0, "initialize", &hello(NEWEST, &json!({})));
    let reply = gateway.http().send("POST", "/mcp", &MCP_HEADERS, body).await;
    assert_eq!(reply.code(), -31002, "{}", reply.text());
    a.delete().await;
    let c = gateway.mcp().await;
    assert_eq!(c.tools().await, ["do"]);
    assert_eq!(b.tools().await, ["do"]);
}

#[tokio::test]
async fn a_dead_session_is_404_on_one_route_and_never_works_on_another() {
    let (a, b) = (Fake::mcp(["a"]).start().await, Fake::mcp(["b"]).start().await);
    let gateway = Setup::new()
        .fake("a", &a)
        .fake("b", &b)
        .mcp(&["a"])
        .toml("[[routes]]\npath = \"/other\"\nprotocol = \"mcp\"\nupstreams = [\"b\"]")
        .start()
        .await;
    let client = gateway.mcp().await;
    let body = request(1, "tools/list", &json!({}));
    let reply = gateway.http().send("POST", "/other", &client.headers(), body).await;
    assert_eq!(reply.status, 404);
    assert_eq!(client.tools().await, ["a"]);
}

#[tokio::test]
async fn an_idle_stream_gets_comments_between_events() {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            call.say("late").await;
        })
        .start()
        .await;
    let gateway =
        Setup::new().server("keep_alive = \"500ms\"").fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let mut stream = client.stream().await;
    assert!(stream.next_block().await.unwrap().data.is_empty(), "it begins with an id");
    for _ in 0..2 {
        assert!(stream.next_block().await.unwrap().comment, "C014: the GET stream");
    }
    let mut call = client.open_call(7, "do", json!({}), json!({})).await;
    assert!(call.is_sse(), "a late answer comes on a stream that is opened for it");
    let mut comments = 0;
    let answer = loop {
        let block = call.next_block().await.expect("the answer comes");
        match block.comment {
            true => comments += 1,
            false if block.data.is_empty() => {}
            false => break block.data,
        }
    };
    assert!(comments >= 2, "C014: {comments} comments");
    assert!(answer.contains("late"), "{answer}");
}
