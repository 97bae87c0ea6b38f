//! The WebSocket side (RFC 6455): MCP on `/mcp`, where a connection is a session and carries requests that stand alone
//! as well, and plain JSON-RPC with subscriptions on `/rpc`. A message is a frame.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};

use super::http::{is_local_host, is_local_origin};
use super::message::{Piece, print_error};
use super::outbox::{Outbox, Outgoing, QUEUE};
use super::rpc::Rpc;
use super::service::Server;
use super::session::Reply;
use super::stdio::Client;
use super::topics::Line;

/// Bytes of a message, at most.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// Room of each buffer of a connection.
const BUFFER: usize = 8 * 1024;
/// Connections there may be.
const MAX_CONNECTIONS: usize = 16_384;
/// Messages of one connection that are worked on at once; then it is not read.
const PARALLEL: usize = 1024;
/// How long the upgrade may take.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may take to end.
const GRACE: Duration = Duration::from_secs(1);
/// The subprotocol of MCP.
const MCP: &str = "mcp";

type Sink = SplitSink<WebSocketStream<TcpStream>, Message>;

/// What the connections share.
pub(super) struct Site {
    server: Arc<Server>,
    rpc: Arc<Rpc>,
    /// Listening on loopback, where a foreign `Host` means DNS rebinding.
    is_local: bool,
}

impl Site {
    /// A site without connections that listens on `ip`.
    pub(super) fn new(server: Arc<Server>, ip: IpAddr) -> Self {
        Self { server, rpc: Arc::default(), is_local: ip.is_loopback() }
    }
}

/// Serves connections until the server is ending.
pub(super) async fn serve(listener: TcpListener, site: Arc<Site>) {
    let ending = site.server.ending.clone();
    let mut connections = JoinSet::new();
    loop {
        // All branches are cancel-safe.
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    connections.spawn(connection(stream, Arc::clone(&site)));
                }
                Ok(_) => {}
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            () = ending.cancelled() => break,
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(GRACE, finished).await;
    connections.shutdown().await;
}

/// What is spoken at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Mcp,
    Rpc,
}

async fn connection(stream: TcpStream, site: Arc<Site>) {
    let _ = stream.set_nodelay(true);
    let mut spoken = None;
    #[expect(clippy::result_large_err, reason = "as the library has it")]
    let answer = |request: &Request, mut response: Response| {
        spoken = Some(check(&site, request)?);
        if spoken == Some(Spoken::Mcp) && offers_mcp(request.headers()) {
            let chosen = HeaderValue::from_static(MCP);
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, chosen);
        }
        Ok(response)
    };
    let settings = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let upgrade = accept_hdr_async_with_config(stream, answer, Some(settings));
    let Ok(Ok(socket)) = timeout(UPGRADE_TIMEOUT, upgrade).await else { return };
    let (sink, stream) = socket.split();
    match spoken {
        Some(Spoken::Mcp) => mcp(&site, sink, stream).await,
        Some(Spoken::Rpc) => rpc(&site, sink, stream).await,
        None => {}
    }
}

#[expect(clippy::result_large_err, reason = "as the library has it")]
fn check(site: &Site, request: &Request) -> Result<Spoken, ErrorResponse> {
    let headers = request.headers();
    if headers.get(header::ORIGIN).is_some_and(|origin| !is_local_origin(origin)) {
        return Err(refusal(StatusCode::FORBIDDEN, "this origin is not allowed"));
    }
    let host = headers.get(header::HOST);
    if site.is_local && host.is_some_and(|host| !is_local_host(host)) {
        return Err(refusal(StatusCode::FORBIDDEN, "this host is not allowed"));
    }
    match request.uri().path() {
        "/mcp" => Ok(Spoken::Mcp),
        "/rpc" => Ok(Spoken::Rpc),
        _ => Err(refusal(StatusCode::NOT_FOUND, "there is only /mcp and /rpc")),
    }
}

fn refusal(status: StatusCode, why: &str) -> ErrorResponse {
    let mut refusal = ErrorResponse::new(Some(format!("{why}\n")));
    *refusal.status_mut() = status;
    refusal
}

fn offers_mcp(headers: &HeaderMap) -> bool {
    let offers = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let names = offers.filter_map(|offer| offer.to_str().ok()).flat_map(|offer| offer.split(','));
    names.map(str::trim).any(|name| name == MCP)
}

/// The next message; `None` when there is none any more.
async fn next(stream: &mut SplitStream<WebSocketStream<TcpStream>>) -> Option<Bytes> {
    loop {
        match stream.next().await?.ok()? {
            Message::Text(text) => return Some(text.into()),
            Message::Binary(data) => return Some(data),
            Message::Close(_) => return None,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

/// Serves an MCP client until it goes. What runs then is cancelled.
async fn mcp(site: &Site, sink: Sink, mut stream: SplitStream<WebSocketStream<TcpStream>>) {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let client = Client::new(&site.server, &queue);
    let mut calls = JoinSet::new();
    let writing = write(outgoing, Outgoing::into_text, sink);
    let reading = async {
        while let Some(text) = next(&mut stream).await {
            while calls.len() >= PARALLEL && calls.join_next().await.is_some() {}
            while calls.try_join_next().is_some() {}
            let reply = match Piece::read(&text) {
                Ok(piece) => client.take(piece, &Outbox::into(queue.clone())),
                Err(why) => Reply::Now(print_error(None, client.no_id(), &why)),
            };
            reply.deliver(&queue, &mut calls).await;
        }
    };
    tokio::select! {
        () = reading => {}
        _ = writing => {}
        () = site.server.ending.cancelled() => {}
    }
    client.hang_up();
    calls.shutdown().await;
}

/// Serves a client of plain JSON-RPC until it goes, and its subscriptions with it.
async fn rpc(site: &Site, sink: Sink, mut stream: SplitStream<WebSocketStream<TcpStream>>) {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let line = Arc::new(Line::new(queue.clone()));
    let mut calls = JoinSet::new();
    let writing = write(outgoing, Some, sink);
    let reading = async {
        while let Some(text) = next(&mut stream).await {
            while calls.len() >= PARALLEL && calls.join_next().await.is_some() {}
            while calls.try_join_next().is_some() {}
            let (rpc, line, queue) = (Arc::clone(&site.rpc), Arc::clone(&line), queue.clone());
            calls.spawn(async move {
                if let Some(text) = rpc.answer_on(&text, &line).await {
                    let _ = queue.send(text).await;
                }
            });
        }
    };
    tokio::select! {
        () = reading => {}
        _ = writing => {}
        () = site.server.ending.cancelled() => {}
    }
    site.rpc.topics.leave(&line);
    calls.shutdown().await;
}

/// Writes what comes, several messages at once where several wait. Says goodbye when it is dropped in time.
async fn write<T>(
    mut outgoing: mpsc::Receiver<T>,
    text: impl Fn(T) -> Option<String>,
    mut sink: Sink,
) -> Result<(), Error> {
    while let Some(first) = outgoing.recv().await {
        let mut waiting = Some(first);
        while let Some(message) = waiting {
            if let Some(text) = text(message) {
                sink.feed(Message::text(text)).await?;
            }
            waiting = outgoing.try_recv().ok();
        }
        sink.flush().await?;
    }
    let frame = CloseFrame { code: CloseCode::Away, reason: String::new().into() };
    sink.send(Message::Close(Some(frame))).await
}
