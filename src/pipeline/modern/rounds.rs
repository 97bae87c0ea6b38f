//! Multi round-trip requests of modern clients (MCP digest §13): relayed where the upstream is modern too, parked where it
//! is of the legacy era and asks on the open call.

use bytes::Bytes;
use serde_json::json;
use smallvec::SmallVec;

use super::flight::{Flight, Token, Turn};
use super::parked::{forgotten, park};
use super::state::{self, State, Then};
use super::tasks::begun;
use crate::exchange::bridge::{self, InputRequest};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Id, Member, Message};
use crate::mcp::{Era, ProtocolVersion};
use crate::pipeline::call::{Context, Ended, Target, outgoing, run, slot};
use crate::pipeline::rounds::{MAX_ROUNDS, abandoned, edited, endless, malformed};
use crate::pipeline::{Outlet, hub};
use crate::upstream::Answered;

/// Methods that may be answered with a question.
fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Makes a call of a modern client that can be asked, or goes on with one.
pub(in crate::pipeline) async fn call(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    outlet: &Outlet,
) -> Result<Answered, Ended> {
    let state = state::open(cx, message).map_err(Ended::Fault)?;
    let upstream = target.backend.upstream.name().as_str();
    let responses = bridge::input_responses(message)
        .map_err(|error| invalid(format!("Invalid params: {error}")))?;
    match state {
        None => begin(cx, message, target, outlet, 0).await,
        Some(state) if state.upstream != upstream => Err(Ended::Fault(state::not_valid())),
        Some(State { then: Then::Resume(handle), round, .. }) => {
            let owner = cx.holder();
            let flight = cx.pipeline.parked.take(handle, &owner, round).await;
            let mut flight = flight.ok_or_else(|| Ended::Fault(state::not_valid()))?;
            flight.answer(&responses);
            let token = Token::Of(message.member(Member::MetaProgressToken));
            let answered = fly(cx, message, flight, outlet, token).await?;
            urls(cx, message, target, answered, round)
        }
        Some(State { then: Then::Relay(inner), round, .. }) => {
            let inner = inner.map(Bytes::from);
            let again = bridge::retry(&edited(message, target), &responses, inner.as_ref());
            let target = Target { edits: SmallVec::new(), ..target.clone() };
            let answered = run(cx, &again, &target, outlet).await?;
            relayed(cx, message, &target, answered, round)
        }
        Some(State { then: Then::Again(promise), round, .. }) => {
            // Taken up once: whoever comes again with the same state would make the call twice.
            let keys = cx.pipeline.promises.redeem(promise);
            let keys = keys.ok_or_else(|| Ended::Fault(state::not_valid()))?;
            let accepted = keys.iter().all(|key| accepted(&responses, key));
            if !accepted {
                let text = "The client did not open what this needs".to_owned();
                return abandoned(cx, message, text);
            }
            let again = bridge::retry(&edited(message, target), &[], None);
            let target = Target { edits: SmallVec::new(), ..target.clone() };
            begin(cx, &again, &target, outlet, round).await
        }
    }
}

/// Makes the call: so that it can be parked, where the upstream may ask on it.
async fn begin(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    outlet: &Outlet,
    round: u32,
) -> Result<Answered, Ended> {
    let backend = target.backend;
    let hello = backend.upstream.hello(&cx.link(backend)).await;
    let hello = hello.map_err(|error| Ended::from(&error))?;
    if hello.version.era() == Era::Modern {
        let answered = run(cx, message, target, outlet).await?;
        return relayed(cx, message, target, answered, round);
    }
    let _wanting = hub::lower_level(cx, backend).await;
    if !may_ask(message.method()) {
        return run(cx, message, target, outlet).await;
    }
    let mut open = cx.session.open_call(message.id().unwrap_or_else(|| Id::from_number(0)));
    // Held while the call runs for a request, not while it waits for a person.
    let _slot = slot(cx, backend, target.timeout, &mut open).await?;
    let (out, incoming) = outgoing(cx, message, target);
    let flight = Flight::new(cx, backend, out, incoming);
    let answered = fly(cx, message, flight, outlet, Token::First).await?;
    urls(cx, message, target, answered, round)
}

