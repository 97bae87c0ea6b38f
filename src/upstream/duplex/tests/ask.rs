use serde_json::{Value, json};

use super::super::super::{Ask, AskReply};
use super::far::{Far, Running};
use super::*;
use crate::jsonrpc::ErrorObject;

async fn ask_for(far: &mut Far, id: Value, method: &str) {
    far.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} })).await;
}

async fn asked(running: &mut Running) -> Ask {
    match running.event().await {
        CallEvent::Ask(ask) => ask,
        other => panic!("{other:?} is no question"),
    }
}

fn code(line: &Value) -> i64 {
    line["error"]["code"].as_i64().unwrap_or_else(|| panic!("{line} is no error"))
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_back_with_the_upstreams_own_id() {
    let mut far = Far::new();
    let mut running = far.begin(1).await;
    for id in [json!("q-é"), json!(1), json!(12_345_678_901_234_567_u64)] {
        ask_for(&mut far, id.clone(), "elicitation/create").await;
        let ask = asked(&mut running).await;
        assert_eq!(ask.message.method(), "elicitation/create");
        let reply = r#"{"jsonrpc":"2.0","id":"gateway-7","result":{"action":"accept","n":1.50}}"#;
        ask.reply(AskReply::Answer(message(reply)));
        let line = far.line().await;
        let result = json!({ "action": "accept", "n": 1.50 });
        assert_eq!(line, json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_or_dropped_question_is_refused_upstream() {
    let mut far = Far::new();
    let mut running = far.begin(1).await;
    ask_for(&mut far, json!(1), "sampling/createMessage").await;
    let error = ErrorObject { code: -1, message: "User rejected".into(), data: None };
    asked(&mut running).await.reply(AskReply::Refuse(error));
    assert_eq!(code(&far.line().await), -1);
    ask_for(&mut far, json!(2), "sampling/createMessage").await;
    drop(asked(&mut running).await);
    assert_eq!(code(&far.line().await), -32602);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_never_put_to_a_guess() {
    let mut far = Far::new();
    // No call, then only one of the gateway itself.
    ask_for(&mut far, json!(1), "roots/list").await;
    assert_eq!(code(&far.line().await), -32602);
    let _list = far.begin(0).await;
    ask_for(&mut far, json!(2), "roots/list").await;
    assert_eq!(code(&far.line().await), -32602);
    // One caller with two calls: the newest.
    let (mut first, mut second) = (far.begin(1).await, far.begin(1).await);
    ask_for(&mut far, json!(3), "sampling/createMessage").await;
    let _open = asked(&mut second).await;
    // Two callers.
    let mut stranger = far.begin(2).await;
    for method in ["roots/list", "sampling/createMessage", "elicitation/create"] {
        ask_for(&mut far, json!(method), method).await;
        let line = far.line().await;
        assert_eq!((&line["id"], code(&line)), (&json!(method), -32602));
    }
    assert!(first.events.try_recv().is_err() && stranger.events.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn what_may_come_from_a_cancelled_call_reaches_no_other_caller() {
    let mut far = Far::new();
    let cancelled = far.begin(1).await;
    let id = cancelled.id;
    cancelled.task.abort();
    assert_eq!(far.line().await["method"], "notifications/cancelled");
    // The upstream has not answered it: what it says now may be about that call.
    let mut running = far.begin(2).await;
    far.send(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": {} })).await;
    ask_for(&mut far, json!(1), "sampling/createMessage").await;
    assert_eq!(code(&far.line().await), -32602);
    assert!(running.events.try_recv().is_err());
    // Once it has, only one call is left.
    far.answer(id, json!({})).await;
    ask_for(&mut far, json!(2), "sampling/createMessage").await;
    drop(asked(&mut running).await);
    assert_eq!(code(&far.line().await), -32602);
    // An upstream that does not answer is not waited for for ever; nor does it matter to the same caller.
    far.begin(2).await.task.abort();
    far.line().await;
    ask_for(&mut far, json!(3), "sampling/createMessage").await;
    drop(asked(&mut running).await);
    far.line().await;
    far.begin(3).await.task.abort();
    far.line().await;
    ask_for(&mut far, json!(4), "sampling/createMessage").await;
    assert_eq!(code(&far.line().await), -32602);
    running.task.abort();
    far.line().await;
    tokio::time::advance(Duration::from_secs(10)).await;
    let mut running = far.begin(2).await;
    ask_for(&mut far, json!(5), "sampling/createMessage").await;
    let _open = asked(&mut running).await;
}

#[tokio::test(start_paused = true)]
async fn ping_is_answered_and_what_was_not_declared_is_not_there() {
    let mut far = Far::new();
    let _running = far.begin(1).await;
    ask_for(&mut far, json!("p"), "ping").await;
    assert_eq!(far.line().await, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    ask_for(&mut far, json!(1), "tools/list").await;
    assert_eq!(code(&far.line().await), -32601);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_question_stays_without_answer() {
    let mut far = Far::new();
    let mut running = far.begin(1).await;
    ask_for(&mut far, json!("q"), "elicitation/create").await;
    let mut ask = asked(&mut running).await;
    let params = json!({ "requestId": "q" });
    far.send(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))
        .await;
    ask.withdrawn().await;
    ask.reply(AskReply::Answer(message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)));
    ask_for(&mut far, json!("p"), "ping").await;
    assert_eq!(far.line().await["id"], "p");
    // The id is free again.
    ask_for(&mut far, json!("q"), "elicitation/create").await;
    asked(&mut running).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_question_with_an_open_id_and_one_too_many_are_refused() {
    let mut far = Far::new();
    let (mut call, _) = call(1);
    let (events, received) = crate::upstream::events(100);
    call.events = events;
    let mut running = far.begin_with(call, received).await;
    let mut open = Vec::new();
    for id in 0..64 {
        ask_for(&mut far, json!(id), "roots/list").await;
        open.push(asked(&mut running).await);
    }
    ask_for(&mut far, json!(5), "roots/list").await;
    assert_eq!(code(&far.line().await), -32600);
    ask_for(&mut far, json!(64), "roots/list").await;
    assert_eq!(code(&far.line().await), -31002);
}

#[tokio::test(start_paused = true)]
async fn silence_does_not_count_while_the_client_answers() {
    let mut far = Far::new();
    let mut running = far.begin(1).await;
    ask_for(&mut far, json!(1), "elicitation/create").await;
    let ask = asked(&mut running).await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert!(!running.task.is_finished());
    ask.reply(AskReply::Answer(message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)));
    far.line().await;
    let begin = tokio::time::Instant::now();
    let ended = running.end().await;
    assert!(matches!(ended, Err(CallError::Timeout { .. })));
    assert_eq!(begin.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_hard_limit_counts_also_while_the_client_answers() {
    let mut far = Far::new();
    let begin = tokio::time::Instant::now();
    let mut running = far.begin(1).await;
    ask_for(&mut far, json!(1), "elicitation/create").await;
    let _ask = asked(&mut running).await;
    assert!(matches!(running.end().await, Err(CallError::Timeout { .. })));
    assert_eq!(begin.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn questions_end_with_the_channel() {
    let mut far = Far::new();
    let mut running = far.begin(1).await;
    ask_for(&mut far, json!(1), "elicitation/create").await;
    let mut ask = asked(&mut running).await;
    far.channel.close("exit status 1");
    ask.withdrawn().await;
    assert!(far.at_end().await);
}
