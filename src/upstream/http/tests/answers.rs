//! Whatever an upstream may answer (JSONRPC rows 24 to 29 and 47; C071, C083, C091, C117).

use std::time::Duration;

use super::stub::Stub;
use super::{Rig, protocol};
use crate::upstream::CallError;

/// A server that answers `tools/call` with those bytes; `ID` stands for the id.
async fn answering(bytes: &'static str) -> Stub {
    Stub::mcp(move |asked, mut back| async move {
        if asked.what() == "tools/list" {
            back.result(&asked, r#"{"tools":[]}"#).await;
        } else {
            back.bytes(bytes.replace("ID", &asked.id())).await;
            back.close();
        }
        back
    })
    .await
}

fn ok(media: &str, body: &str) -> &'static str {
    let text =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\nconnection: close\r\n\r\n{body}");
    Box::leak(text.into_boxed_str())
}

#[tokio::test]
async fn what_is_no_answer_is_an_error_and_the_next_call_works() {
    let json = |body| ok("application/json", body);
    for (bytes, what) in [
        (json(r#"{"Output":1}"#), "another id"),
        (json("[]"), "no JSON-RPC response"),
        (json(r#""ok""#), "no JSON-RPC response"),
        (json(""), "empty"),
        (json(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#), "another id"),
        (json(r#"{"jsonrpc":"2.0","id":"ID","result":{}}"#), "another id"),
        (json(r#"{"id":ID,"result":{}}"#), "jsonrpc"),
        (json(r#"{"jsonrpc":"2.0","id":ID}"#), "neither"),
        (json(r#"{"jsonrpc":"2.0","id":ID,"result":3}"#), "no object"),
        (json(r#"{"jsonrpc":"2.0","id":ID,"error":"boom"}"#), "error"),
        (json("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}"), "not valid JSON"),
        (ok("text/html", "<html>"), "text/html"),
        (ok("Text/HTML; charset=utf-8", "<html>"), "text/html"),
        ("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", "202"),
        ("HTTP/1.1 204 No Content\r\n\r\n", "204"),
        ("SMTP ready\r\n\r\n", "not HTTP"),
    ] {
        let stub = answering(bytes).await;
        let rig = Rig::to(&stub);
        let told = protocol(rig.call("tools/call", "{}").await);
        assert!(told.contains(what), "{bytes}: {told}");
        rig.call("tools/list", "{}").await.expect("the next call works");
        assert_eq!(stub.asked("initialize").len(), 1);
    }
}

#[tokio::test]
async fn invalid_utf8_is_an_error() {
    let stub = Stub::mcp(async |asked, mut back| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"t":"??"}}}}"#, asked.id());
        let mut text = text.into_bytes();
        let place = text.iter().position(|byte| *byte == b'?').unwrap_or(0);
        text[place..place + 2].copy_from_slice(&[0xc3, 0x28]);
        back.json(text).await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    assert_eq!(protocol(rig.call("tools/call", "{}").await), "its text is not valid JSON");
}

#[tokio::test]
async fn a_string_in_place_of_an_error_is_kept_for_the_client() {
    let stub =
        answering(ok("application/json", r#"{"jsonrpc":"2.0","id":ID,"error":"boom"}"#)).await;
    let result = Rig::to(&stub).call("tools/call", "{}").await;
    let Err(CallError::Protocol { upstream_error, .. }) = result else { panic!("{result:?}") };
    assert_eq!(upstream_error.as_deref(), Some("boom"));
}

#[tokio::test]
async fn odd_spellings_of_media_types_are_read() {
    for media in [
        "application/json",
        "Application/JSON",
        "application/json;charset=UTF-8",
        "application/json ; a=\"b\"",
    ] {
        let stub = answering(ok(media, r#"{"jsonrpc":"2.0","id":ID,"result":{}}"#)).await;
        Rig::to(&stub).call("tools/call", "{}").await.expect(media);
    }
}

#[tokio::test]
async fn a_refusing_status_is_told_with_when_to_come_back() {
    for (head, status, wait) in [
        ("400 Bad Request", 400, None),
        ("401 Unauthorized", 401, None),
        ("403 Forbidden", 403, None),
        ("413 Too Large", 413, None),
        ("429 Slow\r\nretry-after: 3", 429, Some(3)),
        ("429 Slow\r\nretry-after: soon", 429, None),
        ("503 Busy\r\nretry-after: 99999999", 503, Some(3600)),
        ("500 Oops\r\ncontent-type: text/html", 500, None),
        ("502 Bad Gateway", 502, None),
        ("500 Oops\r\ncontent-encoding: br", 500, None),
        ("500 Oops\r\ncontent-type: text/event-stream", 500, None),
        ("500 Oops\r\nx-long: 1\r\ncontent-type: application/json", 500, None),
    ] {
        let bytes = format!("HTTP/1.1 {head}\r\ncontent-length: 6\r\n\r\n<html>");
        let stub = answering(Box::leak(bytes.into_boxed_str())).await;
        let rig = Rig::to(&stub);
        let result = rig.call("tools/call", "{}").await;
        let Err(CallError::Status { status: told, retry_after, .. }) = result else {
            panic!("{head}: {result:?}")
        };
        assert_eq!((told, retry_after), (status, wait.map(Duration::from_secs)), "{head}");
        rig.call("tools/list", "{}").await.expect("the next call works");
    }
}

#[tokio::test]
async fn an_error_of_this_hop_is_not_the_answer_and_any_other_is() {
    let body = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"x"}}"#;
    for (status, delivered) in [(400, true), (500, true), (401, false), (406, false), (415, false)]
    {
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
        );
        let stub = answering(Box::leak((head + body).into_boxed_str())).await;
        let result = Rig::to(&stub).call("tools/call", "{}").await;
        assert_eq!(result.is_ok(), delivered, "{status}: {result:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_told_as_that() {
    for bytes in [
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"jsonrpc\"",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"jso",
        "HTTP/1.1 200 OK\r\ncontent-ty",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"jsonrpc\"",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    ] {
        let stub = answering(bytes).await;
        let result = Rig::to(&stub).call("tools/call", "{}").await;
        assert!(
            matches!(result, Err(CallError::Closed { written: true, .. })),
            "{bytes}: {result:?}"
        );
    }
}
