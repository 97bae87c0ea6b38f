//! Questions to legacy clients: what each revision can be asked, and in which words (MCP digest §11, §20.5).

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::input::InputRequest;
use super::park::wants_context;
use super::place::{Array, Edits, Object, push_member, quoted};
use crate::jsonrpc::{Chunks, Message};
use crate::mcp::{ClientCaps, ProtocolVersion};

/// Why a question cannot be put to a client, and so what the upstream is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unaskable {
    /// `{"action":"decline"}`: the client elicits, but has no way to show this form.
    #[error("the client cannot show this form")]
    Decline,
    /// The question is refused: the client did not declare it.
    #[error("{0}")]
    Refuse(&'static str),
}

/// The question as a request to a legacy client, under id 0.
///
/// # Errors
/// [`Unaskable`] when this client cannot be asked that.
pub fn question(
    to: ProtocolVersion,
    caps: ClientCaps,
    request: &InputRequest,
) -> Result<Message, Unaskable> {
    let empty = Bytes::from_static(b"{}");
    let given = request.params.as_ref();
    let params = match request.method.as_str() {
        "elicitation/create" => Some(elicitation(to, caps, request, given.unwrap_or(&empty))?),
        "sampling/createMessage" => Some(sampling(to, caps, given.unwrap_or(&empty))?),
        "roots/list" if caps.allows("roots/list") => given.cloned(),
        "roots/list" => return Err(Unaskable::Refuse("the client lists no roots")),
        _ => return Err(Unaskable::Refuse("the client knows no such request")),
    };
    Ok(Message::request(&request.method, params.as_deref()))
}

fn elicitation(
    to: ProtocolVersion,
    caps: ClientCaps,
    request: &InputRequest,
    params: &Bytes,
) -> Result<Bytes, Unaskable> {
    if to < ProtocolVersion::V2025_06_18 || !caps.allows("elicitation/create") {
        return Err(Unaskable::Refuse("the client does not elicit"));
    }
    let object = Object::at(params, 0).ok_or(Unaskable::Refuse("params is no object"))?;
    let mode = match object.find("mode") {
        Some(_) => object.string("mode"),
        None => Some("form".to_owned()),
    };
    match mode.as_deref() {
        Some("form") if !caps.elicits_forms() => {
            Err(Unaskable::Refuse("the client does not elicit by forms"))
        }
        Some("form") if to == ProtocolVersion::V2025_06_18 => plain_form(params, &object),
        Some("form") => Ok(params.clone()),
        Some("url") if to < ProtocolVersion::V2025_11_25 || !caps.elicits_urls() => {
            Err(Unaskable::Refuse("the client opens no URLs"))
        }
        Some("url") => Ok(identified(request, params, &object)),
        _ => Err(Unaskable::Refuse("the client knows no such mode of elicitation")),
    }
}

/// A visit of a page with the `elicitationId` that 2025-11-25 wants: always the same for the same question.
fn identified(request: &InputRequest, params: &Bytes, object: &Object<'_>) -> Bytes {
    if object.find("elicitationId").is_some() {
        return params.clone();
    }
    let digest = Sha256::digest(params);
    let short = u64::from_be_bytes(digest[..8].try_into().expect("a digest is longer"));
    let id = format!("trunkline-{}-{short:016x}", request.key);
    let mut new = Vec::new();
    push_member(&mut new, "elicitationId", &quoted(&id));
    let mut edits = Edits::new();
    object.change(|_| false, new, &mut edits);
    Chunks::splice(params, &edits).into_bytes()
}

/// A form as 2025-06-18 has it.
fn plain_form(params: &Bytes, object: &Object<'_>) -> Result<Bytes, Unaskable> {
    let mut edits = Edits::new();
    object.change(|name| name == "mode", Vec::new(), &mut edits);
    let schema = object.object("requestedSchema");
    if let Some(properties) = schema.as_ref().and_then(|schema| schema.object("properties")) {
        for place in &properties.places {
            if let Some(property) = Object::at(params, place.value.start) {
                plain_property(params, &property, &mut edits)?;
            }
        }
    }
    Ok(Chunks::splice(params, &edits).into_bytes())
}