/// Drives a call until it ends or is parked.
async fn fly(
    cx: &Context,
    message: &Message,
    mut flight: Box<Flight>,
    outlet: &Outlet,
    mut token: Token,
) -> Result<Answered, Ended> {
    loop {
        flight = match flight.drive(cx, outlet, token).await {
            Turn::Ended(ended) => return ended,
            Turn::Asks(flight) => flight,
        };
        flight.round += 1;
        let round = flight.round;
        let name = flight.backend.upstream.name().as_str().to_owned();
        let requests: Vec<InputRequest> =
            flight.asks.iter().map(|open| open.request.clone()).collect();
        let parked = if round > MAX_ROUNDS { Err(flight) } else { park(cx, flight) };
        match parked {
            Ok(handle) => {
                outlet.owe(forgotten(cx, handle));
                let state = state::close(cx, message, &name, round, Then::Resume(handle));
                return asking(&requests, &state.map_err(Ended::Fault)?);
            }
            // There is no room: the upstream goes on without an answer.
            Err(mut back) => {
                back.give_up();
                flight = back;
                token = Token::Of(message.member(Member::MetaProgressToken));
            }
        }
    }
}

/// The result that asks the client.
fn asking(requests: &[InputRequest], state: &str) -> Result<Answered, Ended> {
    let text = bridge::ask_modern(&Id::from_number(0), requests, state).into_bytes();
    let message = Message::parse_answer(text, u16::MAX).map_err(|_| unwritten())?;
    Ok(Answered { message, version: ProtocolVersion::NEWEST_MODERN })
}

/// What a modern upstream asks, with its state sealed.
pub(in crate::pipeline) fn relayed(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    answered: Answered,
    round: u32,
) -> Result<Answered, Ended> {
    if answered.version.era() == Era::Legacy {
        return Ok(answered);
    }
    let Some(wanted) = bridge::input_required(&answered.message) else {
        return begun(cx, target.backend, answered);
    };
    let wanted = wanted.map_err(|error| malformed(target, error))?;
    if !may_ask(message.method()) {
        let upstream = target.backend.upstream.name().as_str();
        let text = format!("upstream {upstream} sent an invalid answer: it asks where it may not");
        return Err(Ended::Fault(Fault::new(Reason::UpstreamProtocol, text).at(upstream)));
    }
    if round >= MAX_ROUNDS {
        return Err(endless(target));
    }
    let inner = wanted.state.and_then(|state| String::from_utf8(state.to_vec()).ok());
    let upstream = target.backend.upstream.name().as_str();
    let state = state::close(cx, message, upstream, round + 1, Then::Relay(inner));
    let message = bridge::with_state(&answered.message, &state.map_err(Ended::Fault)?);
    Ok(Answered { message, version: answered.version })
}

/// -32042 of an upstream: its URLs are put to the client, and the call is made again when they are accepted (MCP digest
/// §20.2).
fn urls(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    answered: Answered,
    round: u32,
) -> Result<Answered, Ended> {
    if answered.version.era() == Era::Modern {
        return Ok(answered);
    }
    let Some(requests) = bridge::url_elicitations(&answered.message) else { return Ok(answered) };
    if !cx.session.caps().elicits_urls() {
        let text = "this needs a client that can be asked to open a URL";
        let needed = json!({ "elicitation": { "url": {} } }).to_string();
        let fault = Fault::new(Reason::MissingCapability, text);
        return Err(Ended::Fault(fault.with("requiredCapabilities", needed)));
    }
    if round >= MAX_ROUNDS {
        return Err(endless(target));
    }
    let keys = requests.iter().map(|request| request.key.clone()).collect();
    let promise = cx.pipeline.promises.give(keys, state::RELAYED_FOR).ok_or_else(unwritten)?;
    let upstream = target.backend.upstream.name().as_str();
    let state = state::close(cx, message, upstream, round + 1, Then::Again(promise));
    asking(&requests, &state.map_err(Ended::Fault)?)
}

fn accepted(responses: &[(String, Bytes)], key: &str) -> bool {
    let response = responses.iter().find(|(known, _)| known == key);
    let response = response.and_then(|(_, text)| serde_json::from_slice(text).ok());
    response.is_some_and(|response: serde_json::Value| response["action"] == "accept")
}

fn unwritten() -> Ended {
    Ended::Fault(Fault::new(Reason::Internal, "the answer cannot be written"))
}

fn invalid(text: String) -> Ended {
    Ended::Fault(Fault::new(Reason::InvalidParams, text))
}
