//! Plain JSON-RPC 2.0: requests routed by method, answered byte for byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use http::StatusCode;

use super::attempts::{self, Answer, Attempts, Came, Failed, Flow, Way, order};
use super::call::cut_off;
use super::ledger::{Caller, Ledger};
use super::reply::{Done, OnHangup, Reply, Run};
use super::snapshot::{Backend, PlainRoute, Snapshot};
use super::{Inbound, Outlet, Pipeline, batch, subscriptions};
use crate::config::Payloads;
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Body, Chunks, Id, Kind, Message, NullId, Rejected, parse_body};
use crate::policy::Places;
use crate::upstream::CallError;

/// What every request of one POST knows.
#[derive(Debug)]
pub(super) struct PlainContext {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) route: Arc<PlainRoute>,
    pub(super) caller: Caller,
    /// The WebSocket that it came on: the way for what belongs to no request. `None` over HTTP.
    pub(super) socket: Option<subscriptions::Socket>,
}

/// Parses what came in (step 1), and refuses what cannot be served.
pub(super) fn open(
    pipeline: &Arc<Pipeline>,
    route: Arc<PlainRoute>,
    inbound: Inbound,
    socket: Option<subscriptions::Socket>,
) -> Result<(PlainContext, Body), Rejected> {
    let caller = Caller::of(&inbound);
    let body = parse_body(inbound.payload, &inbound.snapshot.limits);
    let body = body.and_then(|body| match body {
        Body::One(message) if message.kind() == Kind::Response => Err(not_a_request(&message)),
        body => Ok(body),
    });
    let body = body.inspect_err(|rejected| {
        caller.refused(pipeline.metrics(), &Fault::from(rejected));
    })?;
    let pipeline = Arc::clone(pipeline);
    Ok((PlainContext { pipeline, snapshot: inbound.snapshot, route, caller, socket }, body))
}

/// A POST on a plain route.
pub(super) fn post(pipeline: &Arc<Pipeline>, route: Arc<PlainRoute>, inbound: Inbound) -> Reply {
    let metrics = Arc::clone(&route.metrics);
    let (cx, body) = match open(pipeline, route, inbound, None) {
        Ok(opened) => opened,
        Err(rejected) => return refused(&rejected),
    };
    let outlet = Arc::new(Outlet::default());
    let pieces = Arc::clone(&outlet);
    let run = |future| {
        Reply::Run(Run { future, outlet, on_hangup: OnHangup::Cancel, session: None, metrics })
    };
    match body {
        Body::One(message) => match refusal(&cx, &message) {
            Some(refusal) => Reply::done(refuse(&cx, &message, &refusal, None)),
            None => run(Box::pin(async move { alone(&cx, &message, &pieces).await })),
        },
        Body::Batch(elements) => {
            cx.route.metrics.batch_elements.observe(elements.len() as f64);
            run(Box::pin(batch::run_plain(Arc::new(cx), elements)))
        }
    }
}

/// A response where a request belongs.
pub(super) fn not_a_request(message: &Message) -> Rejected {
    Rejected::Invalid { id: message.id(), reason: "method is missing" }
}

/// The answer to what is no request.
pub(super) fn refused(rejected: &Rejected) -> Reply {
    let id = match rejected {
        Rejected::Invalid { id, .. } => id.as_ref(),
        _ => None,
    };
    Reply::fault(id, &Fault::from(rejected), None, NullId::Null)
}

pub(super) fn fault(id: Option<&Id>, fault: &Fault) -> Done {
    match id {
        Some(_) => Done::fault(id, fault, None, NullId::Null),
        // A notification is never answered, not even with an error.
        None => silent(),
    }
}

pub(super) fn silent() -> Done {
    Done { status: StatusCode::NO_CONTENT, body: None, retry_after: None }
}

/// Why a request or notification is refused before anything is done for it.
fn refusal(cx: &PlainContext, message: &Message) -> Option<Fault> {
    let Some(rule) = cx.route.rule(message.method()) else {
        return Some(Fault::new(Reason::MethodNotFound, "Method not found"));
    };
    // Bodies over HTTP were refused before they were read; what came over a socket is there.
    if cx.snapshot.budget.is_over() {
        let text = "the gateway is overloaded: it holds too many bytes at once";
        let mut fault = Fault::new(Reason::Overloaded, text);
        fault.retry_after = Some(Duration::from_secs(1));
        return Some(fault);
    }
    let limit = rule.max_body.filter(|limit| message.text().len() > *limit)?;
    let text = format!("the request is larger than max_body = {limit} bytes of its method");
    Some(Fault::new(Reason::MessageTooLarge, text))
}

