//! MCP over HTTP, legacy era (2025-03-26 … 2025-11-25): POST, GET and DELETE of a session.

pub(super) mod arrival;
mod initialize;
mod session;
pub(super) mod sse;

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;

use self::initialize::initialize;
use self::session::session;
pub(super) use self::session::{delete, open_stream};
use super::call::Context;
use super::entry::{spelled, turned_away};
use super::ledger::Caller;
use super::reply::{OnHangup, Reply, Run};
use super::{Inbound, McpRoute, Outlet, Pipeline, batch, mcp};
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Element, Id, Kind, Member, Message};
use crate::mcp::Era;
use crate::session::Session;

const LEGACY: Option<Era> = Some(Era::Legacy);

/// Steps 2 to 4 of a POST of one message; the rest runs with the reply.
pub(super) async fn one(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    message: Message,
) -> Reply {
    if message.kind() != Kind::Response
        && let Err(fault) = mcp::check(&message)
    {
        return turned_away(pipeline, inbound, &message, &fault, Era::Legacy);
    }
    if message.kind() == Kind::Request && message.method() == "initialize" {
        // Whatever session it names, dead, foreign or its own: it begins a fresh one and takes over none.
        return Box::pin(initialize(pipeline, &route, inbound, message)).await;
    }
    let session = match session(pipeline, &route, inbound) {
        Ok(session) => session,
        Err(fault) => return turned_away(pipeline, inbound, &message, &fault, Era::Legacy),
    };
    match message.kind() {
        Kind::Request => run_one(pipeline, route, inbound, session, message),
        Kind::Notification => {
            let cx = context(pipeline, route, inbound, session);
            Box::pin(notified(&cx, &message, None)).await;
            Reply::empty(StatusCode::ACCEPTED)
        }
        Kind::Response => {
            session.0.settle(message);
            Reply::empty(StatusCode::ACCEPTED)
        }
    }
}

/// A batch: of requests, or of answers; notifications may be in either.
pub(super) fn many(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    elements: Vec<Element>,
) -> Reply {
    let refuse = |fault: &Fault| {
        Caller::of(inbound).refused(pipeline.metrics(), fault);
        Reply::fault(None, fault, LEGACY, spelled(inbound))
    };
    let invalid = |text| refuse(&Fault::new(Reason::InvalidRequest, text));
    if !route.batches {
        return invalid("Invalid Request: batches are not served on this route");
    }
    let session = match session(pipeline, &route, inbound) {
        Ok(session) => session,
        Err(fault) => return refuse(&fault),
    };
    let (answers, elements): (Vec<Element>, Vec<Element>) = elements
        .into_iter()
        .partition(|element| matches!(element, Ok(m) if m.kind() == Kind::Response));
    let is_notice = |element: &Element| matches!(element, Ok(m) if m.kind() == Kind::Notification);
    if !answers.is_empty() && !elements.iter().all(is_notice) {
        return invalid("Invalid Request: a batch holds requests or answers, not both");
    }
    for answer in answers.into_iter().flatten() {
        session.0.settle(answer);
    }
    if elements.is_empty() {
        return Reply::empty(StatusCode::ACCEPTED);
    }
    route.metrics.batch_elements.observe(elements.len() as f64);
    let metrics = Arc::clone(&route.metrics);
    let kept = kept(&session);
    let cx = Arc::new(context(pipeline, route, inbound, session));
    let outlet = Arc::new(Outlet::default());
    let future = Box::pin(batch::run_mcp(cx, elements, Arc::clone(&outlet)));
    Reply::Run(Run { future, outlet, on_hangup: OnHangup::Continue, session: kept, metrics })
}

fn run_one(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    session: (Arc<Session>, bool),
    message: Message,
) -> Reply {
    let metrics = Arc::clone(&route.metrics);
    let kept = kept(&session);
    let cx = context(pipeline, route, inbound, session);
    let outlet = Arc::new(Outlet::default());
    let own = Arc::clone(&outlet);
    let future = Box::pin(async move { mcp::request(&cx, &message, &own, None).await });
    Reply::Run(Run { future, outlet, on_hangup: OnHangup::Continue, session: kept, metrics })
}

/// The session, when it outlives the exchange.
fn kept((session, standing): &(Arc<Session>, bool)) -> Option<Arc<Session>> {
    standing.then(|| Arc::clone(session))
}

/// A notification of the client.
pub(super) async fn notified(cx: &Context, message: &Message, place: Option<usize>) {
    let label = cx.pipeline.metrics().label(message.method());
    let ledger = cx.caller.open(label, message, Some(&cx.session)).at(place);
    relay(cx, message).await;
    ledger.end(Outcome::Ok);
}

async fn relay(cx: &Context, message: &Message) {
    match message.method() {
        "notifications/cancelled" => {
            if let Some(id) = message.member(Member::RequestId) {
                cx.session.cancel(&Id::from_text(id));
            }
        }
        "notifications/initialized" | "notifications/progress" => {}
        "notifications/roots/list_changed" if !cx.session.caps().roots_list_changed() => {}
        "notifications/roots/list_changed" => {
            // Beside each other: a slow upstream delays no other.
            let told = cx.route.backends.iter().map(|backend| async move {
                let _ = backend.upstream.notify(&cx.link(backend), message).await;
            });
            join_all(told).await;
        }
        // Anything else passes where there is one upstream, and is dropped where there are many.
        _ => {
            if let Some(backend) = cx.route.transparent() {
                let _ = backend.upstream.notify(&cx.link(backend), message).await;
            }
        }
    }
}

fn context(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    (session, standing): (Arc<Session>, bool),
) -> Context {
    Context {
        pipeline: Arc::clone(pipeline),
        snapshot: Arc::clone(&inbound.snapshot),
        route,
        session,
        caller: Caller::of(inbound),
        standing,
        repeated: None,
    }
}
