//! `initialize`: a session begins, and its client is told what all upstreams offer together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::LEGACY;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Id, Member, Message, NullId, result_response};
use crate::mcp::{ClientCaps, Era, ProtocolVersion};
use crate::pipeline::ledger::{Caller, Ledger};
use crate::pipeline::offer::{Offer, offer, server_info};
use crate::pipeline::reply::Reply;
use crate::pipeline::{Inbound, McpRoute, Pipeline};
use crate::session::{Full, NewSession};

/// Opens a session (MCP digest §4.1, §19.5).
pub(super) async fn initialize(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
    message: Message,
) -> Reply {
    let label = pipeline.metrics().label("initialize");
    let caller = Caller::of(inbound);
    let ledger = caller.open(label, &message, None);
    let id = message.id();
    let fail = |mut ledger: Ledger<'_>, fault: Fault| {
        ledger.failed(&fault);
        ledger.end(fault.reason.outcome());
        let mut reply = Reply::fault(id.as_ref(), &fault, LEGACY, NullId::Omit);
        if let (Reply::One { status, .. }, Reason::Overloaded) = (&mut reply, fault.reason) {
            *status = StatusCode::SERVICE_UNAVAILABLE;
        }
        reply
    };
    if pipeline.is_draining() {
        let mut fault = Fault::new(Reason::Overloaded, "the gateway is shutting down");
        fault.retry_after = Some(Duration::from_secs(1));
        return fail(ledger, fault);
    }
    let Some(requested) = message.member_str(Member::ProtocolVersion) else {
        let text = "Invalid params: protocolVersion must be a string";
        return bad_params(fail(ledger, Fault::new(Reason::InvalidParams, text)));
    };
    let is_object = |member| message.member(member).is_some_and(|text| text.starts_with(b"{"));
    if !is_object(Member::Capabilities) || !is_object(Member::ClientInfo) {
        let text = "Invalid params: capabilities and clientInfo must be objects";
        return bad_params(fail(ledger, Fault::new(Reason::InvalidParams, text)));
    }
    let version = ProtocolVersion::negotiate(&requested);
    let caps =
        message.member(Member::Capabilities).map_or(ClientCaps::NONE, |c| ClientCaps::parse(&c));
    // Copied: the session does not keep the whole request.
    let info = message.member(Member::ClientInfo).map(|info| Bytes::copy_from_slice(&info));
    let result = greeting(route, version).await;
    let opened = NewSession { route: route.name.clone(), principal: None, version, caps, info };
    let session = match pipeline.sessions.open(opened) {
        Ok(session) => session,
        Err(error @ Full::Limit { .. }) => {
            let mut fault = Fault::new(Reason::Overloaded, error.to_string());
            fault.retry_after = Some(Duration::from_secs(1));
            return fail(ledger, fault);
        }
        Err(Full::NoRandomness) => {
            return fail(ledger, Fault::new(Reason::Internal, "no session could be opened"));
        }
    };
    route.metrics.sessions(Era::Legacy).inc();
    ledger.end(Outcome::Ok);
    let id = id.unwrap_or_else(|| Id::from_number(0));
    Reply::One {
        status: StatusCode::OK,
        body: result_response(&id, result.to_string().as_bytes()).into(),
        session: Some(session.id().clone()),
        retry_after: None,
    }
}

/// A rejected `initialize` opens nothing and says so by its status.
fn bad_params(mut reply: Reply) -> Reply {
    if let Reply::One { status, .. } = &mut reply {
        *status = StatusCode::BAD_REQUEST;
    }
    reply
}

/// The result of `initialize`.
async fn greeting(route: &McpRoute, version: ProtocolVersion) -> serde_json::Value {
    let Offer { mut caps, instructions } = offer(route, Era::Legacy).await;
    if version < ProtocolVersion::V2025_03_26 {
        caps.completions = false;
    }
    let mut result = json!({
        "protocolVersion": version.as_str(),
        "capabilities": caps.to_json(Era::Legacy),
        "serverInfo": server_info(),
    });
    if let Some(text) = instructions {
        result["instructions"] = text.into();
    }
    result
}
