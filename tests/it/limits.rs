//! Limits, timeouts and what a request must look like; the status table of errors.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{MCP_HEADERS, patient};
use crate::fake::{self, Call, Fake};
use crate::gateway::{Gateway, Setup, closed_port};
use crate::mcp::{NEWEST, hello, request};

/// A tool that waits `ms`, reporting progress every `step` ms if there is one.
async fn wait(call: Call) {
    let ms = call.arg("ms").as_u64().unwrap_or(0);
    match call.arg("step").as_u64() {
        None => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            call.say("done").await;
        }
        Some(step) => {
            call.out.sse().await;
            for n in 1..=ms / step {
                tokio::time::sleep(Duration::from_millis(step)).await;
                call.out.event(call.progress(n, "on")).await;
            }
            call.out.event(call.response(&fake::said("done").to_string())).await;
            call.out.end().await;
        }
    }
}

async fn waiting(lines: &str) -> (Gateway, Fake) {
    let up = Fake::mcp(["wait", "slow_wait"]).on("tools/call", wait).start().await;
    let gateway = Setup::new().fake_with("up", &up, lines).mcp(&["up"]).start().await;
    (gateway, up)
}

#[tokio::test]
async fn c094_a_timeout_is_one_error_one_run_and_a_cancellation_upstream() {
    let (gateway, up) = waiting("timeout = \"500ms\"").await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let begun = Instant::now();
    let answer = client.call("wait", json!({"ms": 800})).await;
    let took = begun.elapsed();
    assert!((400..790).contains(&took.as_millis()), "{took:?}");
    assert_eq!((answer.status, answer.code()), (200, -31003));
    let data = &answer.json["error"]["data"];
    assert_eq!((&data["reason"], &data["upstream"]), (&json!("upstream_timeout"), &json!("up")));
    up.until_count("notifications/cancelled", 1).await;
    let told = up.of("notifications/cancelled")[0].json();
    assert_eq!(told["params"]["requestId"].to_string(), up.of("tools/call")[0].id().unwrap());
    assert_eq!(client.call("wait", json!({"ms": 0})).await.said(), "done");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(up.count("tools/call"), 2, "nothing was tried again");
}

