//! Opening, losing, sharing and ending upstream sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::stub::{Asked, Back, HELLO, Sessions, Stub};
use super::{Rig, protocol, request, shared, until};
use crate::mcp::{ClientCaps, Era, ProtocolVersion};
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind, State};

async fn echo(asked: Asked, mut back: Back) -> Back {
    back.result(&asked, &format!("{{\"got\":{}}}", asked.id())).await;
    back
}

fn of_session(number: u64) -> LinkKey {
    LinkKey { scope: LinkScope::Session(number), caps: ClientCaps::NONE, era: Era::Legacy }
}

#[tokio::test]
async fn a_link_is_opened_by_initialize_and_carries_its_session() {
    let stub = Stub::mcp(echo).await;
    let mut rig = Rig::to(&stub);
    assert_eq!(rig.upstream.state(), State::Idle);
    assert!(rig.upstream.known(crate::mcp::Era::Legacy).is_none());
    let caps = ClientCaps::parse(br#"{"sampling":{}}"#);
    let key = LinkKey { scope: LinkScope::Shared, caps, era: Era::Legacy };
    let answer = rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
    assert_ne!(
        answer.message.id().map(|id| id.text().clone()),
        Some("\"c1\"".into()),
        "ids are ours"
    );
    assert!(matches!(rig.notice().await, NoticeKind::Opened));

    let log = stub.log();
    let what: Vec<_> = log.iter().map(Asked::what).filter(|what| what != "GET").collect();
    assert_eq!(what, ["initialize", "notifications/initialized", "tools/call"]);
    let params = &log[0].json()["params"];
    assert_eq!(params["protocolVersion"], "2025-11-25");
    assert_eq!(params["capabilities"].to_string(), r#"{"sampling":{}}"#);
    assert_eq!(params["clientInfo"]["name"], "trunkline");
    assert_eq!(log[0].header("mcp-session-id"), None);
    assert_eq!(log[0].header("mcp-protocol-version"), None);
    for later in &log[1..] {
        assert_eq!(later.header("mcp-session-id"), Some("session-0"));
        assert_eq!(later.header("mcp-protocol-version"), Some("2025-11-25"));
    }

    let hello = rig.upstream.known(crate::mcp::Era::Legacy).expect("it is known");
    assert_eq!(hello.version, ProtocolVersion::V2025_11_25);
    assert_eq!(hello.instructions.as_deref(), Some("be kind"));
    assert!(hello.caps.tools && !hello.caps.prompts);
    assert_eq!(rig.upstream.state(), State::Up);
}

/// A server that answers `initialize` with that revision and needs no session id.
async fn speaking(revision: &'static str) -> Stub {
    Stub::start(move |asked, mut back| async move {
        match asked.what().as_str() {
            "initialize" => {
                let hello = HELLO.replace("2025-11-25", revision);
                let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{hello}}}"#, asked.id());
                let headers =
                    [("content-type", "application/json"), ("mcp-session-id", "a-session")];
                back.full(200, &headers, text).await;
            }
            "tools/call" => return echo(asked, back).await,
            _ => back.full(202, &[], "").await,
        }
        back
    })
    .await
}

#[tokio::test]
async fn an_older_revision_is_spoken_as_it_was() {
    let stub = speaking("2025-03-26").await;
    let rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert!(stub.log().iter().all(|asked| asked.header("mcp-protocol-version").is_none()));
}

#[tokio::test]
async fn an_unknown_revision_is_refused_and_its_session_ended() {
    for revision in ["2026-07-28", "1999-01-01"] {
        let stub = speaking(revision).await;
        let rig = Rig::to(&stub);
        let what = protocol(rig.call("tools/call", "{}").await);
        assert!(what.contains("revision"), "{what}");
        assert_eq!(stub.asked("DELETE").len(), 1);
        assert_eq!(stub.asked("tools/call").len(), 0);
        assert_eq!(rig.upstream.state(), State::Down(what));
    }
}

#[tokio::test]
async fn initialize_may_be_answered_by_events_that_begin_with_an_empty_one() {
    let stub = Stub::start(async |asked, mut back| {
        match asked.what().as_str() {
            "initialize" => {
                back.bytes("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
                back.bytes("mcp-session-id: s\r\ntransfer-encoding: chunked\r\n\r\n").await;
                back.chunk("id: 1\ndata:\n\n: comment\n\n").await;
                back.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#).await;
                back.event(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{HELLO}}}"#, asked.id())).await;
                back.end().await;
            }
            "tools/call" => return echo(asked, back).await,
            _ => back.full(202, &[], "").await,
        }
        back
    })
    .await;
    let rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert_eq!(stub.asked("tools/call")[0].header("mcp-session-id"), Some("s"));
}

