//! Connections, headers, redirects, bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;

use super::stub::Stub;
use super::{Rig, protocol, request};
use crate::config::Secret;
use crate::upstream::{CallError, State};

#[tokio::test]
async fn calls_one_after_the_other_share_one_connection() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.result(&asked, "{}").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    for _ in 0..20 {
        rig.call("tools/list", "{}").await.expect("an answer");
    }
    rig.until("the connection waits", |rig| {
        rig.metrics.connections_idle.get() == 1 && rig.metrics.connections_active.get() == 0
    })
    .await;
    // One for calls, one for the stream that the server refused.
    assert_eq!(stub.accepted(), 2);
}

#[tokio::test]
async fn parallel_calls_have_a_connection_each_and_the_gauges_tell_the_truth() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let stub = Stub::mcp(move |asked, mut back| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            back.result(&asked, "{}").await;
            back
        }
    })
    .await;
    let rig = Arc::new(Rig::to(&stub));
    rig.upstream.hello(&super::shared()).await.expect("a link");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let rig = Arc::clone(&rig);
        calls.spawn(async move { rig.call("tools/call", "{}").await });
    }
    rig.until("ten are active", |rig| rig.metrics.connections_active.get() == 10).await;
    go.send_replace(true);
    while let Some(answer) = calls.join_next().await {
        answer.expect("no panic").expect("an answer");
    }
    rig.until("ten wait", |rig| rig.metrics.connections_idle.get() == 10).await;
    assert_eq!(rig.metrics.connections_active.get(), 0);
    rig.upstream.shutdown().await;
    assert_eq!(rig.metrics.connections_idle.get(), 0);
    rig.tasks.close();
    tokio::time::timeout(super::PATIENCE, rig.tasks.wait()).await.expect("every task ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_worker_keeps_connections_of_its_own() {
    let stub = Stub::start(async |asked, mut back| {
        back.result(&asked, "1").await;
        back
    })
    .await;
    let rig = Rig::plain(&stub);
    let worker = |index: usize| {
        let upstream = Arc::clone(&rig.upstream);
        std::thread::spawn(move || {
            crate::upstream::set_worker(index);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            for _ in 0..10 {
                let call = upstream.call_plain(request("sum", "[1]"));
                runtime.block_on(call).expect("an answer");
            }
            runtime
        })
    };
    let workers = [0, 1].map(worker);
    let runtimes = workers.map(|worker| worker.join().expect("no panic"));
    assert_eq!(stub.accepted(), 2);
    assert_eq!(rig.metrics.connections_idle.get(), 2);
    for runtime in runtimes {
        runtime.shutdown_background();
    }
    // Their drivers went with them: what they left behind is of no use, and not used.
    rig.upstream.call_plain(request("sum", "[1]")).await.expect("an answer");
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_is_neither_counted_nor_used() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.result(&asked, "{}").await;
        back.close();
        back
    })
    .await;
    let rig = Rig::to(&stub);
    for _ in 0..10 {
        rig.call("tools/call", "{}").await.expect("an answer");
        rig.until("none waits", |rig| rig.metrics.connections_idle.get() == 0).await;
    }
}

#[tokio::test]
async fn a_request_that_was_read_is_not_sent_again_when_the_connection_dies() {
    let stub = Stub::mcp(async |_, back| back).await;
    let rig = Rig::to(&stub);
    let result = rig.call("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Closed { written: true, .. })), "{result:?}");
    assert_eq!(stub.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn an_upstream_that_refuses_connections_is_down_without_its_address_being_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let rig = Rig::with(format!("http://{address}/mcp").parse().expect("a url"), |_| {});
    let result = rig.call("tools/call", "{}").await;
    let Err(error @ CallError::Connect { .. }) = result else { panic!("{result:?}") };
    assert!(!error.to_string().contains(&address.port().to_string()), "{error}");
    assert_eq!(rig.upstream.state(), State::Down("connection refused".to_owned()));
    assert_eq!(rig.metrics.up.get(), 0);

    let listener = TcpListener::bind(address).await.expect("the same port");
    let _stub = Stub::on(listener, async |asked, mut back| {
        match asked.what().as_str() {
            "initialize" => back.result(&asked, super::stub::HELLO).await,
            "tools/call" => back.result(&asked, "{}").await,
            _ => back.full(202, &[], "").await,
        }
        back
    });
    rig.call("tools/call", "{}").await.expect("it is there now");
    assert_eq!(rig.upstream.state(), State::Up);
    assert_eq!(rig.metrics.up.get(), 1);
}

#[tokio::test]
async fn a_url_that_is_not_served_is_a_clear_error() {
    let rig = Rig::with("ftp://example.invalid/mcp".parse().expect("a url"), |_| {});
    let result = rig.call("tools/call", "{}").await;
    let Err(CallError::Connect { what, .. }) = result else { panic!("{result:?}") };
    assert!(what.starts_with("its url begins with `ftp:`"), "{what}");
    assert_eq!(rig.upstream.state(), State::Down(what));
}

#[tokio::test]
async fn every_request_carries_our_headers_and_nothing_else() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.result(&asked, "{}").await;
        back
    })
    .await;
    let rig = Rig::with(stub.url.clone(), |config| {
        let mut add = |key: &str, value: &str| {
            config.headers.insert(key.to_owned(), Secret::from(value.to_owned()));
        };
        add("Authorization", "Bearer t");
        add("Connection", "close");
        add("not a name", "x");
        add("x-broken", "a\nb");
    });
    rig.call("tools/call", "{}").await.expect("an answer");
    let authority = format!("127.0.0.1:{}", stub.url.port().expect("a port"));
    for asked in stub.log() {
        assert_eq!(asked.header("host"), Some(&*authority));
        assert_eq!(asked.header("authorization"), Some("Bearer t"));
        for absent in ["connection", "accept-encoding", "origin", "x-broken"] {
            assert_eq!(asked.header(absent), None, "{absent}");
        }
        if asked.verb == "POST" {
            let both = "application/json, text/event-stream";
            assert_eq!(asked.header("accept"), Some(both));
            assert_eq!(asked.header("content-type"), Some("application/json"));
        }
    }
}

