//! Plain JSON-RPC over HTTP.

use std::time::Duration;

use smallvec::SmallVec;

use super::stub::Stub;
use super::{PATIENCE, Rig};
use crate::jsonrpc::Message;
use crate::upstream::{CallError, CallerId, OutCall, State};

fn call(text: &str) -> OutCall {
    OutCall {
        message: Message::parse(text.to_owned().into(), 64).expect("a message"),
        edits: SmallVec::new(),
        caller: CallerId::of(1),
        client: crate::upstream::Client::default(),
        params: None,
        timeout: Duration::from_secs(5),
        max_timeout: Duration::from_secs(5),
        events: crate::upstream::Events::closed(),
    }
}

fn sum() -> OutCall {
    call(r#"{"jsonrpc":"2.0","id":"c","method":"sum","params":[1, 2.50]}"#)
}

fn note() -> OutCall {
    call(r#"{"jsonrpc":"2.0","method":"note","params":[]}"#)
}

type Outcome = Result<Option<Message>, CallError>;

fn text(outcome: Outcome) -> String {
    let message = outcome.expect("an answer").expect("not a notification");
    String::from_utf8_lossy(message.text()).into_owned()
}

fn what(outcome: Outcome) -> String {
    match outcome {
        Err(CallError::Protocol { what, .. }) => what,
        other => panic!("not an invalid answer: {other:?}"),
    }
}

/// A server that answers with that status and body; `ID` stands for the id of the request, `ID0`, `ID1` … for those
/// of a batch.
async fn answering(status: u16, media: &'static str, body: &'static str) -> Stub {
    Stub::start(move |asked, mut back| async move {
        let mut body = body.to_owned();
        for (index, element) in asked.json().as_array().into_iter().flatten().enumerate() {
            body = body.replace(&format!("ID{index}"), &element["id"].to_string());
        }
        let body = body.replace("ID", &asked.id());
        let headers: &[_] = if media.is_empty() { &[] } else { &[("content-type", media)] };
        back.full(status, headers, body).await;
        back
    })
    .await
}

#[tokio::test]
async fn a_request_travels_with_an_id_of_ours_and_is_otherwise_untouched() {
    let stub =
        answering(200, "application/json", r#"{"jsonrpc":"2.0","id":ID,"result":3.50}"#).await;
    let rig = Rig::plain(&stub);
    assert_eq!(rig.upstream.state(), State::Idle);
    let meta = r#"{"jsonrpc":"2.0","id":"c","method":"sum","params":{"_meta":{"progressToken":"t"}, "n": 1.0}}"#;
    let answer = text(rig.upstream.call_plain(call(meta)).await);
    assert!(answer.ends_with(r#""result":3.50}"#), "{answer}");
    text(rig.upstream.call_plain(sum()).await);
    let log = stub.log();
    assert_eq!(log[0].text, meta.replace("\"c\"", &log[0].id()));
    assert_ne!(log[0].id(), log[1].id());
    assert_eq!(log[0].header("accept"), Some("application/json"));
    assert_eq!(stub.accepted(), 1);
    assert_eq!(rig.upstream.state(), State::Up);
    assert_eq!(rig.metrics.up.get(), 1);
}

#[tokio::test]
async fn a_notification_is_content_with_any_success() {
    for status in [200, 202, 204] {
        let body = if status == 200 { "whatever" } else { "" };
        let stub = answering(status, "", body).await;
        let outcome = Rig::plain(&stub).upstream.call_plain(note()).await;
        assert!(matches!(outcome, Ok(None)), "{status}: {outcome:?}");
        assert_eq!(stub.log()[0].text.as_bytes(), &note().message.text()[..]);
    }
    let stub = answering(500, "", "").await;
    let outcome = Rig::plain(&stub).upstream.call_plain(note()).await;
    assert!(matches!(outcome, Err(CallError::Status { status: 500, .. })), "{outcome:?}");
}

#[tokio::test]
async fn odd_answers_are_mended_where_their_meaning_is_plain() {
    for (status, media, body, right) in [
        (200, "application/json", r#"{"id":ID,"result":null}"#, r#""result":null}"#),
        (200, "", r#"{"jsonrpc":"2.0","id":ID,"result":1,"error":null}"#, r#""result":1}"#),
        (200, "text/plain", r#"{"jsonrpc":"2.0","id":ID,"result":[1.0]}"#, r#""result":[1.0]}"#),
        (200, "application/json-rpc", r#"{"jsonrpc":"2.0","id":ID,"result":1}"#, r#""result":1}"#),
        (
            500,
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-1,"message":"x","data":1.0}}"#,
            r#""error":{"code":-1,"message":"x","data":1.0}}"#,
        ),
        (
            400,
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"x"}}"#,
            r#""error":{"code":-1,"message":"x"}}"#,
        ),
    ] {
        let stub = answering(status, media, body).await;
        let answer = text(Rig::plain(&stub).upstream.call_plain(sum()).await);
        assert!(
            answer.starts_with(r#"{"jsonrpc":"2.0","id":"#) && answer.ends_with(right),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn what_is_no_answer_is_an_error() {
    for (media, body, told) in [
        ("application/json", r#"{"jsonrpc":"2.0","id":77,"result":1}"#, "another id"),
        ("application/json", r#"{"jsonrpc":"2.0","id":"ID","result":1}"#, "another id"),
        ("application/json", r#"{"jsonrpc":"2.0","result":1}"#, "another id"),
        ("application/json", r#"{"jsonrpc":"2.0","id":ID}"#, "neither"),
        ("application/json", r#"{"jsonrpc":"2.0","id":ID,"error":"boom"}"#, "no object"),
        ("application/json", r#"[{"jsonrpc":"2.0","id":ID,"result":1}]"#, "no JSON-RPC response"),
        ("application/json", "", "empty"),
        ("text/html", "<html>", "text/html"),
        ("text/event-stream", "data: 1\n\n", "text/event-stream"),
    ] {
        let stub = answering(200, media, body).await;
        let rig = Rig::plain(&stub);
        let outcome = tokio::time::timeout(PATIENCE, rig.upstream.call_plain(sum())).await;
        let what = what(outcome.expect("an outcome in time"));
        assert!(what.contains(told), "{body}: {what}");
    }
    let stub = answering(204, "", "").await;
    assert!(what(Rig::plain(&stub).upstream.call_plain(sum()).await).contains("204"));
}

#[tokio::test]
async fn a_batch_travels_as_one_array_and_its_answers_come_back_in_order() {
    let body = r#" [ {"jsonrpc":"2.0","id":ID2,"result":"third"}, {"id":ID0,"result":1.0,"jsonrpc":"2.0"} ] "#;
    let stub = answering(200, "application/json", body).await;
    let rig = Rig::plain(&stub);
    let outcomes = rig.upstream.call_batch(vec![sum(), note(), sum()]).await;
    let [first, second, third] = <[_; 3]>::try_from(outcomes).expect("three outcomes");
    assert!(text(first).contains("1.0"));
    assert!(matches!(second, Ok(None)), "{second:?}");
    assert!(text(third).contains("third"));
    let sent = stub.log()[0].json();
    assert_eq!(sent.as_array().map(Vec::len), Some(3));
    assert!(sent[1].get("id").is_none());
    assert_ne!(sent[0]["id"], sent[2]["id"]);
}

#[tokio::test]
async fn an_answer_that_a_batch_leaves_out_costs_only_its_own_element() {
    let body = r#"[{"jsonrpc":"2.0","id":ID1,"result":1},{"jsonrpc":"2.0","id":ID1,"result":2},{"jsonrpc":"2.0","id":999,"result":3},5]"#;
    let stub = answering(200, "application/json", body).await;
    let rig = Rig::plain(&stub);
    let outcomes = rig.upstream.call_batch(vec![sum(), sum()]).await;
    let [first, second] = <[_; 2]>::try_from(outcomes).expect("two outcomes");
    assert!(what(first).contains("no answer to this request"));
    assert!(text(second).contains(r#""result":1"#));
    assert_eq!(rig.metrics.stray.get(), 3);
}

#[tokio::test]
async fn one_error_object_answers_every_element_with_its_own_id() {
    for status in [200, 400] {
        let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no batches"}}"#;
        let stub = answering(status, "application/json", body).await;
        let rig = Rig::plain(&stub);
        let outcomes = rig.upstream.call_batch(vec![sum(), note(), sum()]).await;
        let sent = stub.log()[0].json();
        for (index, outcome) in outcomes.into_iter().enumerate().filter(|(index, _)| *index != 1) {
            let right = format!(
                r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32600,"message":"no batches"}}}}"#,
                sent[index]["id"]
            );
            assert_eq!(text(outcome), right);
        }
    }
}

#[tokio::test]
async fn a_batch_that_fails_as_a_whole_fails_for_each() {
    for (status, media, body) in [
        (200, "application/json", "[]"),
        (200, "application/json", "{]"),
        (200, "text/html", "<html>"),
        (500, "text/html", "<html>"),
        (503, "application/json", "{]"),
        (204, "", ""),
    ] {
        let stub = answering(status, media, body).await;
        let outcomes = Rig::plain(&stub).upstream.call_batch(vec![sum(), sum()]).await;
        assert!(outcomes.len() == 2 && outcomes.iter().all(Result::is_err), "{body}: {outcomes:?}");
    }
    let stub = answering(204, "", "").await;
    let outcomes = Rig::plain(&stub).upstream.call_batch(vec![note(), note()]).await;
    assert!(outcomes.len() == 2 && outcomes.iter().all(|o| matches!(o, Ok(None))), "{outcomes:?}");
}

#[tokio::test]
async fn a_slow_answer_ends_at_the_limit() {
    let stub = Stub::start(async |_, back| {
        std::future::pending::<()>().await;
        back
    })
    .await;
    let rig = Rig::plain(&stub);
    let mut slow = sum();
    slow.timeout = Duration::from_millis(50);
    let outcome = rig.upstream.call_plain(slow).await;
    assert!(matches!(outcome, Err(CallError::Timeout { .. })), "{outcome:?}");
    rig.until("nothing runs", |rig| rig.metrics.connections_active.get() == 0).await;
}
