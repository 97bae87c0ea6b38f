//! Cases from the field: sessions over HTTP, event streams, their framing and resumption. The table is in `cases`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::client::{MCP_HEADERS, patient};
use crate::fake::{self, Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::mcp::{Mcp, NEWEST, hello, request};
use crate::modern::Modern;

/// A tool that counts how often it ran.
async fn counted() -> (Fake, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let up = Fake::mcp(["x"]).on("tools/call", move |call: Call| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { call.say("x").await }
    });
    (up.start().await, runs)
}

#[tokio::test]
async fn c001_a_lost_session_is_opened_anew_step_by_step_and_each_call_runs_once() {
    let (up, runs) = counted().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.call("x", json!({})).await.said();
    let old = up.of("tools/call")[0].header("mcp-session-id").unwrap().to_owned();
    let before = up.requests().len();
    up.forget();
    assert_eq!(client.call("x", json!({})).await.said(), "x", "on the same session of the client");
    let told = ["tools/call", "initialize", "notifications/initialized"];
    let seen: Vec<_> = up.requests().split_off(before);
    let steps = seen.iter().filter_map(|request| {
        let method = request.rpc().filter(|method| told.contains(&method.as_str()))?;
        let session = match request.header("mcp-session-id") {
            None => "none",
            Some(id) if id == old => "old",
            Some(_) => "new",
        };
        Some(format!("{method} {session}"))
    });
    assert_eq!(
        steps.collect::<Vec<_>>(),
        ["tools/call old", "initialize none", "notifications/initialized new", "tools/call new"]
    );
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    up.forget();
    let opened = up.count("initialize");
    let five = (0..5).map(|_| client.call("x", json!({})));
    for answer in futures_util::future::join_all(five).await {
        assert_eq!(answer.said(), "x");
    }
    assert_eq!(up.count("initialize"), opened + 1);
    assert_eq!(runs.load(Ordering::SeqCst), 7, "each of the five ran once");
}

