//! Requests of 2026-07-28 over HTTP: each is one POST, which the client ends to cancel it.

use std::pin::Pin;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::Answers;
use super::super::endpoint::{Outcome, event_stream, with_stream_headers};
use super::super::http::{Body, Http, Refusal, empty, json, refuse};
use super::super::message::{
    HEADER_MISMATCH, INVALID_REQUEST, Id, Incoming, METHOD_NOT_FOUND, MISSING_CAPABILITY, NoId,
    Piece, Request, RpcError, UNSUPPORTED_REVISION, print_error,
};
use super::super::outbox::{Outbox, Outgoing, QUEUE};
use super::super::sse::{self, Events, KEEP_ALIVE};
use super::{Answer, Served, check, headers, print, serve};

/// In which form an answer may come.
pub(in super::super) struct Taken {
    /// The form, by the server's settings and what the client takes.
    pub(in super::super) answers: Answers,
    /// Whether the client takes events at all.
    pub(in super::super) events: bool,
}

/// Answers a POST.
pub(in super::super) async fn respond(
    http: &Http,
    headers: &HeaderMap,
    taken: &Taken,
    piece: Piece,
) -> Outcome {
    let (id, why) = match piece {
        Piece::One(Incoming::Request(request)) => {
            return respond_to_request(http, headers, taken, request).await;
        }
        // No notification of a client means anything here; the next revision may have one.
        Piece::One(Incoming::Notification { .. }) => return Ok(empty(StatusCode::ACCEPTED)),
        Piece::One(Incoming::Response { .. }) => {
            (None, RpcError::new(INVALID_REQUEST, "clients of this revision send no responses"))
        }
        Piece::One(Incoming::Invalid { id, why }) => (id, why),
        Piece::Many(_) => (None, RpcError::no_batches()),
    };
    Err(refusal(id.as_ref(), &why))
}

/// `400`, for what is wrong before it matters what the request is about.
fn refusal(id: Option<&Id>, why: &RpcError) -> Refusal {
    let text = print_error(id.map(|id| &**id), NoId::Absent, why);
    Refusal::new(StatusCode::BAD_REQUEST, text)
}

async fn respond_to_request(
    http: &Http,
    headers: &HeaderMap,
    taken: &Taken,
    request: Request,
) -> Outcome {
    let id = request.id.clone();
    let server = &http.server;
    let checked = headers::check_revision(headers, &request)
        .and_then(|()| check(server, &request))
        .and_then(|claims| headers::check(headers, &request, &server.content).map(|()| claims));
    let claims = checked.map_err(|why| refusal(Some(&id), &why))?;
    let answers = match (request.method == "subscriptions/listen", taken.events) {
        (true, false) => {
            let why = "Accept must list text/event-stream";
            return Err(refuse(StatusCode::NOT_ACCEPTABLE, why));
        }
        (true, true) => Answers::Auto,
        (false, _) => taken.answers,
    };
    let (queue, events) = mpsc::channel(QUEUE);
    let outbox = match answers {
        Answers::Json => Outbox::nowhere(),
        Answers::Auto | Answers::Sse => Outbox::into(queue),
    };
    Ok(match serve(server, request, claims, &outbox) {
        Served::Now(answer) => whole(&id, &answer, answers),
        Served::Later(work) => {
            drop(outbox);
            deliver(Running { id, work: Some(work), answer: None, events }, answers).await
        }
    })
}

/// A response that holds the answer and nothing else.
fn whole(id: &Id, answer: &Answer, answers: Answers) -> Response<Body> {
    let text = print(id, answer);
    match answer {
        Ok(_) if answers == Answers::Sse => event_stream(sse::one(&text)),
        Ok(_) => json(StatusCode::OK, text),
        Err(why) => json(status(why), text),
    }
}

/// The status of a response that is nothing but this error (MCP digest §6.2).
fn status(why: &RpcError) -> StatusCode {
    match why.code {
        METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_REVISION => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Waits for what there is to say first, and picks the form of the response by it. After long
/// silence it is a stream, so that the client can be told that there is still somebody.
async fn deliver(mut running: Running, answers: Answers) -> Response<Body> {
    let first = match answers {
        Answers::Json => running.step().await,
        Answers::Auto | Answers::Sse => match timeout(KEEP_ALIVE, running.step()).await {
            Ok(first) => first,
            Err(_) => return stream(None, running),
        },
    };
    match first {
        Some(Step::Answered(answer)) => whole(&running.id, &answer, answers),
        Some(Step::Interim(message)) => stream(Some(message), running),
        // The server ended before the request did.
        None => event_stream(Bytes::new()),
    }
}

fn stream(first: Option<Outgoing>, running: Running) -> Response<Body> {
    // It ends with its answer, or when the client leaves, and needs no other reason.
    let never = CancellationToken::new();
    with_stream_headers(Response::new(sse::body(first, running, never)))
}

/// A request that runs as long as this is polled. Dropping it, as happens when the client leaves,
/// cancels the request.
struct Running {
    id: Id,
    /// Absent once it is done.
    work: Option<Pin<Box<dyn Future<Output = Option<Answer>> + Send>>>,
    /// The answer, from when it is there until it is given away.
    answer: Option<Answer>,
    events: mpsc::Receiver<Outgoing>,
}

/// What comes of a running request.
enum Step {
    Interim(Outgoing),
    /// Nothing follows.
    Answered(Answer),
}

impl Running {
    async fn step(&mut self) -> Option<Step> {
        if let Some(work) = &mut self.work {
            // Both are cancel-safe: the work stays where it is, and so do messages.
            tokio::select! {
                biased;
                Some(message) = self.events.recv() => return Some(Step::Interim(message)),
                answer = work => self.answer = answer,
            }
            self.work = None;
        }
        // What it sent on its way comes first.
        match self.events.try_recv() {
            Ok(message) => Some(Step::Interim(message)),
            Err(_) => self.answer.take().map(Step::Answered),
        }
    }
}

impl Events for Running {
    async fn next(&mut self) -> Option<Outgoing> {
        Some(match self.step().await? {
            Step::Interim(message) => message,
            Step::Answered(answer) => Outgoing::Answer(print(&self.id, &answer)),
        })
    }
}