fn plain_property(
    params: &Bytes,
    property: &Object<'_>,
    edits: &mut Edits,
) -> Result<(), Unaskable> {
    let kind = property.string("type");
    if kind.as_deref() == Some("array") {
        return Err(Unaskable::Decline);
    }
    let mut new = Vec::new();
    let titled = property.find("oneOf").is_some();
    if titled {
        let choices = property.array("oneOf").ok_or(Unaskable::Decline)?;
        new = titled_choices(params, &choices)?;
    }
    let keeps_default = kind.as_deref() == Some("boolean");
    let gone = |name: &str| match name {
        "default" => !keeps_default,
        "oneOf" | "enum" | "enumNames" => titled,
        _ => false,
    };
    property.change(gone, new, edits);
    Ok(())
}

/// `oneOf` of constants with titles as `enum` and `enumNames`.
fn titled_choices(params: &Bytes, choices: &Array) -> Result<Vec<u8>, Unaskable> {
    let (mut values, mut names) = (Vec::new(), Vec::new());
    for choice in &choices.elements {
        let choice = Object::at(params, choice.start).ok_or(Unaskable::Decline)?;
        let value = choice.value("const").filter(|value| value.first() == Some(&b'"'));
        let value = value.ok_or(Unaskable::Decline)?;
        let name = choice.value("title").filter(|title| title.first() == Some(&b'"'));
        names.push(name.unwrap_or_else(|| value.clone()));
        values.push(value);
    }
    let mut new = Vec::new();
    push_member(&mut new, "enum", &[b"[", &values.join(&b","[..])[..], b"]"].concat());
    push_member(&mut new, "enumNames", &[b"[", &names.join(&b","[..])[..], b"]"].concat());
    Ok(new)
}

fn sampling(to: ProtocolVersion, caps: ClientCaps, params: &Bytes) -> Result<Bytes, Unaskable> {
    if !caps.allows("sampling/createMessage") {
        return Err(Unaskable::Refuse("the client does not sample"));
    }
    let object = Object::at(params, 0).ok_or(Unaskable::Refuse("params is no object"))?;
    let takes_tools = to >= ProtocolVersion::V2025_11_25 && caps.samples_with_tools();
    if !takes_tools && ["tools", "toolChoice"].iter().any(|name| object.find(name).is_some()) {
        return Err(Unaskable::Refuse("the client does not sample with tools"));
    }
    if let Some(messages) = object.array("messages") {
        for message in &messages.elements {
            content(to, takes_tools, params, message.start)?;
        }
    }
    if !wants_context("sampling/createMessage", &object) {
        return Ok(params.clone());
    }
    let mut edits = Edits::new();
    object.change(|name| name == "includeContext", Vec::new(), &mut edits);
    Ok(Chunks::splice(params, &edits).into_bytes())
}

/// Whether the client takes what one message of a sampling request holds.
fn content(
    to: ProtocolVersion,
    takes_tools: bool,
    params: &Bytes,
    message: usize,
) -> Result<(), Unaskable> {
    let Some(message) = Object::at(params, message) else { return Ok(()) };
    if !takes_tools && message.array("content").is_some() {
        return Err(Unaskable::Refuse("the client does not sample over several blocks"));
    }
    let kind = message.object("content").and_then(|block| block.string("type"));
    match kind.as_deref() {
        Some("tool_use" | "tool_result") if !takes_tools => {
            Err(Unaskable::Refuse("the client does not sample with tools"))
        }
        Some("audio") if to < ProtocolVersion::V2025_03_26 => {
            Err(Unaskable::Refuse("the client does not sample over audio"))
        }
        _ => Ok(()),
    }
}
