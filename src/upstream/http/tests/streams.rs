//! Answers that come as event streams, cancellation, and the stream that belongs to no call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::stub::{Asked, Sessions, Stub};
use super::{Rig, listened, protocol, request, shared, until};
use crate::mcp::ListKind;
use crate::upstream::{CallError, CallEvent, NoticeKind};

fn answer(asked: &Asked, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, asked.id())
}

fn progress(asked: &Asked, n: u32) -> String {
    let token = &asked.json()["params"]["_meta"]["progressToken"];
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{n}}}}}"#
    )
}

#[tokio::test]
async fn what_precedes_an_answer_reaches_its_caller_with_the_callers_own_token() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(progress(&asked, 1)).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"c-token","progress":9}}"#).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hi"}}"#).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/odd"}"#).await;
        back.event(answer(&asked, "{}")).await;
        back.end().await;
        back
    })
    .await;
    let mut rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", r#"{"_meta":{"progressToken":"c-token"}}"#);
    rig.call_with(call).await.expect("an answer");
    let sent = stub.asked("tools/call")[0].json();
    assert!(sent["params"]["_meta"]["progressToken"].is_u64(), "{sent}");

    let Some(CallEvent::Progress(text)) = events.recv().await else { panic!("no progress") };
    let right = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"c-token","progress":1}}"#;
    assert_eq!(text.into_bytes(), right);
    for method in ["notifications/message", "notifications/odd"] {
        let Some(CallEvent::Notification(message)) = events.recv().await else {
            panic!("{method}")
        };
        assert_eq!(message.method(), method);
    }
    assert!(events.recv().await.is_none());
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    assert!(matches!(rig.notice().await, NoticeKind::ListChanged(ListKind::Tools)));
    assert!(matches!(rig.notice().await, NoticeKind::ResourceUpdated(_)));
    assert_eq!(rig.metrics.stray.get(), 1, "the token of nobody");
}

#[tokio::test]
async fn a_call_without_a_token_is_sent_without_one() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#).await;
        back.event(answer(&asked, "{}")).await;
        back.end().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", r#"{"name":"x"}"#);
    rig.call_with(call).await.expect("an answer");
    assert!(!stub.asked("tools/call")[0].text.contains("progressToken"));
    assert!(events.recv().await.is_none());
}

