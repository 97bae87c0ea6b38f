//! One HTTP request: checked, read, handed to the pipeline, answered.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use super::accept::{Accepts, is_json, is_undeclared};
use super::body::{ExchangeBody, OutBody, PieceBody, Running, StreamBody};
use super::inflate::Coding;
use super::{Serving, cors, inflate, intake, ws};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Chunks, NullId};
use crate::mcp::SESSION_HEADER;
use crate::net::Peer;
use crate::pipeline::{Done, Inbound, Pipeline, Reply, Route, Run, Snapshot, Spot};
use crate::telemetry::RouteMetrics;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What every request of one connection knows.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) pipeline: Arc<Pipeline>,
    /// What its listener shares with all others.
    pub(super) serving: Serving,
    pub(super) peer: Peer,
    /// It came in where only this machine can.
    pub(super) local: bool,
    /// It is a WebSocket now, which has a clock of its own for a client that does not read.
    pub(super) upgraded: Arc<AtomicBool>,
    /// Held as long as it lasts, whatever it is upgraded to.
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) type Answer = Response<OutBody>;

/// Serves one request.
pub(super) async fn serve(connection: &Arc<Connection>, request: Request<Incoming>) -> Answer {
    let snapshot = connection.pipeline.snapshot();
    let host = host(&request);
    let origin = request.headers().get(ORIGIN).cloned();
    // Which of several counts is for nobody to choose: they are as good as one that is not allowed.
    let single = request.headers().get_all(ORIGIN).iter().count() < 2;
    let origin_text = origin.as_ref().map(|origin| match origin.to_str() {
        Ok(text) if single => text,
        _ => "",
    });
    if let Err(refused) = snapshot.origin.check(host, origin_text, connection.local) {
        let fault = Fault::new(Reason::Forbidden, refused.to_string());
        return refusal(StatusCode::FORBIDDEN, &fault);
    }
    let found = snapshot.route(request.uri().path());
    let mut answer = match found.map(|(route, spot)| (Arc::clone(route), spot)) {
        Some((route, Spot::Own)) if ws::is_asked(&request) => {
            ws::upgrade(connection, snapshot, route, request)
        }
        Some((route, Spot::Own)) => dispatch(connection, snapshot, route, request).await,
        Some(at) => older(connection, snapshot, at, request).await,
        None => text(StatusCode::NOT_FOUND, "nothing is served at this path\n"),
    };
    if let Some(origin) = origin {
        cors::allow(answer.headers_mut(), &origin);
    }
    answer
}

/// Which host a request is for: the authority of its target, if that has one, else its only `Host` (RFC 9112 §3.2).
fn host<T>(request: &Request<T>) -> Option<&str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let only = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, _) => None,
        (Some(_), Some(_)) => return None,
    };
    request.uri().authority().map(http::uri::Authority::as_str).or(only)
}

async fn dispatch(
    connection: &Connection,
    snapshot: Arc<Snapshot>,
    route: Arc<Route>,
    request: Request<Incoming>,
) -> Answer {
    let plain = matches!(&*route, Route::Plain(_));
    let methods = if plain { "POST, OPTIONS" } else { "POST, GET, DELETE, OPTIONS" };
    match *request.method() {
        Method::POST => post(connection, snapshot, (route, Spot::Own), request).await,
        Method::OPTIONS => preflight(request.headers(), methods),
        Method::GET if !plain => {
            if !Accepts::of(request.headers()).events {
                return no_events();
            }
            let inbound = inbound(connection, snapshot, route, request.into_parts().0.headers);
            let reply = connection.pipeline.open_stream(&inbound);
            send(connection, &inbound.snapshot, reply, Accepts { json: true, events: true }).await
        }
        Method::DELETE if !plain => {
            let inbound = inbound(connection, snapshot, route, request.into_parts().0.headers);
            let reply = connection.pipeline.delete(&inbound);
            send(connection, &inbound.snapshot, reply, Accepts { json: true, events: true }).await
        }
        _ => not_allowed(methods),
    }
}