/// The end of a request or notification for which nothing is done.
pub(super) fn refuse(
    cx: &PlainContext,
    message: &Message,
    refusal: &Fault,
    place: Option<usize>,
) -> Done {
    let mut ledger = ledger_of(cx, message, place);
    let done = fault(message.id().as_ref(), refusal);
    ledger.failed(refusal);
    ledger.replied(&done);
    ledger.end(refusal.reason.outcome());
    done
}

pub(super) fn ledger_of<'a>(
    cx: &'a PlainContext,
    message: &'a Message,
    place: Option<usize>,
) -> Ledger<'a> {
    let rule = cx.route.rule(message.method());
    let label = rule.map_or_else(|| cx.pipeline.metrics().label("other"), |rule| rule.label);
    cx.caller.open(label, message, None).at(place)
}

/// One request or notification. `place`: where it stands in its batch.
pub(super) async fn request(cx: &PlainContext, message: &Message, place: Option<usize>) -> Done {
    answer(cx, message, place, None).await
}

/// One request that is all of its exchange: its client can take a large answer while it comes. Texts are logged whole.
async fn alone(cx: &PlainContext, message: &Message, outlet: &Outlet) -> Done {
    let pieces = outlet.takes_pieces() && cx.snapshot.payloads == Payloads::Off;
    answer(cx, message, None, pieces.then_some(outlet)).await
}

async fn answer(
    cx: &PlainContext,
    message: &Message,
    place: Option<usize>,
    outlet: Option<&Outlet>,
) -> Done {
    if let Some(refusal) = refusal(cx, message) {
        return refuse(cx, message, &refusal, place);
    }
    if cx.route.subscriptions.concerns(message.method()) {
        return Box::pin(subscriptions::request(cx, message, place)).await;
    }
    let mut ledger = ledger_of(cx, message, place);
    let answer = match cx.route.rule(message.method()) {
        Some(rule) => {
            let mut attempts = Attempts::new(rule, order(rule));
            let way = if outlet.is_some() { Way::Large } else { Way::Call };
            attempts::come(cx, message, way, (&mut attempts, &mut ledger)).await
        }
        None => Ok(Came::Answer(None)),
    };
    match (answer, outlet) {
        (Ok(Came::Large(flow)), Some(outlet)) => Box::pin(pour(cx, flow, outlet, ledger)).await,
        (Ok(Came::Large(_)), None) => settle(message, Err(Failed::internal()), ledger),
        (Ok(Came::Answer(answer)), _) => settle(message, Ok(answer), ledger),
        (Err(failed), _) => settle(message, Err(failed), ledger),
    }
}

/// Hands a large answer to the client while it comes. What ends before its last piece is never taken as whole.
async fn pour(
    cx: &PlainContext,
    mut flow: Flow<'_>,
    outlet: &Outlet,
    mut ledger: Ledger<'_>,
) -> Done {
    outlet.begin_pieces();
    let began = Instant::now();
    let mut sent = 0;
    let ended = tokio::select! {
        biased;
        ended = poured(&mut flow, outlet, &mut sent) => ended.map_err(Failed::Call),
        () = cx.pipeline.cut_off() => Err(Failed::CutOff(cut_off(Some(flow.upstream())))),
    };
    let outcome = match ended {
        Ok(()) => {
            outlet.end_pieces();
            Outcome::Ok
        }
        Err(failed) => {
            let error = failed.into_fault();
            ledger.failed(&error);
            error.reason.outcome()
        }
    };
    ledger.waited(began.elapsed());
    ledger.sent(sent);
    flow.ended(ledger.method(), outcome);
    ledger.end(outcome);
    Done { status: StatusCode::OK, body: None, retry_after: None }
}

async fn poured(flow: &mut Flow<'_>, outlet: &Outlet, sent: &mut usize) -> Result<(), CallError> {
    while let Some(piece) = flow.answer.next().await? {
        *sent += piece.len();
        outlet.send(piece.into()).await;
    }
    Ok(())
}

/// An element of a batch that may travel together with others.
#[derive(Debug)]
pub(super) struct Traveller {
    place: usize,
    message: Message,
    /// Which rule it is under, and the order in which its upstreams are tried.
    rule: usize,
    places: Places,
}

/// Elements of one batch that travel together, and the upstream that takes them.
#[derive(Debug)]
pub(super) struct Array {
    backend: Arc<Backend>,
    /// How long it may take: as long as any of its elements would alone.
    limit: Duration,
    travellers: Vec<Traveller>,
}

/// The elements of one batch, by how they travel.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Each on its own.
    pub(super) alone: Vec<(usize, Message)>,
    /// Together.
    pub(super) arrays: Vec<Array>,
}

