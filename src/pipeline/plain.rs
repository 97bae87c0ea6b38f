//! Plain JSON-RPC 2.0: requests routed by method, answered byte for byte.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;

use super::call::{cut_off, no_slot, not_sent};
use super::ledger::{Caller, Ledger};
use super::reply::{Done, OnHangup, Reply, Run};
use super::snapshot::{Backend, PlainRoute, Snapshot};
use super::{Inbound, Outlet, Pipeline, batch};
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Body, Chunks, Id, Kind, Message, NullId, Rejected, parse_body};
use crate::policy::Slot;
use crate::telemetry::MethodLabel;
use crate::upstream::CallError;

/// What every request of one POST knows.
#[derive(Debug)]
pub(super) struct PlainContext {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) route: Arc<PlainRoute>,
    pub(super) caller: Caller,
}

/// A POST on a plain route.
pub(super) fn post(pipeline: &Arc<Pipeline>, route: Arc<PlainRoute>, inbound: Inbound) -> Reply {
    let caller = Caller::of(&inbound);
    let refused = |caller: &Caller, rejected: &Rejected| {
        caller.refused(pipeline.metrics(), &Fault::from(rejected));
        refused(rejected)
    };
    let body = match parse_body(inbound.payload, &inbound.snapshot.limits) {
        Ok(body) => body,
        Err(rejected) => return refused(&caller, &rejected),
    };
    let metrics = Arc::clone(&route.metrics);
    let pipeline = Arc::clone(pipeline);
    let cx = PlainContext { pipeline, snapshot: inbound.snapshot, route, caller };
    let outlet = Arc::new(Outlet::default());
    let run = |future| {
        Reply::Run(Run { future, outlet, on_hangup: OnHangup::Cancel, session: None, metrics })
    };
    match body {
        Body::One(message) if message.kind() == Kind::Response => {
            let rejected = not_a_request(&message);
            cx.caller.refused(cx.pipeline.metrics(), &Fault::from(&rejected));
            self::refused(&rejected)
        }
        Body::One(message) => run(Box::pin(async move { request(&cx, &message, None).await })),
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

fn refused(rejected: &Rejected) -> Reply {
    let id = match rejected {
        Rejected::Invalid { id, .. } => id.as_ref(),
        _ => None,
    };
    Reply::fault(id, &Fault::from(rejected), None, NullId::Null)
}

fn fault(id: Option<&Id>, fault: &Fault) -> Done {
    match id {
        Some(_) => Done::fault(id, fault, None, NullId::Null),
        // A notification is never answered, not even with an error.
        None => silent(),
    }
}

fn silent() -> Done {
    Done { status: StatusCode::NO_CONTENT, body: None, retry_after: None }
}

/// One request or notification. `place`: where it stands in its batch.
pub(super) async fn request(cx: &PlainContext, message: &Message, place: Option<usize>) -> Done {
    let metrics = cx.pipeline.metrics();
    let picked = cx.route.methods.pick(message.method());
    let label = metrics.label(picked.map_or("other", |(_, pattern)| pattern));
    let mut ledger = cx.caller.open(label, message, None).at(place);
    let id = message.id();
    let (done, outcome) = match picked {
        Some((upstream, _)) => {
            call(cx, &cx.route.backends[upstream], message, id.as_ref(), &mut ledger).await
        }
        None => {
            let error = Fault::new(Reason::MethodNotFound, "Method not found");
            ledger.failed(&error);
            (fault(id.as_ref(), &error), Outcome::RpcError)
        }
    };
    ledger.replied(&done);
    ledger.end(outcome);
    done
}

async fn call<'a>(
    cx: &PlainContext,
    backend: &'a Backend,
    message: &Message,
    id: Option<&Id>,
    ledger: &mut Ledger<'a>,
) -> (Done, Outcome) {
    ledger.goes_to(backend.upstream.name());
    let slot = tokio::select! {
        biased;
        slot = slot(backend) => slot,
        () = cx.pipeline.cut_off() => Err(not_sent(backend)),
    };
    let slot = match slot {
        Ok(slot) => slot,
        Err(refusal) => {
            ledger.failed(&refusal);
            return (fault(id, &refusal), refusal.reason.outcome());
        }
    };
    let started = Instant::now();
    let answer = tokio::select! {
        biased;
        answer = backend.upstream.call_plain(backend.plain_call(message.clone())) => Some(answer),
        () = cx.pipeline.cut_off() => None,
    };
    drop(slot);
    let took = started.elapsed();
    ledger.waited(took);
    let (done, outcome) = match answer {
        Some(answer) => settled(id, answer, ledger),
        None => {
            let error = cut_off(Some(backend.upstream.name().as_str()));
            ledger.failed(&error);
            (fault(id, &error), error.reason.outcome())
        }
    };
    backend.metrics.call_ended(ledger.method(), outcome, took);
    (done, outcome)
}

/// Elements of one batch for an upstream that takes batches: they travel together.
pub(super) async fn requests(
    cx: &PlainContext,
    upstream: usize,
    elements: Vec<(usize, Message)>,
) -> Vec<(usize, Option<Chunks>)> {
    let backend = &cx.route.backends[upstream];
    let metrics = cx.pipeline.metrics();
    let label = |message: &Message| -> MethodLabel {
        let pattern =
            cx.route.methods.pick(message.method()).map_or("other", |(_, pattern)| pattern);
        metrics.label(pattern)
    };
    let mut ledgers: Vec<Ledger<'_>> = Vec::with_capacity(elements.len());
    for (place, message) in &elements {
        let mut ledger = cx.caller.open(label(message), message, None).at(Some(*place));
        ledger.goes_to(backend.upstream.name());
        ledgers.push(ledger);
    }
    let slot = slot(backend).await;
    let started = Instant::now();
    let answers = match &slot {
        Ok(_) => {
            let calls =
                elements.iter().map(|(_, message)| backend.plain_call(message.clone())).collect();
            backend.upstream.call_batch(calls).await
        }
        Err(_) => Vec::new(),
    };
    let took = started.elapsed();
    let mut answers = answers.into_iter();
    let mut filled = Vec::with_capacity(elements.len());
    for ((place, message), mut ledger) in elements.iter().zip(ledgers) {
        let id = message.id();
        let (done, outcome) = match (&slot, answers.next()) {
            (Ok(_), Some(answer)) => settled(id.as_ref(), answer, &mut ledger),
            (Ok(_), None) => {
                let error =
                    Fault::new(Reason::UpstreamProtocol, "there is no answer to this request")
                        .at(backend.upstream.name().as_str());
                ledger.failed(&error);
                (fault(id.as_ref(), &error), error.reason.outcome())
            }
            (Err(refusal), _) => {
                ledger.failed(refusal);
                (fault(id.as_ref(), refusal), refusal.reason.outcome())
            }
        };
        ledger.waited(took);
        backend.metrics.call_ended(ledger.method(), outcome, took);
        ledger.replied(&done);
        ledger.end(outcome);
        filled.push((*place, done.body));
    }
    filled
}

/// The upstream's answer under the client's id.
fn settled(
    id: Option<&Id>,
    answer: Result<Option<Message>, CallError>,
    ledger: &mut Ledger<'_>,
) -> (Done, Outcome) {
    match (answer, id) {
        (Ok(Some(answer)), Some(id)) => {
            ledger.answered(&answer);
            (Done::ok(answer.with_id(id)), outcome_of(&answer))
        }
        (Ok(_), _) => (silent(), Outcome::Ok),
        (Err(error), id) => {
            tracing::debug!(%error, source = ?std::error::Error::source(&error), "call failed");
            let error = error.to_fault();
            ledger.failed(&error);
            (fault(id, &error), error.reason.outcome())
        }
    }
}

async fn slot(backend: &Backend) -> Result<Slot, Fault> {
    if let Some(slot) = backend.slots.try_take() {
        backend.metrics.queue_wait.observe(0.0);
        return Ok(slot);
    }
    let queued = Instant::now();
    let slot = backend.slots.take(backend.config().timeout).await;
    backend.metrics.queue_wait.observe(queued.elapsed().as_secs_f64());
    slot.map_err(|refusal| no_slot(refusal, backend.upstream.name().as_str()))
}