#[tokio::test]
async fn a_forgotten_session_is_opened_anew_once_for_all_and_each_call_runs_once() {
    let sessions = Arc::new(Sessions::default());
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let stub = Stub::sessions(&sessions, move |asked, back| {
        count.fetch_add(1, Ordering::SeqCst);
        echo(asked, back)
    })
    .await;
    let mut rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    sessions.forget();
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let upstream = Arc::clone(&rig.upstream);
        calls.spawn(async move { upstream.call(&shared(), request("tools/call", "{}")).await });
    }
    while let Some(answer) = calls.join_next().await {
        answer.expect("no panic").expect("an answer");
    }
    assert_eq!(stub.asked("initialize").len(), 2);
    assert_eq!(stub.asked("initialize")[1].header("mcp-session-id"), None);
    assert_eq!(ran.load(Ordering::SeqCst), 6);
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
}

#[tokio::test]
async fn only_an_error_about_the_session_opens_it_anew() {
    let about = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Bad Request: No valid session ID provided"}}"#;
    let params = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"bad params"}}"#;
    for (status, body, opened, relayed) in [
        (404, "", 2, false),
        (404, about, 2, false),
        (400, about, 2, false),
        (400, params, 1, true),
        (400, "no json", 1, false),
        (503, about, 1, true),
        (503, "", 1, false),
        (500, "<html>", 1, false),
    ] {
        let first = Arc::new(AtomicBool::new(true));
        let stub = Stub::mcp(move |asked, mut back| {
            let first = Arc::clone(&first);
            async move {
                if !first.swap(false, Ordering::SeqCst) {
                    return echo(asked, back).await;
                }
                let body = body.replace("ID", &asked.id());
                back.full(status, &[("content-type", "application/json")], body).await;
                back
            }
        })
        .await;
        let rig = Rig::to(&stub);
        let result = rig.call("tools/list", "{}").await;
        assert_eq!(stub.asked("initialize").len(), opened, "{status} {body}");
        match (opened, relayed) {
            (2, _) => assert!(result.expect("recovered").contains("got")),
            (_, true) => assert!(result.expect("relayed").contains(r#""error""#)),
            (_, false) => {
                let matches =
                    matches!(result, Err(CallError::Status { status: s, .. }) if s == status);
                assert!(matches, "{status} {body}: {result:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_session_that_is_lost_again_at_once_is_an_error_and_no_loop() {
    let stub = Stub::mcp(async |_, mut back| {
        back.full(404, &[], "").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let result = rig.call("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Status { status: 404, .. })), "{result:?}");
    assert_eq!(stub.asked("initialize").len(), 2);
}

#[tokio::test]
async fn a_link_that_cannot_be_opened_again_is_reported_lost() {
    let broken = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&broken);
    let stub = Stub::start(move |asked, mut back| {
        let broken = told.load(Ordering::SeqCst);
        async move {
            match (asked.what().as_str(), broken) {
                ("initialize", true) => back.full(500, &[], "").await,
                ("initialize", false) => {
                    let text =
                        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{HELLO}}}"#, asked.id());
                    let headers = [("content-type", "application/json"), ("mcp-session-id", "s")];
                    back.full(200, &headers, text).await;
                }
                ("tools/call", false) => return echo(asked, back).await,
                ("tools/call", true) => back.full(404, &[], "").await,
                _ => back.full(202, &[], "").await,
            }
            back
        }
    })
    .await;
    let mut rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let result = rig.call("tools/call", "{}").await;
        assert!(matches!(result, Err(CallError::Status { status: 500, .. })), "{result:?}");
        assert_eq!(rig.upstream.state(), State::Down("HTTP status 500".to_owned()));
        assert_eq!(rig.metrics.up.get(), 0);
    }
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    broken.store(false, Ordering::SeqCst);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened), "it was reported lost once");
    assert_eq!(rig.upstream.state(), State::Up);
    assert!(rig.upstream.known(crate::mcp::Era::Legacy).is_some());
}

#[tokio::test]
async fn those_who_wait_for_one_opening_share_its_failure_and_the_next_call_tries_again() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let stub = Stub::start(move |_, mut back| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            back.full(500, &[], "").await;
            back
        }
    })
    .await;
    let rig = Rig::to(&stub);
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let upstream = Arc::clone(&rig.upstream);
        calls.spawn(async move { upstream.call(&shared(), request("tools/call", "{}")).await });
    }
    until("it is asked", || stub.log().len() == 1).await;
    assert_eq!(rig.upstream.state(), State::Starting);
    go.send_replace(true);
    while let Some(result) = calls.join_next().await {
        let result = result.expect("no panic");
        assert!(matches!(result, Err(CallError::Status { status: 500, .. })), "{result:?}");
    }
    assert_eq!(stub.log().len(), 1);
    rig.call("tools/call", "{}").await.expect_err("still broken");
    assert_eq!(stub.log().len(), 2);
}