#[tokio::test]
async fn c094_a_late_answer_of_a_child_is_dropped() {
    let gateway =
        Setup::new().child("kid", &json!({}), "timeout = \"300ms\"").mcp(&["kid"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools.len() > 10).await;
    let late = json!({"ms": 500, "deaf": true, "tag": "late"});
    assert_eq!(client.call("wait", late).await.code(), -31003);
    let next = client.call("wait", json!({"ms": 250, "tag": "next"})).await;
    assert_eq!(next.said(), "next");
    let stats = client.call("stats", json!({})).await;
    let stats: Value = serde_json::from_str(stats.said()).unwrap();
    assert_eq!(stats["cancelled"].as_array().unwrap().len(), 1, "{stats}");
}

#[tokio::test]
async fn progress_extends_a_call_up_to_its_hard_limit() {
    let (gateway, _up) = waiting("timeout = \"400ms\"\nmax_timeout = \"1500ms\"").await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let call = async |ms: u64| {
        let (arguments, meta) = (json!({"ms": ms, "step": 100}), json!({"progressToken": "t"}));
        let params = json!({"name": "wait", "arguments": arguments, "_meta": meta});
        client.request("tools/call", params).await
    };
    let answer = call(1000).await;
    assert_eq!((answer.said(), answer.before.len()), ("done", 10));
    let begun = Instant::now();
    let answer = call(5000).await;
    assert_eq!(answer.code(), -31003);
    assert!((1200..2500).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_tool_may_have_a_timeout_of_its_own() {
    let lines = "timeout = \"300ms\"\n[upstreams.up.tools]\ntimeout = { \"slow_*\" = \"5s\" }";
    let (gateway, _up) = waiting(lines).await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    assert_eq!(client.call("slow_wait", json!({"ms": 600})).await.said(), "done");
    assert_eq!(client.call("wait", json!({"ms": 600})).await.code(), -31003);
}

#[tokio::test]
async fn a_call_over_the_queue_is_refused_and_one_within_it_waits() {
    let (gateway, up) = waiting("max_concurrency = 1\nmax_queue = 1").await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let first = client.call("wait", json!({"ms": 700}));
    let rest = async {
        up.until_count("tools/call", 1).await;
        let queued = client.call("wait", json!({"ms": 0}));
        let refused = async {
            // The queued one has to be there first.
            tokio::time::sleep(Duration::from_millis(200)).await;
            client.call("wait", json!({"ms": 0})).await
        };
        tokio::join!(queued, refused)
    };
    let (first, (queued, refused)) = tokio::join!(first, rest);
    assert_eq!((first.said(), queued.said()), ("done", "done"));
    assert_eq!((refused.code(), refused.reason()), (-31002, "overloaded"));
    assert_eq!(refused.json["error"]["data"]["retryable"], true);
    assert_eq!(up.count("tools/call"), 2);
    let metrics = gateway.metrics().await;
    assert!(metrics.value("trunkline_queue_wait_seconds_count", &[("upstream", "up")]) >= 1.0);
    let labels = [("outcome", "rejected"), ("route", "/mcp")];
    assert_eq!(metrics.value("trunkline_exchanges_total", &labels), 1.0);
}

#[tokio::test]
async fn a_plain_client_gets_the_status_of_each_condition() {
    let up = Fake::plain()
        .on("never", |_: Call| std::future::pending())
        .on("reset", |call: Call| async move { call.out.reset().await })
        .on("wrong", |call: Call| async move { call.out.json("[]").await })
        .on("own", |call: Call| async move { call.error(-31003, "my own").await })
        .start()
        .await;
    let (addr, _held) = closed_port();
    let dead = format!("protocol = \"jsonrpc\"\nurl = \"http://{addr}/\"");
    let gateway = Setup::new()
        .plain("up", &up, "timeout = \"300ms\"")
        .plain("full", &up, "timeout = \"2s\"\nmax_concurrency = 1\nmax_queue = 0")
        .upstream("dead", &dead)
        .rpc(r#""*" = "up", "dead" = "dead", "never2" = "full""#)
        .start()
        .await;
    for (method, status, code, reason) in [
        ("never", 504, -31003, "upstream_timeout"),
        ("dead", 502, -31004, "upstream_unavailable"),
        ("reset", 502, -31005, "upstream_closed"),
        ("wrong", 502, -31006, "upstream_protocol"),
        ("own", 200, -31003, ""),
    ] {
        let reply = gateway.http().post("/rpc", request(1, method, &json!([]))).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{method}");
        let data = reply.json()["error"]["data"].clone();
        assert_eq!(data["reason"].as_str().unwrap_or(""), reason, "{method}");
        assert_eq!(reply.json()["id"], 1);
    }
}

#[tokio::test]
async fn an_overloaded_plain_upstream_is_503_with_retry_after_where_a_time_is_known() {
    let up = Fake::plain()
        .on("hold", |call: Call| async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            call.result("1").await;
        })
        .start()
        .await;
    let lines = "max_concurrency = 1\nmax_queue = 0";
    let gateway = Setup::new().plain("up", &up, lines).rpc(r#""*" = "up""#).start().await;
    let hold = gateway.http();
    let hold = hold.post("/rpc", request(1, "hold", &json!([])));
    let refused = async {
        up.until_count("hold", 1).await;
        gateway.http().post("/rpc", request(2, "other", &json!([]))).await
    };
    let (held, refused) = tokio::join!(hold, refused);
    assert_eq!(held.json()["result"], 1);
    assert_eq!((refused.status, refused.code()), (503, -31002));
    let after = &refused.json()["error"]["data"]["retryAfterMs"];
    assert_eq!(after.is_null(), refused.header("retry-after").is_empty(), "{refused:?}");
}

#[tokio::test]
async fn c089_bodies_are_limited_by_length_and_while_they_are_read() {
    const LIMIT: usize = 100_000;
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .server(&format!("max_body = {LIMIT}"))
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("its tool", |tools| tools == ["x"]).await;
    let body = |size: usize| {
        let empty = request(1, "tools/call", &json!({"name": "x", "arguments": {"a": ""}}));
        let fill = "x".repeat(size - empty.len());
        request(1, "tools/call", &json!({"name": "x", "arguments": {"a": fill}}))
    };
    for (size, status) in [(LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)] {
        let text = body(size);
        assert_eq!(text.len(), size);
        let reply = client.post(&text).await;
        assert_eq!(reply.status, status, "{size}");
        if status == 413 {
            assert_eq!(reply.code(), -31010);
            assert!(reply.text().contains(&LIMIT.to_string()), "it names the limit: {reply:?}");
        }
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: */*\r\n\
             mcp-session-id: {}\r\nconnection: close\r\n",
            gateway.addr(),
            client.session
        );
        let chunks: String = text
            .as_bytes()
            .chunks(9_999)
            .map(|c| format!("{:x}\r\n{}\r\n", c.len(), std::str::from_utf8(c).unwrap()))
            .collect();
        let raw = format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        let answer = gateway.http().raw(raw.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "chunked {size}: {answer}");
        let raw = format!("{head}content-length: 10737418240\r\n\r\n");
        let begun = Instant::now();
        let answer = gateway.http().raw(raw.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(3), "at once, without reading");
        let raw = format!("{head}expect: 100-continue\r\ncontent-length: {size}\r\n\r\n");
        let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
        socket.write_all(raw.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        patient("a first line", socket.read_exact(&mut first)).await.unwrap();
        let wanted: &[u8] = if status == 200 { b"HTTP/1.1 100" } else { b"HTTP/1.1 413" };
        assert_eq!(first, wanted, "{size}");
    }
    assert_eq!(up.count("tools/call"), 4);
}

#[tokio::test]
async fn headers_are_limited() {
    let (gateway, _up) = waiting("").await;
    for (head, fine) in [
        (format!("x-long: {}\r\n", "x".repeat(8_000)), true),
        (format!("x-long: {}\r\n", "x".repeat(200_000)), false),
        ("x: y\r\n".repeat(5_000), false),
    ] {
        let body = request(1, "ping", &json!({}));
        let raw = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{head}\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            gateway.addr(),
            body.len()
        );
        let answer = gateway.http().raw(raw.as_bytes()).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        // 400: a ping without a session.
        let right = if fine { status == "400" } else { status == "431" };
        assert!(right, "{} bytes of head gave {answer:.200}", head.len());
    }
    assert_eq!(gateway.mcp().await.request("ping", json!({})).await.result(), &json!({}));
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .server("header_timeout = \"1s\"\nbody_timeout = \"1s\"")
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let body = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{",
        gateway.addr()
    );
    for begin in ["", "POST /mcp HT", "POST /mcp HTTP/1.1\r\nhost: x\r\nx-slow: ", &body] {
        let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
        socket.write_all(begin.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let begun = Instant::now();
        let _ = patient("the end of a slow connection", socket.read_to_end(&mut rest)).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{begin:?}");
        let answer = String::from_utf8_lossy(&rest);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{begin:?}: {answer}");
    }
}

#[tokio::test]
async fn a_request_that_names_two_hosts_or_origins_is_judged_by_none_of_them() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let body = request(0, "initialize", &hello(NEWEST, &json!({})));
    let own = gateway.addr();
    for (target, headers, status) in [
        ("/mcp".to_owned(), format!("host: {own}\r\n"), "200"),
        (format!("http://{own}/mcp"), format!("host: {own}\r\n"), "200"),
        // The target's authority counts, not the header (RFC 9112 §3.2.2).
        ("http://evil.example/mcp".to_owned(), format!("host: {own}\r\n"), "403"),
        (format!("http://{own}/mcp"), "host: evil.example\r\n".to_owned(), "200"),
        ("/mcp".to_owned(), format!("host: {own}\r\nhost: evil.example\r\n"), "403"),
        (
            "/mcp".to_owned(),
            format!("host: {own}\r\norigin: http://localhost\r\norigin: https://evil.example\r\n"),
            "403",
        ),
    ] {
        let text = format!(
            "POST {target} HTTP/1.1\r\n{headers}content-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = gateway.http().raw(text.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{target} {headers}: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_framed_wrongly_is_a_bad_request() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    for size in ["zz", "fffffffffffffffff"] {
        let text = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\n{size}\r\nhello\r\n0\r\n\r\n",
            gateway.addr()
        );
        let answer = gateway.http().raw(text.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{size}: {answer}");
    }
}

#[tokio::test]
async fn a_refused_body_that_drips_in_is_not_read_for_ever() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: text/plain\r\ncontent-length: 9999\r\n\r\n",
        gateway.addr()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = socket.into_split();
    let drip = async {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let mut answer = Vec::new();
    let whole = async {
        let _ = patient("the end of a dripping connection", reading.read_to_end(&mut answer)).await;
    };
    tokio::select! {
        () = drip => {}
        () = whole => {}
    }
    drop(reading);
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 415"));
}

#[tokio::test]
async fn c075_origin_is_always_checked_and_host_on_loopback() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .server("allowed_hosts = [\"gw.example\"]\nallowed_origins = [\"https://app.example\"]")
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let port = gateway.addr().port();
    let own = format!("127.0.0.1:{port}");
    let body = request(0, "initialize", &hello(NEWEST, &json!({})));
    let with = async |name: &str, value: &str| {
        let mut headers = MCP_HEADERS.to_vec();
        headers.push((name, value));
        let reply = gateway.http().send("POST", "/mcp", &headers, body.clone()).await;
        if reply.status == 403 {
            assert!(reply.header("mcp-session-id").is_empty());
        }
        reply
    };
    for (host, status) in [
        (own.as_str(), 200),
        (&format!("localhost:{port}"), 200),
        (&format!("LOCALHOST:{port}"), 200),
        (&format!("[::1]:{port}"), 200),
        ("gw.example", 200),
        ("GW.example:443", 200),
        ("evil.example", 403),
        (&format!("evil.example:{port}"), 403),
        ("127.0.0.1.evil.example", 403),
    ] {
        assert_eq!(with("host", host).await.status, status, "Host: {host}");
    }
    for (origin, status) in [
        (format!("http://{own}").as_str(), 200),
        ("http://localhost:5173", 200),
        ("https://app.example", 200),
        ("https://evil.example", 403),
        ("http://app.example", 403),
        ("https://app.example.evil", 403),
        ("null", 403),
    ] {
        let reply = with("origin", origin).await;
        assert_eq!(reply.status, status, "Origin: {origin}");
        if status == 200 {
            assert_eq!(reply.header("access-control-allow-origin"), origin);
            let exposed = reply.header("access-control-expose-headers").to_lowercase();
            assert!(exposed.contains("mcp-session-id"), "{exposed}");
        }
    }
    for method in ["GET", "DELETE", "OPTIONS"] {
        let headers = [("origin", "https://evil.example")];
        let reply = gateway.http().send(method, "/mcp", &headers, "").await;
        assert_eq!(reply.status, 403, "{method}");
    }
}

#[tokio::test]
async fn a_browsers_preflight_is_answered() {
    let (gateway, _up) = waiting("").await;
    let headers = [
        ("origin", "http://localhost:5173"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type,mcp-session-id"),
    ];
    let reply = gateway.http().send("OPTIONS", "/mcp", &headers, "").await;
    assert!(matches!(reply.status, 200 | 204), "{}", reply.status);
    let allowed = reply.header("access-control-allow-headers").to_lowercase();
    for name in [
        "authorization",
        "content-type",
        "accept",
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
        "mcp-session-id",
        "last-event-id",
    ] {
        assert!(allowed.contains(name), "{name} in {allowed}");
    }
    let methods = reply.header("access-control-allow-methods");
    assert!(["POST", "GET", "DELETE"].iter().all(|m| methods.contains(m)), "{methods}");
}

#[tokio::test]
async fn c071_the_media_type_of_a_post_is_checked() {
    let (gateway, _up) = waiting("").await;
    let body = request(0, "initialize", &hello(NEWEST, &json!({})));
    for (kind, status) in [
        (Some("application/json; charset=utf-8"), 200),
        (Some("Application/JSON"), 200),
        (Some("application/json;charset=\"UTF-8\""), 200),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (None, 415),
    ] {
        let mut headers = vec![MCP_HEADERS[1]];
        headers.extend(kind.map(|kind| ("content-type", kind)));
        let reply = gateway.http().send("POST", "/mcp", &headers, body.clone()).await;
        assert_eq!(reply.status, status, "{kind:?}");
    }
}

#[tokio::test]
async fn c125_a_client_that_does_not_read_neither_swells_memory_nor_slows_others() {
    let up = Fake::mcp(["flood", "x"])
        .with(|lists| lists.capabilities = json!({"tools": {}, "logging": {}}))
        .on("tools/call", |call: Call| async move {
            if call.tool() == "x" {
                return call.say("x").await;
            }
            call.out.sse().await;
            let text = "x".repeat(64 << 10);
            let params = json!({"level": "error", "data": text});
            let log =
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
            let log = log.to_string();
            for _ in 0..8_000 {
                call.out.event(&log).await;
            }
            call.out.end().await;
            call.out.close();
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (deaf, other) = (gateway.mcp().await, gateway.mcp().await);
    other.until_tools("both", |tools| tools.len() == 2).await;
    assert_eq!(other.call("x", json!({})).await.said(), "x");
    let before = gateway.memory();
    let stream = deaf.open_call(1, "flood", json!({}), json!({})).await;
    for _ in 0..100 {
        let begun = Instant::now();
        assert_eq!(other.call("x", json!({})).await.said(), "x");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    let grown = gateway.memory().saturating_sub(before) >> 20;
    assert!(grown < 100, "memory grew by {grown} MiB");
    drop(stream);
    assert_eq!(other.call("x", json!({})).await.said(), "x");
}
