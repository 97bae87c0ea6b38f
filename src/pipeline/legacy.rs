//! MCP over HTTP, legacy era (2025-03-26 … 2025-11-25): POST, GET and DELETE of a session.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::{HeaderName, StatusCode};
use serde_json::json;

use super::call::{Context, null_id};
use super::ledger::{Caller, Ledger};
use super::reply::{Done, OnHangup, Reply, Run};
use super::{Inbound, McpRoute, Outlet, Pipeline, batch, lists, mcp};
use crate::config::Sessions as Need;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{
    Body, Element, Id, Kind, Member, Message, NullId, Rejected, parse_body, result_response,
};
use crate::mcp::{ClientCaps, Era, ProtocolVersion, SESSION_HEADER, ServerCaps, VERSION_HEADER};
use crate::session::{Full, NewSession, Session};

const LEGACY: Option<Era> = Some(Era::Legacy);

// Made once: a name that is given as text is parsed at each look.
const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);
const VERSION: HeaderName = HeaderName::from_static(VERSION_HEADER);

/// How long `initialize` waits for upstreams of which nothing is known yet, so that what it promises is right
/// when they are quick. Slow ones are never waited for.
const GRACE: Duration = Duration::from_millis(300);

/// Steps 1 to 4 of a POST; the rest runs with the reply.
pub(super) async fn post(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: Inbound,
) -> Reply {
    let body = match parse_body(inbound.payload.clone(), &inbound.snapshot.limits) {
        Ok(body) => body,
        Err(rejected) => {
            let fault = Fault::from(&rejected);
            Caller::of(&inbound).refused(pipeline.metrics(), &fault);
            return refused(&rejected, spelled(&inbound));
        }
    };
    match body {
        Body::One(message) => one(pipeline, route, &inbound, message).await,
        Body::Batch(elements) => many(pipeline, route, &inbound, elements),
    }
}