#[tokio::test]
async fn a_redirect_on_the_same_origin_is_followed_with_its_body_and_remembered() {
    for absolute in [false, true] {
        let stub = Stub::start(move |asked, mut back| async move {
            if asked.path == "/mcp" {
                let place = match (absolute, asked.header("host")) {
                    (true, Some(host)) => format!("http://{host}/mcp/?a=b"),
                    _ => "/mcp/?a=b".to_owned(),
                };
                back.full(307, &[("location", &place)], "over there").await;
                return back;
            }
            match asked.what().as_str() {
                "initialize" => back.result(&asked, super::stub::HELLO).await,
                "tools/call" => back.result(&asked, &asked.json()["params"].to_string()).await,
                _ => back.full(202, &[], "").await,
            }
            back
        })
        .await;
        let rig = Rig::to(&stub);
        let params = format!(r#"{{"text":"{}"}}"#, "é".repeat(500_000));
        let answer = rig.call("tools/call", &params).await.expect("an answer");
        assert!(answer.contains(&params));
        let redirected = stub.log().iter().filter(|asked| asked.path == "/mcp").count();
        assert_eq!(redirected, 1, "the place is remembered");
        assert!(stub.log().iter().skip(1).all(|asked| asked.path == "/mcp/?a=b"));
    }
}

#[tokio::test]
async fn other_redirects_are_errors_that_do_not_tell_the_place() {
    for (status, place) in [
        (307, "/loop"),
        (308, "http://secret.example:1/mcp"),
        (307, "https://127.0.0.1/mcp"),
        (302, "/secret"),
        (301, "/secret"),
        (307, ""),
    ] {
        let stub = Stub::start(move |asked, mut back| async move {
            let place = format!("{place}{}", if place == "/loop" { &*asked.path } else { "" });
            let headers: &[_] = if place.is_empty() { &[] } else { &[("location", &*place)] };
            back.full(status, headers, "").await;
            back
        })
        .await;
        let rig = Rig::plain(&stub);
        let result = rig.upstream.call_plain(request("sum", "[1]")).await;
        let what = protocol(result.map(|_| String::new()));
        assert!(!what.contains("secret") && !what.contains("loop"), "{what}");
        assert!(stub.log().len() <= 4, "{what}");
    }
}

#[tokio::test]
async fn a_body_that_is_encoded_is_an_error_that_names_the_encoding() {
    let stub = Stub::mcp(async |_, mut back| {
        let headers = [("content-type", "application/json"), ("content-encoding", "br")];
        back.full(200, &headers, [0x1b, 0x00]).await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let what = protocol(rig.call("tools/list", "{}").await);
    assert!(what.contains("content encoding br"), "{what}");
}

#[tokio::test]
async fn large_answers_arrive_byte_for_byte_up_to_the_limit() {
    let size = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&size);
    let stub = Stub::mcp(move |asked, mut back| {
        let text = "x".repeat(told.load(Ordering::SeqCst));
        async move {
            let answer =
                format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"t":"{text}"}}}}"#, asked.id());
            if asked.json()["params"]["chunked"] == true {
                back.bytes(
                    "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON;charset=UTF-8\r\n\
                     transfer-encoding: chunked\r\n\r\n",
                )
                .await;
                for piece in answer.as_bytes().chunks(100_000) {
                    back.chunk(piece).await;
                }
                back.end().await;
            } else {
                back.json(answer).await;
            }
            back
        }
    })
    .await;
    let rig = Rig::with(stub.url.clone(), |config| config.max_message = 1 << 20);
    for params in [r#"{"chunked":true}"#, "{}"] {
        size.store(900_000, Ordering::SeqCst);
        let answer = rig.call("tools/call", params).await.expect("an answer");
        assert!(answer.contains(&format!(r#""t":"{}""#, "x".repeat(900_000))));
        size.store(2_000_000, Ordering::SeqCst);
        let what = protocol(rig.call("tools/call", params).await);
        assert_eq!(what, "its message is larger than max_message");
    }
    size.store(0, Ordering::SeqCst);
    rig.call("tools/call", "{}").await.expect("others are not disturbed");
}

#[tokio::test]
async fn an_upstream_that_accepts_and_says_nothing_costs_the_first_byte_timeout() {
    let stub = Stub::mcp(async |_, back| {
        std::future::pending::<()>().await;
        back
    })
    .await;
    let limit = Duration::from_millis(100);
    let rig = Rig::with(stub.url.clone(), |config| config.first_byte_timeout = Some(limit));
    let result = rig.call("tools/call", "{}").await;
    assert!(
        matches!(result, Err(CallError::Timeout { after, .. }) if after == limit),
        "{result:?}"
    );
}
