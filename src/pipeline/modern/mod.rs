//! MCP without sessions (2026-07-28): every request stands on its own.

mod check;
mod digest;
mod discover;
mod flight;
mod listen;
mod parked;
mod promises;
mod rounds;
mod state;
mod tasks;

use std::sync::Arc;

use http::StatusCode;

use self::check::Claims;
pub(super) use self::check::params;
pub(super) use self::discover::discover;
pub(super) use self::listen::{Listener, listen};
pub(super) use self::parked::Parked;
pub(super) use self::promises::Promises;
pub(super) use self::rounds::{call, relayed};
pub(super) use self::tasks::task;
use super::call::Context;
use super::entry::turned_away;
use super::ledger::Caller;
use super::reply::{OnHangup, Reply, Run};
use super::{Inbound, McpRoute, Outlet, Pipeline, mcp};
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Kind, Message};
use crate::mcp::{Era, PARAM_HEADER, ProtocolVersion};
use crate::session::NewSession;

/// Steps 2 to 4 of a POST; the rest runs with the reply.
pub(super) fn one(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    message: Message,
) -> Reply {
    let refuse = |fault: Fault| turned_away(pipeline, inbound, &message, &fault, Era::Modern);
    match message.kind() {
        Kind::Request => {}
        Kind::Notification => {
            // None is defined over HTTP; who sends one wants no answer (MCP digest §4.4).
            let caller = Caller::of(inbound);
            let label = pipeline.metrics().label(message.method());
            caller.open(label, &message, None).end(Outcome::Ok);
            return Reply::empty(StatusCode::ACCEPTED);
        }
        Kind::Response => {
            let text = "Invalid Request: clients of this revision send no responses";
            return refuse(Fault::new(Reason::InvalidRequest, text));
        }
    }
    let checked = mcp::check(&message)
        .and_then(|()| state::check(&message))
        .and_then(|()| check::claims(&message))
        .and_then(|claims| check::headers(&message, &inbound.headers).map(|()| claims));
    let cx = match checked {
        Ok(claims) => {
            let repeated =
                inbound.headers.iter().filter(|(name, _)| name.as_str().starts_with(PARAM_HEADER));
            let repeated = repeated.map(|(name, value)| (name.clone(), value.clone())).collect();
            let mut cx = context(pipeline, route, inbound, claims);
            cx.repeated = Some(repeated);
            cx
        }
        Err(fault) => return refuse(fault),
    };
    let metrics = Arc::clone(&cx.route.metrics);
    let outlet = Arc::new(Outlet::default());
    let own = Arc::clone(&outlet);
    let future = Box::pin(async move { mcp::request(&cx, &message, &own, None).await });
    Reply::Run(Run { future, outlet, on_hangup: OnHangup::Cancel, session: None, metrics })
}

/// Steps 2 to 4 of a request on a WebSocket, where no message has headers.
pub(super) fn without_headers(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    message: &Message,
) -> Result<Context, Fault> {
    mcp::check(message)?;
    let claims = check::claims(message)?;
    check::served(message)?;
    Ok(context(pipeline, route, inbound, claims))
}

fn context(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    claims: Claims,
) -> Context {
    let Claims { caps, info, log_rank } = claims;
    let version = ProtocolVersion::NEWEST_MODERN;
    let opened = NewSession { route: route.name.clone(), principal: None, version, caps, info };
    let session = pipeline.sessions.stateless(opened);
    if let Some(rank) = log_rank {
        session.set_log_rank(rank);
    }
    Context {
        pipeline: Arc::clone(pipeline),
        snapshot: Arc::clone(&inbound.snapshot),
        route,
        session,
        caller: Caller::of(inbound),
        standing: false,
        repeated: None,
    }
}
