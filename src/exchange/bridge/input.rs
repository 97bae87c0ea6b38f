//! A modern upstream that needs input: what it asks, and the retry with what was learnt (MCP digest §13, §20.3).

use bytes::Bytes;

use super::place::{Edits, Object, Walk, edit, push_member, quoted};
use crate::jsonrpc::{Answer, Chunks, Member, Message, RawObject};

/// What an upstream wants to know: an entry of `inputRequests`, or a question of a legacy upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRequest {
    /// Its key in `inputRequests`.
    pub key: String,
    /// The method.
    pub method: String,
    /// `params` as JSON text of an object.
    pub params: Option<Bytes>,
}

/// A result that asks for input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRequired {
    /// What is asked; may be nothing.
    pub requests: Vec<InputRequest>,
    /// `requestState` as it was written: the JSON text of a string.
    pub state: Option<Bytes>,
}

/// A text that has not the shape that MCP gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The call cannot go on: what its client is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Abandon {
    /// One sentence for the client.
    pub text: String,
}

/// Most questions in one result.
const MAX_REQUESTS: usize = 64;

/// What an answer asks for; `None` when it is not an `input_required` result.
pub fn input_required(answer: &Message) -> Option<Result<InputRequired, Malformed>> {
    if answer.answer() != Answer::Result {
        return None;
    }
    if answer.member_str(Member::ResultType)? != "input_required" {
        return None;
    }
    Some(parsed(answer))
}

fn parsed(answer: &Message) -> Result<InputRequired, Malformed> {
    let result = answer.result().and_then(|result| RawObject::parse(&result));
    let result = result.ok_or(Malformed("the result is no object"))?;
    let given = |name| result.get(name).filter(|value| value[..] != *b"null");
    let state = given("requestState").cloned();
    if state.as_ref().is_some_and(|state| state.first() != Some(&b'"')) {
        return Err(Malformed("requestState is no string"));
    }
    let requests = match given("inputRequests") {
        None if state.is_none() => {
            return Err(Malformed("neither inputRequests nor requestState is there"));
        }
        None => Vec::new(),
        Some(requests) => {
            let entries =
                RawObject::parse(requests).ok_or(Malformed("inputRequests is no object"))?;
            if entries.len() > MAX_REQUESTS {
                return Err(Malformed("inputRequests has too many entries"));
            }
            entries.iter().map(|(key, entry)| request(key, entry)).collect::<Result<_, _>>()?
        }
    };
    Ok(InputRequired { requests, state })
}

fn request(key: &str, entry: &Bytes) -> Result<InputRequest, Malformed> {
    let entry =
        RawObject::parse(entry).ok_or(Malformed("an entry of inputRequests is no object"))?;
    let method =
        entry.get_str("method").ok_or(Malformed("an entry of inputRequests has no method"))?;
    let params = entry.get("params").filter(|params| params[..] != *b"null").cloned();
    if params.as_ref().is_some_and(|params| params.first() != Some(&b'{')) {
        return Err(Malformed("params of an entry of inputRequests is no object"));
    }
    Ok(InputRequest { key: key.to_owned(), method, params })
}

/// What a client answered to a question with that method, as a value of `inputResponses`. There is no way to tell an
/// error there: an elicitation counts as cancelled or declined, anything else ends the call.
///
/// # Errors
/// [`Abandon`] when it cannot be expressed (MCP digest §20.3, step 4).
pub fn input_response(method: &str, answer: &Message) -> Result<Bytes, Abandon> {
    if answer.answer() == Answer::Result
        && let Some(result) = answer.result().filter(|result| result.first() == Some(&b'{'))
    {
        return Ok(result);
    }
    let told = answer.error().and_then(|error| RawObject::parse(&error));
    let told = told.and_then(|error| error.get_str("message")).unwrap_or_default();
    if method == "elicitation/create" {
        let refused = super::code_of(answer) == Some(USER_REJECTED) || says_no(&told);
        let action: &[u8] =
            if refused { br#"{"action":"decline"}"# } else { br#"{"action":"cancel"}"# };
        return Ok(Bytes::from_static(action));
    }
    let mut text = format!("The client did not answer {method}");
    if !told.is_empty() {
        text.push_str(": ");
        text.push_str(&told);
    }
    Err(Abandon { text })
}

/// What clients answer when their user said no (MCP digest §6.2).
const USER_REJECTED: i64 = -1;

fn says_no(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["reject", "declin", "denied", "refused"].iter().any(|word| message.contains(word))
}

/// The request once more with what was learnt: `inputResponses` and `requestState` are set, or taken out when there are
/// none; all else stays byte for byte. `responses` are JSON texts under their keys, `state` is the JSON text of a string.
pub fn retry(original: &Message, responses: &[(String, Bytes)], state: Option<&Bytes>) -> Message {
    let mut new = Vec::new();
    if !responses.is_empty() {
        let mut entries = Vec::new();
        for (key, response) in responses {
            push_member(&mut entries, key, response);
        }
        push_member(&mut new, "inputResponses", &[b"{", &entries[..], b"}"].concat());
    }
    if let Some(state) = state {
        push_member(&mut new, "requestState", state);
    }
    let mut edits = Edits::new();
    let text = original.text();
    match original.params_span() {
        Some(span) => match Object::at(text, span.range().start) {
            Some(params) => {
                let gone = |name: &str| matches!(name, "inputResponses" | "requestState");
                params.change(gone, new, &mut edits);
            }
            None if text[span.range()] == *b"null" => {
                edits.push((span, [b"{", &new[..], b"}"].concat().into()));
            }
            None => {}
        },
        None if !new.is_empty() => {
            let open = Walk::new(text, 0).behind_brace();
            let params = [b"\"params\":{", &new[..], b"},"].concat();
            edits.push(edit(open..open, params));
        }
        None => {}
    }
    let text = original.edited(&edits).into_bytes();
    Message::parse(text, u16::MAX).unwrap_or_else(|rejected| {
        debug_assert!(false, "a retry is {rejected}");
        original.clone()
    })
}

/// An `input_required` result of a modern upstream for a modern client, with `state` in place of its own or added to it;
/// all else stays byte for byte.
pub fn with_state(answer: &Message, state: &str) -> Message {
    let result =
        answer.result_span().and_then(|span| Object::at(answer.text(), span.range().start));
    let Some(result) = result else { return answer.clone() };
    let mut new = Vec::new();
    push_member(&mut new, "requestState", &quoted(state));
    let mut edits = Edits::new();
    result.change(|name| name == "requestState", new, &mut edits);
    let text: Chunks = answer.edited(&edits);
    Message::parse_answer(text.into_bytes(), u16::MAX).unwrap_or_else(|rejected| {
        debug_assert!(false, "a result with our state is {rejected}");
        answer.clone()
    })
}