#[tokio::test]
async fn characters_cut_by_chunks_at_any_place_arrive_whole() {
    let stub = Stub::mcp(async |asked, mut back| {
        let event = format!("data: {}\r\n\r\n", answer(&asked, r#"{"t":"é漢😀"}"#));
        let cut = usize::try_from(asked.json()["params"]["cut"].as_u64().unwrap_or(0)).unwrap_or(0);
        let (left, right) = event.as_bytes().split_at(cut.min(event.len()));
        back.sse().await;
        if !left.is_empty() {
            back.chunk(left).await;
        }
        tokio::task::yield_now().await;
        if !right.is_empty() {
            back.chunk(right).await;
        }
        back.end().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    for cut in 30..66 {
        let text = rig.call("tools/call", &format!(r#"{{"cut":{cut}}}"#)).await.expect("an answer");
        assert!(text.ends_with(r#""result":{"t":"é漢😀"}}"#), "{cut}: {text}");
    }
}

#[tokio::test]
async fn malformed_events_are_errors_and_events_of_other_kinds_are_not() {
    for (bytes, what) in [
        (&b"data: {\"t\":\"\xc3\x28\"}\n\n"[..], "not valid JSON"),
        (b"data: {]\n\n", "not valid JSON"),
        (b"data: 5\n\n", "no JSON-RPC response"),
    ] {
        let stub = Stub::mcp(move |_, mut back| async move {
            back.sse().await;
            back.chunk("event: endpoint\ndata: /elsewhere\n\n: comment\n\nid: 7\ndata:\n\n").await;
            back.chunk(bytes).await;
            back.end().await;
            back
        })
        .await;
        let told = protocol(Rig::to(&stub).call("tools/call", "{}").await);
        assert!(told.contains(what), "{told}");
    }
}

#[tokio::test]
async fn an_event_larger_than_the_limit_is_an_error() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(answer(&asked, &format!(r#"{{"t":"{}"}}"#, "x".repeat(5000)))).await;
        back.end().await;
        back
    })
    .await;
    let rig = Rig::with(stub.url.clone(), |config| config.max_message = 4096);
    assert_eq!(
        protocol(rig.call("tools/call", "{}").await),
        "its message is larger than max_message"
    );
}

#[tokio::test]
async fn answers_of_others_are_dropped_and_counted_and_the_first_of_ours_is_taken() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(r#"{"jsonrpc":"2.0","id":4711,"result":{"secret":1}}"#).await;
        let id = asked.id();
        back.event(format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":{{"secret":1}}}}"#)).await;
        let both = [answer(&asked, r#"{"n":1}"#), answer(&asked, r#"{"n":2}"#)];
        back.chunk(both.map(|text| format!("data: {text}\n\n")).concat()).await;
        back.end().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let text = rig.call("tools/call", "{}").await.expect("an answer");
    assert!(text.contains(r#"{"n":1}"#), "{text}");
    assert_eq!(rig.metrics.stray.get(), 3);
}

#[tokio::test]
async fn connections_of_event_streams_are_used_again() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(answer(&asked, "{}")).await;
        tokio::task::yield_now().await;
        back.end().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    for _ in 0..50 {
        rig.call("tools/call", "{}").await.expect("an answer");
        assert_eq!(rig.metrics.connections_active.get(), 0);
    }
    // The end of a stream may come after the next call began, which then needs another connection.
    assert!(stub.accepted() <= 4, "{}", stub.accepted());
}

#[tokio::test]
async fn a_stream_that_goes_on_after_the_answer_costs_its_connection() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.sse().await;
        back.event(answer(&asked, "{}")).await;
        for _ in 0..100 {
            back.event(r#"{"jsonrpc":"2.0","method":"notifications/odd"}"#).await;
        }
        std::future::pending::<()>().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    rig.upstream.hello(&shared()).await.expect("a link");
    until("the stream of no call was refused", || stub.asked("GET").len() == 1).await;
    for calls in 2..5 {
        rig.call("tools/call", "{}").await.expect("an answer");
        assert_eq!(stub.accepted(), calls, "it is not used again");
    }
}

#[tokio::test]
async fn silence_ends_a_call_and_tells_the_upstream_but_progress_extends_it() {
    let stub = Stub::mcp(async |asked, mut back| {
        if asked.what() != "tools/call" {
            back.full(202, &[], "").await;
            return back;
        }
        back.sse().await;
        for n in 0..5 {
            back.event(progress(&asked, n)).await;
            sleep(Duration::from_millis(100)).await;
        }
        std::future::pending::<()>().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    rig.upstream.hello(&shared()).await.expect("a link");
    let mut call = request("tools/call", r#"{"_meta":{"progressToken":1}}"#);
    call.timeout = Duration::from_millis(400);
    let began = Instant::now();
    let result = rig.call_with(call).await;
    assert!(
        matches!(result, Err(CallError::Timeout { after, .. }) if after.as_millis() == 400),
        "{result:?}"
    );
    assert!(began.elapsed() > Duration::from_millis(750), "progress counts");
    until("it is cancelled", || stub.asked("notifications/cancelled").len() == 1).await;
    let cancelled = stub.asked("notifications/cancelled")[0].json();
    assert_eq!(cancelled["params"]["requestId"].to_string(), stub.asked("tools/call")[0].id());

    let mut call = request("tools/call", r#"{"_meta":{"progressToken":1}}"#);
    (call.timeout, call.max_timeout) = (Duration::from_millis(400), Duration::from_millis(500));
    let result = rig.call_with(call).await;
    assert!(
        matches!(result, Err(CallError::Timeout { after, .. }) if after.as_millis() == 500),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_call_and_nothing_else() {
    let stub = Stub::mcp(async |asked, mut back| {
        match asked.what().as_str() {
            "tools/call" => std::future::pending().await,
            "tools/list" => back.result(&asked, "{}").await,
            _ => back.full(202, &[], "").await,
        }
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let upstream = Arc::clone(&rig.upstream);
    let call =
        tokio::spawn(async move { upstream.call(&shared(), request("tools/call", "{}")).await });
    until("it arrived", || stub.asked("tools/call").len() == 1).await;
    call.abort();
    until("it is cancelled", || stub.asked("notifications/cancelled").len() == 1).await;
    let cancelled = stub.asked("notifications/cancelled")[0].json();
    assert_eq!(cancelled["params"]["requestId"].to_string(), stub.asked("tools/call")[0].id());
    rig.call("tools/list", "{}").await.expect("an answer");
    rig.until("nothing runs", |rig| rig.metrics.connections_active.get() == 0).await;
    assert_eq!(
        stub.asked("notifications/cancelled").len(),
        1,
        "a call that ended is not cancelled"
    );
}

#[tokio::test]
async fn a_stream_that_ends_early_is_resumed_behind_its_last_event() {
    let sessions = Arc::new(Sessions::default());
    sessions.streams.store(true, Ordering::SeqCst);
    let stub = Stub::sessions(&sessions, async |asked, mut back| {
        match (asked.what().as_str(), asked.header("last-event-id")) {
            ("tools/call", _) => {
                back.sse().await;
                back.chunk("id: e1\nretry: 10\ndata:\n\n").await;
                back.chunk(format!("id: e2\ndata: {}\n\n", progress(&asked, 1))).await;
                back.close();
            }
            ("GET", Some("e2")) => {
                back.sse().await;
                back.chunk("id: e3\ndata:\n\n").await;
                back.close();
            }
            ("GET", Some("e3")) => {
                back.sse().await;
                back.chunk("id: e4\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"n\":1}}\n\n")
                    .await;
                back.chunk("id: e4\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1}}\n\n")
                    .await;
                back.end().await;
            }
            _ => back.full(405, &[], "").await,
        }
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let text = rig.call("tools/call", r#"{"_meta":{"progressToken":1}}"#).await.expect("an answer");
    assert!(text.contains(r#"{"n":1}"#), "{text}");
    assert_eq!(stub.asked("tools/call").len(), 1, "it ran once");
}

#[tokio::test]
async fn a_stream_that_cannot_be_resumed_is_told_as_closed_soon() {
    for first in [
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/odd\"}\n\n",
        "id: 1\nretry: 1\ndata:\n\n",
    ] {
        let sessions = Arc::new(Sessions::default());
        sessions.streams.store(true, Ordering::SeqCst);
        let stub = Stub::sessions(&sessions, move |asked, mut back| async move {
            if asked.what() == "tools/call" {
                back.sse().await;
                back.chunk(first).await;
                back.end().await;
            } else if asked.header("last-event-id").is_some() {
                back.full(500, &[], "").await;
            } else {
                back.full(405, &[], "").await;
            }
            back
        })
        .await;
        let result = Rig::to(&stub).call("tools/call", "{}").await;
        assert!(matches!(result, Err(CallError::Closed { written: true, .. })), "{result:?}");
        assert!(stub.asked("GET").len() <= 4, "attempts are few");
    }
}

#[tokio::test]
async fn changes_on_the_stream_of_no_call_are_told_and_questions_there_refused() {
    let sessions = Arc::new(Sessions::default());
    sessions.streams.store(true, Ordering::SeqCst);
    let stub = Stub::sessions(&sessions, async |asked, mut back| {
        match (asked.what().as_str(), asked.header("last-event-id")) {
            ("GET", None) => {
                back.sse().await;
                back.chunk("id: 1\nretry: 5\ndata:\n\n").await;
                back.event(r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#)
                    .await;
                back.event(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
                back.event(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
                back.chunk("id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}\n\n").await;
                back.close();
            }
            ("GET", Some("2")) => {
                back.sse().await;
                back.event(r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#)
                    .await;
                std::future::pending::<()>().await;
            }
            ("response", _) => back.full(202, &[], "").await,
            _ => back.result(&asked, "{}").await,
        }
        back
    })
    .await;
    let mut rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(rig.notice().await);
    }
    let told = |kind: ListKind| {
        kinds.iter().any(|k| matches!(k, NoticeKind::ListChanged(l) if *l == kind))
    };
    assert!(told(ListKind::Prompts) && told(ListKind::Resources), "{kinds:?}");
    until("both were answered", || stub.asked("response").len() == 2).await;
    let replies = stub.asked("response");
    let reply = |id: &str| replies.iter().find(|r| r.json()["id"] == id).map(Asked::json);
    assert_eq!(reply("p").expect("a pong")["result"].to_string(), "{}");
    assert_eq!(reply("q").expect("a refusal")["error"]["code"], -32602);
    rig.until("one is stray", |rig| rig.metrics.stray.get() == 1).await;
    rig.upstream.shutdown().await;
    rig.until("the stream is closed", |rig| rig.metrics.connections_active.get() == 0).await;
}

#[tokio::test]
async fn a_server_whose_streams_end_at_once_is_not_asked_for_ever() {
    let sessions = Arc::new(Sessions::default());
    sessions.streams.store(true, Ordering::SeqCst);
    let stub = Stub::sessions(&sessions, async |asked, mut back| {
        if asked.what() == "GET" {
            back.sse().await;
            back.chunk("retry: 1\n\n").await;
            back.end().await;
        } else {
            back.result(&asked, "{}").await;
        }
        back
    })
    .await;
    let rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    until("it gave up", || stub.asked("GET").len() == 4).await;
    rig.call("tools/call", "{}").await.expect("an answer");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(stub.asked("GET").len(), 4);
}
