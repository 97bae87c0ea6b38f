//! The session of a request (step 4), and what is done to a session itself: its standing streams, its end.

use std::sync::Arc;

use http::{HeaderName, StatusCode};

use super::LEGACY;
use crate::config::Sessions as Need;
use crate::fault::{Fault, Reason};
use crate::mcp::{ClientCaps, ProtocolVersion, SESSION_HEADER};
use crate::pipeline::entry::{legacy_version, names_modern, spelled};
use crate::pipeline::reply::Reply;
use crate::pipeline::{Inbound, McpRoute, Pipeline};
use crate::session::{NewSession, Session};

// Made once: a name that is given as text is parsed at each look.
const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);

/// A live session of this route and principal, and whether it outlives the exchange.
pub(super) fn session(
    pipeline: &Pipeline,
    route: &McpRoute,
    inbound: &Inbound,
) -> Result<(Arc<Session>, bool), Fault> {
    let named = live_session(pipeline, route, inbound)?;
    let version = served_version(inbound)?;
    match named {
        Some(session) => Ok((session, true)),
        None if route.sessions == Need::Required => Err(missing()),
        None => {
            let version = version.unwrap_or(ProtocolVersion::V2025_03_26);
            passing(pipeline, route, version).map(|session| (session, false))
        }
    }
}

/// A session of one request or batch, of a client that has said nothing of itself.
pub(super) fn passing(
    pipeline: &Pipeline,
    route: &McpRoute,
    version: ProtocolVersion,
) -> Result<Arc<Session>, Fault> {
    let opened = NewSession {
        route: route.name.clone(),
        principal: None,
        version,
        caps: ClientCaps::NONE,
        info: None,
    };
    let session = pipeline.sessions.passing(opened);
    session.map_err(|_| Fault::new(Reason::Internal, "no session could be opened"))
}

/// The live session that a request must name.
fn named_session(
    pipeline: &Pipeline,
    route: &McpRoute,
    inbound: &Inbound,
) -> Result<Arc<Session>, Fault> {
    let named = live_session(pipeline, route, inbound)?;
    served_version(inbound)?;
    named.ok_or_else(missing)
}

fn missing() -> Fault {
    let text = "Bad Request: the Mcp-Session-Id header is missing; begin with initialize";
    Fault::new(Reason::InvalidRequest, text)
}

/// The live session that a request names; `None` when it names none.
fn live_session(
    pipeline: &Pipeline,
    route: &McpRoute,
    inbound: &Inbound,
) -> Result<Option<Arc<Session>>, Fault> {
    let Some(header) = inbound.headers.get(&SESSION) else { return Ok(None) };
    let found = header.to_str().ok().and_then(|id| pipeline.sessions.find(id));
    let found = found.filter(|session| *session.route() == route.name);
    found.map(Some).ok_or_else(|| {
        Fault::new(Reason::SessionNotFound, "Session not found; begin with initialize")
    })
}

/// The revision that the header names, which must be one that is served.
fn served_version(inbound: &Inbound) -> Result<Option<ProtocolVersion>, Fault> {
    legacy_version(inbound).map_err(|()| {
        let text = "Bad Request: MCP-Protocol-Version names a revision that is not served here";
        Fault::new(Reason::InvalidRequest, text)
    })
}

/// GET: a standing stream for what belongs to no request.
pub(in crate::pipeline) fn open_stream(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
) -> Reply {
    if names_modern(inbound) {
        return Reply::method_not_allowed("POST, OPTIONS");
    }
    let session = match named_session(pipeline, route, inbound) {
        Ok(session) => session,
        Err(fault) => return Reply::fault(None, &fault, LEGACY, spelled(inbound)),
    };
    let mut resumed = None;
    if let Some(id) = inbound.headers.get("last-event-id") {
        resumed = id.to_str().ok().and_then(|id| session.resume(id));
        if resumed.is_none() {
            // Not kept, not known, or not of this session: a fresh stream of live events (DESIGN §6).
            route.metrics.unreplayable.inc();
        }
    }
    match resumed.or_else(|| session.open_stream()) {
        // Opened beside the end of all others, it would hold up the drain.
        Some(_) if pipeline.is_draining() => Reply::empty(StatusCode::SERVICE_UNAVAILABLE),
        Some(stream) => Reply::Stream { stream, metrics: Arc::clone(&route.metrics) },
        None => Reply::empty(StatusCode::CONFLICT),
    }
}

/// DELETE: the end of a session.
pub(in crate::pipeline) fn delete(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
) -> Reply {
    if names_modern(inbound) {
        return Reply::method_not_allowed("POST, OPTIONS");
    }
    match named_session(pipeline, route, inbound) {
        Ok(session) => {
            pipeline.end_session(&session);
            Reply::empty(StatusCode::NO_CONTENT)
        }
        Err(fault) => Reply::fault(None, &fault, LEGACY, spelled(inbound)),
    }
}