#[tokio::test]
async fn hanging_up_while_a_link_is_opened_does_not_disturb_the_others() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let stub = Stub::start(move |asked, mut back| {
        let mut wait = wait.clone();
        async move {
            match asked.what().as_str() {
                "initialize" => {
                    let _ = wait.wait_for(|go| *go).await;
                    back.result(&asked, HELLO).await;
                }
                "tools/call" => return echo(asked, back).await,
                _ => back.full(202, &[], "").await,
            }
            back
        }
    })
    .await;
    let rig = Rig::to(&stub);
    let upstream = Arc::clone(&rig.upstream);
    let first =
        tokio::spawn(async move { upstream.call(&shared(), request("tools/call", "{}")).await });
    until("it is asked", || stub.log().len() == 1).await;
    let mut late = request("tools/call", "{}");
    late.timeout = Duration::from_millis(30);
    let result = rig.call_with(late).await;
    assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
    first.abort();
    let upstream = Arc::clone(&rig.upstream);
    let third =
        tokio::spawn(async move { upstream.call(&shared(), request("tools/call", "{}")).await });
    go.send_replace(true);
    third.await.expect("no panic").expect("an answer");
    assert_eq!(stub.asked("initialize").len(), 1);
    assert_eq!(stub.asked("notifications/cancelled").len(), 0, "initialize is never cancelled");
}

#[tokio::test]
async fn the_end_of_a_client_session_ends_its_links_and_no_others() {
    let stub = Stub::mcp(echo).await;
    let rig = Rig::to(&stub);
    for number in [1, 2] {
        rig.upstream
            .call(&of_session(number), request("tools/call", "{}"))
            .await
            .expect("an answer");
    }
    rig.upstream.end_session(1);
    assert!(!rig.upstream.is_open(&of_session(1)) && rig.upstream.is_open(&of_session(2)));
    until("one was ended", || stub.asked("DELETE").len() == 1).await;
    assert_eq!(stub.asked("DELETE")[0].header("mcp-session-id"), Some("session-0"));
    assert_eq!(rig.upstream.state(), State::Up);
    rig.upstream.end_session(2);
    until("both were ended", || stub.asked("DELETE").len() == 2).await;
    rig.until("nothing is open", |rig| rig.upstream.state() == State::Idle).await;
    rig.until("nothing is up", |rig| rig.metrics.up.get() == 0).await;
}

#[tokio::test]
async fn a_notification_goes_to_an_open_link_only() {
    let stub = Stub::mcp(async |_, mut back| {
        back.full(202, &[], "").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let changed = crate::jsonrpc::Message::notification("notifications/roots/list_changed", None);
    rig.upstream.notify(&shared(), &changed).await.expect("nothing to do");
    assert_eq!(stub.log().len(), 0);
    rig.upstream.hello(&shared()).await.expect("a link");
    rig.upstream.notify(&shared(), &changed).await.expect("sent");
    assert_eq!(stub.asked("notifications/roots/list_changed").len(), 1);
}

#[tokio::test]
async fn links_that_nobody_uses_are_ended_when_the_configuration_says_so() {
    let stub = Stub::mcp(echo).await;
    let rig =
        Rig::with(stub.url.clone(), |config| config.idle_timeout = Some(Duration::from_millis(50)));
    rig.call("tools/call", "{}").await.expect("an answer");
    rig.upstream.call(&of_session(1), request("tools/call", "{}")).await.expect("an answer");
    until("one was ended", || stub.asked("DELETE").len() == 1).await;
    assert_eq!(rig.upstream.state(), State::Up, "a session's link stays");
    rig.call("tools/call", "{}").await.expect("it is opened again");
    assert_eq!(stub.asked("initialize").len(), 3);
}

#[tokio::test]
async fn shutdown_ends_every_session() {
    let stub = Stub::mcp(echo).await;
    let rig = Rig::to(&stub);
    for number in 0..10 {
        rig.upstream
            .call(&of_session(number), request("tools/call", "{}"))
            .await
            .expect("an answer");
    }
    tokio::time::timeout(super::PATIENCE, rig.upstream.shutdown()).await.expect("in time");
    assert_eq!(stub.asked("DELETE").len(), 10);
    assert_eq!(rig.metrics.up.get(), 0);
    let result = rig.upstream.call(&of_session(99), request("tools/call", "{}")).await;
    assert!(matches!(result, Err(CallError::Connect { .. })), "{result:?}");
    assert_eq!(stub.asked("initialize").len(), 10);
}

#[tokio::test]
async fn an_upstream_that_says_when_to_come_back_is_left_alone_until_then() {
    let stub = Stub::start(async |_, mut back| {
        back.full(429, &[("retry-after", "600")], "").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    for _ in 0..3 {
        let result = rig.call("tools/call", "{}").await;
        let Err(CallError::Status { status: 429, retry_after: Some(wait), .. }) = result else {
            panic!("{result:?}")
        };
        assert!((590..=600).contains(&wait.as_secs()), "{wait:?}");
    }
    assert_eq!(stub.log().len(), 1);
}
