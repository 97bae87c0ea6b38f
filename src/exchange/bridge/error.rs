//! Errors across revisions (MCP digest §20.6).

use super::answer::{Bridged, Recipient, edited, unchanged};
use super::place::{Edits, Object, push_member, quoted};
use super::{code, code_of};
use crate::fault::Outcome;
use crate::jsonrpc::{Id, Member, Message, result_response};
use crate::mcp::{ClientCaps, Era, ProtocolVersion};

/// An error of an upstream as the recipient is to get it.
pub(super) fn bridged(to: &Recipient<'_>, answer: &Message, id: &Id) -> Bridged {
    let modern = to.version.era() == Era::Modern;
    match code_of(answer) {
        Some(code::NOT_FOUND) if modern => {
            let mut edits = Edits::new();
            name_uri(to, answer, &mut edits);
            recoded(answer, id, code::INVALID_PARAMS, edits)
        }
        // Modern servers must not use it; those that can be asked were asked already.
        Some(code::URL_ELICITATION) if modern => recoded(answer, id, code::INTERNAL, Edits::new()),
        Some(code::URL_ELICITATION) if to.version < ProtocolVersion::V2025_11_25 => {
            told(to, answer, id, &visits(answer))
        }
        // The client has what is said to be missing: it is the gateway that did not pass it on.
        Some(code::MISSING_CAPABILITY) if modern && has_all(to.caps, answer) => {
            recoded(answer, id, code::INTERNAL, Edits::new())
        }
        Some(code::MISSING_CAPABILITY) if !modern => told(to, answer, id, &lacking(answer)),
        _ => unchanged(answer, id),
    }
}

/// The error under another code.
fn recoded(answer: &Message, id: &Id, code: i64, mut edits: Edits) -> Bridged {
    if let Some(span) = answer.member_span(Member::ErrorCode) {
        let digits = itoa::Buffer::new().format(code).as_bytes().to_vec();
        edits.push((span, digits.into()));
    }
    let text = edited(answer, id, edits);
    Bridged { text, outcome: Outcome::RpcError, code: Some(code) }
}

/// What the user should know: as the result of a tool, else under a code that means nothing.
fn told(to: &Recipient<'_>, answer: &Message, id: &Id, text: &str) -> Bridged {
    if to.method != "tools/call" {
        return recoded(answer, id, code::INTERNAL, Edits::new());
    }
    Bridged {
        text: result_response(id, &tool_error(text)).into(),
        outcome: Outcome::ToolError,
        code: None,
    }
}

/// The result of a tool that failed, with a text that says why.
fn tool_error(text: &str) -> Vec<u8> {
    let mut result = br#"{"content":[{"type":"text","text":"#.to_vec();
    result.extend_from_slice(&quoted(text));
    result.extend_from_slice(br#"}],"isError":true}"#);
    result
}

fn error_of(answer: &Message) -> Option<Object<'_>> {
    Object::at(answer.text(), answer.error_span()?.range().start)
}

/// Sees to it that `data.uri` names the resource that was not found.
fn name_uri(to: &Recipient<'_>, answer: &Message, edits: &mut Edits) {
    let (Some(uri), Some(error)) = (to.uri, error_of(answer)) else { return };
    let mut new = Vec::new();
    push_member(&mut new, "uri", &quoted(uri));
    match (error.object("data"), error.value("data")) {
        (Some(data), _) if data.find("uri").is_none() => data.change(|_| false, new, edits),
        (Some(_), _) => {}
        (None, None) => {
            let mut data = Vec::new();
            push_member(&mut data, "data", &[b"{", &new[..], b"}"].concat());
            error.change(|_| false, data, edits);
        }
        (None, Some(other)) if other == "null" => {
            let mut data = Vec::new();
            push_member(&mut data, "data", &[b"{", &new[..], b"}"].concat());
            error.change(|name| name == "data", data, edits);
        }
        // Whatever it is, it is the upstream's.
        (None, Some(_)) => {}
    }
}

/// The message of -32042 and the addresses to visit.
fn visits(answer: &Message) -> String {
    let Some(error) = error_of(answer) else { return String::new() };
    let mut text = error.string("message").unwrap_or_default();
    let data = error.object("data");
    let Some(elicitations) = data.as_ref().and_then(|data| data.array("elicitations")) else {
        return text;
    };
    for element in &elicitations.elements {
        let Some(elicitation) = Object::at(answer.text(), element.start) else { continue };
        let Some(url) = elicitation.string("url") else { continue };
        if !text.is_empty() {
            text.push('\n');
        }
        if let Some(message) = elicitation.string("message").filter(|m| !m.is_empty()) {
            text.push_str(&message);
            text.push_str(": ");
        }
        text.push_str(&url);
    }
    text
}

/// Whether a client declared everything that -32021 calls missing, as far as the gateway knows such capabilities.
fn has_all(caps: ClientCaps, answer: &Message) -> bool {
    let data = error_of(answer).and_then(|error| error.object("data"));
    let required = data.and_then(|data| data.value("requiredCapabilities"));
    let Some(required) = required.map(|required| ClientCaps::parse(&required)) else {
        return false;
    };
    let known = |caps: ClientCaps| {
        [
            caps.allows("sampling/createMessage"),
            caps.samples_with_tools(),
            caps.elicits_forms(),
            caps.elicits_urls(),
            caps.allows("roots/list"),
            caps.tasks(),
        ]
    };
    let (required, declared) = (known(required), known(caps));
    required.contains(&true) && required.iter().zip(declared).all(|(need, has)| !need || has)
}

/// The message of -32021 and what is missing.
fn lacking(answer: &Message) -> String {
    let Some(error) = error_of(answer) else { return String::new() };
    let mut text = error.string("message").unwrap_or_default();
    let required = error.object("data").and_then(|data| data.value("requiredCapabilities"));
    if let Some(required) = required {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("This needs capabilities that the client did not declare: ");
        text.push_str(&String::from_utf8_lossy(&required));
    }
    text
}
