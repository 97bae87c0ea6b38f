//! Plain JSON-RPC over HTTP: single calls and batches that travel as one array.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::channel::settle;
use super::endpoint::{Endpoint, Outgoing, Via};
use super::judge::{Dialect, IdOf, error_for, id_of, judge, judge_text, rejected};
use super::large::{LargeAnswer, PlainAnswer};
use super::reply::{Begun, Media, Read, Reply};
use super::timer::Timer;
use crate::jsonrpc::{
    Answer, Body, Chunks, Element, Id, Kind, Limits, Message, Relay, parse_answers,
};
use crate::upstream::CallError;
use crate::upstream::call::OutCall;
use crate::upstream::link::MAX_DEPTH;

/// What one call came to.
type Outcome = Result<Option<Message>, CallError>;

/// Plain JSON-RPC towards one endpoint.
#[derive(Debug)]
pub(in crate::upstream) struct Plain {
    headers: HeaderMap,
    ids: AtomicU64,
}

impl Plain {
    pub(in crate::upstream) fn new(endpoint: &Endpoint) -> Self {
        let mut headers = endpoint.headers.clone();
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        Self { headers, ids: AtomicU64::new(1) }
    }

    /// One request or notification.
    pub(in crate::upstream) async fn call(
        &self,
        endpoint: &Arc<Endpoint>,
        call: &OutCall,
    ) -> Outcome {
        match self.ask(endpoint, call, None).await? {
            PlainAnswer::Whole(answer) => Ok(Some(answer)),
            PlainAnswer::None | PlainAnswer::Large(_) => Ok(None),
        }
    }

    /// One request or notification. An answer that is larger than `above` may be given while it still comes.
    pub(in crate::upstream) async fn ask(
        &self,
        endpoint: &Arc<Endpoint>,
        call: &OutCall,
        above: Option<usize>,
    ) -> Result<PlainAnswer, CallError> {
        let limit = call.timeout.min(call.max_timeout);
        let sleep = pin!(Timer::sleep(limit, limit));
        let mut timer = Timer::new(sleep, limit, limit);
        if call.message.kind() != Kind::Request {
            let reply = self.post(endpoint, &|| call.plain_text(0), &mut timer).await?;
            return noted(reply, &mut timer).await.map(PlainAnswer::from);
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let reply = self.post(endpoint, &|| call.plain_text(id), &mut timer).await?;
        if !reply.status().is_success() {
            let error = reply.refusal();
            let text = reply.read_refusal(&mut timer).await;
            let judged = text.map(|text| settle(endpoint, judge_text(text, id, Dialect::Plain)));
            let answer = judged.and_then(Result::ok).filter(|answer| delivers(&error, answer));
            return answer.map(PlainAnswer::Whole).ok_or(error);
        }
        let (reply, odd) = readable(endpoint, reply, &mut timer).await?;
        let text = match above.filter(|_| odd.is_none()) {
            None => reply.read(&mut timer).await?,
            Some(most) => match reply.read_some(most, &mut timer).await? {
                Read::Whole(text) => text,
                Read::Begun(begun) => match relayed(endpoint, call, id, begun, &mut timer).await? {
                    Ok(large) => return Ok(PlainAnswer::Large(Box::new(large))),
                    Err(text) => text,
                },
            },
        };
        let answer = settle(endpoint, judge_text(text, id, Dialect::Plain));
        answer
            .map(PlainAnswer::Whole)
            .map_err(|error| odd.map_or(error, |media| endpoint.protocol(named(&media))))
    }

    /// Several elements as one array; outcomes in the order of `calls`.
    pub(in crate::upstream) async fn call_batch(
        &self,
        endpoint: &Endpoint,
        calls: &[OutCall],
    ) -> Vec<Outcome> {
        let count = calls.len() as u64;
        let first = self.ids.fetch_add(count, Ordering::Relaxed);
        match self.exchange(endpoint, calls, first).await {
            Ok(answered) => sort(endpoint, calls, first, answered),
            Err(error) => calls.iter().map(|_| Err(error.again())).collect(),
        }
    }

    /// Sends the array and reads the answer; `None` when none came.
    async fn exchange(
        &self,
        endpoint: &Endpoint,
        calls: &[OutCall],
        first: u64,
    ) -> Result<Option<Body>, CallError> {
        let limit = calls.iter().map(|call| call.timeout.min(call.max_timeout)).min();
        let limit = limit.unwrap_or(Duration::ZERO);
        let sleep = pin!(Timer::sleep(limit, limit));
        let mut timer = Timer::new(sleep, limit, limit);
        let reply = self.post(endpoint, &|| array(calls, first), &mut timer).await?;
        let asked = calls.iter().any(|call| call.message.kind() == Kind::Request);
        if !asked {
            return noted(reply, &mut timer).await.map(|_| None);
        }
        let limits = Limits { max_depth: MAX_DEPTH, max_batch: 2 * calls.len() + 2 };
        if !reply.status().is_success() {
            let error = reply.refusal();
            let text = reply.read_refusal(&mut timer).await;
            return match text.map(|text| parse_answers(text, &limits)) {
                Some(Ok(Body::One(answer))) if delivers(&error, &answer) => {
                    Ok(Some(Body::One(answer)))
                }
                Some(Ok(Body::Batch(elements))) => Ok(Some(Body::Batch(elements))),
                Some(Ok(Body::One(_)) | Err(_)) | None => Err(error),
            };
        }
        let (reply, odd) = readable(endpoint, reply, &mut timer).await?;
        let text = reply.read(&mut timer).await?;
        let what = |reason| odd.map_or_else(|| rejected(&reason).what, |media| named(&media));
        parse_answers(text, &limits).map(Some).map_err(|reason| endpoint.protocol(what(reason)))
    }

    async fn post<'a>(
        &self,
        endpoint: &'a Endpoint,
        body: &(dyn Fn() -> Chunks + Sync),
        timer: &mut Timer<'_>,
    ) -> Result<Reply<'a>, CallError> {
        let out = Outgoing { method: Method::POST, headers: &self.headers, extra: &[], body };
        endpoint.send(&out, Via::Pool, timer, &mut false).await
    }
}

