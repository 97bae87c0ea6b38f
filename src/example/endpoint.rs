//! `/mcp`: Streamable HTTP as of 2025-03-26 to 2025-11-25. Requests of 2026-07-28 are passed to
//! [`super::modern`].

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming as HttpBody;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::mpsc;

use super::Answers;
use super::http::{
    Body, Http, PROTOCOL_VERSION, Refusal, SESSION_ID, empty, full, json, read_json, refuse,
};
use super::message::{Incoming, NoId, Piece, RpcError, print_error};
use super::modern::{self, Era, is_modern};
use super::outbox::{Outbox, Outgoing, QUEUE};
use super::resume::Breakable;
use super::revision::Revision;
use super::session::{Reply, Session};
use super::sessions::Entry;
use super::sse::{self, Events};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";

/// Answers a request to `/mcp`.
pub(super) async fn respond(http: &Http, request: Request<HttpBody>) -> Response<Body> {
    let legacy = http.server.offered.legacy().is_some();
    let lasting = http.server.lasting && legacy && !is_modern(revision_header(request.headers()));
    let outcome = match *request.method() {
        Method::POST => post(http, request).await,
        Method::GET if lasting => open_stream(http, request.headers()),
        Method::DELETE if lasting => end_session(http, request.headers()),
        _ if lasting => Err(Refusal::method("POST, GET, DELETE, OPTIONS")),
        _ => Err(Refusal::method("POST, OPTIONS")),
    };
    outcome.unwrap_or_else(Into::into)
}

/// A response, or why there is none.
pub(super) type Outcome<T = Response<Body>> = Result<T, Refusal>;

/// A POST's session, and its id if it has just begun.
struct Found {
    session: Arc<Session>,
    /// Present for an `initialize`; entered once that has gone well.
    fresh: Option<Arc<Entry>>,
}

async fn post(http: &Http, request: Request<HttpBody>) -> Outcome {
    let headers = request.headers().clone();
    let answers = choose(http.answers, accepted(&headers))?;
    let body = read_json(request, &["application/json"]).await?;
    let piece = Piece::read(&body).map_err(|why| {
        let no_id = match known_session(http, &headers) {
            _ if is_modern(revision_header(&headers)) => NoId::Absent,
            None if http.server.offered.legacy().is_none() => NoId::Absent,
            session => session.map_or(NoId::Null, |session| session.no_id()),
        };
        let text = print_error(None, no_id, &why);
        Refusal::new(StatusCode::BAD_REQUEST, text)
    })?;
    if Era::of(http.server.offered, revision_header(&headers), &piece) == Era::Modern {
        let events = accepted(&headers).events;
        return modern::respond(http, &headers, &modern::Taken { answers, events }, piece).await;
    }
    let Found { session, fresh } = find_session(http, &headers, &piece)?;
    check_piece(&session, &piece)?;
    let (queue, events) = mpsc::channel(QUEUE);
    let outbox = match answers {
        Answers::Json => session.standing.outbox(),
        Answers::Auto | Answers::Sse => Outbox::into(queue.clone()),
    };
    let mut response = match session.take_piece(piece, &outbox) {
        Reply::Nothing => empty(StatusCode::ACCEPTED),
        Reply::Now(text) if answers == Answers::Sse => event_stream(sse::one(&text)),
        Reply::Now(text) => json(StatusCode::OK, text),
        Reply::Later(answer) => {
            drop(outbox);
            http.spawn(async move {
                if let Some(text) = answer.await {
                    let _ = queue.send(Outgoing::Answer(text)).await;
                }
            });
            deliver(answers, events, &session).await
        }
    };
    if let Some(entry) = fresh
        && session.check_open().is_ok()
    {
        let id = http.sessions.enter(entry).and_then(|id| HeaderValue::from_str(&id).ok());
        let id = id.ok_or_else(|| {
            refuse(StatusCode::SERVICE_UNAVAILABLE, "there is no room for another session")
        })?;
        response.headers_mut().insert(SESSION_ID, id);
    }
    Ok(response)
}

/// Waits for what a call has to say first, and picks the form of the response by it.
async fn deliver(
    answers: Answers,
    events: mpsc::Receiver<Outgoing>,
    session: &Arc<Session>,
) -> Response<Body> {
    let mut events = Breakable::new(session, events);
    let first = match answers {
        Answers::Sse => None,
        Answers::Auto | Answers::Json => match events.next().await {
            Some(Outgoing::Answer(text)) => return json(StatusCode::OK, text),
            Some(interim) => Some(interim),
            // The call was cancelled: the exchange ends without an answer (MCP, cancellation).
            None => return event_stream(Bytes::new()),
        },
    };
    stream(first, events, session)
}

/// A stream of events that ends with its session.
fn stream(first: Option<Outgoing>, events: impl Events, session: &Session) -> Response<Body> {
    with_stream_headers(Response::new(sse::body(first, events, session.closing().clone())))
}

/// A whole stream of events.
pub(super) fn event_stream(body: Bytes) -> Response<Body> {
    with_stream_headers(full(StatusCode::OK, EVENT_STREAM, body))
}

/// Adds what says that the body is a stream of events.
pub(super) fn with_stream_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    response
}

