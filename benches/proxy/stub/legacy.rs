//! Servers with sessions (2025-11-25). A request costs a scan for its id, method and name.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::Bytes;
use memchr::memmem;

use super::reply::{Reply, changes, json, sse, status};
use super::{check_media, faults, single, value};
use crate::catalog::{Answers, Server};
use crate::scenario::LEGACY;

static SESSIONS: AtomicU64 = AtomicU64::new(1);
/// How every session id begins.
const SESSION: &str = "stub-";

pub(super) fn answer(
    headers: &HeaderMap,
    body: &[u8],
    server: &Server,
    answers: &Answers,
) -> Response<Reply> {
    let method = value(body, b"\"method\":").unwrap_or_default();
    // The question whether it speaks without sessions.
    if method == b"\"server/discover\"" {
        return status(StatusCode::BAD_REQUEST);
    }
    if let Err(what) = check(headers, body, method) {
        faults::note("a server with sessions", what, body);
        return status(StatusCode::BAD_REQUEST);
    }
    let Some(id) = value(body, b"\"id\":") else { return status(StatusCode::ACCEPTED) };
    match method {
        b"\"initialize\"" => {
            let mut response = json(id, &answers.initialize);
            let session = format!("{SESSION}{}", SESSIONS.fetch_add(1, Ordering::Relaxed));
            let session = session.parse().expect("letters and digits");
            response.headers_mut().insert("mcp-session-id", session);
            response
        }
        b"\"ping\"" => json(id, &answers.empty),
        b"\"tools/list\"" => json(id, &server.list),
        b"\"tools/call\"" => match value(body, b"\"name\":").unwrap_or_default() {
            b"\"text_1k\"" => json(id, &server.text_1k),
            b"\"text_64k\"" => json(id, &server.text_64k),
            b"\"sse_1k\"" => sse(id, &server.text_1k),
            _ => json(id, &answers.unknown_tool),
        },
        _ => json(id, &answers.unknown_method),
    }
}

/// What no client of this revision sends.
fn check(headers: &HeaderMap, body: &[u8], method: &[u8]) -> Result<(), &'static str> {
    check_media(headers)?;
    if ["mcp-method", "mcp-name"].iter().any(|name| headers.contains_key(*name)) {
        return Err("a header of another era");
    }
    if memmem::find(body, b"\"io.modelcontextprotocol/").is_some() {
        return Err("_meta of another era");
    }
    let session = single(headers, "mcp-session-id");
    if method == b"\"initialize\"" {
        return if session.is_some() { Err("initialize within a session") } else { Ok(()) };
    }
    check_session(headers, session)
}

fn check_session(headers: &HeaderMap, session: Option<&str>) -> Result<(), &'static str> {
    if !session.is_some_and(|session| session.starts_with(SESSION)) {
        return Err("no session of this server");
    }
    if single(headers, "mcp-protocol-version") != Some(LEGACY) {
        return Err("another MCP-Protocol-Version than was agreed on");
    }
    Ok(())
}

/// The stream of a session that belongs to no request: nothing but changes of the list of tools.
pub(super) fn stream(headers: &HeaderMap) -> Response<Reply> {
    let accepted = single(headers, header::ACCEPT.as_str());
    let checked = match accepted.is_some_and(|accept| accept.contains("text/event-stream")) {
        true => check_session(headers, single(headers, "mcp-session-id")),
        false => Err("Accept does not name event streams"),
    };
    if let Err(what) = checked {
        faults::note("a server with sessions, GET", what, b"");
        return status(StatusCode::BAD_REQUEST);
    }
    let changed = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    changes(None, Bytes::from_static(changed))
}