async fn one(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    message: Message,
) -> Reply {
    let id = message.id();
    if message.kind() != Kind::Response {
        if is_modern(&message) {
            let text = "Invalid Request: this gateway speaks revisions up to 2025-11-25; begin with initialize";
            return Reply::fault(
                id.as_ref(),
                &Fault::new(Reason::InvalidRequest, text),
                LEGACY,
                spelled(inbound),
            );
        }
        if let Err(fault) = mcp::check(&message) {
            // An id that MCP does not allow is not echoed.
            let id = id.filter(|id| {
                !matches!(
                    id.kind(),
                    crate::jsonrpc::IdKind::Null | crate::jsonrpc::IdKind::Fraction
                )
            });
            return Reply::fault(id.as_ref(), &fault, LEGACY, spelled(inbound));
        }
    }
    if message.kind() == Kind::Request && message.method() == "initialize" {
        // Whatever session it names, dead, foreign or its own: it begins a fresh one and takes over none.
        return Box::pin(initialize(pipeline, &route, inbound, message)).await;
    }
    let session = match session(pipeline, &route, inbound, id.as_ref()) {
        Ok(session) => session,
        Err(reply) => return reply,
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

/// A batch: of requests and notifications, or of answers.
fn many(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    elements: Vec<Element>,
) -> Reply {
    let spelled = spelled(inbound);
    let invalid =
        |text| Reply::fault(None, &Fault::new(Reason::InvalidRequest, text), LEGACY, spelled);
    if !route.batches {
        return invalid("Invalid Request: batches are not served on this route");
    }
    if elements.iter().flatten().any(is_modern) {
        return invalid("Invalid Request: revision 2026-07-28 has no batches");
    }
    let session = match session(pipeline, &route, inbound, None) {
        Ok(session) => session,
        Err(reply) => return reply,
    };
    let is_answer = |element: &Element| matches!(element, Ok(m) if m.kind() == Kind::Response);
    let answers = elements.iter().filter(|element| is_answer(element)).count();
    if answers == elements.len() {
        for answer in elements.into_iter().flatten() {
            session.0.settle(answer);
        }
        return Reply::empty(StatusCode::ACCEPTED);
    }
    if answers > 0 {
        return invalid("Invalid Request: a batch holds requests or answers, not both");
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
        "notifications/roots/list_changed" => {
            for backend in &cx.route.backends {
                let _ = backend.upstream.notify(&cx.link(backend), message).await;
            }
        }
        // Anything else passes where there is one upstream, and is dropped where there are many.
        _ => {
            if let Some(backend) = cx.route.transparent() {
                let _ = backend.upstream.notify(&cx.link(backend), message).await;
            }
        }
    }
}

/// Step 4. A live session of this route and principal, and whether it outlives the exchange.
fn session(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
    id: Option<&Id>,
) -> Result<(Arc<Session>, bool), Reply> {
    let fail = |reason, text: &'static str| {
        let mut reply = Reply::fault(id, &Fault::new(reason, text), LEGACY, spelled(inbound));
        if let (Reply::One { status, .. }, Reason::InvalidRequest) = (&mut reply, reason) {
            *status = StatusCode::BAD_REQUEST;
        }
        reply
    };
    let found = live_session(pipeline, route, inbound);
    if matches!(found, Err(Missing::Unknown)) {
        return Err(fail(Reason::SessionNotFound, "Session not found; begin with initialize"));
    }
    if version_header(inbound).is_err() {
        let text = "Bad Request: MCP-Protocol-Version names a revision that is not served here";
        return Err(fail(Reason::InvalidRequest, text));
    }
    match found {
        Ok(Some(session)) => Ok(session),
        _ if route.sessions == Need::Required => Err(fail(
            Reason::InvalidRequest,
            "Bad Request: the Mcp-Session-Id header is missing; begin with initialize",
        )),
        _ => {
            let version = version_header(inbound).ok().flatten();
            let opened = NewSession {
                route: route.name.clone(),
                principal: None,
                version: version.unwrap_or(ProtocolVersion::V2025_03_26),
                caps: ClientCaps::NONE,
            };
            let session = pipeline.sessions.passing(opened);
            session
                .map(|session| (session, false))
                .map_err(|_| fail(Reason::Internal, "no session could be opened"))
        }
    }
}

/// Why a request has no live session though it names one.
enum Missing {
    /// No such session on this route.
    Unknown,
}

/// The live session that a request names; `None` when it names none.
fn live_session(
    pipeline: &Arc<Pipeline>,
    route: &McpRoute,
    inbound: &Inbound,
) -> Result<Option<(Arc<Session>, bool)>, Missing> {
    let Some(header) = inbound.headers.get(&SESSION) else { return Ok(None) };
    let id = header.to_str().map_err(|_| Missing::Unknown)?;
    let session = pipeline.sessions.find(id).filter(|session| *session.route() == route.name);
    session.map(|session| Some((session, true))).ok_or(Missing::Unknown)
}

/// The revision that the header names; `Ok(None)` without one.
fn version_header(inbound: &Inbound) -> Result<Option<ProtocolVersion>, ()> {
    let Some(header) = inbound.headers.get(&VERSION) else { return Ok(None) };
    let version = header.to_str().ok().and_then(|text| ProtocolVersion::parse(text.trim()));
    version.filter(|version| version.era() == Era::Legacy).map(Some).ok_or(())
}

/// How errors without an id spell it for the revision the header names.
fn spelled(inbound: &Inbound) -> NullId {
    match version_header(inbound) {
        Ok(Some(version)) => null_id(version),
        _ => NullId::Omit,
    }
}

fn is_modern(message: &Message) -> bool {
    message.member(Member::MetaProtocolVersion).is_some()
}

fn refused(rejected: &Rejected, spelled: NullId) -> Reply {
    let id = match rejected {
        Rejected::Invalid { id, .. } => id.as_ref(),
        _ => None,
    };
    Reply::fault(id, &Fault::from(rejected), LEGACY, spelled)
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
    }
}

