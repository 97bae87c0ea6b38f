//! A legacy upstream that asks while its client is modern: the question as an input request, the answer as a response
//! (MCP digest §20.2).

use bytes::Bytes;

use super::input::{InputRequest, MAX_REQUESTS, Malformed};
use super::place::{Edits, Object, edit, push_member, quoted};
use super::{code, code_of};
use crate::jsonrpc::{Chunks, Id, Member, Message, RawObject, result_response};
use crate::mcp::meta;

/// A legacy upstream's request as an entry of `inputRequests`: without what only its own hop or revision has
/// (`elicitationId`, `task`, the progress token), and without a wish for the context of other servers.
pub fn asked(key: String, ask: &Message) -> InputRequest {
    let method = ask.method().to_owned();
    let params = ask.params().filter(|params| params.first() == Some(&b'{'));
    let params = params.map(|params| stripped(&method, &params));
    InputRequest { key, method, params }
}

fn stripped(method: &str, params: &Bytes) -> Bytes {
    let Some(object) = Object::at(params, 0) else { return params.clone() };
    let mut edits = Edits::new();
    let mut meta_goes = false;
    if let Some(meta) = object.object("_meta") {
        let goes = |name: &str| name == meta::PROGRESS_TOKEN;
        let mut gone = meta.places.iter().map(|place| goes(&meta.name(place)));
        if gone.clone().any(|gone| gone) {
            meta_goes = gone.all(|gone| gone);
            if !meta_goes {
                meta.change(goes, Vec::new(), &mut edits);
            }
        }
    }
    let context_goes = wants_context(method, &object);
    let gone = |name: &str| match name {
        "task" => true,
        "elicitationId" => method == "elicitation/create",
        "includeContext" => context_goes,
        "_meta" => meta_goes,
        _ => false,
    };
    object.change(gone, Vec::new(), &mut edits);
    Chunks::splice(params, &edits).into_bytes()
}

/// Whether sampling wishes for what other servers know (MCP digest §11.1).
pub(super) fn wants_context(method: &str, params: &Object<'_>) -> bool {
    method == "sampling/createMessage"
        && params.find("includeContext").is_some()
        && params.string("includeContext").as_deref() != Some("none")
}

/// The result that asks a modern client. `state` is ours, decoded.
pub fn ask_modern(id: &Id, requests: &[InputRequest], state: &str) -> Chunks {
    let mut result = br#"{"resultType":"input_required""#.to_vec();
    if !requests.is_empty() {
        let mut entries = Vec::new();
        for request in requests {
            let mut entry = br#"{"method":"#.to_vec();
            entry.extend_from_slice(&quoted(&request.method));
            if let Some(params) = &request.params {
                push_member(&mut entry, "params", params);
            }
            entry.push(b'}');
            push_member(&mut entries, &request.key, &entry);
        }
        push_member(&mut result, "inputRequests", &[b"{", &entries[..], b"}"].concat());
    }
    push_member(&mut result, "requestState", &quoted(state));
    result.push(b'}');
    result_response(id, &result).into()
}

/// Most responses in one retry: more than can have been asked for.
const MAX_RESPONSES: usize = 256;

/// The responses of a modern client's retry: JSON objects under their keys; none when there is no `inputResponses`.
///
/// # Errors
/// It is no object, holds a value that is none, or is longer than any list of questions.
pub fn input_responses(message: &Message) -> Result<Vec<(String, Bytes)>, Malformed> {
    let Some(responses) = message.member(Member::InputResponses) else { return Ok(Vec::new()) };
    let responses = RawObject::parse(&responses).ok_or(Malformed("inputResponses is no object"))?;
    if responses.len() > MAX_RESPONSES {
        return Err(Malformed("inputResponses has too many entries"));
    }
    if responses.iter().any(|(_, response)| response.first() != Some(&b'{')) {
        return Err(Malformed("an entry of inputResponses is no object"));
    }
    Ok(responses.iter().map(|(key, response)| (key.to_owned(), response.clone())).collect())
}

