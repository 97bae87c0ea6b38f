//! Plain JSON-RPC over connections that all calls share.

use std::sync::Arc;
use std::time::Duration;

use tokio_tungstenite::tungstenite::Message as WsMessage;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use futures_util::SinkExt;

use super::super::super::duplex::tests::context;
use super::super::feeds::Feeds;
use super::super::socket::Source;
use super::super::wire::Wire;
use super::{PATIENCE, Rig, SUM, Stub, call};
use crate::config::UpstreamConfig;
use crate::upstream::{CallError, State};

#[tokio::test]
async fn calls_share_a_connection_and_are_answered_in_any_order_byte_for_byte() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let first = rig.call(SUM);
    let mut peer = stub.accept().await;
    assert_eq!(peer.read().await, r#"{"jsonrpc":"2.0","id":1,"method":"sum","params":[1, 2.50]}"#);
    let second = rig.call(r#"{"id":1,"jsonrpc":"2.0","method":"late","more":1e2}"#);
    assert_eq!(peer.read().await, r#"{"id":2,"jsonrpc":"2.0","method":"late","more":1e2}"#);
    let note = rig.call(r#"{"jsonrpc":"2.0","method":"note","params":[1.0]}"#);
    assert_eq!(peer.read().await, r#"{"jsonrpc":"2.0","method":"note","params":[1.0]}"#);
    assert_eq!(note.await.unwrap().unwrap(), None);
    let late = r#"{"result":1.10,"id":2,"jsonrpc":"2.0"}"#;
    peer.write(late).await;
    assert_eq!(second.await.unwrap().unwrap().as_deref(), Some(late));
    peer.answer(1, "3.50").await;
    let answer = first.await.unwrap().unwrap();
    assert_eq!(answer.as_deref(), Some(r#"{"jsonrpc":"2.0","id":1,"result":3.50}"#));
    assert_eq!(rig.upstream.state(), State::Up);
    assert_eq!((rig.metrics.up.get(), rig.metrics.connections_active.get()), (1, 1));
    rig.end().await;
    assert_eq!(peer.closed().await, Some(1000));
}

#[tokio::test]
async fn what_answers_no_call_is_dropped_and_counted() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let first = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    for stray in [
        r#"{"jsonrpc":"2.0","id":77,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":"1","result":1}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}"#,
        r#"{"jsonrpc":"2.0","result":1}"#,
        r#"{"jsonrpc":"2.0","method":"news","params":[]}"#,
        "no JSON",
        "",
        "[]",
    ] {
        peer.write(stray).await;
    }
    // In arrays answers count as well.
    peer.write(format!(r#"[5,{{"jsonrpc":"2.0","id":{id},"result":3}}]"#)).await;
    assert!(first.await.unwrap().is_ok());
    peer.answer(id, "4").await;
    rig.until("all are counted", |rig| rig.metrics.stray.get() == 10).await;
    let second = rig.call(SUM);
    let id = peer.asked("sum").await;
    peer.write(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":NaN}}"#)).await;
    let Err(CallError::Protocol { .. }) = second.await.unwrap() else { panic!("accepted") };
    rig.end().await;
}

#[tokio::test]
async fn an_upstream_that_asks_is_told_that_there_is_no_method() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let pending = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    peer.write(r#"{"jsonrpc":"2.0","id":"q","method":"who"}"#).await;
    let answer = peer.json().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&"q".into(), &(-32601).into()));
    peer.answer(id, "1").await;
    pending.await.unwrap().unwrap();
    rig.end().await;
}

#[tokio::test]
async fn fragments_and_binary_frames_are_read_as_text() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let pending = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"é"}}"#);
    // Cut within the letter, with a ping in between.
    let cut = text.find('é').unwrap() + 1;
    let (head, tail) = text.as_bytes().split_at(cut);
    let part = |bytes: &[u8], code, last| {
        WsMessage::Frame(Frame::message(bytes.to_vec(), OpCode::Data(code), last))
    };
    peer.socket.send(part(head, Data::Text, false)).await.unwrap();
    peer.socket.send(WsMessage::Ping("x".into())).await.unwrap();
    peer.socket.send(part(tail, Data::Continue, true)).await.unwrap();
    assert_eq!(pending.await.unwrap().unwrap(), Some(text));
    let pending = rig.call(SUM);
    let id = peer.asked("sum").await;
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":2}}"#);
    peer.socket.send(WsMessage::binary(text.clone())).await.unwrap();
    assert_eq!(pending.await.unwrap().unwrap(), Some(text));
    rig.end().await;
}

#[tokio::test]
async fn calls_in_flight_end_with_their_connection_and_the_next_one_is_dialled() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let cut = [rig.call(SUM), rig.call(SUM)];
    let mut peer = stub.accept().await;
    peer.asked("sum").await;
    peer.asked("sum").await;
    drop(peer);
    for call in cut {
        let Err(CallError::Closed { written: true, .. }) = call.await.unwrap() else {
            panic!("it was sent and not answered");
        };
    }
    let again = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    assert_eq!(id, 1, "ids are of their connection");
    peer.answer(id, "1").await;
    again.await.unwrap().unwrap();
    rig.end().await;
}

#[tokio::test]
async fn a_lost_connection_is_dialled_again_though_nobody_calls() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let pending = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    peer.answer(id, "1").await;
    pending.await.unwrap().unwrap();
    peer.socket.close(None).await.unwrap();
    let _peer = stub.accept().await;
    rig.until("it is up again", |rig| rig.upstream.state() == State::Up).await;
    rig.end().await;
}

#[tokio::test]
async fn a_silent_peer_is_found_out_and_left() {
    let stub = Stub::start().await;
    let rig = Rig::with(&stub, |config| {
        config.ping_interval = Duration::from_millis(20);
        config.ping_timeout = Duration::from_millis(60);
    });
    let pending = rig.call(SUM);
    // Whoever is not polled answers no pings.
    let mut peer = stub.accept().await;
    let Err(CallError::Closed { written: true, what, .. }) = pending.await.unwrap() else {
        panic!("answered");
    };
    assert_eq!(what, "it does not answer pings");
    // The one that follows answers them and lives.
    let pending = rig.call(SUM);
    let mut next = stub.accept().await;
    let id = next.asked("sum").await;
    let idle = tokio::time::timeout(Duration::from_millis(300), next.read());
    assert!(idle.await.is_err(), "nothing but pings comes");
    next.answer(id, "1").await;
    pending.await.unwrap().unwrap();
    assert_eq!(peer.closed().await, None);
    rig.end().await;
}

#[tokio::test]
async fn a_message_over_the_limit_ends_the_connection_and_is_told_where_it_is_clear_whose_it_is() {
    let stub = Stub::start().await;
    let rig = Rig::with(&stub, |config| config.max_message = 100);
    let pending = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    peer.answer(id, &format!("\"{}\"", "x".repeat(200))).await;
    let Err(CallError::Protocol { what, .. }) = pending.await.unwrap() else { panic!("accepted") };
    assert_eq!(what, "its message is larger than max_message = 100");
    assert_eq!(peer.closed().await, Some(1009));
    let both = [rig.call(SUM), rig.call(SUM)];
    let mut peer = stub.accept().await;
    peer.asked("sum").await;
    let id = peer.asked("sum").await;
    peer.answer(id, &format!("\"{}\"", "x".repeat(200))).await;
    for call in both {
        let Err(CallError::Closed { written: true, .. }) = call.await.unwrap() else {
            panic!("accepted");
        };
    }
    rig.end().await;
}

#[tokio::test]
async fn several_connections_are_used_in_turn() {
    let stub = Stub::start().await;
    let rig = Rig::with(&stub, |config| config.connections = 2);
    let (one, two) = (rig.call(SUM), rig.call(SUM));
    let (mut first, mut second) = (stub.accept().await, stub.accept().await);
    for peer in [&mut first, &mut second] {
        let id = peer.asked("sum").await;
        peer.answer(id, "1").await;
    }
    one.await.unwrap().unwrap();
    two.await.unwrap().unwrap();
    assert_eq!(rig.metrics.connections_active.get(), 2);
    rig.end().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_forgotten_and_its_late_answer_is_nobodys() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let warm = rig.call(SUM);
    let mut peer = stub.accept().await;
    let id = peer.asked("sum").await;
    peer.answer(id, "1").await;
    warm.await.unwrap().unwrap();
    let mut late = call(SUM);
    late.timeout = Duration::from_millis(20);
    let Err(CallError::Timeout { .. }) = rig.upstream.call_plain(late).await else {
        panic!("answered");
    };
    let id = peer.asked("sum").await;
    peer.answer(id, "1").await;
    rig.until("it is counted", |rig| rig.metrics.stray.get() == 1).await;
    rig.end().await;
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + PATIENCE
}

#[tokio::test]
async fn what_was_never_sent_is_told_apart_and_a_full_queue_refuses_one_call() {
    let (ctx, _notices) = context(UpstreamConfig::default());
    let feeds = Arc::new(Feeds::new(ctx.name.clone()));
    let (wire, mut queue) = Wire::new(&ctx, &feeds);
    let calls: Vec<_> = (0..1024)
        .map(|_| {
            let wire = Arc::clone(&wire);
            tokio::spawn(async move { wire.call(&call(SUM), soon()).await })
        })
        .collect();
    while wire.in_flight() < calls.len() {
        tokio::task::yield_now().await;
    }
    let Err(CallError::Busy { .. }) = wire.call(&call(SUM), soon()).await else { panic!("taken") };
    assert!(wire.is_open());
    let mut sent = Vec::new();
    queue.take(&mut sent, 1).await;
    let unsent: Vec<u64> = queue.rest().into_iter().filter_map(|unsent| unsent.id).collect();
    assert_eq!((sent.len(), unsent.len()), (1, 1023));
    wire.end(&unsent, "gone");
    let mut written = 0;
    for call in calls {
        match tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap() {
            Err(CallError::Closed { written: was, .. }) => written += usize::from(was),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written, 1);
    let Err(CallError::Closed { written: false, .. }) = wire.call(&call(SUM), soon()).await else {
        panic!("taken");
    };
}
