//! The end: SIGTERM lets what runs finish, takes nothing new, leaves nothing behind.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::MCP_HEADERS;
use crate::fake::{Call, Fake};
use crate::gateway::{Setup, is_alive, until};
use crate::mcp::{NEWEST, hello, request};

async fn wait(call: Call) {
    tokio::time::sleep(Duration::from_millis(call.arg("ms").as_u64().unwrap_or(0))).await;
    call.say("done").await;
}

#[tokio::test]
async fn c124_calls_in_flight_finish_and_nothing_is_left() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let mut gateway = Setup::new()
        .server("drain_timeout = \"10s\"")
        .fake("up", &up)
        .child("kid", &json!({}), "")
        .mcp(&["up", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() > 10).await;
    let children = gateway.children();
    assert_eq!(children.len(), 1);
    let mut stream = client.stream().await;
    let calls = (0..20u64).map(|n| {
        let tool = if n % 2 == 0 { "up__wait" } else { "kid__wait" };
        client.call(tool, json!({"ms": 500 + n * 50, "tag": "done"}))
    });
    let calls = futures_util::future::join_all(calls);
    let end = async {
        gateway.until("all run", |m| m.value("trunkline_exchanges_in_flight", &[]) >= 20.0).await;
        gateway.terminate();
    };
    let (answers, ()) = tokio::join!(calls, end);
    for answer in &answers {
        assert_eq!(answer.said(), "done");
    }
    assert_eq!(up.count("tools/call"), 10, "each ran once");
    assert_eq!(stream.next_message().await, None, "streams end");
    assert_eq!(gateway.ended().await, Some(0));
    until("no child is left", || children.iter().all(|pid| !is_alive(*pid))).await;
    up.until("its sessions were ended", |core| core.sessions() == 0).await;
}

#[tokio::test]
async fn while_draining_readiness_says_no_and_new_sessions_are_refused() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let gateway =
        Setup::new().server("drain_timeout = \"20s\"").fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its tool", |tools| tools == ["wait"]).await;
    let addr = gateway.addr();
    // A connection from before the signal: new ones are not accepted.
    let mut socket = tokio::net::TcpStream::connect(addr).await.unwrap();
    let ping = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut socket, ping.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut socket, &mut first).await.unwrap();
    let call = client.call("wait", json!({"ms": 3000}));
    let rest = async {
        up.until_count("tools/call", 1).await;
        gateway.terminate();
        let begun = Instant::now();
        loop {
            let ready = gateway.admin().get("/readyz").await;
            if ready.status == 503 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(2), "{ready:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(gateway.admin().get("/livez").await.status, 200);
        let body = request(0, "initialize", &hello(NEWEST, &json!({})));
        match tokio::net::TcpStream::connect(addr).await {
            Err(_) => {}
            Ok(_) => {
                let raw = format!(
                    "POST /mcp HTTP/1.1\r\nhost: {addr}\r\ncontent-type: {}\r\naccept: {}\r\n\
                     connection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    MCP_HEADERS[0].1,
                    MCP_HEADERS[1].1,
                    body.len()
                );
                let answer = gateway.http().raw(raw.as_bytes()).await;
                let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 503");
                assert!(refused, "{answer}");
                if !answer.is_empty() {
                    assert!(answer.to_lowercase().contains("retry-after:"), "{answer}");
                    assert!(answer.contains("-31002"), "{answer}");
                }
            }
        }
    };
    let (answer, ()) = tokio::join!(call, rest);
    assert_eq!(answer.said(), "done");
}

#[tokio::test]
async fn at_the_deadline_what_still_runs_gets_an_error_and_the_end_comes() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let mut gateway = Setup::new()
        .server("drain_timeout = \"500ms\"")
        .fake("up", &up)
        .child("kid", &json!({}), "")
        .mcp(&["up", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() > 10).await;
    let calls = [
        client.call("up__wait", json!({"ms": 60_000})),
        client.call("kid__wait", json!({"ms": 60_000})),
    ];
    let calls = futures_util::future::join_all(calls);
    let end = async {
        gateway.until("both run", |m| m.value("trunkline_exchanges_in_flight", &[]) >= 2.0).await;
        gateway.terminate();
    };
    let begun = Instant::now();
    let (answers, ()) = tokio::join!(calls, end);
    for answer in answers {
        assert!(matches!(answer.code(), -31002 | -31005), "{}", answer.text);
    }
    assert_eq!(gateway.ended().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let mut gateway =
        Setup::new().server("drain_timeout = \"60s\"").fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its tool", |tools| tools == ["wait"]).await;
    let call = client.call("wait", json!({"ms": 60_000}));
    let end = async {
        up.until_count("tools/call", 1).await;
        gateway.terminate();
        let begun = Instant::now();
        while gateway.admin().get("/readyz").await.status == 200 {
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
        gateway.terminate();
    };
    let begun = Instant::now();
    let (answer, ()) = tokio::join!(call, end);
    assert!(answer.code() < 0);
    gateway.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_idle_gateway_ends_at_once_also_with_streams_open() {
    let up = Fake::mcp(["x"]).start().await;
    let mut gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let mut stream = client.stream().await;
    let begun = Instant::now();
    gateway.terminate();
    assert_eq!(stream.next_message().await, None);
    assert_eq!(gateway.ended().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
