//! `requestState`: what a client hands back with a retry, sealed and bound to the call that it was given for (MCP digest
//! §13.3).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::digest::{add_part, add_value};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Member, Message};
use crate::pipeline::call::Context;
use crate::pipeline::seal::Seal;

/// How long a state of an upstream may be handed back.
pub(super) const RELAYED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Longest state that is taken back, as JSON text. What is given out is shorter: the longest of an upstream (64 KiB), each
/// byte escaped, sealed and in Base64.
const MAX_STATE: usize = 256 << 10;

/// What is sealed.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct State {
    /// The upstream that is owed the answer.
    pub(super) upstream: String,
    /// The rounds that were made.
    pub(super) round: u32,
    /// What becomes of the retry.
    pub(super) then: Then,
    digest: String,
    /// Seconds since 1970.
    expires: u64,
}

/// What becomes of a retry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Then {
    /// It goes on with the parked call of this handle.
    Resume(u128),
    /// It is the upstream's: with its own state, as the JSON text of a string, where it gave one.
    Relay(Option<String>),
    /// The call is made once more, as was promised under this handle.
    Again(u128),
}

/// Seals a state for the client of this request.
pub(super) fn close(
    cx: &Context,
    message: &Message,
    upstream: &str,
    round: u32,
    then: Then,
) -> Result<String, Fault> {
    let lasts = match then {
        Then::Resume(_) => cx.snapshot.server.park_timeout,
        Then::Relay(_) | Then::Again(_) => RELAYED_FOR,
    };
    let state = State {
        upstream: upstream.to_owned(),
        round,
        then,
        digest: digest(message),
        expires: now() + lasts.as_secs(),
    };
    let failed = || Fault::new(Reason::Internal, "the state of the request cannot be sealed");
    let text = serde_json::to_vec(&state).map_err(|_| failed())?;
    seal(cx).close(&text, &bound(cx)).map_err(|_| failed())
}

/// Refuses a request whose state is longer than any that is given out, before anything else is done for it.
pub(super) fn check(message: &Message) -> Result<(), Fault> {
    match message.member_span(Member::RequestState) {
        Some(span) if span.range().len() > MAX_STATE => {
            let text = "Invalid params: requestState is longer than any that was given out";
            Err(Fault::new(Reason::InvalidParams, text))
        }
        Some(_) | None => Ok(()),
    }
}

/// The state that a request hands back; `None` when it has none.
///
/// # Errors
/// It is not one of ours, for this client, this call and this time.
pub(super) fn open(cx: &Context, message: &Message) -> Result<Option<State>, Fault> {
    if message.member(Member::RequestState).is_none() {
        return Ok(None);
    }
    let text = message.member_str(Member::RequestState);
    let text = text.and_then(|sealed| seal(cx).open(&sealed, &bound(cx)));
    let state = text.and_then(|text| serde_json::from_slice::<State>(&text).ok());
    let valid = |state: &State| state.expires >= now() && state.digest == digest(message);
    state.filter(valid).map(Some).ok_or_else(not_valid)
}

/// What a state is answered with that cannot be used. It tells nothing of why.
pub(super) fn not_valid() -> Fault {
    Fault::new(Reason::InvalidParams, "Invalid params: requestState is not valid (any more)")
}

fn seal(cx: &Context) -> Seal {
    Seal::new(&cx.snapshot.secret, "requestState")
}

fn bound(cx: &Context) -> [&[u8]; 2] {
    let principal = cx.session.principal().map_or(&b""[..], |principal| principal.as_bytes());
    [cx.route.name.as_str().as_bytes(), principal]
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What makes a call this call: the method, whom it is for, the arguments. However a client writes them.
fn digest(message: &Message) -> String {
    let mut hash = Sha256::new();
    add_part(message.method().as_bytes(), &mut hash);
    for member in [Member::Name, Member::Uri] {
        add_part(message.member_str(member).unwrap_or_default().as_bytes(), &mut hash);
    }
    if let Some(arguments) = message.member(Member::Arguments) {
        add_value(&arguments, &mut hash);
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, arguments: &str) -> String {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
        );
        digest(&Message::parse(text.into(), 64).expect("a message"))
    }

    #[test]
    fn a_state_that_is_too_long_is_refused() {
        let check = |length: usize| {
            let state = "s".repeat(length - 2);
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"requestState":"{state}"}}}}"#
            );
            check(&Message::parse(text.into(), 64).expect("a message"))
                .map_err(|fault| fault.reason)
        };
        assert_eq!(check(MAX_STATE), Ok(()));
        assert_eq!(check(MAX_STATE + 1), Err(Reason::InvalidParams));
        // The longest of an upstream, as it is given out.
        let longest = serde_json::to_vec(&"\"".repeat(64 << 10)).expect("a text");
        let sealed = Seal::new(b"secret", "requestState").close(&longest, &[]).expect("sealed");
        assert!(sealed.len() + 1024 < MAX_STATE, "{}", sealed.len());
    }

    #[test]
    fn a_digest_depends_on_what_is_called_and_not_on_how_it_is_written() {
        let one = of("a", r#"{"x":1,"y":[{"b":2,"a":"ü"}]}"#);
        assert_eq!(one, of("a", r#"{ "y" : [ {"a":"\u00fc","b":2} ], "x":1 }"#));
        assert_ne!(one, of("b", r#"{"x":1,"y":[{"b":2,"a":"ü"}]}"#));
        assert_ne!(one, of("a", r#"{"x":1,"y":[{"b":3,"a":"ü"}]}"#));
        assert_ne!(of("a", r#"{"x":["1","2"]}"#), of("a", r#"{"x":["1,2"]}"#));
        assert_ne!(of("a", "{}"), of("a", "null"));
        // What no number or text of a program holds.
        for beside in ["1e400", r#""\ud800""#, "100000000000000000001"] {
            let call = |n| of("a", &format!(r#"{{"beside":{beside},"n":{n}}}"#));
            assert_ne!(call("5"), call("500"), "{beside}");
        }
        assert_ne!(of("a", "100000000000000000001"), of("a", "100000000000000000002"));
    }
}
