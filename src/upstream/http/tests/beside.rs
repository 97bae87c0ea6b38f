//! Questions of an upstream on the stream of its session, while calls of one client are in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::stub::{Asked, Sessions, Stub};
use super::{Rig, listened, request, until};
use crate::jsonrpc::Message;
use crate::mcp::{ClientCaps, Era};
use crate::upstream::{AskReply, CallError, CallEvent, CallerId, LinkKey, LinkScope};

const QUESTION: &str =
    r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"who?"}}"#;

/// Who can be asked.
fn key() -> LinkKey {
    let caps = ClientCaps::parse(br#"{"elicitation":{}}"#);
    LinkKey { scope: LinkScope::Shared, caps, era: Era::Legacy }
}

/// A server that asks on the stream of its session when a tool is called, and answers when it was answered. The stream
/// opens late, if at all; a tool says whether it was open.
async fn asking(silent: bool) -> Stub {
    let sessions = Arc::new(Sessions::default());
    sessions.streams.store(true, Ordering::SeqCst);
    let (opened, called, replied) =
        (watch::Sender::new(false), watch::Sender::new(0), watch::Sender::new(0));
    Stub::sessions(&sessions, move |asked, mut back| {
        let (opened, called, replied) = (opened.clone(), called.clone(), replied.clone());
        async move {
            match asked.what().as_str() {
                "GET" if silent => back.closed().await,
                "GET" => {
                    // Long enough for a call that does not wait to come first.
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    opened.send_replace(true);
                    back.sse().await;
                    let _ = called.subscribe().wait_for(|count| *count > 0).await;
                    back.event(QUESTION).await;
                    back.closed().await;
                }
                "tools/call" => {
                    let open = *opened.borrow();
                    called.send_modify(|count| *count += 1);
                    if open {
                        let _ = replied.subscribe().wait_for(|count| *count > 0).await;
                    }
                    back.result(&asked, &format!(r#"{{"open":{open}}}"#)).await;
                }
                what => {
                    replied.send_modify(|count| *count += usize::from(what == "response"));
                    back.full(202, &[], "").await;
                }
            }
            back
        }
    })
    .await
}

fn reply(stub: &Stub) -> String {
    stub.asked("response").first().map(|asked| asked.text.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_call_waits_for_the_stream_and_its_client_answers_what_is_asked_there() {
    let stub = asking(false).await;
    let rig = Rig::to(&stub);
    let (mut call, mut events) = listened("tools/call", "{}");
    let client = async {
        let Some(CallEvent::Ask(ask)) = events.recv().await else { panic!("no question") };
        // Longer than the upstream may be silent.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let text = r#"{"jsonrpc":"2.0","id":99,"result":{"action":"accept"}}"#;
        ask.reply(AskReply::Answer(Message::parse(text.into(), 64).expect("a message")));
    };
    call.timeout = Duration::from_millis(400);
    let key = key();
    let (answer, ()) = tokio::join!(rig.upstream.call(&key, call), client);
    let text = String::from_utf8_lossy(answer.expect("an answer").message.text()).into_owned();
    assert!(text.contains(r#"{"open":true}"#), "{text}");
    assert_eq!(reply(&stub), r#"{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}"#);
}

#[tokio::test]
async fn a_stream_that_says_nothing_holds_up_no_call_for_long() {
    let stub = asking(true).await;
    let rig = Rig::to(&stub);
    rig.upstream.call(&key(), request("tools/call", "{}")).await.expect("an answer");
    assert_eq!(stub.asked("GET").len(), 1);
}

#[tokio::test]
async fn a_question_is_refused_where_nobody_knows_whose_it_is() {
    let stub = asking(false).await;
    let rig = Rig::to(&stub);
    let call = |number| {
        let mut call = listened("tools/call", "{}");
        call.0.caller = CallerId::of(number);
        call
    };
    let ((one, _heard), (two, _also)) = (call(1), call(2));
    let key = key();
    // The question comes with the first call: it is on its way to the upstream, and so is the second.
    let (one, two) = tokio::join!(rig.upstream.call(&key, one), rig.upstream.call(&key, two));
    one.and(two).expect("answers");
    assert!(reply(&stub).contains("-32602"), "{}", reply(&stub));
}

#[tokio::test]
async fn a_question_that_its_client_does_not_know_is_refused() {
    let stub = asking(false).await;
    let rig = Rig::to(&stub);
    let caps = ClientCaps::parse(br#"{"sampling":{}}"#);
    let (call, _events) = listened("tools/call", "{}");
    let answer = rig.upstream.call(&LinkKey { caps, ..key() }, call).await;
    answer.expect("an answer");
    assert!(reply(&stub).contains("-32601"), "{}", reply(&stub));
}

#[tokio::test]
async fn a_question_that_stays_open_does_not_extend_a_call_beyond_its_hard_limit() {
    let stub = asking(false).await;
    let rig = Rig::to(&stub);
    let (mut call, mut events) = listened("tools/call", "{}");
    (call.timeout, call.max_timeout) = (Duration::from_millis(400), Duration::from_millis(700));
    let key = key();
    let (answer, asked) = tokio::join!(rig.upstream.call(&key, call), events.recv());
    assert!(
        matches!(answer, Err(CallError::Timeout { after, .. }) if after.as_millis() == 700),
        "{answer:?}"
    );
    assert!(matches!(asked, Some(CallEvent::Ask(_))));
    until("the call was cancelled", || {
        stub.asked("notifications/cancelled").iter().map(Asked::json).count() == 1
    })
    .await;
}