impl Sorted {
    /// One element more.
    pub(super) fn add(&mut self, cx: &PlainContext, place: usize, message: Message) {
        let route = &cx.route;
        let served =
            refusal(cx, &message).is_none() && !route.subscriptions.concerns(message.method());
        let Some((rule, _)) = route.methods.pick(message.method()).filter(|_| served) else {
            return self.alone.push((place, message));
        };
        let backends = &route.rules[rule].backends;
        if !backends.iter().any(|backend| backend.config().batch) {
            return self.alone.push((place, message));
        }
        let places = order(&route.rules[rule]);
        let backend = &backends[places[0]];
        let limit = Attempts::new(&route.rules[rule], places.clone()).limit();
        let traveller = Traveller { place, message, rule, places };
        let most = match backend.config().batch {
            true => backend.config().max_batch.unwrap_or(usize::MAX),
            false => 1,
        };
        // An array ends as a whole: what may take longer is not to end with what may not.
        let open = self
            .arrays
            .iter_mut()
            .rfind(|array| Arc::ptr_eq(&array.backend, backend) && array.limit == limit);
        match open.filter(|array| array.travellers.len() < most) {
            Some(array) => array.travellers.push(traveller),
            None => {
                let backend = Arc::clone(backend);
                self.arrays.push(Array { backend, limit, travellers: vec![traveller] });
            }
        }
    }
}

/// One of an array on its way.
struct Item<'a> {
    traveller: &'a Traveller,
    attempts: Attempts<'a>,
    ledger: Ledger<'a>,
    answer: Result<Answer, Failed>,
}

/// Elements that travel together: they are one call of their upstream. What fails and may be tried elsewhere goes on
/// alone.
pub(super) async fn requests(cx: &PlainContext, array: &Array) -> Vec<(usize, Option<Chunks>)> {
    let mut items = Vec::with_capacity(array.travellers.len());
    for traveller in &array.travellers {
        let mut ledger = ledger_of(cx, &traveller.message, Some(traveller.place));
        ledger.goes_to(array.backend.upstream.name());
        let rule = &cx.route.rules[traveller.rule];
        let attempts = Attempts::new(rule, traveller.places.clone());
        items.push(Item { traveller, attempts, ledger, answer: Ok(None) });
    }
    let alone = match &mut items[..] {
        [only] => vec![only],
        several => {
            together(array, several).await;
            let failed = several.iter_mut().filter_map(|item| {
                let goes_on = matches!(&item.answer, Err(failed) if item.attempts.go_on(failed));
                goes_on.then_some(item)
            });
            failed.collect()
        }
    };
    let going_on = alone.into_iter().map(|item| async {
        let message = &item.traveller.message;
        let way = (&mut item.attempts, &mut item.ledger);
        item.answer = attempts::run(cx, message, Way::Call, way).await;
    });
    let at_once = cx.snapshot.server.batch_concurrency;
    futures_util::stream::iter(going_on).for_each_concurrent(at_once, |item| item).await;
    let settled = items.into_iter().map(|item| {
        let done = settle(&item.traveller.message, item.answer, item.ledger);
        (item.traveller.place, done.body)
    });
    settled.collect()
}

/// Sends the items as one array.
async fn together(array: &Array, items: &mut [Item<'_>]) {
    let (backend, limit) = (&array.backend, array.limit);
    let slot = attempts::slot(backend, limit).await;
    let started = Instant::now();
    match slot {
        Ok((_slot, waited)) => {
            let call = |item: &Item<'_>| {
                let limit = item.attempts.limit_after(waited, limit);
                backend.timed_call(item.traveller.message.clone(), limit)
            };
            let calls = items.iter().map(call).collect();
            let answers = backend.upstream.call_batch(calls).await;
            for (item, answer) in items.iter_mut().zip(answers) {
                item.answer = answer.map_err(Failed::Call);
            }
        }
        Err(Failed::Slot(fault)) => {
            for item in items.iter_mut() {
                item.answer = Err(Failed::Slot(fault.clone()));
            }
        }
        Err(Failed::Call(_) | Failed::CutOff(_)) => {}
    }
    let took = started.elapsed();
    for item in items {
        item.ledger.waited(took);
        attempts::noted(backend, &item.answer);
        let outcome = attempts::outcome(&item.answer);
        backend.metrics.call_ended(item.ledger.method(), outcome, took);
    }
}

/// The end of one request: the answer under the client's id, or why there is none.
pub(super) fn settle(
    message: &Message,
    answer: Result<Answer, Failed>,
    mut ledger: Ledger<'_>,
) -> Done {
    let id = message.id();
    let (done, outcome) = match (answer, &id) {
        (Ok(Some(answer)), Some(id)) => {
            ledger.answered(&answer);
            (Done::ok(answer.with_id(id)), outcome_of(&answer))
        }
        (Ok(_), _) => (silent(), Outcome::Ok),
        (Err(failed), id) => {
            let error = failed.into_fault();
            ledger.failed(&error);
            (fault(id.as_ref(), &error), error.reason.outcome())
        }
    };
    ledger.replied(&done);
    ledger.end(outcome);
    done
}