/// A response of a modern client as the answer to a legacy upstream's question, under id 0. What a model said in one
/// block stands alone: upstreams before 2025-11-25 take no array.
pub fn reply(response: &Bytes) -> Message {
    let mut edits = Edits::new();
    if let Some(object) = Object::at(response, 0)
        && let Some(content) = object.array("content")
        && let [block] = &content.elements[..]
        && let Some(array) = object.find("content")
    {
        edits.push(edit(array.start..block.start, Bytes::new()));
        edits.push(edit(block.end..array.end, Bytes::new()));
    }
    let response = Chunks::splice(response, &edits).into_bytes();
    let zero = Id::from_number(0);
    Message::parse_answer(result_response(&zero, &response), u16::MAX)
        .or_else(|_| Message::parse_answer(result_response(&zero, b"{}"), u16::MAX))
        .expect("the constant is a message")
}

/// The pages that a 2025-11-25 upstream wants visited first (-32042), as input requests; keys `k0`, `k1`, … in order.
/// `None` when the answer is not that error, or does not name them.
pub fn url_elicitations(answer: &Message) -> Option<Vec<InputRequest>> {
    if code_of(answer) != Some(code::URL_ELICITATION) {
        return None;
    }
    let error = Object::at(answer.text(), answer.error_span()?.range().start)?;
    let elicitations = error.object("data")?.array("elicitations")?.elements;
    let requests = elicitations.iter().enumerate().map(|(index, element)| {
        let elicitation = Object::at(answer.text(), element.start)?;
        elicitation.string("url")?;
        let mut edits = Edits::new();
        let text = answer.text().slice(element.clone());
        let gone = |name: &str| matches!(name, "elicitationId" | "mode" | "task");
        Object::at(&text, 0)?.change(gone, br#""mode":"url""#.to_vec(), &mut edits);
        Some(InputRequest {
            key: format!("k{index}"),
            method: "elicitation/create".to_owned(),
            params: Some(Chunks::splice(&text, &edits).into_bytes()),
        })
    });
    let requests: Vec<_> = requests.take(MAX_REQUESTS + 1).collect::<Option<_>>()?;
    (1..=MAX_REQUESTS).contains(&requests.len()).then_some(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, params: &str) -> Option<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}"{params}}}"#);
        let ask = Message::parse(text.into(), 64).expect("a request");
        let request = asked("k0".to_owned(), &ask);
        assert_eq!((&*request.key, &*request.method), ("k0", method));
        request.params.map(|params| String::from_utf8(params.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn a_question_loses_what_belongs_to_its_hop_and_revision() {
        for (method, given, expected) in [
            (
                "elicitation/create",
                r#"{"mode":"url","url":"https://a/?b=%20","elicitationId":"e","task":{"ttl":1},"n": 1.10}"#,
                r#"{"mode":"url","url":"https://a/?b=%20","n": 1.10}"#,
            ),
            (
                "sampling/createMessage",
                r#"{"messages":[],"_meta":{"progressToken":1,"x/y":1.0},"elicitationId":1}"#,
                r#"{"messages":[],"_meta":{"x/y":1.0},"elicitationId":1}"#,
            ),
            (
                "sampling/createMessage",
                r#"{"_meta":{"progressToken":1},"includeContext":"allServers","maxTokens":1}"#,
                r#"{"maxTokens":1}"#,
            ),
            (
                "sampling/createMessage",
                r#"{"includeContext":"none","_meta":{}}"#,
                r#"{"includeContext":"none","_meta":{}}"#,
            ),
        ] {
            let params = ask(method, &format!(r#","params":{given}"#));
            assert_eq!(params.as_deref(), Some(expected));
        }
        assert_eq!(ask("roots/list", ""), None);
        assert_eq!(ask("roots/list", r#","params":null"#), None);
    }

    #[test]
    fn the_result_that_asks_says_what_is_asked() {
        let id = Id::from_text(Bytes::from_static(b"\"a\""));
        let request = |key: &str, params: Option<&'static str>| InputRequest {
            key: key.to_owned(),
            method: "m\"".to_owned(),
            params: params.map(Bytes::from),
        };
        let requests = [request("k0", Some(r#"{"n": 1.10}"#)), request("k1", None)];
        assert_eq!(
            ask_modern(&id, &requests, "gw1.\n").into_bytes(),
            r#"{"jsonrpc":"2.0","id":"a","result":{"resultType":"input_required","inputRequests":{"k0":{"method":"m\"","params":{"n": 1.10}},"k1":{"method":"m\""}},"requestState":"gw1.\n"}}"#
        );
        assert_eq!(
            ask_modern(&id, &[], "s").into_bytes(),
            r#"{"jsonrpc":"2.0","id":"a","result":{"resultType":"input_required","requestState":"s"}}"#
        );
    }

    fn responses(params: &str) -> Result<Vec<(String, Bytes)>, Malformed> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"x","params":{params}}}"#);
        input_responses(&Message::parse(text.into(), 64).expect("a request"))
    }

    #[test]
    fn the_responses_of_a_retry_are_objects_under_their_keys() {
        let read = responses(r#"{"inputResponses":{"k\u0030":{"n": 1.10},"k1": {}}}"#);
        let expected = [("k0", r#"{"n": 1.10}"#), ("k1", "{}")];
        assert_eq!(read, Ok(expected.map(|(k, v)| (k.to_owned(), Bytes::from(v))).to_vec()));
        assert_eq!(responses("{}"), Ok(Vec::new()));
        assert_eq!(responses(r#"{"inputResponses":{}}"#), Ok(Vec::new()));
    }

    #[test]
    fn responses_of_another_shape_are_refused() {
        let crowd: Vec<_> = (0..=MAX_RESPONSES).map(|n| format!(r#""{n}":{{}}"#)).collect();
        let crowd = format!("{{{}}}", crowd.join(","));
        for given in ["null", "[]", "5", r#"{"a":[]}"#, r#"{"a":{},"b":null}"#, &*crowd] {
            assert!(responses(&format!(r#"{{"inputResponses":{given}}}"#)).is_err(), "{given}");
        }
    }

    #[test]
    fn a_response_becomes_an_answer() {
        for (given, expected) in [
            (
                r#"{"action":"accept","content":{"n": 1.10}}"#,
                r#"{"action":"accept","content":{"n": 1.10}}"#,
            ),
            (
                r#"{"role":"assistant","content":[ {"type":"text"} ],"model":"m"}"#,
                r#"{"role":"assistant","content":{"type":"text"},"model":"m"}"#,
            ),
            (r#"{"content":[1,2]}"#, r#"{"content":[1,2]}"#),
            (r#"{"content":[]}"#, r#"{"content":[]}"#),
            ("{", "{}"),
        ] {
            let reply = reply(&Bytes::from_static(given.as_bytes()));
            assert_eq!(reply.text(), &format!(r#"{{"jsonrpc":"2.0","id":0,"result":{expected}}}"#));
        }
    }

    fn visits(error: &str) -> Option<Vec<InputRequest>> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#);
        url_elicitations(&Message::parse_answer(text.into(), 64).expect("a message"))
    }

    #[test]
    fn pages_to_visit_become_input_requests() {
        let given = r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","message":"Open","url":"https://a/\/","elicitationId":"e"},{"url":"https://b"}]}}"#;
        let requests = visits(given).expect("there are some");
        let params: Vec<_> = requests.iter().map(|r| r.params.clone().expect("params")).collect();
        assert_eq!(
            params,
            [
                r#"{"mode":"url","message":"Open","url":"https://a/\/"}"#,
                r#"{"mode":"url","url":"https://b"}"#
            ]
        );
        assert!(requests.iter().all(|request| request.method == "elicitation/create"));
        assert_eq!(requests.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["k0", "k1"]);
    }

    #[test]
    fn errors_that_name_no_page_ask_nothing() {
        for given in [
            r#"{"code":-32041,"message":"m","data":{"elicitations":[{"url":"https://b"}]}}"#,
            r#"{"code":-32042,"message":"m"}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[{"url":5}]}}"#,
            r#"{"code":-32042,"message":"m","data":{"elicitations":[5]}}"#,
            r#""odd""#,
        ] {
            assert_eq!(visits(given), None, "{given}");
        }
    }
}
