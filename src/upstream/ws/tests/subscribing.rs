//! Subscriptions over a connection that is slow, full, or never answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Rig, Stub, call};
use crate::jsonrpc::{Message, ParamsPath, Span};
use crate::upstream::{CallError, Feed, FeedKind, Listener};

/// Hears nothing.
#[derive(Debug)]
struct Deaf;

impl Listener for Deaf {
    fn notified(&self, _notification: &Message, _id: Span) {}
    fn resumed(&self) {}
    fn ended(&self, _why: &str) {}
}

impl Rig {
    fn subscribe(&self) -> JoinHandle<Result<(Message, Feed), CallError>> {
        let kind = Arc::new(FeedKind {
            notification: "eth_subscription".to_owned(),
            unsubscribe: "eth_unsubscribe".to_owned(),
            id: ParamsPath::parse("params.subscription").expect("a path"),
            share: false,
        });
        let upstream = Arc::clone(&self.upstream);
        let call = call(r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":[]}"#);
        tokio::spawn(async move { upstream.subscribe(&call, &kind, Arc::new(Deaf)).await })
    }
}

#[tokio::test]
async fn a_subscription_whose_end_finds_no_room_in_the_queue_is_ended_once_there_is_some() {
    let stub = Stub::start().await;
    let rig = Rig::plain(&stub);
    let subscribing = rig.subscribe();
    let mut peer = stub.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.answer(id, "\"0x1\"").await;
    let (_, feed) = subscribing.await.unwrap().unwrap();
    let note = r#"{"jsonrpc":"2.0","method":"note"}"#;
    while rig.upstream.call_plain(call(note)).await.is_ok() {}
    let end =
        call(r#"{"jsonrpc":"2.0","id":"c","method":"eth_unsubscribe","params":["mine", 1.0]}"#);
    let span = ParamsPath::first().find(&end.message).expect("an id");
    let ended = tokio::spawn(feed.end(end, span));
    let request = loop {
        let message = peer.json().await;
        if message["method"] != "note" {
            break message;
        }
    };
    assert_eq!(request["method"], "eth_unsubscribe", "{request}");
    assert_eq!(request["params"].to_string(), r#"["0x1",1.0]"#);
    peer.answer(request["id"].as_u64().unwrap(), "true").await;
    let answer = ended.await.unwrap().unwrap().expect("an answer");
    assert_eq!(answer.result().as_deref(), Some(&b"true"[..]));
    rig.end().await;
}

#[tokio::test]
async fn requests_without_an_answer_stand_in_nobodys_way_and_too_many_end_the_connection() {
    let stub = Stub::start().await;
    let rig = Rig::with(&stub, |config| config.timeout = Duration::from_millis(50));
    let unanswered: Vec<_> = (0..600).map(|_| rig.subscribe()).collect();
    let mut peer = stub.accept().await;
    for _ in 0..600 {
        peer.asked("eth_subscribe").await;
    }
    for subscribing in unanswered {
        let Err(CallError::Timeout { .. }) = subscribing.await.unwrap() else { panic!("answered") };
    }
    (0..600).for_each(|_| drop(rig.subscribe()));
    assert_eq!(peer.closed().await, Some(1000));
    let _next = stub.accept().await;
    rig.end().await;
}