/// The two paths of HTTP+SSE (MCP 2024-11-05, transports).
async fn older(
    connection: &Connection,
    snapshot: Arc<Snapshot>,
    (route, spot): (Arc<Route>, Spot),
    request: Request<Incoming>,
) -> Answer {
    let methods = if spot == Spot::Events { "GET, OPTIONS" } else { "POST, OPTIONS" };
    match (request.method(), spot) {
        (&Method::OPTIONS, _) => preflight(request.headers(), methods),
        (&Method::POST, Spot::Messages) => post(connection, snapshot, (route, spot), request).await,
        (&Method::GET, Spot::Events) => {
            if !Accepts::of(request.headers()).events {
                return no_events();
            }
            let slashed = request.uri().path().ends_with('/');
            let inbound = inbound(connection, snapshot, route, request.into_parts().0.headers);
            let reply = connection.pipeline.connect(&inbound, slashed);
            send(connection, &inbound.snapshot, reply, Accepts { json: true, events: true }).await
        }
        _ => not_allowed(methods),
    }
}

/// The token of a POST of HTTP+SSE.
fn token(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("session="))
}

fn preflight(headers: &HeaderMap, methods: &'static str) -> Answer {
    let mut answer = empty(StatusCode::NO_CONTENT);
    cors::preflight(answer.headers_mut(), headers, methods);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = empty(StatusCode::METHOD_NOT_ALLOWED);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn no_events() -> Answer {
    let fault = Fault::new(
        Reason::InvalidRequest,
        "Not Acceptable: GET opens an event stream; accept text/event-stream",
    );
    message(StatusCode::NOT_ACCEPTABLE, error_text(&fault))
}

async fn post(
    connection: &Connection,
    snapshot: Arc<Snapshot>,
    (route, spot): (Arc<Route>, Spot),
    request: Request<Incoming>,
) -> Answer {
    let (parts, mut body) = request.into_parts();
    let tasks = connection.pipeline.tasks();
    let (accepts, coding) = match check_head(&route, spot, &parts.headers) {
        Ok(head) => head,
        Err((status, fault)) => {
            tasks.spawn(intake::drain(body));
            let mut answer = message(status, error_text(&fault));
            if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
                // RFC 9110 §12.5.3: what could have been sent.
                let taken = HeaderValue::from_static(inflate::TAKEN);
                answer.headers_mut().insert(ACCEPT_ENCODING, taken);
            }
            return answer;
        }
    };
    let server = &snapshot.server;
    let limits = (server.max_body, &snapshot.budget);
    let read = intake::read(&mut body, coding, limits, server.body_timeout).await;
    let payload = match read {
        Ok(payload) => payload,
        Err(intake::Unread::Full) => {
            tasks.spawn(intake::drain(body));
            return overloaded();
        }
        Err(intake::Unread::TooLarge) => {
            tasks.spawn(intake::drain(body));
            let fault = Fault::new(
                Reason::MessageTooLarge,
                format!("the body is larger than max_body = {} bytes", server.max_body),
            );
            return message(StatusCode::PAYLOAD_TOO_LARGE, error_text(&fault));
        }
        Err(intake::Unread::Broken) => {
            let fault = Fault::new(
                Reason::InvalidRequest,
                "Bad Request: the body is broken off or malformed",
            );
            return message(StatusCode::BAD_REQUEST, error_text(&fault));
        }
        Err(intake::Unread::TimedOut) => {
            let fault = Fault::new(Reason::InvalidRequest, "the body did not arrive in time");
            return message(StatusCode::REQUEST_TIMEOUT, error_text(&fault));
        }
    };
    route.metrics().bytes_in.inc_by(payload.len() as u64);
    let inbound =
        Inbound { payload, ..inbound(connection, Arc::clone(&snapshot), route, parts.headers) };
    let version = parts.version;
    let reply = match spot {
        Spot::Messages => connection.pipeline.deliver(inbound, token(&parts.uri)),
        Spot::Own | Spot::Events => connection.pipeline.post(inbound).await,
    };
    // Before HTTP/1.1 the end of a body is the end of its connection: one that is cut short could be taken as whole.
    if let (Reply::Run(run), true) = (&reply, version >= Version::HTTP_11) {
        run.outlet.accept_pieces();
    }
    send(connection, &snapshot, reply, accepts).await
}