/// Opens a session (MCP digest §4.1, §19.5).
async fn initialize(
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
    let result = greeting(route, version).await;
    let opened = NewSession { route: route.name.clone(), principal: None, version, caps };
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

/// The result of `initialize`: what all upstreams offer together.
async fn greeting(route: &McpRoute, version: ProtocolVersion) -> serde_json::Value {
    let unknown: Vec<_> =
        route.backends.iter().filter(|backend| backend.upstream.may_come_up()).collect();
    if !unknown.is_empty() {
        let hellos = unknown.iter().map(|backend| async move {
            let _ = backend.upstream.hello(&lists::home(backend)).await;
        });
        let _ = tokio::time::timeout(GRACE, join_all(hellos)).await;
    }
    // Of an upstream that is not known yet everything is promised: what is not advertised now, a client never asks for.
    let promised = ServerCaps {
        tools: true,
        prompts: true,
        resources: true,
        subscribe: true,
        completions: true,
        logging: true,
        list_changed: true,
    };
    let mut caps = ServerCaps::default();
    let mut instructions = Vec::new();
    for backend in &route.backends {
        let hello = backend.upstream.known();
        caps = caps.union(hello.as_ref().map_or(promised, |hello| hello.caps));
        if let Some(text) = hello.and_then(|hello| hello.instructions.clone()) {
            instructions.push((backend.upstream.name().as_str().to_owned(), text));
        }
    }
    if version < ProtocolVersion::V2025_03_26 {
        caps.completions = false;
    }
    let mut result = json!({
        "protocolVersion": version.as_str(),
        "capabilities": caps.to_json(),
        "serverInfo": { "name": "trunkline", "version": env!("CARGO_PKG_VERSION") },
    });
    if let Some(text) = merged_instructions(route, instructions) {
        result["instructions"] = text.into();
    }
    result
}

/// Longest instructions that are passed on.
const MAX_INSTRUCTIONS: usize = 32 << 10;

/// One upstream's as they are; of several, a section each under its name and prefix.
fn merged_instructions(route: &McpRoute, parts: Vec<(String, String)>) -> Option<String> {
    let mut text = String::new();
    for (upstream, part) in parts {
        if route.backends.len() > 1 {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str("# ");
            text.push_str(&crate::catalog::Naming::title(route.naming, &upstream));
            text.push('\n');
        }
        text.push_str(&part);
    }
    let end = text.floor_char_boundary(MAX_INSTRUCTIONS);
    text.truncate(end);
    (!text.is_empty()).then_some(text)
}

/// GET: a standing stream for what belongs to no request.
pub(super) fn open_stream(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
) -> Reply {
    if names_modern(inbound) {
        return Reply::method_not_allowed("POST, OPTIONS");
    }
    let session = match named_session(pipeline, route, inbound) {
        Ok(session) => session,
        Err(reply) => return reply,
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
        Some(stream) => Reply::Stream { stream, metrics: Arc::clone(&route.metrics) },
        None => Reply::empty(StatusCode::CONFLICT),
    }
}

/// DELETE: the end of a session.
pub(super) fn delete(pipeline: &Arc<Pipeline>, route: &Arc<McpRoute>, inbound: &Inbound) -> Reply {
    if names_modern(inbound) {
        return Reply::method_not_allowed("POST, OPTIONS");
    }
    match named_session(pipeline, route, inbound) {
        Ok(session) => {
            pipeline.end_session(&session);
            Reply::empty(StatusCode::NO_CONTENT)
        }
        Err(reply) => reply,
    }
}

fn named_session(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
) -> Result<Arc<Session>, Reply> {
    let spelled = spelled(inbound);
    match live_session(pipeline, route, inbound) {
        Ok(Some((session, _))) if version_header(inbound).is_ok() => Ok(session),
        Err(Missing::Unknown) => {
            let fault =
                Fault::new(Reason::SessionNotFound, "Session not found; begin with initialize");
            Err(Reply::fault(None, &fault, LEGACY, spelled))
        }
        Ok(found) => {
            let text = if found.is_some() {
                "Bad Request: MCP-Protocol-Version names a revision that is not served here"
            } else {
                "Bad Request: the Mcp-Session-Id header is missing; begin with initialize"
            };
            let mut done =
                Done::fault(None, &Fault::new(Reason::InvalidRequest, text), LEGACY, spelled);
            done.status = StatusCode::BAD_REQUEST;
            Err(Reply::done(done))
        }
    }
}

/// Whether the version header names a revision without GET and DELETE.
fn names_modern(inbound: &Inbound) -> bool {
    let header = inbound.headers.get(&VERSION).and_then(|header| header.to_str().ok());
    let version = header.and_then(|text| ProtocolVersion::parse(text.trim()));
    version.is_some_and(|version| version.era() == Era::Modern)
}
