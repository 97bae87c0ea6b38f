//! The handshake (RFC 6455 §4.2): a GET that asks for a WebSocket is answered with 101, and the connection goes on as one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::super::http::{Answer, Connection, empty, inbound, refusal, retry};
use super::task;
use crate::fault::{Fault, Reason};
use crate::pipeline::{Route, Snapshot, Socket};

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// The only version there is.
const VERSION: &str = "13";
/// The subprotocol that MCP clients offer.
const MCP: &str = "mcp";

/// Whether a request asks for a WebSocket, or would if nothing on the way had taken its headers off.
pub(in crate::downstream) fn is_asked<T>(request: &Request<T>) -> bool {
    let headers = request.headers();
    request.method() == Method::GET
        && (headers.contains_key(SEC_WEBSOCKET_KEY) || names(headers, &UPGRADE, "websocket"))
}

/// Whether one of the comma-separated words of a header is this one.
fn names(headers: &HeaderMap, header: &HeaderName, word: &str) -> bool {
    words(headers, header).any(|other| other.eq_ignore_ascii_case(word))
}

fn words<'a>(headers: &'a HeaderMap, header: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Answers a request for a WebSocket. The connection's task begins once the answer is written.
pub(in crate::downstream) fn upgrade(
    connection: &Arc<Connection>,
    snapshot: Arc<Snapshot>,
    route: Arc<Route>,
    mut request: Request<Incoming>,
) -> Answer {
    let key = match key(&request) {
        Ok(key) => key,
        Err((status, text)) => {
            let mut answer = refusal(status, &Fault::new(Reason::InvalidRequest, text));
            let headers = answer.headers_mut();
            if status == StatusCode::UPGRADE_REQUIRED {
                headers.insert(UPGRADE, WEBSOCKET);
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
            }
            return answer;
        }
    };
    if connection.pipeline.is_draining() {
        let fault = Fault::new(Reason::Overloaded, "the gateway is shutting down");
        let mut answer = refusal(StatusCode::SERVICE_UNAVAILABLE, &fault);
        retry(&mut answer, Some(std::time::Duration::from_secs(1)));
        return answer;
    }
    let mut answer = empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = answer.headers_mut();
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    let offered = words(request.headers(), &SEC_WEBSOCKET_PROTOCOL).any(|offered| offered == MCP);
    if offered && matches!(&*route, Route::Mcp(_)) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(MCP));
    }
    let upgrading = hyper::upgrade::on(&mut request);
    // What the headers of the upgrade say holds for no message.
    let inbound = inbound(connection, snapshot, route, HeaderMap::new());
    let connection = Arc::clone(connection);
    let tracker = connection.serving.connections.clone();
    tracker.spawn(async move {
        match upgrading.await {
            Ok(upgraded) => {
                connection.upgraded.store(true, Ordering::Relaxed);
                let socket = Socket::new(&connection.pipeline, inbound.clone());
                task::run(&connection, &inbound, upgraded, socket).await;
            }
            Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
        }
    });
    answer
}

/// The key of a request that asks for a WebSocket rightly.
fn key(request: &Request<Incoming>) -> Result<String, (StatusCode, &'static str)> {
    let bad = |text| Err((StatusCode::BAD_REQUEST, text));
    let headers = request.headers();
    if request.version() != Version::HTTP_11 {
        return bad("Bad Request: a WebSocket is asked for with HTTP/1.1");
    }
    if !names(headers, &UPGRADE, "websocket") || !names(headers, &CONNECTION, "upgrade") {
        let text = "Upgrade Required: send Connection: Upgrade and Upgrade: websocket; a proxy on the way may have taken them off";
        return Err((StatusCode::UPGRADE_REQUIRED, text));
    }
    if !request.body().is_end_stream() {
        return bad("Bad Request: a request for a WebSocket has no body");
    }
    let mut versions = headers.get_all(SEC_WEBSOCKET_VERSION).iter();
    if !matches!((versions.next(), versions.next()), (Some(version), None) if version == VERSION) {
        let text = "Upgrade Required: Sec-WebSocket-Version must be 13";
        return Err((StatusCode::UPGRADE_REQUIRED, text));
    }
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => key.to_str().unwrap_or_default().trim(),
        _ => return bad("Bad Request: Sec-WebSocket-Key is missing or given twice"),
    };
    if !is_key(key) {
        return bad("Bad Request: Sec-WebSocket-Key must be 16 bytes in Base64");
    }
    Ok(key.to_owned())
}

/// Whether it is the Base64 of 16 bytes.
fn is_key(key: &str) -> bool {
    let symbol = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    key.len() == 24 && key.ends_with("==") && key.bytes().take(22).all(symbol)
}