/// The session that a POST belongs to.
fn find_session(http: &Http, headers: &HeaderMap, piece: &Piece) -> Outcome<Found> {
    let begins = matches!(
        piece,
        Piece::One(Incoming::Request(request)) if request.method == "initialize"
    );
    let revision = if begins { None } else { named_revision(http, headers)? };
    if !http.server.lasting {
        let assumed = Revision::ASSUMED.min(http.server.newest());
        let session = http.server.open_alone(revision.unwrap_or(assumed));
        return Ok(Found { session, fresh: None });
    }
    // An `initialize` under a dead id is a client starting anew.
    if begins && known_session(http, headers).is_none() {
        let entry = Arc::new(Entry::new(&http.server));
        let session = Arc::clone(&entry.session);
        return Ok(Found { session, fresh: Some(entry) });
    }
    let session = Arc::clone(&find_entry(http, headers)?.session);
    Ok(Found { session, fresh: None })
}

fn known_session(http: &Http, headers: &HeaderMap) -> Option<Arc<Session>> {
    find_entry(http, headers).ok().map(|entry| Arc::clone(&entry.session))
}

fn session_id(headers: &HeaderMap) -> Outcome<&str> {
    let id = headers.get(SESSION_ID).ok_or_else(|| {
        refuse(StatusCode::BAD_REQUEST, "Mcp-Session-Id is missing; begin with initialize")
    })?;
    id.to_str().map_err(|_| no_session())
}

fn find_entry(http: &Http, headers: &HeaderMap) -> Outcome<Arc<Entry>> {
    http.sessions.find(session_id(headers)?).ok_or_else(no_session)
}

fn no_session() -> Refusal {
    refuse(StatusCode::NOT_FOUND, "there is no such session; begin with initialize")
}

fn revision_header(headers: &HeaderMap) -> Option<&str> {
    headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok())
}

/// The revision that the header names; one that is not offered is refused.
fn named_revision(http: &Http, headers: &HeaderMap) -> Outcome<Option<Revision>> {
    let Some(value) = headers.get(PROTOCOL_VERSION) else { return Ok(None) };
    let named = value.to_str().ok().and_then(|name| Revision::parse(name, http.server.newest()));
    named.map(Some).ok_or_else(|| {
        let why = format!("unsupported MCP-Protocol-Version, up to {} are supported", {
            http.server.newest().as_str()
        });
        refuse(StatusCode::BAD_REQUEST, why)
    })
}

/// Refuses with `400` what is no message as a whole.
fn check_piece(session: &Session, piece: &Piece) -> Outcome<()> {
    let no_batches = RpcError::no_batches();
    let (id, why) = match piece {
        Piece::One(Incoming::Invalid { id, why }) => (id.as_deref(), why),
        Piece::Many(_) if !session.revision().has_batches() => (None, &no_batches),
        _ => return Ok(()),
    };
    Err(Refusal::new(StatusCode::BAD_REQUEST, print_error(id, session.no_id(), why)))
}

fn open_stream(http: &Http, headers: &HeaderMap) -> Outcome {
    if !accepted(headers).events {
        return Err(refuse(StatusCode::NOT_ACCEPTABLE, "Accept must list text/event-stream"));
    }
    named_revision(http, headers)?;
    let entry = find_entry(http, headers)?;
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    if let Some(events) = last.and_then(|id| Breakable::again(&entry.session, id)) {
        return Ok(stream(None, events, &entry.session));
    }
    let tap = entry.tap();
    let tap = tap.ok_or_else(|| {
        refuse(StatusCode::CONFLICT, "another stream of this session is open already")
    })?;
    Ok(stream(None, tap, &entry.session))
}

fn end_session(http: &Http, headers: &HeaderMap) -> Outcome {
    named_revision(http, headers)?;
    match http.sessions.end(session_id(headers)?) {
        true => Ok(empty(StatusCode::NO_CONTENT)),
        false => Err(no_session()),
    }
}

/// What a client takes for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Accepted {
    json: bool,
    events: bool,
}

/// Reads `Accept`; a client that sends none takes all.
fn accepted(headers: &HeaderMap) -> Accepted {
    let values = headers.get_all(header::ACCEPT);
    let values: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
    if values.is_empty() {
        return Accepted { json: true, events: true };
    }
    let types = values.iter().flat_map(|value| value.split(','));
    let types: Vec<String> = types
        .filter_map(|range| range.split(';').next())
        .map(|range| range.trim().to_ascii_lowercase())
        .collect();
    let lists = |names: [&str; 3]| types.iter().any(|range| names.contains(&range.as_str()));
    Accepted {
        json: lists(["application/json", "application/*", "*/*"]),
        events: lists([EVENT_STREAM, "text/*", "*/*"]),
    }
}

/// How to answer: as the server is set, as far as the client takes it.
fn choose(set: Answers, accepted: Accepted) -> Outcome<Answers> {
    match (accepted.json, accepted.events) {
        (true, true) => Ok(set),
        (true, false) => Ok(Answers::Json),
        (false, true) => Ok(Answers::Sse),
        (false, false) => Err(refuse(
            StatusCode::NOT_ACCEPTABLE,
            "Accept must list application/json and text/event-stream",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &'static str) -> (bool, bool) {
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(value))]);
        let accepted = accepted(&headers);
        (accepted.json, accepted.events)
    }

    #[test]
    fn the_accept_header_is_read_with_parameters_wildcards_and_any_case() {
        assert_eq!(accept("application/json, text/event-stream"), (true, true));
        assert_eq!(accept("Application/JSON;q=0.9"), (true, false));
        assert_eq!(accept("text/event-stream; charset=utf-8"), (false, true));
        assert_eq!(accept("*/*"), (true, true));
        assert_eq!(accept("text/html"), (false, false));
    }
}
