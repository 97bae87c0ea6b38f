//! The HTTP side: connections, checks that every request passes, the way to `/mcp` and `/rpc`.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use super::message::{INVALID_REQUEST, NoId, RpcError, print_error};
use super::rpc::Rpc;
use super::service::Server;
use super::sessions::Sessions;
use super::{Answers, endpoint, rpc};

/// Bytes of a request's body, at most.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Bytes of an over-size body that are read and thrown away, so that the client can read why.
const MAX_DISCARDED: usize = 4 * MAX_BODY;
/// Connections there may be.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a request's body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a request's head may take, and how long a connection may idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long open requests may take to finish once the server is ending.
const GRACE: Duration = Duration::from_secs(1);
/// How often idle sessions are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// The body of a response.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The session header.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The revision header.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// What the HTTP side holds.
pub(super) struct Http {
    pub(super) server: Arc<Server>,
    pub(super) sessions: Sessions,
    pub(super) answers: Answers,
    rpc: Rpc,
    /// Running calls, which may outlive the connection that began them.
    calls: Mutex<JoinSet<()>>,
    /// Listening on loopback, where a foreign `Host` means DNS rebinding.
    is_local: bool,
}

impl Http {
    /// An HTTP side without connections that listens on `ip`.
    pub(super) fn new(server: Arc<Server>, answers: Answers, ip: IpAddr) -> Self {
        Self {
            server,
            sessions: Sessions::default(),
            answers,
            rpc: Rpc::default(),
            calls: Mutex::default(),
            is_local: ip.is_loopback(),
        }
    }

    /// Runs a call to its end, whatever becomes of the connection.
    pub(super) fn spawn(&self, call: impl Future<Output = ()> + Send + 'static) {
        let mut calls = self.calls.lock();
        while calls.try_join_next().is_some() {}
        calls.spawn(call);
    }
}

/// Serves connections until the server is ending, and those that there are for a moment longer.
pub(super) async fn serve(listener: TcpListener, http: Arc<Http>) {
    let ending = http.server.ending.clone();
    let mut connections = JoinSet::new();
    let mut sweep = interval(SWEEP);
    loop {
        // All branches are cancel-safe.
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    connections.spawn(connection(stream, Arc::clone(&http)));
                }
                Ok(_) => {}
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = sweep.tick() => http.sessions.sweep(),
            () = ending.cancelled() => break,
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(GRACE, finished).await;
    connections.shutdown().await;
}

