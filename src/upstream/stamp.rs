//! What every request is rewritten to on its way to one upstream: the hop's own id and token, and what the hop's revision
//! wants to be told of the client (MCP digest §5.2, §20.4). Everything else stays as it was received.

use bytes::Bytes;
use smallvec::SmallVec;

use super::call::{Client, OutCall};
use crate::jsonrpc::{Chunks, Edit, Member, Message, ParamsKind, RawObject, Span};
use crate::mcp::{Era, LOG_LEVELS, ProtocolVersion, meta};

impl OutCall {
    /// The text to send to an MCP upstream of that revision: `id` as the id and, where the client gave a progress token,
    /// as the token.
    pub fn text(&self, id: u64, version: ProtocolVersion) -> Chunks {
        let message = &self.message;
        let mut edits = self.own_edits(id);
        let hop = version.era();
        if hop == Era::Modern || message.member_span(Member::MetaProtocolVersion).is_some() {
            edits.extend(placed(message, self.meta(id, hop)));
        } else if let Some(token) = message.member_span(Member::MetaProgressToken) {
            edits.push((token, number(id)));
        }
        let text = message.edited(&edits);
        match unknown_there(message, version) {
            [] => text,
            names => without(text, names),
        }
    }

    /// The text to send to a plain JSON-RPC upstream: `id` as the id, and the edits. Params are nobody's but the
    /// client's.
    pub(super) fn plain_text(&self, id: u64) -> Chunks {
        self.message.edited(&self.own_edits(id))
    }

    fn own_edits(&self, id: u64) -> SmallVec<[Edit; 4]> {
        let mut edits: SmallVec<[Edit; 4]> = SmallVec::new();
        edits.extend(self.message.id_span().map(|span| (span, number(id))));
        edits.extend(self.edits.iter().cloned());
        edits
    }

    /// `_meta` for this hop: what the client put there besides what is of its own hop.
    fn meta(&self, token: u64, hop: Era) -> Bytes {
        let received = self.message.member(Member::Meta);
        let mut meta = received.and_then(|text| RawObject::parse(&text)).unwrap_or_default();
        meta.retain(|name, _| !meta::OF_THE_HOP.contains(&name));
        if meta.get(meta::PROGRESS_TOKEN).is_some() {
            meta.set(meta::PROGRESS_TOKEN, number(token));
        }
        match hop {
            Era::Legacy => meta.to_bytes(),
            Era::Modern => {
                let rest = if meta.is_empty() { Bytes::new() } else { meta.to_bytes() };
                self.client.before(&rest)
            }
        }
    }
}

impl Client {
    /// `_meta` of a modern request: what is told of the client, and the members of the object `rest`, which may be
    /// empty. Written as text, since every call needs it.
    fn before(&self, rest: &[u8]) -> Bytes {
        let version = ProtocolVersion::NEWEST_MODERN.as_str();
        let caps = self.caps.to_modern_text();
        let info = self.info.as_deref().unwrap_or_default();
        let mut text = Vec::with_capacity(224 + caps.len() + info.len() + rest.len());
        let mut put = |name: &str, value: [&[u8]; 3]| {
            text.push(if text.is_empty() { b'{' } else { b',' });
            text.push(b'"');
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            value.iter().for_each(|part| text.extend_from_slice(part));
        };
        let quoted = |value: &'static str| [&b"\""[..], value.as_bytes(), b"\""];
        put(meta::PROTOCOL_VERSION, quoted(version));
        put(meta::CLIENT_CAPABILITIES, [&caps[..], b"", b""]);
        if !info.is_empty() {
            put(meta::CLIENT_INFO, [info, b"", b""]);
        }
        if let Some(level) = self.log_rank.and_then(|rank| LOG_LEVELS.get(usize::from(rank))) {
            put(meta::LOG_LEVEL, quoted(level));
        }
        match rest.strip_prefix(b"{") {
            Some(rest) => {
                text.push(b',');
                text.extend_from_slice(rest);
            }
            None => text.push(b'}'),
        }
        text.into()
    }
}

fn number(number: u64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes())
}

/// The edit that puts `_meta` into the params, in place of the one that is there.
fn placed(message: &Message, meta: Bytes) -> Option<Edit> {
    if let Some(span) = message.member_span(Member::Meta) {
        return Some((span, meta));
    }
    let end = u32::try_from(message.text().len()).ok()?.checked_sub(1)?;
    match (message.params_kind(), message.params_span()) {
        (ParamsKind::Object, Some(span)) => {
            let at = Span { start: span.start + 1, end: span.start + 1 };
            let rest = message.text().get(at.range().start..).unwrap_or_default();
            let first = rest.iter().find(|byte| !byte.is_ascii_whitespace());
            let comma: &[u8] = if first == Some(&b'}') { b"" } else { b"," };
            Some((at, [b"\"_meta\":", &meta[..], comma].concat().into()))
        }
        (ParamsKind::Null, Some(span)) => {
            Some((span, [b"{\"_meta\":", &meta[..], b"}"].concat().into()))
        }
        (ParamsKind::Absent, _) => {
            let at = Span { start: end, end };
            Some((at, [b",\"params\":{\"_meta\":", &meta[..], b"}"].concat().into()))
        }
        (ParamsKind::Array | ParamsKind::Object | ParamsKind::Null, _) => None,
    }
}

