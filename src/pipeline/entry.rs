//! A POST on an MCP route: parsed once (step 1), and its era told by what it says itself (step 2; MCP digest §4.4).

use std::sync::Arc;

use http::HeaderName;

use super::call::null_id;
use super::ledger::Caller;
use super::reply::Reply;
use super::{Inbound, McpRoute, Pipeline, legacy, modern};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Body, Element, IdKind, Kind, Member, Message, NullId, Rejected, parse_body};
use crate::mcp::{Era, ProtocolVersion, VERSION_HEADER};

// Made once: a name that is given as text is parsed at each look.
const VERSION: HeaderName = HeaderName::from_static(VERSION_HEADER);

/// Serves a POST.
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
        Body::One(message) => match era_of(&message, &inbound) {
            Era::Legacy => legacy::one(pipeline, route, &inbound, message).await,
            Era::Modern => modern::one(pipeline, route, &inbound, message),
        },
        Body::Batch(elements) => many(pipeline, route, &inbound, elements),
    }
}

/// Batches are of the legacy era only.
fn many(
    pipeline: &Arc<Pipeline>,
    route: Arc<McpRoute>,
    inbound: &Inbound,
    elements: Vec<Element>,
) -> Reply {
    if names_modern(inbound) || elements.iter().flatten().any(is_modern) {
        let text = "Invalid Request: revision 2026-07-28 has no batches";
        let fault = Fault::new(Reason::InvalidRequest, text);
        Caller::of(inbound).refused(pipeline.metrics(), &fault);
        return Reply::fault(None, &fault, Some(Era::Legacy), spelled(inbound));
    }
    legacy::many(pipeline, route, inbound, elements)
}

/// The era of one message: what its `_meta` says counts; without that, what its headers say. A handshake is legacy.
fn era_of(message: &Message, inbound: &Inbound) -> Era {
    let handshake = message.kind() == Kind::Request && message.method() == "initialize";
    if is_modern(message) || (names_modern(inbound) && !handshake) {
        Era::Modern
    } else {
        Era::Legacy
    }
}

/// Whether a message says of itself that it is of the modern era.
pub(super) fn is_modern(message: &Message) -> bool {
    message.member(Member::MetaProtocolVersion).is_some()
}

/// Whether the version header names a revision without sessions.
pub(super) fn names_modern(inbound: &Inbound) -> bool {
    let header = inbound.headers.get(&VERSION).and_then(|header| header.to_str().ok());
    let version = header.and_then(|text| ProtocolVersion::parse(text.trim()));
    version.is_some_and(|version| version.era() == Era::Modern)
}

/// The legacy revision that the header names; `Ok(None)` without one.
pub(super) fn legacy_version(inbound: &Inbound) -> Result<Option<ProtocolVersion>, ()> {
    let Some(header) = inbound.headers.get(&VERSION) else { return Ok(None) };
    let version = header.to_str().ok().and_then(|text| ProtocolVersion::parse(text.trim()));
    version.filter(|version| version.era() == Era::Legacy).map(Some).ok_or(())
}

/// How errors without an id spell it for the revision the header names.
pub(super) fn spelled(inbound: &Inbound) -> NullId {
    match legacy_version(inbound) {
        Ok(Some(version)) => null_id(version),
        _ => NullId::Omit,
    }
}

/// A message that goes no further: counted, written down, and told why.
pub(super) fn turned_away(
    pipeline: &Pipeline,
    inbound: &Inbound,
    message: &Message,
    fault: &Fault,
    era: Era,
) -> Reply {
    let caller = Caller::of(inbound);
    let label = pipeline.metrics().label(message.method());
    let mut ledger = caller.open(label, message, None);
    ledger.failed(fault);
    ledger.end(fault.reason.outcome());
    // An id that MCP does not allow is not echoed.
    let id = message.id().filter(|id| !matches!(id.kind(), IdKind::Null | IdKind::Fraction));
    Reply::fault(id.as_ref(), fault, Some(era), spelled(inbound))
}

/// The answer to a text that is no message.
pub(super) fn refused(rejected: &Rejected, spelled: NullId) -> Reply {
    let id = match rejected {
        Rejected::Invalid { id, .. } => id.as_ref(),
        _ => None,
    };
    Reply::fault(id, &Fault::from(rejected), Some(Era::Legacy), spelled)
}
