use serde_json::json;

use super::super::super::link::NoticeKind;
use super::far::Far;
use super::*;
use crate::mcp::ListKind;

const NOISE: &str = "Starting v1.2\n\n2026-01-02 INFO x\n-5\n\"str\"\nnull\n😀\n   \r\n{\"level\":\"info\"}\n[x] ok\n{oops\n";

fn small(max_message: usize) -> Far {
    Far::with(UpstreamConfig { max_message, ..Default::default() }, 64 * 1024)
}

#[tokio::test(start_paused = true)]
async fn noise_is_skipped_and_counted_and_breaks_nothing() {
    let mut far = Far::new();
    let channel = Arc::clone(&far.channel);
    let greeted = tokio::spawn(async move { channel.greet(Duration::from_secs(30), false).await });
    let line = far.line().await;
    assert_eq!(line["method"], "initialize");
    assert_eq!(line["params"]["protocolVersion"], "2025-11-25");
    far.write(NOISE.as_bytes()).await;
    far.write(b"\xef\xbb\xbf").await;
    let hello = json!({ "protocolVersion": "2025-03-26", "capabilities": { "tools": {} }, "serverInfo": { "name": "u" } });
    far.answer(line["id"].as_u64().unwrap(), hello).await;
    let hello = greeted.await.unwrap().unwrap();
    assert_eq!(hello.version.as_str(), "2025-03-26");
    assert!(hello.caps.tools);
    assert_eq!(far.line().await["method"], "notifications/initialized");
    for round in 0..10 {
        let running = far.begin(1).await;
        far.write(NOISE.as_bytes()).await;
        far.answer(running.id, json!({ "round": round })).await;
        assert_eq!(result(&running.end().await), json!({ "round": round }));
    }
    assert_eq!(far.noise(), 11 * NOISE.lines().count() as u64);
    assert_eq!(far.stray(), 0);
}

