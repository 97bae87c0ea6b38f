//! The headers that a modern request repeats from its body (MCP 2026-07-28, transports; MCP digest §8).

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::jsonrpc::{Member, Message};
use crate::mcp::{METHOD_HEADER, NAME_HEADER, ProtocolVersion, header, method_spec};
use crate::upstream::call::OutCall;

const METHOD: HeaderName = HeaderName::from_static(METHOD_HEADER);
const NAME: HeaderName = HeaderName::from_static(NAME_HEADER);

/// Headers of one request beside those of its channel.
pub(super) type Extra = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// The headers of a request, as its text will be: after the edits.
pub(super) fn headers_of(call: &OutCall) -> Extra {
    let method = call.message.method();
    let mut extra = Extra::new();
    let Some(spec) = method_spec(method) else {
        extra.extend(method_header(method));
        return extra;
    };
    extra.push((METHOD, HeaderValue::from_static(spec.name)));
    if let Some(text) = spec.named.member().and_then(|member| rewritten(call, member)) {
        extra.extend(name_header(&text));
    }
    if let Some(params) = &call.params
        && let Some(arguments) = rewritten(call, Member::Arguments)
    {
        for param in params.iter() {
            let value = param.argument(&arguments).and_then(|argument| param.value(&argument));
            let value = value.and_then(|value| HeaderValue::try_from(value).ok());
            let name = HeaderName::from_bytes(param.header.as_bytes()).ok();
            extra.extend(name.zip(value));
        }
    }
    extra
}

/// The headers of a notification.
pub(super) fn headers_of_notification(message: &Message) -> Extra {
    method_header(message.method()).into_iter().collect()
}

/// A method that no header can carry as it is is left out: the upstream refuses it then. There is no other form of it (MCP
/// digest §8.3).
fn method_header(method: &str) -> Option<(HeaderName, HeaderValue)> {
    let plain = method.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && method.trim() == method;
    Some((METHOD, HeaderValue::from_str(method).ok().filter(|_| plain)?))
}

/// `text` is the JSON text of the name.
fn name_header(text: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let plain = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let plain = plain.filter(|text| !text.contains(&b'\\'));
    let value = match plain.and_then(|text| std::str::from_utf8(text).ok()) {
        Some(name) => HeaderValue::from_str(&header::encode(name)),
        None => {
            let name: String = serde_json::from_slice(text).ok()?;
            HeaderValue::from_str(&header::encode(&name))
        }
    };
    Some((NAME, value.ok()?))
}

/// The JSON text of a member as it is sent.
fn rewritten(call: &OutCall, member: Member) -> Option<Bytes> {
    let span = call.message.member_span(member)?;
    let touches = |start: u32, end: u32| start < span.end && span.start < end;
    let mut edits = call.edits.iter().filter(|(edit, _)| touches(edit.start, edit.end));
    match (edits.next(), edits.next()) {
        (None, _) => call.message.member(member),
        (Some((edit, text)), None) if *edit == span => Some(text.clone()),
        _ => {
            let text = call.text(0, ProtocolVersion::NEWEST_MODERN).into_bytes();
            Message::parse(text, u16::MAX).ok()?.member(member)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::jsonrpc::Span;
    use crate::mcp::param_headers;
    use crate::upstream::{CallerId, Client, Events};

    fn call(text: &'static str) -> OutCall {
        OutCall {
            message: Message::parse(Bytes::from_static(text.as_bytes()), 64).expect("a message"),
            edits: SmallVec::new(),
            caller: CallerId::of(1),
            client: Client::default(),
            params: None,
            timeout: Duration::from_secs(1),
            max_timeout: Duration::from_secs(1),
            events: Events::closed(),
        }
    }

    fn headers(call: &OutCall) -> Vec<String> {
        let headers = headers_of(call);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn each_method_repeats_what_names_its_object() {
        for (method, params, name) in [
            ("tools/call", r#"{"name":"a b"}"#, Some("a b")),
            ("prompts/get", r#"{"name":"Z\u00fcrich"}"#, Some("=?base64?WsO8cmljaA==?=")),
            ("resources/read", r#"{"uri":"a:b","name":"x"}"#, Some("a:b")),
            ("tasks/get", r#"{"taskId":"t \" "}"#, Some("=?base64?dCAiIA==?=")),
            ("tools/list", r#"{"name":"x"}"#, None),
            ("x/custom", r#"{"name":"x"}"#, None),
            ("tools/call", r#"{"name":7}"#, None),
            ("tools/call", "{}", None),
        ] {
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            let mut expected = vec![format!("mcp-method: {method}")];
            expected.extend(name.map(|name| format!("mcp-name: {name}")));
            assert_eq!(headers(&call(Box::leak(text.into_boxed_str()))), expected);
        }
    }

    #[test]
    fn the_name_is_the_one_that_is_sent() {
        let mut call = call(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up.a","arguments":{}}}"#,
        );
        let span = call.message.member_span(Member::Name).expect("a name");
        call.edits.push((span, Bytes::from_static(b"\"a\\u00e9\"")));
        assert_eq!(headers(&call), ["mcp-method: tools/call", "mcp-name: =?base64?YcOp?="]);
        // Only a part of it is replaced: `up.` goes.
        call.edits[0] = (Span { start: span.start + 1, end: span.start + 4 }, Bytes::new());
        assert_eq!(headers(&call), ["mcp-method: tools/call", "mcp-name: a"]);
    }

    #[test]
    fn annotated_arguments_are_repeated_where_they_are_given() {
        let mut call = call(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"zone":"Zürich","n":2.0,"none":null,"flag":"no flag"}}}"#,
        );
        let schema = br#"{"properties":{"zone":{"type":"string","x-mcp-header":"Zone"},"n":{"type":"integer","x-mcp-header":"N"},"none":{"type":"string","x-mcp-header":"None"},"flag":{"type":"boolean","x-mcp-header":"Flag"},"absent":{"type":"string","x-mcp-header":"Absent"}}}"#;
        call.params = Some(param_headers(schema).expect("valid").into());
        let mut headers = headers(&call);
        headers.sort();
        assert_eq!(
            headers,
            [
                "mcp-method: tools/call",
                "mcp-name: a",
                "mcp-param-n: 2",
                "mcp-param-zone: =?base64?WsO8cmljaA==?=",
            ]
        );
    }

    #[test]
    fn a_method_that_no_header_can_carry_has_none() {
        for method in [r"a\nb", "größe", r"a\u00e9", " a", r"a\t"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            let call = call(Box::leak(text.into_boxed_str()));
            assert!(headers_of(&call).is_empty(), "{method}");
        }
        let notification = Message::notification("notifications/x", None);
        assert_eq!(headers_of_notification(&notification).len(), 1);
    }
}