/// The members of these params that the revision does not have, or would read as its own.
fn unknown_there(message: &Message, version: ProtocolVersion) -> &'static [&'static str] {
    let has = |member| message.member_span(member).is_some();
    if version.era() == Era::Modern {
        return if has(Member::Task) { &["task"] } else { &[] };
    }
    if has(Member::InputResponses) || has(Member::RequestState) {
        return &["inputResponses", "requestState"];
    }
    let old = version < ProtocolVersion::V2025_06_18;
    if old && message.method() == "completion/complete" { &["context"] } else { &[] }
}

/// The text without some members of its params.
#[cold]
fn without(text: Chunks, names: &[&str]) -> Chunks {
    let text = text.into_bytes();
    let Ok(message) = Message::parse(text.clone(), u16::MAX) else { return text.into() };
    let (Some(span), Some(params)) = (message.params_span(), message.params()) else {
        return text.into();
    };
    let Some(mut params) = RawObject::parse(&params) else { return text.into() };
    params.retain(|name, _| !names.contains(&name));
    message.edited(&[(span, params.to_bytes())])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::mcp::ClientCaps;
    use crate::upstream::{CallerId, Events};

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

    fn sent(call: &OutCall, version: ProtocolVersion) -> String {
        String::from_utf8(call.text(7, version).into_bytes().to_vec()).expect("UTF-8")
    }

    fn params(call: &OutCall, version: ProtocolVersion) -> Value {
        serde_json::from_str::<Value>(&sent(call, version)).expect("JSON")["params"].take()
    }

    const MODERN: ProtocolVersion = ProtocolVersion::V2026_07_28;
    const LEGACY: ProtocolVersion = ProtocolVersion::V2025_11_25;

    #[test]
    fn between_legacy_peers_only_id_and_token_change() {
        let call = call(
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"a","task":{},"_meta":{"k":1.0,"progressToken":"p"}}}"#,
        );
        assert_eq!(
            sent(&call, LEGACY),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","task":{},"_meta":{"k":1.0,"progressToken":7}}}"#
        );
    }

    #[test]
    fn a_modern_upstream_is_told_of_the_client_of_each_request() {
        let mut call = call(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","task":{"ttl":1},"arguments":{"n":1.0},"_meta":{"k":1.0,"progressToken":"p"}}}"#,
        );
        call.client = Client {
            caps: ClientCaps::parse(br#"{"elicitation":{},"roots":{"listChanged":true}}"#),
            info: Some(Bytes::from_static(br#"{"name":"c"}"#)),
            log_rank: Some(3),
        };
        let meta = json!({
            "k": 1.0, "progressToken": 7,
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "roots": {}},
            "io.modelcontextprotocol/clientInfo": {"name": "c"},
            "io.modelcontextprotocol/logLevel": "warning",
        });
        let all = json!({"name": "a", "arguments": {"n": 1.0}, "_meta": meta});
        assert_eq!(params(&call, MODERN), all);
    }

    #[test]
    fn meta_is_put_where_there_was_none() {
        for (text, rest) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, json!({})),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#, json!({})),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{ }}"#, json!({})),
            (r#"{"jsonrpc":"2.0","params":{"a":[1]},"id":1,"method":"m"}"#, json!({"a": [1]})),
            (
                r#"{"jsonrpc":"2.0","params":{"_meta":3,"a":1},"id":1,"method":"m"}"#,
                json!({"a": 1}),
            ),
        ] {
            let mut params = params(&call(text), MODERN);
            let meta = params.as_object_mut().and_then(|params| params.remove("_meta"));
            let meta = meta.expect("there is _meta");
            assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
            assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
            assert_eq!(params, rest, "{text}");
        }
    }

    #[test]
    fn a_legacy_upstream_gets_nothing_of_a_modern_hop() {
        let call = call(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","inputResponses":{"k0":{}},"requestState":"s","arguments":{"n":1.0},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"info","traceparent":"t","progressToken":3}}}"#,
        );
        let text = sent(&call, LEGACY);
        assert_eq!(
            text,
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"n":1.0},"_meta":{"traceparent":"t","progressToken":7}}}"#
        );
    }

    #[test]
    fn an_upstream_from_before_context_gets_none() {
        let call = call(
            r#"{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{},"context":{"arguments":{}}}}"#,
        );
        assert_eq!(params(&call, ProtocolVersion::V2025_03_26), json!({"ref": {}}));
        let known = params(&call, ProtocolVersion::V2025_06_18);
        assert_eq!(known, json!({"ref": {}, "context": {"arguments": {}}}));
    }
}
