//! Where WebSocket connections lead, and how one is opened: dialled, upgraded, checked (RFC 6455 §4.1).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_TYPE, HeaderName, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::CallError;
use super::super::dial::{Dialer, NoConnection, Offer};
use super::super::http::{headers, parse_retry_after, path_of};
use crate::config::{Protocol, UpstreamConfig, UpstreamName};
use crate::net::Stream;

/// Room of the buffers that each connection has for as long as it lives.
const BUFFER: usize = 8 * 1024;

/// An open connection.
pub(super) type Socket = WebSocketStream<Stream>;

/// One upstream that is spoken to over WebSocket.
#[derive(Debug)]
pub(in crate::upstream) struct Target {
    name: UpstreamName,
    config: Arc<UpstreamConfig>,
    dialer: Dialer,
    uri: Uri,
    /// Headers of every upgrade but its key.
    headers: HeaderMap,
    /// The subprotocol that is offered.
    subprotocol: Option<HeaderValue>,
    tasks: TaskTracker,
}

impl Target {
    /// Whether an upstream is to be spoken to over WebSocket.
    pub(in crate::upstream) fn serves(config: &UpstreamConfig) -> bool {
        config.url.as_ref().is_some_and(|url| matches!(url.scheme(), "ws" | "wss" | "ws+unix"))
    }

    /// Dials nothing. Says what is wrong with an address that cannot be served.
    pub(in crate::upstream) fn new(
        name: &UpstreamName,
        config: &Arc<UpstreamConfig>,
        (tasks, stop): (&TaskTracker, &CancellationToken),
    ) -> Result<Self, String> {
        let dialer = Dialer::new(name, config, Offer::Http1, (tasks, stop))?;
        let url = dialer.url();
        let uri = path_of(url).ok_or("the path of its url cannot be sent")?;
        let mut headers = headers(name, config, url).ok_or("the host of its url cannot be sent")?;
        for http_only in [CONTENT_TYPE, ACCEPT] {
            headers.remove(http_only);
        }
        let subprotocol = subprotocol(config).map(HeaderValue::from_str).transpose();
        let subprotocol = subprotocol.map_err(|_| "its subprotocol cannot be sent")?;
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        if let Some(subprotocol) = &subprotocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, subprotocol.clone());
        }
        Ok(Self {
            name: name.clone(),
            config: Arc::clone(config),
            dialer,
            uri,
            headers,
            subprotocol,
            tasks: tasks.clone(),
        })
    }

    /// Opens a connection. Names are looked up each time.
    ///
    /// # Errors
    /// [`CallError::Connect`], [`CallError::Timeout`]; [`CallError::Status`] and [`CallError::Protocol`] when there is
    /// no WebSocket at the url.
    pub(super) async fn dial(&self) -> Result<Socket, CallError> {
        let stream = match self.dialer.dial().await {
            Ok(stream) => stream,
            Err(NoConnection { what, source }) => return Err(self.connect(what, source)),
        };
        let limit = self.config.first_byte_timeout.unwrap_or(self.config.timeout);
        match timeout(limit, self.upgrade(stream)).await {
            Ok(upgraded) => upgraded,
            Err(_) => Err(CallError::Timeout { upstream: self.name.clone(), after: limit }),
        }
    }

    async fn upgrade(&self, stream: Stream) -> Result<Socket, CallError> {
        let broken = |error: hyper::Error| {
            if error.is_parse() || error.is_parse_too_large() {
                return self.protocol("it answered the upgrade with something that is not HTTP");
            }
            self.connect(format!("the upgrade failed: {error}"), None)
        };
        let (mut sender, connection) = http1::Builder::new()
            // Some servers take no other spelling of `Upgrade` and `Connection`.
            .title_case_headers(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // It ends with the upgrade, or with `sender`.
        self.tasks.spawn(connection.with_upgrades());
        let key = generate_key();
        let response = sender.send_request(self.request(&key)?).await.map_err(broken)?;
        self.check(&response, &key)?;
        let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
        let parts = upgraded
            .downcast::<TokioIo<Stream>>()
            .map_err(|_| self.connect("the upgrade failed", None))?;
        let limit = Some(self.config.max_message);
        let settings = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(BUFFER)
            .max_message_size(limit)
            .max_frame_size(limit);
        let (stream, early) = (parts.io.into_inner(), parts.read_buf.to_vec());
        Ok(WebSocketStream::from_partially_read(stream, early, Role::Client, Some(settings)).await)
    }

    fn request(&self, key: &str) -> Result<Request<Empty<Bytes>>, CallError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let key = HeaderValue::from_str(key).map_err(|_| self.connect("no key was made", None))?;
        request.headers_mut().insert(SEC_WEBSOCKET_KEY, key);
        Ok(request)
    }

    /// Whether the answer agrees to the upgrade. A server that chooses no subprotocol is content with any.
    fn check(&self, response: &Response<Incoming>, key: &str) -> Result<(), CallError> {
        let status = response.status();
        let headers = response.headers();
        if status.is_success() {
            return Err(self.protocol("it does not speak WebSocket at its url"));
        }
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(CallError::Status {
                upstream: self.name.clone(),
                status: status.as_u16(),
                retry_after: retry_after(headers),
            });
        }
        let accepted = derive_accept_key(key.as_bytes());
        let what = if !has_token(headers, &UPGRADE, "websocket") {
            "it upgrades to something else than WebSocket"
        } else if !has_token(headers, &CONNECTION, "upgrade") {
            "its answer to the upgrade has no Connection: Upgrade"
        } else if headers.get(SEC_WEBSOCKET_ACCEPT).is_none_or(|value| *value != accepted) {
            "its answer to the upgrade has a wrong Sec-WebSocket-Accept"
        } else if headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            "it wants an extension that was not offered"
        } else if !self.offered(headers) {
            "it chooses a subprotocol that was not offered"
        } else {
            return Ok(());
        };
        Err(self.protocol(what))
    }

    fn offered(&self, headers: &HeaderMap) -> bool {
        let chosen = headers.get(SEC_WEBSOCKET_PROTOCOL);
        chosen.is_none_or(|chosen| Some(chosen) == self.subprotocol.as_ref())
    }

    fn connect(&self, what: impl Into<String>, source: Option<std::io::Error>) -> CallError {
        CallError::Connect { upstream: self.name.clone(), what: what.into(), source }
    }

    fn protocol(&self, what: &str) -> CallError {
        CallError::Protocol {
            upstream: self.name.clone(),
            what: what.to_owned(),
            upstream_error: None,
        }
    }
}

/// The subprotocol that is offered to an upstream: as configured, `mcp` for MCP, else none.
fn subprotocol(config: &UpstreamConfig) -> Option<&str> {
    match (config.subprotocol.as_deref(), config.protocol) {
        (Some(""), _) | (None, Protocol::JsonRpc) => None,
        (Some(configured), _) => Some(configured),
        (None, Protocol::Mcp) => Some("mcp"),
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let texts = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|word| word.trim().eq_ignore_ascii_case(token))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, jiff::Timestamp::now())
}
