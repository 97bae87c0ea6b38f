//! Plain JSON-RPC, over HTTP and over WebSocket. Methods that end in `sum` are answered at once; `large_…` gives what its
//! name says; `demo_subscribe` subscribes to what [`EMIT_PATH`] lets happen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use futures_util::{FutureExt, SinkExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::{Bytes, Incoming};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::reply::{Reply, json, status, whole};
use super::{faults, value};
use crate::catalog::Answers;

/// Where it is served.
pub(super) const PATH: &str = "/rpc";
/// Where the run says that something has happened which subscribers are told.
pub(super) const EMIT_PATH: &str = "/emit";

/// Counts what has happened.
static EVENTS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));
static SUBSCRIPTIONS: AtomicU64 = AtomicU64::new(1);

/// Something has happened.
pub(super) fn emit() {
    EVENTS.send_modify(|events| *events += 1);
}

/// A POST: one message, or a batch.
pub(super) fn answer(body: &[u8], answers: &Answers) -> Response<Reply> {
    if body.starts_with(b"[") {
        return whole(batch(body, answers));
    }
    match value(body, b"\"id\":") {
        Some(id) => json(id, result(body, answers)),
        None => status(StatusCode::NO_CONTENT),
    }
}

/// The answer to a request, from behind its id.
fn result<'a>(request: &[u8], answers: &'a Answers) -> &'a Bytes {
    match value(request, b"\"method\":").unwrap_or_default() {
        b"\"large_100k\"" => &answers.plain_100k,
        b"\"large_4m\"" => &answers.plain_4m,
        method if method.ends_with(b"sum\"") => &answers.plain,
        _ => &answers.unknown_method,
    }
}

/// All elements of a batch of the run hold an id, which is their last member.
fn batch(body: &[u8], answers: &Answers) -> Vec<u8> {
    let mut text = Vec::with_capacity(body.len() * 2);
    let mut rest = body;
    while let Some(id) = value(rest, b"\"id\":") {
        text.push(if text.is_empty() { b'[' } else { b',' });
        write(&mut text, id, result(rest, answers));
        let behind = memmem::find(rest, id).map_or(rest.len(), |at| at + id.len());
        rest = &rest[behind..];
    }
    text.push(b']');
    text
}

fn write(text: &mut Vec<u8>, id: &[u8], result: &[u8]) {
    text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    text.extend_from_slice(id);
    text.extend_from_slice(result);
}

/// Answers the request for a WebSocket; what is said on it is a task of its own.
pub(super) fn upgrade(mut request: Request<Incoming>, answers: Arc<Answers>) -> Response<Reply> {
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let accept = key.map(|key| derive_accept_key(key.as_bytes()));
    let Some(accept) = accept.and_then(|accept| HeaderValue::try_from(accept).ok()) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::task::spawn_local(async move {
        let Ok(upgraded) = upgrading.await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None);
        // A connection that breaks is the caller's to notice.
        let _ = talk(socket.await, &answers).await;
    });
    let mut response = status(StatusCode::SWITCHING_PROTOCOLS);
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

async fn talk(mut socket: Socket, answers: &Answers) -> Result<(), Error> {
    let mut events = EVENTS.subscribe();
    let mut subscriptions: Vec<String> = Vec::new();
    loop {
        tokio::select! {
            message = socket.next() => {
                if message.is_none() {
                    return Ok(());
                }
                // What has come together is answered together.
                let mut next = message;
                while let Some(message) = next {
                    if let Message::Text(request) = message?
                        && let Some(answer) = told(request.as_bytes(), answers, &mut subscriptions)
                    {
                        socket.feed(Message::text(answer)).await?;
                    }
                    next = socket.next().now_or_never().flatten();
                }
                socket.flush().await?;
            }
            Ok(()) = events.changed() => {
                let number = *events.borrow_and_update();
                for id in &subscriptions {
                    let text = format!(
                        r#"{{"jsonrpc":"2.0","method":"demo_subscription","params":{{"subscription":{id},"result":{{"number":{number}}}}}}}"#
                    );
                    socket.feed(Message::text(text)).await?;
                }
                socket.flush().await?;
            }
        }
    }
}

/// The answer to one request.
fn told(request: &[u8], answers: &Answers, subscriptions: &mut Vec<String>) -> Option<String> {
    let id = value(request, b"\"id\":")?;
    let mut text = Vec::new();
    match value(request, b"\"method\":").unwrap_or_default() {
        b"\"demo_subscribe\"" => {
            let name = format!("\"0x{:x}\"", SUBSCRIPTIONS.fetch_add(1, Ordering::Relaxed));
            write(&mut text, id, format!(",\"result\":{name}}}").as_bytes());
            subscriptions.push(name);
        }
        b"\"demo_unsubscribe\"" => write(&mut text, id, b",\"result\":true}"),
        _ => write(&mut text, id, result(request, answers)),
    }
    match String::from_utf8(text) {
        Ok(text) => Some(text),
        Err(_) => {
            faults::note("plain JSON-RPC", "no UTF-8", request);
            None
        }
    }
}
