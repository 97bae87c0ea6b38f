//! Calls to an upstream without sessions: headers, what precedes the answer, cancellation, refusals.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::stub::{Asked, Back, DISCOVERED, Stub};
use super::{PATIENCE, Rig, listened, protocol, request, sessionless};
use crate::jsonrpc::{Member, Message};
use crate::mcp::{ClientCaps, param_headers};
use crate::upstream::{CallError, CallEvent, Client};

async fn echo(asked: Asked, mut back: Back) -> Back {
    back.result(&asked, "{}").await;
    back
}

#[tokio::test]
async fn each_request_says_all_that_there_is_to_say() {
    let stub = Stub::modern(echo).await;
    let rig = Rig::to(&stub);
    let mut call = request(
        "tools/call",
        r#"{"name":"up.Zürich","arguments":{"zone":"a b","n":2},"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01","progressToken":"t","traceparent":"x"}}"#,
    );
    let span = call.message.member_span(Member::Name).expect("a name");
    call.edits.push((span, Bytes::from_static("\"Zürich\"".as_bytes())));
    let schema = br#"{"properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}"#;
    call.params = Some(param_headers(schema).expect("valid").into());
    call.client = Client {
        caps: ClientCaps::parse(br#"{"elicitation":{}}"#),
        info: Some(Bytes::from_static(br#"{"name":"desk"}"#)),
        log_rank: Some(1),
    };
    rig.upstream.call(&sessionless(), call).await.expect("an answer");
    rig.call_modern("tools/list", "{}").await.expect("an answer");

    let log = stub.log();
    let headers = |asked: &Asked| {
        let ours = |name: &str| name.starts_with("mcp-") || name == "last-event-id";
        let mut headers: Vec<_> = asked.headers.iter().filter(|(name, _)| ours(name)).collect();
        headers.sort();
        headers.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let version = "mcp-protocol-version: 2026-07-28";
    assert_eq!(headers(&log[0]), ["mcp-method: server/discover", version]);
    assert_eq!(
        headers(&log[1]),
        [
            "mcp-method: tools/call",
            "mcp-name: =?base64?WsO8cmljaA==?=",
            "mcp-param-zone: a b",
            version,
        ]
    );
    assert_eq!(headers(&log[2]), ["mcp-method: tools/list", version]);

    let first = &log[0].json()["params"]["_meta"];
    assert_eq!(first["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(first["io.modelcontextprotocol/clientInfo"]["name"], "trunkline");
    assert_eq!(first["io.modelcontextprotocol/clientCapabilities"].to_string(), "{}");
    let sent = log[1].json();
    assert_eq!(sent["params"]["name"], "Zürich");
    let meta = &sent["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "desk");
    assert_eq!(meta["io.modelcontextprotocol/logLevel"], "info");
    assert_eq!(meta["progressToken"], sent["id"]);
    assert_eq!(meta["traceparent"], "x");
    assert_ne!(log[1].id(), log[2].id());
    assert_eq!(stub.asked("GET").len() + stub.asked("DELETE").len(), 0);
}

#[tokio::test]
async fn what_precedes_an_answer_is_told_and_questions_are_not_put() {
    let stub = Stub::modern(async |asked, mut back| {
        let token = &asked.json()["params"]["_meta"]["progressToken"];
        back.sse().await;
        back.chunk(": keep-alive\n\nid: 1\ndata:\n\n").await;
        back.event(r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}"#).await;
        back.event(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
        back.event(format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#)).await;
        back.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#).await;
        back.event(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked.id())).await;
        back.end().await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let (call, mut events) = listened("tools/call", r#"{"_meta":{"progressToken":"t"}}"#);
    rig.upstream.call(&sessionless(), call).await.expect("an answer");
    let Some(CallEvent::Progress(text)) = events.recv().await else { panic!("no progress") };
    assert_eq!(
        text.into_bytes(),
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}"#
    );
    let Some(CallEvent::Notification(message)) = events.recv().await else { panic!("no log") };
    assert_eq!(message.method(), "notifications/message");
    assert!(events.recv().await.is_none());
    assert_eq!(rig.metrics.stray.get(), 2);
    assert_eq!(stub.asked("response").len(), 0);
}

#[tokio::test]
async fn a_stream_that_breaks_off_has_lost_its_request() {
    let stub = Stub::modern(async |_, mut back| {
        back.sse().await;
        back.chunk("id: 7\nretry: 1\ndata:\n\n").await;
        back.end().await;
        back
    })
    .await;
    let result = Rig::to(&stub).call_modern("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Closed { written: true, .. })), "{result:?}");
    assert_eq!(stub.asked("GET").len(), 0);
}

/// A server that never answers calls, and says when it has one and when the connection ended.
async fn patient<F, A>(begin: F) -> (Stub, mpsc::UnboundedReceiver<&'static str>)
where
    F: Fn(Back) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Back> + Send + 'static,
{
    let (told, heard) = mpsc::unbounded_channel();
    let stub = Stub::modern(move |asked, back| {
        let (told, begin) = (told.clone(), begin.clone());
        async move {
            if asked.what() == "tools/list" {
                return echo(asked, back).await;
            }
            let back = begin(back).await;
            let _ = told.send("asked");
            back.closed().await;
            let _ = told.send("closed");
            back
        }
    })
    .await;
    (stub, heard)
}

async fn cancelled_and_timed_out<F, A>(begin: F)
where
    F: Fn(Back) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Back> + Send + 'static,
{
    let (stub, mut heard) = patient(begin).await;
    let rig = Rig::to(&stub);
    let next = async |heard: &mut mpsc::UnboundedReceiver<_>| {
        tokio::time::timeout(PATIENCE, heard.recv()).await.expect("in time").expect("something")
    };
    let upstream = Arc::clone(&rig.upstream);
    let call =
        tokio::spawn(
            async move { upstream.call(&sessionless(), request("tools/call", "{}")).await },
        );
    assert_eq!(next(&mut heard).await, "asked");
    call.abort();
    assert_eq!(next(&mut heard).await, "closed");

    let mut late = request("tools/call", "{}");
    late.timeout = Duration::from_millis(30);
    let result = rig.upstream.call(&sessionless(), late).await;
    assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
    assert_eq!(next(&mut heard).await, "asked");
    assert_eq!(next(&mut heard).await, "closed");

    rig.call_modern("tools/list", "{}").await.expect("an answer");
    assert_eq!(stub.asked("notifications/cancelled").len(), 0);
    assert_eq!(stub.accepted(), 3, "the connections of cancelled calls are not used again");
    rig.until("nothing is in use", |rig| rig.metrics.connections_active.get() == 0).await;
}

#[tokio::test]
async fn a_call_that_is_given_up_before_the_answer_began_closes_its_connection() {
    cancelled_and_timed_out(async |back| back).await;
}

#[tokio::test]
async fn a_call_that_is_given_up_amid_its_stream_closes_its_connection() {
    cancelled_and_timed_out(async |mut back: Back| {
        back.sse().await;
        back.chunk(": here\n\n").await;
        back
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_given_up_amid_its_json_closes_its_connection() {
    cancelled_and_timed_out(async |mut back: Back| {
        back.bytes("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n").await;
        back.bytes("content-length: 900\r\n\r\n{\"jsonrpc\"").await;
        back
    })
    .await;
}

#[tokio::test]
async fn errors_that_answer_the_request_are_its_answer() {
    for (status, code) in [(404, -32601), (400, -32602), (400, -32021), (200, -32603), (500, -1)] {
        let stub = Stub::modern(move |asked, mut back| async move {
            let error = format!(r#"{{"code":{code},"message":"x"}}"#);
            back.error(&asked, status, &error).await;
            back
        })
        .await;
        let answer = Rig::to(&stub).call_modern("tools/call", "{}").await.expect("an answer");
        assert!(answer.contains(&code.to_string()), "{answer}");
        assert_eq!(stub.asked("tools/call").len(), 1);
    }
}

#[tokio::test]
async fn headers_that_the_upstream_refuses_are_told_as_that() {
    for status in [400, 200] {
        let stub = Stub::modern(move |asked, mut back| async move {
            back.error(&asked, status, r#"{"code":-32020,"message":"Mcp-Name"}"#).await;
            back
        })
        .await;
        let result = Rig::to(&stub).call_modern("tools/call", "{}").await;
        assert!(matches!(result, Err(CallError::HeaderMismatch { .. })), "{result:?}");
        assert_eq!(stub.asked("tools/call").len(), 1);
    }
}

/// A server that answers its first calls like this, and then properly.
async fn refusing(times: usize, status: u16, body: &'static str) -> Stub {
    let count = AtomicUsize::new(0);
    Stub::modern(move |asked, mut back| {
        let refuses = count.fetch_add(1, Ordering::SeqCst) < times;
        async move {
            if !refuses {
                return echo(asked, back).await;
            }
            let body = body.replace("ID", &asked.id());
            back.full(status, &[("content-type", "application/json")], body).await;
            back
        }
    })
    .await
}

#[tokio::test]
async fn a_call_that_is_refused_as_no_modern_server_does_is_made_again_once() {
    for (status, body) in [
        (
            400,
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"x","data":{"supported":["2026-07-28"]}}}"#,
        ),
        (
            400,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Unsupported protocol version"}}"#,
        ),
        (
            404,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
        ),
        (404, ""),
        (405, ""),
        (400, "missing session"),
    ] {
        let stub = refusing(1, status, body).await;
        let mut rig = Rig::to(&stub);
        rig.call_modern("tools/call", "{}").await.expect(body);
        assert_eq!(stub.asked("tools/call").len(), 2);
        assert_eq!(stub.asked("server/discover").len(), 2);
        for _ in 0..2 {
            assert!(matches!(rig.notice().await, crate::upstream::NoticeKind::Opened));
        }

        let stub = refusing(9, status, body).await;
        let rig = Rig::to(&stub);
        rig.call_modern("tools/call", "{}").await.expect_err("refused twice");
        assert_eq!(stub.asked("tools/call").len(), 2);
    }
}

#[tokio::test]
async fn a_refusal_of_this_hop_is_not_the_answer() {
    let refused = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"x"}}"#;
    for status in [401, 403, 406, 415, 431, 503] {
        let body = if status == 503 { "" } else { refused };
        let stub = refusing(9, status, body).await;
        let result = Rig::to(&stub).call_modern("tools/call", "{}").await;
        assert!(
            matches!(result, Err(CallError::Status { status: told, .. }) if told == status),
            "{result:?}"
        );
        assert_eq!(stub.asked("tools/call").len(), 1);
    }
    let stub = refusing(9, 200, "{}").await;
    assert!(protocol(Rig::to(&stub).call_modern("tools/call", "{}").await).contains("another id"));
}

#[tokio::test]
async fn notifications_of_sessions_are_not_sent_and_others_are() {
    let stub = Stub::modern(async |_, mut back| {
        back.full(202, &[], "").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    rig.upstream.hello(&sessionless()).await.expect("a link");
    for (method, sent) in [
        ("notifications/roots/list_changed", 0),
        ("notifications/cancelled", 0),
        ("notifications/initialized", 0),
        ("notifications/x", 1),
    ] {
        let message = Message::notification(method, None);
        rig.upstream.notify(&sessionless(), &message).await.expect("taken");
        assert_eq!(stub.asked(method).len(), sent, "{method}");
    }
    let asked = &stub.asked("notifications/x")[0];
    assert_eq!(asked.header("mcp-method"), Some("notifications/x"));
    assert_eq!(asked.header("mcp-protocol-version"), Some("2026-07-28"));
}

#[tokio::test]
async fn discovery_may_be_answered_by_events() {
    let stub = Stub::start(async |asked, mut back| {
        if asked.what() != "server/discover" {
            return echo(asked, back).await;
        }
        back.sse().await;
        back.event(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{DISCOVERED}}}"#, asked.id()))
            .await;
        back.end().await;
        back
    })
    .await;
    Rig::to(&stub).call_modern("tools/call", "{}").await.expect("an answer");
    assert_eq!(stub.asked("initialize").len(), 0);
}
