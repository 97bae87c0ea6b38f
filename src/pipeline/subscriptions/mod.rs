//! Subscriptions on plain routes: a call whose result is an id, notifications that carry it, a call that takes it back.
//!
//! Upstreams are subscribed to by `upstream`, which knows their ids. Each client gets ids of its own, so that nobody can
//! name what is another's; an [`Ear`] puts them into notifications, and keeps those back that come before the client has
//! its answer. What a client has subscribed to ends with its connection.

mod ear;
mod kinds;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::IntGauge;

use self::ear::Ear;
pub(super) use self::kinds::{Kind, Kinds};
use super::attempts::{self, Answer, Attempts, Failed, Way, order};
use super::ledger::Ledger;
use super::plain::{PlainContext, fault, ledger_of, settle, silent};
use super::reply::Done;
use super::snapshot::Backend;
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Chunks, Edit, Id, Message, ParamsPath, Span, result_response};
use crate::session::Channel;
use crate::upstream::{CallError, Feed, Listener, OutCall};

/// Largest request that subscribes: it is kept as long as the subscription.
const MAX_REQUEST: usize = 128 << 10;

/// What one message of a client on a WebSocket needs for its subscriptions.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) channel: Arc<Channel>,
    pub(super) subscriptions: Arc<Subscriptions>,
    /// Subscribed to by this message, with the client's ids; they are heard once its answer is on its way.
    fresh: Mutex<Vec<(Arc<Ear>, Bytes)>>,
}

impl Socket {
    /// For one message of a client.
    pub(super) fn new(channel: &Arc<Channel>, subscriptions: &Arc<Subscriptions>) -> Self {
        let (channel, subscriptions) = (Arc::clone(channel), Arc::clone(subscriptions));
        Self { channel, subscriptions, fresh: Mutex::default() }
    }

    /// The answer to the message is on its way to the client.
    pub(super) fn answered(&self) {
        let fresh = std::mem::take(&mut *self.fresh.lock());
        fresh.into_iter().for_each(|(ear, id)| ear.open(id));
    }
}

/// What one client has subscribed to. Dropping it ends all of it.
#[derive(Debug)]
pub(super) struct Subscriptions {
    /// By the client's id as JSON text.
    open: Mutex<HashMap<Bytes, Open>>,
    /// How many there are, or are about to be.
    count: Arc<AtomicUsize>,
    /// Those of all clients of the route.
    gauge: IntGauge,
}

/// One that is open.
#[derive(Debug)]
struct Open {
    feed: Feed,
    kind: Arc<Kind>,
    backend: Arc<Backend>,
    /// Counts it.
    _seat: Seat,
}

/// Room for one subscription.
#[derive(Debug)]
struct Seat {
    count: Arc<AtomicUsize>,
    gauge: IntGauge,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.gauge.dec();
    }
}

impl Subscriptions {
    /// None yet; `gauge` counts them.
    pub(super) fn new(gauge: &IntGauge) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), count: Arc::default(), gauge: gauge.clone() })
    }

    /// Room for one more, if there is.
    fn seat(&self, most: usize) -> Option<Seat> {
        let more = |count: usize| (count < most).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        self.gauge.inc();
        Some(Seat { count: Arc::clone(&self.count), gauge: self.gauge.clone() })
    }

    /// Takes one out that this method ends.
    fn take(&self, id: &Bytes, unsubscribe: &str) -> Option<Open> {
        let mut open = self.open.lock();
        let known = open.get(id).is_some_and(|open| open.kind.feed.unsubscribe == unsubscribe);
        if known { open.remove(id) } else { None }
    }

    /// Keeps one under a new id, which is of the type that the upstream gave.
    fn insert(&self, like: &[u8], subscription: Open) -> Option<Bytes> {
        let mut open = self.open.lock();
        let mut id = minted(like)?;
        while open.contains_key(&id) {
            id = minted(like)?;
        }
        open.insert(id.clone(), subscription);
        Some(id)
    }
}

/// A subscription on its way.
#[derive(Debug)]
pub(super) struct Subscribing<'a> {
    kind: &'a Arc<Kind>,
    ear: Arc<Ear>,
    /// What keeps it up, and at which upstream.
    feed: Mutex<Option<(Feed, Arc<Backend>)>>,
}

impl Subscribing<'_> {
    /// Asks one upstream.
    pub(super) async fn ask(
        &self,
        backend: &Arc<Backend>,
        call: OutCall,
    ) -> Result<Answer, CallError> {
        let listener = Arc::clone(&self.ear) as Arc<dyn Listener>;
        let subscribed = backend.upstream.subscribe(&call, &self.kind.feed, listener).await?;
        let (answer, feed) = subscribed;
        *self.feed.lock() = Some((feed, Arc::clone(backend)));
        Ok(Some(answer))
    }
}

/// One request or notification that subscribes, or takes a subscription back.
pub(super) async fn request(cx: &PlainContext, message: &Message, place: Option<usize>) -> Done {
    let ledger = ledger_of(cx, message, place);
    let Some(socket) = &cx.socket else {
        return refused(message, ledger, no_way(message.method()));
    };
    match cx.route.subscriptions.of(message.method()) {
        Some(kind) => subscribe(cx, (socket, kind), message, ledger).await,
        None => unsubscribe(socket, message, ledger).await,
    }
}

/// What a client is told that could not hear of anything.
fn no_way(method: &str) -> Fault {
    let text =
        format!("{method} needs a WebSocket: over HTTP no notification can reach its client");
    Fault::new(Reason::MethodNotFound, text)
}