/// Begins to relay an answer that is too large to be read at once; its text, when it had to be read whole after all.
///
/// It is relayed once it is known whose it is. Members may stand in any order: while the id has not come, nothing may go out,
/// since it could be somebody else's.
async fn relayed<'a>(
    endpoint: &Arc<Endpoint>,
    call: &OutCall,
    id: u64,
    mut begun: Box<Begun<'a>>,
    timer: &mut Timer<'_>,
) -> Result<Result<LargeAnswer, Bytes>, CallError> {
    let theirs = call.message.id().unwrap_or_else(|| Id::from_number(id));
    let mut relay = Some(Relay::new(id, theirs, MAX_DEPTH));
    let mut taken = 0;
    loop {
        for piece in &begun.pieces()[taken..] {
            // What is wrong with it is told once it was read whole.
            relay.take_if(|relay| relay.push(piece).is_err());
        }
        taken = begun.pieces().len();
        if let Some(relay) = relay.take_if(|relay| relay.is_ready()) {
            let max = call.max_timeout;
            return Ok(Ok(LargeAnswer::new(endpoint, *begun, relay, call.timeout.min(max), max)));
        }
        if !begun.more(timer).await? {
            return Ok(Err(begun.whole()));
        }
    }
}

/// A success whose body can be read, and the name of its type where that is an odd one. Servers of plain JSON-RPC name
/// it in many ways, so the name alone refuses nothing.
async fn readable<'a>(
    endpoint: &Endpoint,
    reply: Reply<'a>,
    timer: &mut Timer<'_>,
) -> Result<(Reply<'a>, Option<String>), CallError> {
    reply.check_encoding()?;
    let status = reply.status();
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        reply.finish(timer).await;
        let what = format!("it answered a request with HTTP status {}", status.as_u16());
        return Err(endpoint.protocol(what));
    }
    let odd = match reply.media() {
        Media::Json | Media::Unnamed => None,
        Media::EventStream => return Err(endpoint.protocol(named("text/event-stream"))),
        Media::Other(media) => Some(media),
    };
    Ok((reply, odd))
}

