//! How a connection is opened, and what may go wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Rig, SUM, Stub};
use crate::config::{Secret, UpstreamConfig};
use crate::upstream::{CallError, State};

fn with_headers(config: &mut UpstreamConfig) {
    let headers = [("Authorization", "Bearer t0ken"), ("Origin", "https://example.com")];
    config.headers = headers
        .map(|(name, value)| (name.to_owned(), Secret::from(value.to_owned())))
        .into_iter()
        .collect::<BTreeMap<_, _>>();
}

#[tokio::test]
async fn the_upgrade_carries_the_configured_headers_and_the_subprotocol() {
    let stub = Stub::start().await;
    let rig = Rig::with(&stub, |config| {
        with_headers(config);
        config.subprotocol = Some("chain.v2".to_owned());
    });
    let pending = rig.call(SUM);
    let chosen = HeaderValue::from_static("chain.v2");
    let mut peer = stub
        .accept_with(move |answer| {
            answer.headers_mut().insert("sec-websocket-protocol", chosen.clone());
        })
        .await;
    let id = peer.asked("sum").await;
    peer.answer(id, "1").await;
    pending.await.unwrap().unwrap();
    let header = |name| peer.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    assert_eq!(header("authorization"), Some("Bearer t0ken"));
    assert_eq!(header("origin"), Some("https://example.com"));
    assert_eq!(header("sec-websocket-protocol"), Some("chain.v2"));
    assert_eq!(header("sec-websocket-extensions"), None);
    assert_eq!((header("content-type"), header("accept")), (None, None));
    assert!(header("user-agent").is_some_and(|agent| agent.starts_with("trunkline/")));
    assert_eq!(Some(header("host").unwrap()), stub.url().as_str().split('/').nth(2));
    assert_eq!(peer.path, "/rpc?key=1");
    rig.end().await;
}

/// What a call comes to whose upgrade is answered with that text.
async fn refused(answer: &str) -> CallError {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let pending = rig.call(SUM);
    let mut stream = stub.tcp().await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    let mut headers = headers.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key"));
    let (_, key) = headers.next().expect("a key");
    let accept =
        tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.trim().as_bytes());
    let text = answer.replace("ACCEPT", &accept).replace('\n', "\r\n") + "\r\n\r\n";
    stream.write_all(text.as_bytes()).await.unwrap();
    let error = pending.await.unwrap().expect_err("no connection");
    assert!(matches!(rig.upstream.state(), State::Down(_)));
    rig.end().await;
    error
}

#[tokio::test]
async fn who_does_not_agree_to_the_upgrade_is_told_apart() {
    let switching = "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade";
    for (answer, right) in [
        ("HTTP/1.1 200 OK\nContent-Length: 0", "it does not speak WebSocket at its url"),
        ("SSH-2.0-OpenSSH", "it answered the upgrade with something that is not HTTP"),
        (
            "HTTP/1.1 101 Switching Protocols\nUpgrade: h2c\nConnection: Upgrade",
            "it upgrades to something else than WebSocket",
        ),
        (
            &format!("{switching}\nSec-WebSocket-Accept: AAAA"),
            "its answer to the upgrade has a wrong Sec-WebSocket-Accept",
        ),
        (
            &format!("{switching}\nSec-WebSocket-Accept: ACCEPT\nSec-WebSocket-Protocol: other"),
            "it chooses a subprotocol that was not offered",
        ),
        (
            &format!(
                "{switching}\nSec-WebSocket-Accept: ACCEPT\nSec-WebSocket-Extensions: permessage-deflate"
            ),
            "it wants an extension that was not offered",
        ),
    ] {
        match refused(answer).await {
            CallError::Protocol { what, .. } => assert_eq!(what, right),
            other => panic!("{answer}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_refusing_status_is_told_with_the_wait_that_it_asks_for() {
    let error = refused("HTTP/1.1 401 Unauthorized\nContent-Length: 0").await;
    assert!(matches!(error, CallError::Status { status: 401, retry_after: None, .. }), "{error:?}");
    let error = refused("HTTP/1.1 503 Busy\nRetry-After: 7\nContent-Length: 0").await;
    let CallError::Status { status: 503, retry_after: Some(wait), .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(wait, Duration::from_secs(7));
}

#[tokio::test]
async fn a_failure_to_connect_answers_the_calls_of_the_next_moment() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    drop(stub);
    for _ in 0..2 {
        let Err(CallError::Connect { what, .. }) = rig.call(SUM).await.unwrap() else {
            panic!("connected");
        };
        assert_eq!(what, "connection refused");
    }
    assert_eq!(rig.upstream.state(), State::Down("connection refused".to_owned()));
    rig.end().await;
}