fn refused(message: &Message, mut ledger: Ledger<'_>, refusal: Fault) -> Done {
    let done = fault(message.id().as_ref(), &refusal);
    ledger.failed(&refusal);
    ledger.replied(&done);
    ledger.end(refusal.reason.outcome());
    done
}

async fn subscribe<'a>(
    cx: &'a PlainContext,
    (socket, kind): (&Socket, &Arc<Kind>),
    message: &'a Message,
    mut ledger: Ledger<'a>,
) -> Done {
    let most = cx.route.subscriptions.most;
    let (Some(rule), Some(_)) = (cx.route.rule(message.method()), message.id()) else {
        // As a notification: nobody would know under which id it is heard.
        ledger.end(Outcome::Rejected);
        return silent();
    };
    if message.text().len() > MAX_REQUEST {
        let text = format!("a request that subscribes may have {MAX_REQUEST} bytes");
        return refused(message, ledger, Fault::new(Reason::MessageTooLarge, text));
    }
    let Some(seat) = socket.subscriptions.seat(most) else {
        let text = format!("this connection has max_subscriptions = {most}; end one of them first");
        let fault = Fault::new(Reason::Overloaded, text).with("retryable", "false");
        return refused(message, ledger, fault);
    };
    let ear = Ear::new(&socket.channel, kind);
    let subscribing = Subscribing { kind, ear, feed: Mutex::default() };
    let mut attempts = Attempts::new(rule, order(rule));
    let way = Way::Subscription(&subscribing);
    let answer = attempts::run(cx, message, way, (&mut attempts, &mut ledger)).await;
    let answer = answer.and_then(|answer| match answer {
        Some(answer) => given(socket, answer, subscribing, seat).map(Some),
        None => Ok(None),
    });
    settle(message, answer, ledger)
}

/// The answer to a subscription with the client's own id in it; an error as it came.
fn given(
    socket: &Socket,
    answer: Message,
    subscribing: Subscribing<'_>,
    seat: Seat,
) -> Result<Message, Failed> {
    let (Some(span), Some((feed, backend))) = (answer.result_span(), subscribing.feed.into_inner())
    else {
        return Ok(answer);
    };
    let upstream = backend.upstream.name().clone();
    let kind = Arc::clone(subscribing.kind);
    let open = Open { feed, kind, backend, _seat: seat };
    let like = answer.result().unwrap_or_default();
    let Some(id) = socket.subscriptions.insert(&like, open) else {
        let what = "no id could be made".to_owned();
        return Err(Failed::Call(CallError::Protocol { upstream, what, upstream_error: None }));
    };
    socket.fresh.lock().push((subscribing.ear, id.clone()));
    let edit: Edit = (span, id);
    let text = answer.edited(&[edit]).into_bytes();
    Ok(Message::parse_answer(text, u16::MAX).unwrap_or(answer))
}

async fn unsubscribe(socket: &Socket, message: &Message, mut ledger: Ledger<'_>) -> Done {
    let first = ParamsPath::first();
    let Some(span) = first.find(message) else {
        let text = "Invalid params: the id of a subscription is expected, as in [\"0x1\"]";
        return refused(message, ledger, Fault::new(Reason::InvalidParams, text));
    };
    let key = message.text().slice(span.range());
    let (id, taken) = (message.id(), socket.subscriptions.take(&key, message.method()));
    let answer = match (taken, &id) {
        // It is nobody's, or another client's, which is the same to this one.
        (None, Some(id)) => Ok(result_response(id, b"false").into()),
        (None, None) => return quiet(ledger),
        // Nobody waits for what comes of it.
        (Some(open), None) => {
            drop(open);
            return quiet(ledger);
        }
        (Some(open), Some(id)) => end(open, (message, id), span, &mut ledger).await,
    };
    match answer {
        Ok(body) => {
            let done = Done::ok(body);
            ledger.replied(&done);
            ledger.end(Outcome::Ok);
            done
        }
        Err(fault) => refused(message, ledger, fault),
    }
}

fn quiet(ledger: Ledger<'_>) -> Done {
    ledger.end(Outcome::Ok);
    silent()
}

/// Ends one: the upstream's answer, or that it is done where the upstream need not be asked.
async fn end(
    open: Open,
    (message, id): (&Message, &Id),
    span: Span,
    ledger: &mut Ledger<'_>,
) -> Result<Chunks, Fault> {
    let Open { feed, backend, _seat, .. } = open;
    let started = Instant::now();
    let call = backend.plain_call(message.clone());
    let answer = feed.end(call, span).await;
    let took = started.elapsed();
    ledger.waited(took);
    let outcome = match &answer {
        Ok(Some(answer)) => outcome_of(answer),
        Ok(None) => Outcome::Ok,
        Err(error) => error.to_fault().reason.outcome(),
    };
    backend.metrics.call_ended(ledger.method(), outcome, took);
    match answer {
        Ok(Some(answer)) => Ok(answer.with_id(id)),
        Ok(None) => Ok(result_response(id, b"true").into()),
        Err(error) => Err(error.to_fault()),
    }
}

/// A new id of the type that the upstream's has: a string that nobody can guess, or a number that every client can hold.
fn minted(like: &[u8]) -> Option<Bytes> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    if like.first() != Some(&b'"') {
        const EXACT: u64 = (1 << 53) - 1;
        let number = u64::from_le_bytes(random[..8].try_into().ok()?) & EXACT;
        return Some(Id::from_number(number).text().clone());
    }
    let mut id = String::with_capacity(36);
    id.push_str("\"0x");
    for byte in random {
        id.push(char::from_digit(u32::from(byte >> 4), 16)?);
        id.push(char::from_digit(u32::from(byte & 15), 16)?);
    }
    id.push('"');
    Some(id.into())
}