#[tokio::test]
async fn c003_every_kind_of_request_recovers() {
    let up = Fake::mcp(["x"])
        .with(|lists| {
            lists.capabilities = json!({
                "tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": true},
            });
            lists.prompts = vec![json!({"name": "p", "arguments": [{"name": "a"}]})];
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .on("prompts/get", |call: Call| async move { call.result(r#"{"messages":[]}"#).await })
        .on("completion/complete", |call: Call| async move {
            call.result(r#"{"completion":{"values":[]}}"#).await;
        })
        .start()
        .await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its list", |tools| tools == ["x"]).await;
    let reference = json!({"type": "ref/prompt", "name": "p"});
    for (method, params) in [
        ("tools/call", json!({"name": "x"})),
        ("prompts/get", json!({"name": "p"})),
        ("resources/read", json!({"uri": "x://r"})),
        ("resources/subscribe", json!({"uri": "x://r"})),
        ("completion/complete", json!({"ref": reference, "argument": {"name": "a", "value": ""}})),
    ] {
        let opened = up.count("initialize");
        up.forget();
        let answer = client.request(method, params).await;
        assert!(answer.json["error"].is_null(), "{method}: {}", answer.text);
        assert_eq!(up.count("initialize"), opened + 1, "{method}");
    }
}

#[tokio::test]
async fn c005_an_expired_session_is_told_before_any_limit_and_takes_no_room() {
    let (up, _) = counted().await;
    let gateway = Setup::new()
        .server("session_idle_timeout = \"1s\"\nmax_sessions = 1")
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let list = request(1, "tools/list", &json!({}));
    let expired = gateway.mcp().await;
    let initialize = request(0, "initialize", &hello(NEWEST, &json!({})));
    let another = gateway.http().send("POST", "/mcp", &MCP_HEADERS, initialize.clone()).await;
    assert_eq!(another.code(), -31002, "one is the most");
    gateway.until("it has expired", |m| m.value("trunkline_sessions", &[]) == 0.0).await;
    assert_eq!(expired.post(&list).await.status, 404);
    let next = gateway.mcp().await;
    // Keeps it in use.
    let _stream = next.stream().await;
    for method in ["GET", "DELETE"] {
        let reply = gateway.http().send(method, "/mcp", &expired.headers(), "").await;
        assert_eq!(reply.status, 404, "{method}");
    }
    assert_eq!(expired.post(&list).await.status, 404, "though the room is taken again");
    let another = gateway.http().send("POST", "/mcp", &MCP_HEADERS, initialize).await;
    assert_eq!(another.code(), -31002);
    assert_eq!(next.tools().await, ["x"]);
}

/// One connection, made anew where the gateway closed it.
struct Kept<'a> {
    gateway: &'a Gateway,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Kept<'_> {
    async fn send(&mut self, method: &str, headers: &[(&str, &str)], body: &'static str) -> u16 {
        let addr = self.gateway.addr();
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let stream = tokio::net::TcpStream::connect(addr).await.expect("it accepts");
                let made = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
                let (sender, connection) = made.expect("HTTP");
                tokio::spawn(connection);
                sender
            }
        };
        let mut request = http::Request::builder().method(method).uri("/mcp");
        request = request.header("host", addr.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).expect("a request");
        let response = patient("an answer", sender.send_request(request)).await.expect("HTTP");
        let status = response.status().as_u16();
        response.into_body().collect().await.expect("a body");
        if sender.ready().await.is_ok() {
            self.sender = Some(sender);
        }
        status
    }
}

/// Method, headers, body.
type Probe = (&'static str, &'static [(&'static str, &'static str)], &'static str);

#[tokio::test]
async fn c007_hundreds_of_probes_of_each_kind_leave_nothing() {
    let (up, _) = counted().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    gateway.until("it is up", |m| m.value("trunkline_upstream_up", &[]) == 1.0).await;
    let bad = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":5}}"#;
    let probes: [Probe; 8] = [
        ("GET", &[], ""),
        ("GET", &[("accept", "text/event-stream")], ""),
        ("DELETE", &[], ""),
        ("HEAD", &[], ""),
        ("OPTIONS", &[], ""),
        ("POST", &MCP_HEADERS, "{\"jsonrpc\":"),
        ("POST", &MCP_HEADERS, bad),
        ("POST", &MCP_HEADERS, r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#),
    ];
    let mut kept = Kept { gateway: &gateway, sender: None };
    let opened = up.count("initialize");
    let mut before = 0;
    for round in 0..400 {
        for (method, headers, body) in probes {
            let status = kept.send(method, headers, body).await;
            let fine = (400..500).contains(&status) || (method == "OPTIONS" && status == 204);
            // What is wrong in the params of a request is told in band.
            let fine = fine || (body == bad && status == 200);
            assert!(fine, "{method} {body} gave {status}");
        }
        if round == 100 {
            before = gateway.memory();
        }
    }
    let grown = gateway.memory().saturating_sub(before) >> 10;
    assert!(grown < 5 << 10, "memory grew by {grown} KiB");
    let metrics = gateway.metrics().await;
    for gauge in ["sessions", "streams", "exchanges_in_flight"] {
        assert_eq!(metrics.value(&format!("trunkline_{gauge}"), &[]), 0.0, "{gauge}");
    }
    assert_eq!(up.count("initialize"), opened);
}

#[tokio::test]
async fn c010_invalid_utf8_on_a_stream_fails_that_call_and_no_other() {
    let up = Fake::mcp(["bad", "good"])
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            let text = call.response(&fake::said("#").to_string());
            if call.tool() == "good" {
                tokio::time::sleep(Duration::from_millis(300)).await;
                call.out.event(text).await;
                return call.out.end().await;
            }
            let (before, after) = text.split_once('#').unwrap();
            let event = [b"data: ", before.as_bytes(), &[0xc3, 0x28], after.as_bytes(), b"\n\n"];
            call.out.chunk(event.concat()).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let good = client.call("good", json!({}));
    let (bad, good) = tokio::join!(client.call("bad", json!({})), good);
    assert_eq!(bad.code(), -31006, "{}", bad.text);
    assert!(!bad.text.contains('\u{fffd}'), "{}", bad.text);
    assert_eq!(good.said(), "#");
    assert_eq!(client.call("good", json!({})).await.said(), "#");
}

#[tokio::test]
async fn c012_the_stream_of_a_call_may_begin_with_an_empty_event() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            call.out.chunk("id: 7\ndata:\n\n").await;
            call.out.chunk(": comment\n\n").await;
            call.out.chunk("data\n\n").await;
            call.out.event(call.progress(1, "on")).await;
            call.out.event(call.response(&fake::said("x").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let params = json!({"name": "x", "_meta": {"progressToken": 1}});
    let answer = client.request("tools/call", params).await;
    assert_eq!((answer.said(), answer.before.len()), ("x", 1));
}

#[tokio::test]
async fn c014_no_comment_comes_between_the_lines_of_an_event() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            let event = format!("id: 1\nevent: message\ndata: {}\n\n", call.progress(1, "on"));
            call.out.sse().await;
            for piece in event.as_bytes().chunks(event.len().div_ceil(5)) {
                call.out.chunk(piece).await;
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            call.out.event(call.response(&fake::said("x").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway =
        Setup::new().server("keep_alive = \"100ms\"").fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let stream = client.open_call(1, "x", json!({}), json!({"progressToken": 1})).await;
    let reply = stream.whole().await;
    let blocks: Vec<_> = reply.text().split_terminator("\n\n").collect();
    let comments = blocks.iter().filter(|block| block.starts_with(':')).count();
    assert!(comments >= 3, "{comments} comments in {}", reply.text());
    for block in &blocks {
        let lines: Vec<_> = block.lines().collect();
        let commented = lines.iter().filter(|line| line.starts_with(':')).count();
        assert!(commented == 0 || commented == lines.len(), "{block:?}");
    }
    let data = blocks.iter().filter(|block| block.contains("data: {")).count();
    assert_eq!(data, 2, "{}", reply.text());
}

async fn number(stream: &mut crate::client::Streaming) -> (String, u64) {
    let event = stream.next_event().await.expect("a message");
    let json: Value = serde_json::from_str(&event.data).expect("JSON");
    let data = json["params"]["data"].as_str().unwrap_or_else(|| panic!("no log: {json}"));
    let number = data.trim_end_matches('-').parse().expect("a number");
    (event.id.expect("every event has an id"), number)
}

#[tokio::test]
async fn c020_after_long_absence_a_stream_goes_on_without_anything_old_or_twice() {
    let log = |n: u64| {
        let params = json!({"level": "info", "data": format!("{n}{}", "-".repeat(8 << 10))});
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).to_string()
    };
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.call("do", json!({})).await.said();
    up.until("both links listen", |up| up.streams() == 2).await;
    let mut stream = client.stream().await;
    up.push(&log(1));
    let (seen, _) = number(&mut stream).await;
    drop(stream);
    let gets = [("route", "/mcp"), ("kind", "get")];
    gateway.until("it is gone", |m| m.value("trunkline_streams", &gets) == 0.0).await;
    (2..=60).for_each(|n| up.push(&log(n)));
    up.push(r#"{"jsonrpc":"2.0","id":500,"method":"ping"}"#);
    // Both links have read all that came before.
    let pongs = |up: &fake::Core| up.requests().iter().filter(|r| r.json()["id"] == 500).count();
    up.until("the pings are answered", |up| pongs(up) == 2).await;
    let mut headers = client.headers();
    headers.push(("last-event-id", &seen));
    let begun = Instant::now();
    let mut fresh = gateway.http().open("GET", "/mcp", &headers, "").await;
    assert!(begun.elapsed() < Duration::from_secs(3), "the head comes at once");
    assert_eq!(fresh.status, 200);
    up.push(&log(61));
    let mut last = 1;
    while last < 61 {
        let (_, next) = number(&mut fresh).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    let lost = [("route", "/mcp")];
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_streams_unreplayable_total", &lost), 1.0);
    assert_eq!(client.tools().await, ["do"]);
}

#[tokio::test]
async fn c020_without_sessions_nothing_is_resumed() {
    let (up, _) = counted().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let old: Mcp = gateway.mcp().await;
    let more = [("last-event-id", "zzz"), ("mcp-session-id", old.session.as_str())];
    for method in ["GET", "DELETE"] {
        for with in [&more[..], &more[..1], &[]] {
            let mut headers = vec![("mcp-protocol-version", "2026-07-28")];
            headers.extend(with);
            headers.push(("accept", "text/event-stream"));
            let reply = gateway.http().send(method, "/mcp", &headers, "").await;
            assert_eq!(reply.status, 405, "{method} {with:?}");
            assert!(reply.header("allow").contains("POST"), "{:?}", reply.headers);
        }
    }
    let client = Modern::new(gateway.http(), json!({}));
    let body = client.body(&json!(1), "tools/call", json!({"name": "x"}));
    let mut headers = client.headers(&body);
    headers.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let reply = client.send(&headers, &body.to_string()).await.whole().await;
    assert_eq!(reply.json()["result"]["content"][0]["text"], "x", "{}", reply.text());
    assert_eq!(reply.header("mcp-session-id"), "");
    assert_eq!(old.tools().await, ["x"], "the session lives on");
}
