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
pub(super) const MAX_REQUESTS: usize = 64;
/// Longest `requestState` of an upstream, as JSON text: each hop wraps it once more, and clients hand it back in full.
const MAX_STATE: usize = 64 << 10;

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
    if state.as_ref().is_some_and(|state| state.len() > MAX_STATE) {
        return Err(Malformed("requestState is longer than 64 KiB"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rest: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,{rest}}}"#);
        Message::parse_answer(text.into(), 64).expect("a message")
    }

    fn required(result: &str) -> Option<Result<InputRequired, Malformed>> {
        input_required(&answer(&format!(r#""result":{result}"#)))
    }

    #[test]
    fn what_is_asked_is_read_with_its_state_as_it_was_written() {
        let given = r#"{"resultType":"input_required","inputRequests":{"a\"":{"method":"elicitation/create","params":{"n": 1.10}},"b":{"params":null,"method":"roots/list"}},"requestState":"\u0061/\/é"}"#;
        let read = required(given).expect("it asks").expect("well formed");
        let request = |key: &str, method: &str, params: Option<&'static str>| InputRequest {
            key: key.to_owned(),
            method: method.to_owned(),
            params: params.map(Bytes::from),
        };
        let first = request("a\"", "elicitation/create", Some(r#"{"n": 1.10}"#));
        assert_eq!(read.requests, [first, request("b", "roots/list", None)]);
        assert_eq!(read.state.as_deref(), Some(r#""\u0061/\/é""#.as_bytes()));
        let only_state = r#"{"resultType":"input_required","requestState":""}"#;
        let read = required(only_state).expect("it asks").expect("well formed");
        assert_eq!((read.requests.len(), read.state.as_deref()), (0, Some(&b"\"\""[..])));
    }

    #[test]
    fn other_answers_ask_nothing() {
        assert_eq!(required("{}"), None);
        assert_eq!(required(r#"{"resultType":"complete","inputRequests":{}}"#), None);
        assert_eq!(input_required(&answer(r#""error":{"code":1,"message":""}"#)), None);
    }

    #[test]
    fn a_question_of_another_shape_is_told() {
        let state = |length| format!(r#","requestState":"{}""#, "s".repeat(length));
        let longest = format!(r#"{{"resultType":"input_required"{}}}"#, state(MAX_STATE - 2));
        assert!(matches!(required(&longest), Some(Ok(_))));
        let long = state(MAX_STATE - 1);
        let crowd: Vec<_> = (0..=MAX_REQUESTS).map(|n| format!(r#""{n}":{{}}"#)).collect();
        let crowd = format!(r#","inputRequests":{{{}}}"#, crowd.join(","));
        for rest in [
            "",
            r#","requestState":null"#,
            r#","requestState":5"#,
            r#","inputRequests":[]"#,
            r#","inputRequests":{"a":1}"#,
            r#","inputRequests":{"a":{}}"#,
            r#","inputRequests":{"a":{"method":1}}"#,
            r#","inputRequests":{"a":{"method":"m","params":[]}}"#,
            &crowd,
            &long,
        ] {
            let read = required(&format!(r#"{{"resultType":"input_required"{rest}}}"#));
            assert!(matches!(read, Some(Err(_))), "{rest}: {read:?}");
        }
    }

    #[test]
    fn an_answer_of_a_legacy_client_is_passed_on_as_it_is() {
        let given = answer(r#""result":{"action":"accept","content":{"n": 1.10}}"#);
        let response = input_response("elicitation/create", &given).expect("it can be told");
        assert_eq!(response, r#"{"action":"accept","content":{"n": 1.10}}"#);
    }

    #[test]
    fn a_client_that_fails_to_elicit_has_cancelled_or_declined() {
        for (rest, action) in [
            (r#""error":{"code":-32603,"message":"broken"}"#, "cancel"),
            (r#""error":{"code":-1,"message":""}"#, "decline"),
            (r#""error":{"code":-32000,"message":"User Rejected it"}"#, "decline"),
            (r#""error":"odd""#, "cancel"),
            (r#""result":[]"#, "cancel"),
            (r#""x":1"#, "cancel"),
        ] {
            let response = input_response("elicitation/create", &answer(rest));
            assert_eq!(response.expect(rest), format!(r#"{{"action":"{action}"}}"#));
        }
    }

    #[test]
    fn a_client_that_fails_otherwise_ends_the_call() {
        for method in ["sampling/createMessage", "roots/list"] {
            let given = answer(r#""error":{"code":-1,"message":"User said no"}"#);
            let text = input_response(method, &given).expect_err(method).text;
            assert_eq!(text, format!("The client did not answer {method}: User said no"));
            assert!(input_response(method, &answer(r#""result":null"#)).is_err());
        }
    }

    #[test]
    fn a_retry_without_params_gets_some() {
        for text in [
            r#"{ "jsonrpc":"2.0","id":7,"method":"x"}"#,
            r#"{"params":null,"jsonrpc":"2.0","id":7,"method":"x"}"#,
            r#"{"params":{},"jsonrpc":"2.0","id":7,"method":"x"}"#,
        ] {
            let original = Message::parse(text.into(), 64).expect("a request");
            let state = Bytes::from_static(b"\"s\"");
            let again = retry(&original, &[], Some(&state));
            assert_eq!(again.params().as_deref(), Some(&br#"{"requestState":"s"}"#[..]), "{text}");
            assert_eq!((again.method(), again.id()), ("x", original.id()));
        }
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"x","params":[1]}"#;
        let original = Message::parse(text.into(), 64).expect("a request");
        assert_eq!(retry(&original, &[], None).text(), text);
    }

    #[test]
    fn our_state_takes_the_place_of_the_upstreams_or_is_added() {
        for (given, expected) in [
            (
                r#"{"resultType":"input_required","requestState":"x","n": 1.10}"#,
                r#"{"requestState":"gw1.\"","resultType":"input_required","n": 1.10}"#,
            ),
            (
                r#"{"resultType":"input_required","inputRequests":{}}"#,
                r#"{"requestState":"gw1.\"","resultType":"input_required","inputRequests":{}}"#,
            ),
        ] {
            let given = answer(&format!(r#""result":{given}"#));
            let sealed = with_state(&given, "gw1.\"");
            assert_eq!(sealed.result().expect("a result"), expected);
            assert_eq!(sealed.id(), given.id());
        }
        let odd = answer(r#""result":5"#);
        assert_eq!(with_state(&odd, "s").text(), odd.text());
    }
}
