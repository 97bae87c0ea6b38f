//! A legacy upstream that asks while its client is modern: the question as an input request, the answer as a response
//! (MCP digest §20.2).

use bytes::Bytes;

use super::input::{InputRequest, Malformed};
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

/// The responses of a modern client's retry: JSON objects under their keys. None when there is no `inputResponses`.
///
/// # Errors
/// It is no object, or holds a value that is none.
pub fn input_responses(message: &Message) -> Result<Vec<(String, Bytes)>, Malformed> {
    let Some(responses) = message.member(Member::InputResponses) else { return Ok(Vec::new()) };
    let responses = RawObject::parse(&responses).ok_or(Malformed("inputResponses is no object"))?;
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
    let requests: Vec<_> = requests.collect::<Option<_>>()?;
    (!requests.is_empty()).then_some(requests)
}
