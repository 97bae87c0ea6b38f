//! The upstream of every target: MCP servers on `/a` to `/d` and `/merged`, plain JSON-RPC on
//! `/rpc`. Every answer is made at start; a request costs a scan for its id, method and name.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::catalog::{Answers, SERVERS};
use crate::{Result, child};

/// Answers up to this size are written in one piece with their id.
const COPY_UP_TO: usize = 8 * 1024;

static SESSIONS: AtomicU64 = AtomicU64::new(1);

/// Serves until standard input ends: a runtime for each core, connections handed round.
pub(crate) fn run() -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = listener.local_addr()?;
    let answers = Arc::new(Answers::new());
    let mut workers = Vec::new();
    for _ in 0..crate::cores() {
        let (sender, connections) = unbounded_channel();
        let answers = Arc::clone(&answers);
        std::thread::spawn(move || work(connections, &answers));
        workers.push(sender);
    }
    std::thread::spawn(move || {
        for (stream, worker) in listener.incoming().zip(workers.iter().cycle()) {
            let sent = stream.ok().map(|stream| worker.send(stream));
            sent.transpose().expect("workers run as long as the process");
        }
    });
    child::announce_and_wait(address)
}

fn work(mut connections: UnboundedReceiver<TcpStream>, answers: &Arc<Answers>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        while let Some(stream) = connections.recv().await {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let stream = tokio::net::TcpStream::from_std(stream)?;
            tokio::task::spawn_local(serve(stream, Arc::clone(answers)));
        }
        Ok(())
    })
}

async fn serve(stream: tokio::net::TcpStream, answers: Arc<Answers>) {
    let service = service_fn(|request| answer(request, &answers));
    // A connection that breaks is the caller's to notice.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    answers: &Answers,
) -> std::result::Result<Response<Reply>, Infallible> {
    let (head, body) = request.into_parts();
    match head.method {
        Method::POST => {}
        Method::DELETE => return Ok(status(StatusCode::OK)),
        _ => return Ok(status(StatusCode::METHOD_NOT_ALLOWED)),
    }
    let Ok(body) = body.collect().await else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let body = body.to_bytes();
    let path = head.uri.path();
    if path == "/rpc" {
        return Ok(match value(&body, b"\"id\":") {
            Some(id) => json(id, &answers.plain),
            None => status(StatusCode::NO_CONTENT),
        });
    }
    let Some(server) = SERVERS.iter().position(|server| *server == path) else {
        return Ok(status(StatusCode::NOT_FOUND));
    };
    Ok(answer_mcp(&head.headers, &body, &answers.servers[server], answers))
}

fn answer_mcp(
    headers: &HeaderMap,
    body: &[u8],
    server: &crate::catalog::Server,
    answers: &Answers,
) -> Response<Reply> {
    let method = value(body, b"\"method\":").unwrap_or_default();
    if method != b"\"initialize\"" && !headers.contains_key("mcp-session-id") {
        return status(StatusCode::BAD_REQUEST);
    }
    let Some(id) = value(body, b"\"id\":") else { return status(StatusCode::ACCEPTED) };
    match method {
        b"\"initialize\"" => {
            let mut response = json(id, &answers.initialize);
            let session = format!("stub-{}", SESSIONS.fetch_add(1, Ordering::Relaxed));
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

/// The text of the value behind a key, quotes included. Good for the few messages a run sends:
/// the first such key is the one that is meant, and its value is a number or a plain string.
fn value<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let rest = body[memmem::find(body, key)? + key.len()..].trim_ascii_start();
    let end = match rest.first()? {
        b'"' => memchr::memchr(b'"', &rest[1..])? + 2,
        _ => rest.iter().position(|byte| !byte.is_ascii_digit())?,
    };
    Some(&rest[..end])
}

fn status(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply { parts: [None, None], sized: true });
    *response.status_mut() = status;
    response
}

fn json(id: &[u8], rest: &Bytes) -> Response<Reply> {
    let mut text = Vec::with_capacity(64 + rest.len().min(COPY_UP_TO));
    text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    text.extend_from_slice(id);
    let second = if rest.len() > COPY_UP_TO {
        Some(rest.clone())
    } else {
        text.extend_from_slice(rest);
        None
    };
    let mut response = Response::new(Reply { parts: [Some(text.into()), second], sized: true });
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn sse(id: &[u8], rest: &Bytes) -> Response<Reply> {
    let mut text = Vec::with_capacity(128 + rest.len());
    text.extend_from_slice(b"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":");
    text.extend_from_slice(id);
    text.extend_from_slice(rest);
    text.extend_from_slice(b"\n\n");
    let mut response = Response::new(Reply { parts: [Some(text.into()), None], sized: false });
    let stream = header::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, stream);
    response
}

/// A body of up to two pieces; a stream does not know its length and goes out in chunks.
struct Reply {
    parts: [Option<Bytes>; 2],
    sized: bool,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.iter_mut().find_map(Option::take);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    fn size_hint(&self) -> SizeHint {
        if !self.sized {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.parts.iter().flatten().map(|part| part.len() as u64).sum())
    }
}
