//! Plain JSON-RPC 2.0: requests routed by method, answered byte for byte.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::call::no_slot;
use super::ledger::Ledger;
use super::reply::{Done, OnHangup, Reply, Run};
use super::snapshot::{Backend, PlainRoute, Snapshot};
use super::{Inbound, Outlet, Pipeline, batch};
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Body, Chunks, Id, Kind, Message, NullId, Rejected, parse_body};
use crate::policy::Slot;
use crate::telemetry::MethodLabel;
use crate::upstream::{CallError, CallerId, OutCall};

/// What every request of one POST knows.
#[derive(Debug)]
pub(super) struct PlainContext {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) route: Arc<PlainRoute>,
}

/// A POST on a plain route.
pub(super) fn post(pipeline: &Arc<Pipeline>, route: Arc<PlainRoute>, inbound: Inbound) -> Reply {
    let body = match parse_body(inbound.payload, &inbound.snapshot.limits) {
        Ok(body) => body,
        Err(rejected) => return refused(&rejected),
    };
    let metrics = Arc::clone(&route.metrics);
    let cx = PlainContext { pipeline: Arc::clone(pipeline), snapshot: inbound.snapshot, route };
    let outlet = Arc::new(Outlet::default());
    let run = |future| Reply::Run(Run { future, outlet, on_hangup: OnHangup::Cancel, metrics });
    match body {
        Body::One(message) if message.kind() == Kind::Response => refused(&not_a_request(&message)),
        Body::One(message) => run(Box::pin(async move { request(&cx, message).await })),
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

/// One request or notification.
pub(super) async fn request(cx: &PlainContext, message: Message) -> Done {
    let metrics = cx.pipeline.metrics();
    let Some((upstream, pattern)) = cx.route.methods.pick(message.method()) else {
        let ledger = Ledger::open(&cx.route.metrics, metrics.label("other"));
        ledger.end(Outcome::RpcError);
        let error = Fault::new(Reason::MethodNotFound, "Method not found");
        return fault(message.id().as_ref(), &error);
    };
    let label = metrics.label(pattern);
    let mut ledger = Ledger::open(&cx.route.metrics, label);
    let backend = &cx.route.backends[upstream];
    let id = message.id();
    let slot = match slot(backend).await {
        Ok(slot) => slot,
        Err(refusal) => {
            ledger.end(refusal.reason.outcome());
            return fault(id.as_ref(), &refusal);
        }
    };
    let started = Instant::now();
    let answer = backend.upstream.call_plain(out(backend, message)).await;
    drop(slot);
    ledger.waited(started.elapsed());
    let (done, outcome) = settled(id.as_ref(), answer);
    backend.metrics.call_ended(label, outcome, started.elapsed());
    ledger.end(outcome);
    done
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
    let mut ledgers: Vec<Ledger> = elements
        .iter()
        .map(|(_, message)| Ledger::open(&cx.route.metrics, label(message)))
        .collect();
    let owed: Vec<(usize, Option<Id>)> =
        elements.iter().map(|(place, message)| (*place, message.id())).collect();
    let slot = match slot(backend).await {
        Ok(slot) => slot,
        Err(refusal) => {
            for ledger in ledgers {
                ledger.end(refusal.reason.outcome());
            }
            let refuse =
                |(place, id): (usize, Option<Id>)| (place, fault(id.as_ref(), &refusal).body);
            return owed.into_iter().map(refuse).collect();
        }
    };
    let calls = elements.into_iter().map(|(_, message)| out(backend, message)).collect();
    let started = Instant::now();
    let answers = backend.upstream.call_batch(calls).await;
    drop(slot);
    let took = started.elapsed();
    let mut filled = Vec::with_capacity(owed.len());
    for (((place, id), answer), mut ledger) in owed.into_iter().zip(answers).zip(ledgers.drain(..))
    {
        let (done, outcome) = settled(id.as_ref(), answer);
        ledger.waited(took);
        backend.metrics.call_ended(ledger.method(), outcome, took);
        ledger.end(outcome);
        filled.push((place, done.body));
    }
    filled
}

/// The upstream's answer under the client's id.
fn settled(id: Option<&Id>, answer: Result<Option<Message>, CallError>) -> (Done, Outcome) {
    match (answer, id) {
        (Ok(Some(answer)), Some(id)) => (Done::ok(answer.with_id(id)), outcome_of(&answer)),
        (Ok(_), _) => (silent(), Outcome::Ok),
        (Err(error), id) => {
            tracing::debug!(%error, source = ?std::error::Error::source(&error), "call failed");
            let error = error.to_fault();
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

fn out(backend: &Backend, message: Message) -> OutCall {
    // Nothing precedes the answer of a plain call.
    let (events, _) = mpsc::channel(1);
    OutCall {
        message,
        edits: SmallVec::new(),
        caller: CallerId(0),
        timeout: backend.config().timeout,
        max_timeout: backend.config().max_timeout,
        events,
    }
}