#[tokio::test(start_paused = true)]
async fn lines_of_any_size_up_to_the_limit_pass_unchanged() {
    let mut far = Far::new();
    for length in [65_535, 65_536, 65_537, 1 << 20] {
        let running = far.begin(1).await;
        let text = format!("{}{}", "a".repeat(length % 3), "€".repeat(length / 3));
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"n":1.0,"t":"{text}"}}}}"#, running.id);
        far.write(format!("{line}\r\n").as_bytes()).await;
        assert_eq!(running.end().await.unwrap().text(), line.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_runaway_line_fails_the_only_call_and_the_next_works() {
    let mut far = small(64 * 1024);
    let running = far.begin(1).await;
    for _ in 0..256 {
        far.write(&[b'x'; 16 * 1024]).await;
    }
    far.write(b"\n").await;
    let ended = running.end().await;
    let Err(CallError::Protocol { what, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!(what, "a line over max_message = 65536");
    let next = far.begin(1).await;
    far.answer(next.id, json!({ "ok": true })).await;
    assert_eq!(result(&next.end().await), json!({ "ok": true }));
}

#[tokio::test(start_paused = true)]
async fn a_runaway_line_is_blamed_on_nobody_when_several_calls_wait() {
    let mut far = small(1024);
    let (one, two) = (far.begin(1).await, far.begin(2).await);
    far.write(&[b'x'; 2000]).await;
    far.write(b"\n").await;
    far.answer(one.id, json!({})).await;
    far.answer(two.id, json!({})).await;
    assert!(one.end().await.is_ok() && two.end().await.is_ok());
    assert_eq!(far.stray(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_answer_fails_its_own_call_at_once() {
    let mut far = Far::new();
    for broken in [&b"\"\xff\""[..], b"NaN", "[".repeat(600).as_bytes()] {
        let other = far.begin(2).await;
        let running = far.begin(1).await;
        let head = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"x":"#, running.id);
        far.write(&[head.as_bytes(), broken, b"}}\n"].concat()).await;
        assert!(matches!(running.end().await, Err(CallError::Protocol { .. })));
        far.answer(other.id, json!({})).await;
        assert!(other.end().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_must_hold_a_result_object_or_an_error_object() {
    let mut far = Far::new();
    for (members, said) in [
        (r#""error":"no such tool""#, Some("no such tool")),
        (r#""result":3"#, None),
        (r#""id2":3"#, None),
    ] {
        let running = far.begin(1).await;
        far.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{members}}}\n", running.id).as_bytes())
            .await;
        let ended = running.end().await;
        let Err(CallError::Protocol { upstream_error, .. }) = ended else {
            panic!("{members}: {ended:?}")
        };
        assert_eq!(upstream_error.as_deref(), said, "{members}");
    }
    // Of both the error wins, and is counted.
    let running = far.begin(1).await;
    let error = json!({ "code": 1, "message": "m" });
    far.send(json!({ "jsonrpc": "2.0", "id": running.id, "result": {}, "error": error })).await;
    assert_eq!(json(&running.end().await.unwrap().error().unwrap()), error);
    assert_eq!(far.stray(), 1);
    let running = far.begin(1).await;
    let error = json!({ "code": -32602, "message": "Unknown tool" });
    far.send(json!({ "jsonrpc": "2.0", "id": running.id, "error": error })).await;
    assert_eq!(json(&running.end().await.unwrap().error().unwrap()), error);
}

#[tokio::test(start_paused = true)]
async fn the_elements_of_a_batch_are_taken_one_by_one() {
    let mut far = Far::new();
    let (mut one, two) = (far.begin(1).await, far.begin(2).await);
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
        "params": { "progressToken": one.id, "progress": 1 } });
    let answer = |id| json!({ "jsonrpc": "2.0", "id": id, "result": {} });
    far.send(json!([progress, answer(two.id), 7, answer(one.id)])).await;
    assert_eq!(one.progress().await["progress"], 1);
    assert!(one.end().await.is_ok() && two.end().await.is_ok());
    assert_eq!(far.stray(), 1);
}

#[tokio::test(start_paused = true)]
async fn changes_are_reported_and_merge_while_nobody_listens() {
    let mut far = Far::new();
    let changed = |list: &str| json!({ "jsonrpc": "2.0", "method": format!("notifications/{list}/list_changed") });
    for _ in 0..10 {
        far.send(changed("tools")).await;
        far.send(changed("prompts")).await;
    }
    let updated = json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": "a:b" } });
    far.send(updated).await;
    let running = far.begin(1).await;
    far.answer(running.id, json!({})).await;
    assert!(running.end().await.is_ok());
    // Four fit into the queue, one of each list waits behind it, and the update was dropped.
    let mut lists = Vec::new();
    for _ in 0..6 {
        match far.notices.recv().await.unwrap().kind {
            NoticeKind::ListChanged(list) => lists.push(list),
            other => panic!("{other:?}"),
        }
    }
    lists[4..].sort();
    let (tools, prompts) = (ListKind::Tools, ListKind::Prompts);
    assert_eq!(lists, [tools, prompts, tools, prompts, tools, prompts]);
    assert!(far.notices.try_recv().is_err());
    assert_eq!(far.stray(), 1);
    // What waited is not taken for what comes now.
    for list in ["tools", "resources"] {
        far.send(changed(list)).await;
        let kind = far.notices.recv().await.unwrap().kind;
        assert!(
            matches!(kind, NoticeKind::ListChanged(told) if told.method() == format!("{list}/list"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn log_messages_go_to_the_only_caller_or_are_nobodys() {
    let mut far = Far::new();
    let log = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": 1 } });
    far.send(log.clone()).await;
    assert!(matches!(far.notices.recv().await.unwrap().kind, NoticeKind::Log(_)));
    let (mut first, mut second) = (far.begin(1).await, far.begin(1).await);
    far.send(log.clone()).await;
    assert!(matches!(first.event().await, CallEvent::Notification(_)));
    assert!(second.events.try_recv().is_err());
    let _stranger = far.begin(2).await;
    far.send(log).await;
    assert!(matches!(far.notices.recv().await.unwrap().kind, NoticeKind::Log(_)));
}