/// Media types and coding, before the body is read.
fn check_head(
    route: &Route,
    spot: Spot,
    headers: &HeaderMap,
) -> Result<(Accepts, Option<Coding>), (StatusCode, Fault)> {
    let lenient = matches!(route, Route::Plain(route) if route.lenient_content_type);
    let takes = is_json(headers) || (lenient && is_undeclared(headers));
    if !takes {
        let fault = Fault::new(
            Reason::InvalidRequest,
            "Unsupported Media Type: send Content-Type: application/json in UTF-8",
        );
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, fault));
    }
    let coding = Coding::of(headers).map_err(|()| {
        let fault = Fault::new(
            Reason::InvalidRequest,
            "Unsupported Media Type: send the body as it is, or with one Content-Encoding of gzip and deflate",
        );
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, fault)
    })?;
    let accepts = match (route, spot) {
        // Answers of plain routes are JSON whatever the client would like better; those of HTTP+SSE are on its stream.
        (Route::Plain(_), _) | (Route::Mcp(_), Spot::Messages) => {
            Accepts { json: true, events: false }
        }
        (Route::Mcp(_), Spot::Own | Spot::Events) => Accepts::of(headers),
    };
    if !accepts.json && !accepts.events {
        let fault = Fault::new(
            Reason::InvalidRequest,
            "Not Acceptable: accept application/json, text/event-stream or both",
        );
        return Err((StatusCode::NOT_ACCEPTABLE, fault));
    }
    Ok((accepts, coding))
}

pub(super) fn inbound(
    connection: &Connection,
    snapshot: Arc<Snapshot>,
    route: Arc<Route>,
    headers: HeaderMap,
) -> Inbound {
    Inbound { route, snapshot, headers, peer: connection.peer, payload: bytes::Bytes::new() }
}

async fn send(
    connection: &Connection,
    snapshot: &Snapshot,
    reply: Reply,
    accepts: Accepts,
) -> Answer {
    let interval = snapshot.server.keep_alive;
    match reply {
        Reply::One { status, body, session, retry_after } => {
            let mut answer = if accepts.json || status != StatusCode::OK {
                message(status, body)
            } else {
                events(OutBody::Message(crate::wire::encode_event(None, &body).into(), 0))
            };
            if let Some(id) = session.and_then(|id| HeaderValue::from_str(id.as_str()).ok()) {
                answer.headers_mut().insert(SESSION_HEADER, id);
            }
            retry(&mut answer, retry_after);
            answer
        }
        Reply::Empty { status, allow } => {
            let mut answer = empty(status);
            if let Some(allow) = allow {
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            }
            answer
        }
        Reply::Run(run) => exchange(run, connection.pipeline.tasks(), interval, accepts).await,
        Reply::Channel { stream, endpoint, metrics } => {
            let counts = (metrics.streams("sse"), &metrics.bytes_out);
            let body = StreamBody::channel(stream, &endpoint, interval, counts);
            events(OutBody::Stream(Box::new(body)))
        }
        Reply::Stream { stream, metrics } => {
            let counts = (metrics.streams("get"), &metrics.bytes_out);
            events(OutBody::Stream(Box::new(StreamBody::new(stream, interval, counts))))
        }
    }
}

/// How an exchange begins to be answered.
enum First {
    /// It ended before anything else came.
    Done(Done),
    /// Something precedes its answer, or it takes long.
    Stream(Option<Done>),
    /// Its answer is large, and comes in pieces.
    Pieces,
}

