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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::ProtocolVersion::*;

    fn ask(
        to: ProtocolVersion,
        caps: &str,
        method: &str,
        params: &str,
    ) -> Result<String, Unaskable> {
        let params = Some(Bytes::copy_from_slice(params.as_bytes()));
        let request = InputRequest { key: "c".to_owned(), method: method.to_owned(), params };
        let message = question(to, ClientCaps::parse(caps.as_bytes()), &request)?;
        assert_eq!(message.method(), method);
        let params = message.params().expect("params");
        Ok(String::from_utf8(params.to_vec()).expect("UTF-8"))
    }

    fn refused(asked: &Result<String, Unaskable>) -> bool {
        matches!(asked, Err(Unaskable::Refuse(_)))
    }

    const FORM: &str = r#"{"elicitation":{}}"#;
    const BOTH: &str = r#"{"elicitation":{"form":{},"url":{}}}"#;

    #[test]
    fn a_form_is_put_only_to_clients_that_elicit() {
        let params = r#"{"message":"m","mode":"form","requestedSchema":{"type":"object","properties":{"n":{"type":"number","default":1.10}}}}"#;
        let ask = |to, caps| ask(to, caps, "elicitation/create", params);
        assert_eq!(ask(V2025_11_25, FORM).as_deref(), Ok(params));
        let plain = params.replace(r#""mode":"form","#, "").replace(r#","default":1.10"#, "");
        assert_eq!(ask(V2025_06_18, FORM), Ok(plain));
        assert!(refused(&ask(V2025_11_25, "{}")));
        assert!(refused(&ask(V2025_11_25, r#"{"elicitation":{"url":{}}}"#)));
        assert!(refused(&ask(V2025_03_26, FORM)));
        assert!(refused(&ask(V2024_11_05, FORM)));
    }

    /// A form with that property, as a client of 2025-06-18 gets the property.
    fn plain(property: &str) -> Result<String, Unaskable> {
        let form = |property: &str| {
            format!(
                r#"{{"message":"m","requestedSchema":{{"type":"object","properties":{{"p":{property}}}}}}}"#
            )
        };
        let got = ask(V2025_06_18, FORM, "elicitation/create", &form(property))?;
        let (before, behind) = form("|").split_once('|').map(|(b, a)| (b.len(), a.len())).unwrap();
        Ok(got[before..got.len() - behind].to_owned())
    }

    #[test]
    fn forms_for_2025_06_18_say_what_it_can_show() {
        for (given, expected) in [
            (
                r#"{"type":"string","title":"T","oneOf":[{"const":"a\/","title":"A"},{"const":"b"}],"default":"b"}"#,
                r#"{"enum":["a\/","b"],"enumNames":["A","b"],"type":"string","title":"T"}"#,
            ),
            (r#"{"type":"boolean","default":true}"#, r#"{"type":"boolean","default":true}"#),
            (
                r#"{"type":"string","default":"x","format":"email"}"#,
                r#"{"type":"string","format":"email"}"#,
            ),
            (
                r#"{"type":"string","enum":["a"],"enumNames":["A"]}"#,
                r#"{"type":"string","enum":["a"],"enumNames":["A"]}"#,
            ),
            ("true", "true"),
        ] {
            assert_eq!(plain(given).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn forms_that_2025_06_18_cannot_show_are_declined() {
        for given in [
            r#"{"type":"array","items":{"enum":["a"]}}"#,
            r#"{"type":"string","oneOf":[{"const":1}]}"#,
            r#"{"type":"string","oneOf":[{"title":"x"}]}"#,
            r#"{"type":"string","oneOf":{}}"#,
        ] {
            assert_eq!(plain(given), Err(Unaskable::Decline), "{given}");
        }
    }

    #[test]
    fn a_page_to_visit_gets_an_id_that_is_the_same_for_the_same_question() {
        let ask = |to, caps, params: &str| ask(to, caps, "elicitation/create", params);
        let params = r#"{"mode":"url","message":"m","url":"https://a/?t=1"}"#;
        let first = ask(V2025_11_25, BOTH, params).expect("it can be asked");
        let (id, rest) = first
            .strip_prefix(r#"{"elicitationId":"trunkline-c-"#)
            .unwrap()
            .split_once('"')
            .unwrap();
        assert_eq!((id.len(), rest), (16, &*format!(",{}", &params[1..])));
        assert_eq!(ask(V2025_11_25, BOTH, params).as_deref(), Ok(&*first));
        assert_ne!(
            ask(V2025_11_25, BOTH, &params.replace("t=1", "t=2")).unwrap()[..50],
            first[..50]
        );
        let own = r#"{"mode":"url","message":"m","url":"https://a","elicitationId":"e"}"#;
        assert_eq!(ask(V2025_11_25, BOTH, own).as_deref(), Ok(own));
        assert!(refused(&ask(V2025_11_25, FORM, params)));
        assert!(refused(&ask(V2025_06_18, BOTH, params)));
        assert!(refused(&ask(V2025_11_25, BOTH, r#"{"mode":"smell"}"#)));
        assert!(refused(&ask(V2025_11_25, BOTH, r#"{"mode":1}"#)));
    }

    const PLAIN: &str = r#"{"sampling":{}}"#;
    const TOOLS: &str = r#"{"sampling":{"tools":{}}}"#;

    #[test]
    fn sampling_is_asked_of_those_who_can_take_it() {
        let message = |content: &str| {
            format!(r#"{{"messages":[{{"role":"user","content":{content}}}],"maxTokens":1}}"#)
        };
        let text = message(r#"{"type":"text","text":"t"}"#);
        let block = message(r#"{"type":"tool_result","content":[]}"#);
        let array = message(r#"[{"type":"text","text":"t"}]"#);
        let audio = message(r#"{"type":"audio","data":""}"#);
        let tools = text.replacen('{', r#"{"tools":[],"#, 1);
        let choice = text.replacen('{', r#"{"toolChoice":{},"#, 1);
        let ask = |to, caps, params: &str| ask(to, caps, "sampling/createMessage", params);
        for version in &ProtocolVersion::ALL[..4] {
            assert_eq!(ask(*version, PLAIN, &text).as_deref(), Ok(&*text));
            assert!(refused(&ask(*version, "{}", &text)));
            assert_eq!(refused(&ask(*version, PLAIN, &audio)), *version == V2024_11_05);
            for params in [&tools, &choice, &block, &array] {
                assert!(refused(&ask(*version, PLAIN, params)), "{params}");
                let asked = ask(*version, TOOLS, params);
                assert_eq!(refused(&asked), *version < V2025_11_25, "{params}");
                assert!(refused(&asked) || asked.as_ref() == Ok(params));
            }
        }
    }

    #[test]
    fn nobody_is_asked_for_the_context_of_other_servers() {
        let ask = |params| ask(V2025_11_25, PLAIN, "sampling/createMessage", params);
        let params = r#"{"messages":[],"includeContext":"thisServer","maxTokens":1}"#;
        assert_eq!(ask(params).as_deref(), Ok(r#"{"messages":[],"maxTokens":1}"#));
        let none = r#"{"messages":[],"includeContext":"none"}"#;
        assert_eq!(ask(none).as_deref(), Ok(none));
    }

    #[test]
    fn roots_are_asked_of_those_who_have_them_and_nothing_else_is_asked() {
        let roots = r#"{"roots":{}}"#;
        assert_eq!(ask(V2024_11_05, roots, "roots/list", "{}").as_deref(), Ok("{}"));
        assert!(refused(&ask(V2024_11_05, PLAIN, "roots/list", "{}")));
        assert!(refused(&ask(V2025_11_25, roots, "tools/call", "{}")));
        let bare =
            InputRequest { key: "c".to_owned(), method: "roots/list".to_owned(), params: None };
        let asked = question(V2025_11_25, ClientCaps::parse(roots.as_bytes()), &bare);
        assert_eq!(asked.unwrap().text(), r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#);
    }
}
