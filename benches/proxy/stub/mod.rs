//! The upstream of every target: MCP servers with sessions on `/a` to `/d`, `/merged` and `/s`, one without on
//! `/modern`, plain JSON-RPC on `/rpc`, also over WebSocket. Every answer is made at start. Requests that no upstream should get are
//! counted ([`faults`]), so that a run does not measure a gateway that sends them.

pub(crate) mod faults;
mod legacy;
mod modern;
mod plain;
mod reply;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::catalog::{Answers, MODERN, SERVERS, STREAMING};
use crate::{Result, child};
use reply::{Reply, status, text};

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
        .with_upgrades()
        .await;
}

async fn answer(
    request: Request<Incoming>,
    answers: &Arc<Answers>,
) -> std::result::Result<Response<Reply>, Infallible> {
    if request.uri().path() == plain::PATH && request.headers().contains_key(header::UPGRADE) {
        return Ok(plain::upgrade(request, Arc::clone(answers)));
    }
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    match head.method {
        Method::POST => {}
        Method::GET if path == faults::PATH => return Ok(text(faults::told())),
        Method::GET if path == STREAMING => return Ok(legacy::stream(&head.headers)),
        Method::DELETE => return Ok(status(StatusCode::OK)),
        _ => return Ok(status(StatusCode::METHOD_NOT_ALLOWED)),
    }
    let Ok(body) = body.collect().await else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let body = body.to_bytes();
    if path == plain::PATH {
        return Ok(plain::answer(&body, answers));
    }
    if path == plain::EMIT_PATH {
        plain::emit();
        return Ok(status(StatusCode::NO_CONTENT));
    }
    if path == reply::CHANGE_PATH {
        reply::change();
        return Ok(status(StatusCode::NO_CONTENT));
    }
    if path == MODERN {
        return Ok(modern::answer(&head.headers, &body, &answers.modern));
    }
    let Some(server) = SERVERS.iter().position(|(server, _)| *server == path) else {
        return Ok(status(StatusCode::NOT_FOUND));
    };
    Ok(legacy::answer(&head.headers, &body, &answers.servers[server], answers))
}

/// What both eras want of the head of a POST.
fn check_media(headers: &HeaderMap) -> std::result::Result<(), &'static str> {
    if single(headers, header::CONTENT_TYPE.as_str()) != Some("application/json") {
        return Err("Content-Type is not application/json");
    }
    let accept = single(headers, header::ACCEPT.as_str()).unwrap_or_default();
    if !accept.contains("application/json") || !accept.contains("text/event-stream") {
        return Err("Accept does not name both types");
    }
    Ok(())
}

/// The value of a header that is there once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { value.to_str().ok() }
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
