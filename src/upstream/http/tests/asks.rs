//! Questions of an upstream on the stream of a call.

use std::time::Duration;

use super::stub::{Asked, Stub};
use super::{Rig, listened, until};
use crate::jsonrpc::{ErrorObject, Message};
use crate::upstream::{AskReply, CallEvent};

const QUESTION: &str =
    r#"{"jsonrpc":"2.0","id":"u-7","method":"sampling/createMessage","params":{"x":1}}"#;

/// A server that asks `texts` on each call, and answers once `replies` replies are there.
async fn asking(texts: &'static [&'static str], replies: usize) -> Stub {
    let (sender, receiver) = tokio::sync::watch::channel(0);
    Stub::mcp(move |asked, mut back| {
        let (sender, mut receiver) = (sender.clone(), receiver.clone());
        async move {
            if asked.what() != "tools/call" {
                back.full(202, &[], "").await;
                sender.send_modify(|count| *count += usize::from(asked.what() == "response"));
                return back;
            }
            back.sse().await;
            for text in texts {
                back.event(*text).await;
            }
            let _ = receiver.wait_for(|count| *count >= replies).await;
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked.id());
            back.event(answer).await;
            back.end().await;
            back
        }
    })
    .await
}

async fn ask(events: &mut crate::upstream::EventQueue) -> crate::upstream::Ask {
    match events.recv().await {
        Some(CallEvent::Ask(ask)) => ask,
        other => panic!("no question: {other:?}"),
    }
}

#[tokio::test]
async fn a_question_reaches_the_caller_and_its_answer_carries_the_upstreams_id() {
    let stub = asking(&[QUESTION], 1).await;
    let rig = Rig::to(&stub);
    let (mut call, mut events) = listened("tools/call", "{}");
    // Thinking takes the client longer than the upstream may be silent.
    call.timeout = Duration::from_millis(100);
    let client = async {
        let ask = ask(&mut events).await;
        assert_eq!(ask.message.text().as_ref(), QUESTION.as_bytes());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let text = r#"{"jsonrpc":"2.0","id":99,"result":{"big":12345678901234567890}}"#;
        ask.reply(AskReply::Answer(Message::parse(text.into(), 64).expect("a message")));
    };
    let (answer, ()) = tokio::join!(rig.call_with(call), client);
    answer.expect("an answer");
    let replies = stub.asked("response");
    assert_eq!(replies.len(), 1);
    assert_eq!(
        replies[0].text,
        r#"{"jsonrpc":"2.0","id":"u-7","result":{"big":12345678901234567890}}"#
    );
    assert_eq!(replies[0].header("mcp-session-id"), Some("session-0"));
}

#[tokio::test]
async fn a_question_that_is_refused_dropped_or_heard_by_nobody_is_answered_with_an_error() {
    for how in ["refused", "dropped", "unheard"] {
        let stub = asking(&[QUESTION], 1).await;
        let rig = Rig::to(&stub);
        let (call, mut events) = listened("tools/call", "{}");
        let client = async {
            if how == "unheard" {
                return drop(events);
            }
            let ask = ask(&mut events).await;
            if how == "refused" {
                let error = ErrorObject { code: -32601, message: "no".into(), data: None };
                ask.reply(AskReply::Refuse(error));
            }
        };
        let (answer, ()) = tokio::join!(rig.call_with(call), client);
        answer.expect("an answer");
        let reply = stub.asked("response")[0].json();
        assert_eq!(reply["id"], "u-7", "{how}");
        let code = if how == "refused" { -32601 } else { -32602 };
        assert_eq!(reply["error"]["code"], code, "{how}");
    }
}

#[tokio::test]
async fn a_ping_on_the_stream_of_a_call_is_answered_and_not_put_to_the_client() {
    let stub = asking(&[r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#], 1).await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", "{}");
    rig.call_with(call).await.expect("an answer");
    assert!(events.recv().await.is_none());
    assert_eq!(stub.asked("response")[0].text, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
}

#[tokio::test]
async fn a_question_that_the_upstream_withdraws_is_withdrawn_here() {
    let cancel =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"u-7"}}"#;
    let second = r#"{"jsonrpc":"2.0","id":"u-8","method":"roots/list"}"#;
    let stub = asking(Box::leak(Box::new([QUESTION, cancel, second])), 1).await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", "{}");
    let client = async {
        let mut first = ask(&mut events).await;
        first.withdrawn().await;
        drop(first);
        drop(ask(&mut events).await);
    };
    let (answer, ()) = tokio::join!(rig.call_with(call), client);
    answer.expect("an answer");
    let replies: Vec<_> = stub.asked("response").iter().map(Asked::id).collect();
    assert_eq!(replies, [r#""u-8""#]);
}

#[tokio::test]
async fn questions_beyond_the_limit_are_refused() {
    let texts: Vec<&str> = (0..20)
        .map(|n| {
            &*Box::leak(
                format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"roots/list"}}"#).into_boxed_str(),
            )
        })
        .collect();
    let stub = asking(Box::leak(texts.into_boxed_slice()), 4).await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", "{}");
    let mut asks = Vec::new();
    let client = async {
        while let Some(event) = events.recv().await {
            asks.push(event);
        }
    };
    let (answer, ()) = tokio::join!(rig.call_with(call), client);
    answer.expect("an answer");
    assert_eq!(asks.len(), 16);
    until("four were refused", || stub.asked("response").len() >= 4).await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_loses_nothing() {
    let note =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    let stub = asking(Box::leak(vec![note; 100].into_boxed_slice()), 0).await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", "{}");
    let client = async {
        let mut heard = 0;
        while let Some(CallEvent::Notification(_)) = events.recv().await {
            heard += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        heard
    };
    let (answer, heard) = tokio::join!(rig.call_with(call), client);
    answer.expect("an answer");
    assert_eq!(heard, 100);
}