fn named(media: &str) -> String {
    format!("it answered with the content type {media}")
}

/// Whether an error that came with a refusing status is the answer (row 29). One that says when to come back is
/// told as that.
fn delivers(error: &CallError, answer: &Message) -> bool {
    let waits = matches!(error, CallError::Status { retry_after: Some(_), .. });
    answer.kind() == Kind::Response && answer.answer() == Answer::Error && !waits
}

/// The end of a notification.
async fn noted(reply: Reply<'_>, timer: &mut Timer<'_>) -> Outcome {
    let (status, error) = (reply.status(), reply.refusal());
    reply.finish(timer).await;
    if status.is_success() { Ok(None) } else { Err(error) }
}

/// The elements as one array.
fn array(calls: &[OutCall], first: u64) -> Chunks {
    let mut text =
        Vec::with_capacity(calls.iter().map(|call| call.message.text().len() + 24).sum());
    text.push(b'[');
    for (call, id) in calls.iter().zip(first..) {
        if text.len() > 1 {
            text.push(b',');
        }
        for slice in call.plain_text(id).slices() {
            text.extend_from_slice(slice);
        }
    }
    text.push(b']');
    Bytes::from(text).into()
}

/// Gives every call its own answer (rows 26 to 28).
fn sort(endpoint: &Endpoint, calls: &[OutCall], first: u64, body: Option<Body>) -> Vec<Outcome> {
    let is_request = |call: &OutCall| call.message.kind() == Kind::Request;
    let Some(body) = body else { return calls.iter().map(|_| Ok(None)).collect() };
    let mut answers: Vec<Option<Outcome>> =
        calls.iter().map(|call| if is_request(call) { None } else { Some(Ok(None)) }).collect();
    match body {
        Body::One(message) => one_for_all(endpoint, first, &mut answers, message),
        Body::Batch(elements) => match_up(endpoint, first, &mut answers, elements),
    }
    let missing = || Err(endpoint.protocol("its batch holds no answer to this request"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

/// One object answers the whole batch: an error is everybody's.
fn one_for_all(endpoint: &Endpoint, first: u64, answers: &mut [Option<Outcome>], message: Message) {
    if message.kind() == Kind::Response && message.answer() == Answer::Error {
        for (answer, id) in answers.iter_mut().zip(first..).filter(|(answer, _)| answer.is_none()) {
            let error = error_for(&message, id).map(super::judge::Judged::Answer);
            *answer = Some(settle(endpoint, error).map(Some));
        }
    } else {
        match_up(endpoint, first, answers, vec![Ok(message)]);
    }
}

fn match_up(
    endpoint: &Endpoint,
    first: u64,
    answers: &mut [Option<Outcome>],
    elements: Vec<Element>,
) {
    for element in elements {
        let Some((message, index)) = element.ok().and_then(|message| {
            let index = index_of(&message, first)?;
            answers.get(index)?.is_none().then_some((message, index))
        }) else {
            endpoint.metrics.stray.inc();
            continue;
        };
        let judged = judge(message, first + index as u64, Dialect::Plain);
        answers[index] = Some(settle(endpoint, judged).map(Some));
    }
}

/// The position of the call that a response names.
fn index_of(message: &Message, first: u64) -> Option<usize> {
    match (message.kind(), id_of(message)) {
        (Kind::Response, IdOf::Number(id)) => usize::try_from(id.checked_sub(first)?).ok(),
        _ => None,
    }
}