/// Answers with JSON when the answer is the first thing that comes, else with a stream (MCP digest §7.5).
async fn exchange(run: Run, tasks: &TaskTracker, patience: Duration, accepts: Accepts) -> Answer {
    let outlet = Arc::clone(&run.outlet);
    let metrics = Arc::clone(&run.metrics);
    let mut running = Running::new(run, tasks);
    let first = if accepts.json {
        let mut silence = std::pin::pin!(tokio::time::sleep(patience));
        std::future::poll_fn(|cx| {
            loop {
                let polled = running.poll(cx);
                if outlet.is_pieces() {
                    return Poll::Ready(First::Pieces);
                }
                if let Poll::Ready(Some(done)) = polled {
                    let streams = accepts.events && outlet.is_stream();
                    return Poll::Ready(if streams {
                        First::Stream(Some(done))
                    } else {
                        First::Done(done)
                    });
                }
                if accepts.events && outlet.is_stream() {
                    return Poll::Ready(First::Stream(None));
                }
                if outlet.is_empty() {
                    break;
                }
                // A client that takes only JSON gets the answer and loses what precedes it.
                while outlet.try_next().is_some() {}
            }
            if accepts.events && silence.as_mut().poll(cx).is_ready() {
                return Poll::Ready(First::Stream(None));
            }
            Poll::Pending
        })
        .await
    } else {
        First::Stream(None)
    };
    match first {
        First::Done(done) => {
            let mut answer = finished(done, &metrics, accepts);
            if let Some(receipt) = outlet.receipt() {
                answer = answer.map(|body| match body {
                    OutBody::Message(body, _) => OutBody::owed(body, receipt),
                    body => body,
                });
            }
            answer
        }
        First::Pieces => {
            let body = PieceBody::new(running, outlet, &metrics.bytes_out);
            let mut answer = Response::new(OutBody::Pieces(Box::new(body)));
            answer.headers_mut().insert(CONTENT_TYPE, JSON);
            answer
        }
        First::Stream(done) => {
            let counts = (metrics.streams("post"), &metrics.bytes_out);
            let body = ExchangeBody::new(running, outlet, done, patience, counts);
            events(OutBody::Exchange(Box::new(body)))
        }
    }
}

fn finished(done: Done, metrics: &RouteMetrics, accepts: Accepts) -> Answer {
    let mut answer = match done.body {
        Some(body) => {
            metrics.bytes_out.inc_by(body.len() as u64);
            message(done.status, body)
        }
        // A cancelled request is owed no response, but the HTTP exchange is: an event stream without events.
        None if done.status == StatusCode::OK && accepts.events => events(OutBody::empty()),
        None if done.status == StatusCode::OK => empty(StatusCode::NO_CONTENT),
        None => empty(done.status),
    };
    retry(&mut answer, done.retry_after);
    answer
}

/// Too much is held already: what comes now is refused before it is read.
fn overloaded() -> Answer {
    let text = "the gateway is overloaded: it holds too many bytes at once";
    let mut fault = Fault::new(Reason::Overloaded, text);
    fault.retry_after = Some(Duration::from_secs(1));
    let mut answer = message(StatusCode::SERVICE_UNAVAILABLE, error_text(&fault));
    retry(&mut answer, fault.retry_after);
    answer
}

fn error_text(fault: &Fault) -> Chunks {
    crate::jsonrpc::error_response(None, &fault.to_error(), NullId::Null).into()
}

/// An answer that is no more than a fault.
pub(super) fn refusal(status: StatusCode, fault: &Fault) -> Answer {
    message(status, error_text(fault))
}

fn message(status: StatusCode, body: Chunks) -> Answer {
    let mut answer = Response::new(OutBody::Message(body, 0));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn events(body: OutBody) -> Answer {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, EVENTS);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    let body = Chunks::from(bytes::Bytes::from_static(text.as_bytes()));
    let mut answer = message(status, body);
    answer.headers_mut().insert(CONTENT_TYPE, TEXT);
    answer
}

pub(super) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(OutBody::empty());
    *answer.status_mut() = status;
    answer
}

pub(super) fn retry(answer: &mut Answer, after: Option<Duration>) {
    if let Some(after) = after {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
}
