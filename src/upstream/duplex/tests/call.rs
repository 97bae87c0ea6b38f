use serde_json::json;
use tokio::time::Instant;

use super::far::Far;
use super::*;
use crate::jsonrpc::Member;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_call_is_sent_with_our_id_and_token_and_the_edits_asked_for() {
    let mut far = Far::new();
    let (mut call, _events) = call(1);
    let name = call.message.member_span(Member::Name).unwrap();
    call.edits.push((name, "\"other\"".into()));
    let channel = Arc::clone(&far.channel);
    let task = tokio::spawn(async move { channel.call(call).await });
    let line = far.line().await;
    let id = line["id"].clone();
    let params = json!({ "name": "other", "arguments": {}, "_meta": { "progressToken": id } });
    assert_eq!(
        line,
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    );
    far.answer(id.as_u64().unwrap(), json!({ "content": [1] })).await;
    assert_eq!(result(&task.await.unwrap()), json!({ "content": [1] }));
    assert_eq!(far.channel.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_wants_no_progress_carries_no_token() {
    let mut far = Far::new();
    let (mut plain, events) = call(1);
    plain.message = message(r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#);
    let running = far.begin_with(plain, events).await;
    far.progress(running.id, 1).await;
    far.answer(running.id, json!({})).await;
    assert!(running.end().await.is_ok());
    assert_eq!(far.stray(), 1);
}

#[tokio::test(start_paused = true)]
async fn fifty_callers_with_id_1_get_each_its_own_answer() {
    let mut far = Far::new();
    let mut calls = Vec::new();
    for caller in 1..=50 {
        calls.push(far.begin(caller).await);
    }
    for running in calls.iter().rev() {
        far.answer(running.id, json!({ "tag": running.id })).await;
    }
    for running in calls {
        let id = running.id;
        assert_eq!(result(&running.end().await), json!({ "tag": id }));
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_of_another_type_is_another_id() {
    let mut far = Far::new();
    let running = far.begin(1).await;
    let text = format!(r#"{{"jsonrpc":"2.0","id":"{}","result":{{}}}}"#, running.id);
    far.write(format!("{text}\n").as_bytes()).await;
    far.answer(running.id, json!({ "right": true })).await;
    assert_eq!(result(&running.end().await), json!({ "right": true }));
    assert_eq!(far.stray(), 1);
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_only_its_call_with_the_clients_token() {
    let mut far = Far::new();
    let (mut one, mut two) = (far.begin(1).await, far.begin(2).await);
    assert_ne!(one.id, two.id);
    far.progress(two.id, 22).await;
    far.progress(one.id, 11).await;
    assert_eq!(one.progress().await, json!({ "progressToken": 1, "progress": 11 }));
    assert_eq!(two.progress().await, json!({ "progressToken": 1, "progress": 22 }));
    far.answer(one.id, json!({})).await;
    assert!(one.task.await.unwrap().is_ok());
    // After the answer, and for a token nobody gave out.
    far.progress(one.id, 12).await;
    far.progress(99, 1).await;
    far.answer(two.id, json!({})).await;
    assert!(two.task.await.unwrap().is_ok());
    assert!(one.events.try_recv().is_err() && two.events.try_recv().is_err());
    assert_eq!(far.stray(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_gets_the_newest_progress_and_delays_nobody() {
    let mut far = Far::new();
    let (mut slow, _) = call(1);
    let (events, received) = crate::upstream::events(1);
    slow.events = events;
    let mut slow = far.begin_with(slow, received).await;
    let quick = far.begin(2).await;
    for step in 1..=100 {
        far.progress(slow.id, step).await;
    }
    far.answer(quick.id, json!({})).await;
    assert!(quick.end().await.is_ok());
    assert_eq!(slow.progress().await["progress"], 1);
    assert_eq!(slow.progress().await["progress"], 100);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_call_and_cancels_it_and_the_late_answer_is_nobodys() {
    let mut far = Far::new();
    let (begin, running) = (Instant::now(), far.begin(1).await);
    let late = running.id;
    let ended = running.end().await;
    assert!(matches!(ended, Err(CallError::Timeout { after, .. }) if after == 10 * SECOND));
    assert_eq!(begin.elapsed().as_secs(), 10);
    let line = far.line().await;
    assert_eq!(line["method"], "notifications/cancelled");
    assert_eq!(line["params"]["requestId"], late);

    let next = far.begin(1).await;
    assert_ne!(next.id, late);
    far.answer(late, json!({ "late": true })).await;
    far.answer(next.id, json!({ "late": false })).await;
    assert_eq!(result(&next.end().await), json!({ "late": false }));
    assert_eq!(far.stray(), 1);
}

#[tokio::test(start_paused = true)]
async fn progress_prolongs_a_call_up_to_its_hard_limit() {
    let mut far = Far::new();
    let begin = Instant::now();
    let running = far.begin(1).await;
    let id = running.id;
    let ended = tokio::spawn(running.end());
    for step in 1..=9 {
        tokio::time::advance(8 * SECOND).await;
        if begin.elapsed() < 60 * SECOND {
            assert!(!ended.is_finished(), "ended before step {step}");
            far.progress(id, step).await;
            tokio::task::yield_now().await;
        }
    }
    let ended = ended.await.unwrap();
    assert!(matches!(ended, Err(CallError::Timeout { after, .. }) if after == 60 * SECOND));
    assert_eq!(far.line().await["method"], "notifications/cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_upstream_and_forgotten() {
    let mut far = Far::new();
    let running = far.begin(1).await;
    running.task.abort();
    let line = far.line().await;
    assert_eq!(line["method"], "notifications/cancelled");
    assert_eq!(line["params"]["requestId"], running.id);
    assert_eq!(far.channel.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answered_call_is_not_cancelled() {
    let mut far = Far::new();
    let running = far.begin(1).await;
    far.answer(running.id, json!({})).await;
    assert!(running.end().await.is_ok());
    far.channel.close("done");
    assert!(far.at_end().await);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_fails_the_call_and_not_the_child() {
    let mut far = Far::with(UpstreamConfig::default(), 64);
    let note = Message::notification("notifications/roots/list_changed", None);
    let mut queued = 0;
    while far.channel.notify(&note).is_ok() {
        queued += 1;
        assert!(queued < 1000, "the queue has no end");
    }
    let busy = far.channel.call(call(1).0).await;
    assert!(matches!(busy, Err(CallError::Busy { .. })));
    assert_eq!(far.channel.in_flight(), 0);
    for _ in 0..queued {
        assert_eq!(far.line().await["method"], "notifications/roots/list_changed");
    }
    let running = far.begin(1).await;
    far.answer(running.id, json!({})).await;
    assert!(running.end().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn closing_fails_what_waits_and_writes_what_is_queued() {
    let mut far = Far::new();
    let running = far.begin(1).await;
    far.channel.notify(&Message::notification("notifications/last", None)).unwrap();
    far.channel.close("exit status 137");
    let ended = running.end().await;
    let Err(CallError::Closed { written: true, what, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!(what, "exit status 137");
    let next = far.channel.call(call(1).0).await;
    assert!(matches!(next, Err(CallError::Closed { written: false, .. })));
    assert_eq!(far.line().await["method"], "notifications/last");
    assert!(far.at_end().await);
}

#[tokio::test(start_paused = true)]
async fn large_and_small_messages_arrive_in_order_and_whole() {
    let mut far = Far::with(UpstreamConfig::default(), 1 << 20);
    let notes = |length: usize| {
        let params = format!(r#"{{"text":"{}"}}"#, "x".repeat(length));
        Message::notification("n", Some(params.as_bytes()))
    };
    let lengths = [10, 20, 40_000, 30, 100_000, 50];
    for length in lengths {
        far.channel.notify(&notes(length)).unwrap();
    }
    for length in lengths {
        assert_eq!(far.line().await["params"]["text"].as_str().unwrap().len(), length);
    }
}