async fn connection(stream: TcpStream, http: Arc<Http>) {
    let _ = stream.set_nodelay(true);
    let ending = http.server.ending.clone();
    let service = service_fn(move |request| {
        let http = Arc::clone(&http);
        async move { Ok::<_, Infallible>(respond(&http, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error here is the client's way of leaving.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = ending.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn respond(http: &Http, request: Request<Incoming>) -> Response<Body> {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN).cloned();
    if origin.as_ref().is_some_and(|origin| !is_local_origin(origin)) {
        return refuse(StatusCode::FORBIDDEN, "this origin is not allowed").into();
    }
    let host = headers.get(header::HOST);
    if http.is_local && host.is_some_and(|host| !is_local_host(host)) {
        return refuse(StatusCode::FORBIDDEN, "this host is not allowed").into();
    }
    let mut response = match request.uri().path() {
        "/mcp" if request.method() == Method::OPTIONS => empty(StatusCode::NO_CONTENT),
        "/rpc" if request.method() == Method::OPTIONS => empty(StatusCode::NO_CONTENT),
        "/mcp" => endpoint::respond(http, request).await,
        "/rpc" => rpc::respond(&http.rpc, request).await,
        _ => refuse(StatusCode::NOT_FOUND, "there is only /mcp and /rpc").into(),
    };
    if let Some(origin) = origin {
        allow_origin(response.headers_mut(), origin);
    }
    response
}

/// Lets a page of a local origin read the response (Fetch standard, CORS).
fn allow_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    const METHODS: &str = "POST, GET, DELETE, OPTIONS";
    const REQUEST_HEADERS: &str = "Content-Type, Accept, Authorization, MCP-Protocol-Version, \
                                   Mcp-Session-Id, Last-Event-ID, Mcp-Method, Mcp-Name";
    let fixed = HeaderValue::from_static;
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, fixed("Origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed(METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, fixed(REQUEST_HEADERS));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, fixed("Mcp-Session-Id"));
}

pub(super) fn is_local_origin(origin: &HeaderValue) -> bool {
    let text = origin.to_str().unwrap_or_default();
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(is_local_name)
}

pub(super) fn is_local_host(host: &HeaderValue) -> bool {
    is_local_name(host.to_str().unwrap_or_default())
}

/// Whether a host with or without a port is this machine.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| name.eq_ignore_ascii_case(local))
}

/// Reads a body of JSON.
pub(super) async fn read_json(
    request: Request<Incoming>,
    media_types: &[&str],
) -> Result<Bytes, Refusal> {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let media_type = text(header::CONTENT_TYPE).and_then(|value| value.split(';').next());
    let media_type = media_type.unwrap_or_default().trim();
    if !media_types.iter().any(|wanted| media_type.eq_ignore_ascii_case(wanted)) {
        let why = format!("Content-Type must be {}", media_types[0]);
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    if text(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let why = "no Content-Encoding is supported";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    match timeout(BODY_TIMEOUT, read_body(request.into_body())).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            let why = format!("a body may have {MAX_BODY} bytes");
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, why))
        }
        Ok(Err(_)) => Err(refuse(StatusCode::BAD_REQUEST, "the body ends too early")),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

/// Reads a whole body; `None` if it is too large.
async fn read_body(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let mut bytes = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await.transpose()? {
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > MAX_DISCARDED {
            return Ok(None);
        }
        if length <= MAX_BODY {
            bytes.extend_from_slice(&data);
        }
    }
    Ok((length <= MAX_BODY).then(|| bytes.freeze()))
}

/// A response without body.
pub(super) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::new(Empty::new()));
    *response.status_mut() = status;
    response
}

/// A response with a body of this type.
pub(super) fn full(status: StatusCode, media_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// A response in JSON.
pub(super) fn json(status: StatusCode, text: String) -> Response<Body> {
    full(status, "application/json", Bytes::from(text))
}

/// Why a request is turned away before any message in it is acted on.
pub(super) struct Refusal {
    status: StatusCode,
    /// A JSON-RPC error.
    text: String,
    /// The methods that would do.
    allow: Option<&'static str>,
}

impl Refusal {
    /// A refusal whose body is this JSON-RPC error.
    pub(super) fn new(status: StatusCode, text: String) -> Self {
        Self { status, text, allow: None }
    }

    /// `405`, with the methods that would do.
    pub(super) fn method(allowed: &'static str) -> Self {
        let why = "this HTTP method is not supported";
        Self { allow: Some(allowed), ..refuse(StatusCode::METHOD_NOT_ALLOWED, why) }
    }
}

impl From<Refusal> for Response<Body> {
    fn from(refusal: Refusal) -> Self {
        let mut response = json(refusal.status, refusal.text);
        if let Some(allowed) = refusal.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

/// A refusal for a reason that no message gave.
pub(super) fn refuse(status: StatusCode, why: impl Into<String>) -> Refusal {
    let error = RpcError::new(INVALID_REQUEST, why);
    Refusal::new(status, print_error(None, NoId::Null, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:3000", "[::1]", "[::1]:8080"] {
            assert!(is_local_host(&HeaderValue::from_str(host).unwrap()), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io:80", "::1"] {
            assert!(!is_local_host(&HeaderValue::from_str(host).unwrap()), "{host}");
        }
        assert!(is_local_origin(&HeaderValue::from_static("http://localhost:6274")));
        for origin in ["null", "http://evil.example", "file://localhost", "localhost"] {
            assert!(!is_local_origin(&HeaderValue::from_str(origin).unwrap()), "{origin}");
        }
    }
}
