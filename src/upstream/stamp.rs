//! What every request is rewritten to on its way to one upstream: the hop's own id and token, and what the hop's revision
//! wants to be told of the client (MCP digest §5.2, §20.4). Everything else stays as it was received.

use bytes::Bytes;
use smallvec::SmallVec;

use super::call::{Client, OutCall};
use crate::jsonrpc::{Chunks, Edit, Member, Message, ParamsKind, RawObject, Span};
use crate::mcp::{Era, ProtocolVersion, meta};

type Edits = SmallVec<[Edit; 4]>;

/// The members that [`meta::OF_THE_HOP`] names.
const OF_THE_HOP: [Member; 4] = [
    Member::MetaProtocolVersion,
    Member::MetaClientCapabilities,
    Member::MetaClientInfo,
    Member::MetaLogLevel,
];

/// What is spoken over a modern hop, as JSON text.
const REVISION: &str = "\"2026-07-28\"";

/// The log levels in rising order, as JSON texts.
const LEVELS: [&str; 8] = [
    "\"debug\"",
    "\"info\"",
    "\"notice\"",
    "\"warning\"",
    "\"error\"",
    "\"critical\"",
    "\"alert\"",
    "\"emergency\"",
];

impl OutCall {
    /// The text to send to an MCP upstream of that revision: `id` as the id and, where the client gave a progress token,
    /// as the token.
    pub fn text(&self, id: u64, version: ProtocolVersion) -> Chunks {
        let message = &self.message;
        let mut edits = self.own_edits(id);
        match version.era() {
            Era::Modern => self.tell_of_client(id, &mut edits),
            Era::Legacy if message.member_span(Member::MetaProtocolVersion).is_some() => {
                self.leave_client_out(id, &mut edits);
            }
            Era::Legacy => edits.extend(self.own_token(id)),
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

    fn own_edits(&self, id: u64) -> Edits {
        let mut edits = Edits::new();
        edits.extend(self.message.id_span().map(|span| (span, number(id))));
        edits.extend(self.edits.iter().cloned());
        edits
    }

    /// The hop's own token in place of the client's.
    fn own_token(&self, id: u64) -> Option<Edit> {
        Some((self.message.member_span(Member::MetaProgressToken)?, number(id)))
    }

    /// For a modern hop. What a modern client says of itself is usually what is to be said: then nothing changes but the
    /// token. `_meta` is taken apart only where single members of it are missing or must go.
    fn tell_of_client(&self, id: u64, edits: &mut Edits) {
        let message = &self.message;
        let Some(meta) = message.member_span(Member::Meta) else {
            return edits.extend(placed(message, self.client.before(b"")));
        };
        let text = message.text();
        let is_object = text.get(meta.range().start) == Some(&b'{');
        let said = OF_THE_HOP.map(|member| message.member_span(member));
        let told = self.client.told();
        let as_many = said.iter().zip(&told).all(|(said, told)| said.is_some() == told.is_some());
        if !is_object || message.ambiguous_member().is_some() {
            edits.extend(placed(message, self.client.before(&self.rest_of_meta(id))));
        } else if as_many {
            let pairs = said.into_iter().flatten().zip(told.into_iter().flatten());
            edits.extend(pairs.filter(|(span, told)| text[span.range()] != *told));
            edits.extend(self.own_token(id));
        } else if said.iter().all(Option::is_none) {
            let told = self.client.before(b"");
            edits.push(inserted(text, meta, &told[1..told.len() - 1]));
            edits.extend(self.own_token(id));
        } else {
            edits.extend(placed(message, self.client.before(&self.rest_of_meta(id))));
        }
    }

    /// For a legacy hop of a modern client. Usually `_meta` holds nothing that is left then.
    fn leave_client_out(&self, id: u64, edits: &mut Edits) {
        let message = &self.message;
        let rest = match message.member_span(Member::Meta) {
            Some(meta) if holds_only_the_hop(message, meta) => {
                match message.member_span(Member::MetaProgressToken) {
                    Some(_) => format!("{{\"{}\":{id}}}", meta::PROGRESS_TOKEN).into(),
                    None => Bytes::from_static(b"{}"),
                }
            }
            _ => self.rest_of_meta(id),
        };
        edits.extend(placed(message, rest));
    }

    /// What the client put into `_meta` besides what is of its own hop, and the token of this one.
    fn rest_of_meta(&self, token: u64) -> Bytes {
        let received = self.message.member(Member::Meta);
        let mut meta = received.and_then(|text| RawObject::parse(&text)).unwrap_or_default();
        meta.retain(|name, _| !meta::OF_THE_HOP.contains(&name));
        if meta.get(meta::PROGRESS_TOKEN).is_some() {
            meta.set(meta::PROGRESS_TOKEN, number(token));
        }
        meta.to_bytes()
    }
}

impl Client {
    /// What a modern upstream is told of the client: JSON texts in the order of [`OF_THE_HOP`].
    fn told(&self) -> [Option<Bytes>; 4] {
        let level = self.log_rank.and_then(|rank| LEVELS.get(usize::from(rank)));
        [
            Some(Bytes::from_static(REVISION.as_bytes())),
            Some(self.caps.to_modern_text()),
            self.info.clone(),
            level.map(|level| Bytes::from_static(level.as_bytes())),
        ]
    }

    /// `_meta` of a modern request: what is told of the client, and the members of the object `rest`, if any.
    fn before(&self, rest: &[u8]) -> Bytes {
        let told = self.told();
        let size: usize = told.iter().flatten().map(Bytes::len).sum();
        let mut text = Vec::with_capacity(size + 192 + rest.len());
        for (told, name) in told.iter().zip(meta::OF_THE_HOP) {
            let Some(told) = told else { continue };
            text.extend_from_slice(if text.is_empty() { b"{\"" } else { b",\"" });
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            text.extend_from_slice(told);
        }
        match rest.strip_prefix(b"{") {
            Some(members) if members != b"}" => {
                text.push(b',');
                text.extend_from_slice(members);
            }
            _ => text.push(b'}'),
        }
        text.into()
    }
}

/// Whether `_meta` holds nothing but what is of the client's hop and its token. Told from its length, which then leaves
/// no room for more; one that is written with white space or escapes seems to hold more.
fn holds_only_the_hop(message: &Message, meta: Span) -> bool {
    let members = OF_THE_HOP.into_iter().zip(meta::OF_THE_HOP);
    let members = members.chain([(Member::MetaProgressToken, meta::PROGRESS_TOKEN)]);
    let lengths = members.filter_map(|(member, name)| {
        let value = message.member_span(member)?;
        Some("\"\":,".len() + name.len() + value.range().len())
    });
    // Two braces, and no comma behind the last member.
    lengths.sum::<usize>() + 1 == meta.range().len()
}

/// The edit that puts members into an object, before those that it has.
fn inserted(text: &[u8], object: Span, members: &[u8]) -> Edit {
    let at = Span { start: object.start + 1, end: object.start + 1 };
    let rest = text.get(at.range().start..).unwrap_or_default();
    let first = rest.iter().find(|byte| !byte.is_ascii_whitespace());
    let comma: &[u8] = if first == Some(&b'}') { b"" } else { b"," };
    (at, [members, comma].concat().into())
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
            Some(inserted(message.text(), span, &[b"\"_meta\":", &meta[..]].concat()))
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
    use crate::mcp::{ClientCaps, LOG_LEVELS};
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

    #[test]
    fn what_is_told_is_as_the_wire_has_it() {
        assert_eq!(REVISION, format!("\"{MODERN}\""));
        assert_eq!(LEVELS.map(|level| level.trim_matches('"')), LOG_LEVELS);
    }

    /// Calls with these contents of `_meta`.
    fn with_meta(members: &str) -> OutCall {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","_meta":{{{members}}}}}}}"#
        );
        call(Box::leak(text.into_boxed_str()))
    }

    const SAID: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/clientCapabilities":"#;

    fn client(caps: &str, log_rank: Option<u8>) -> Client {
        let caps = ClientCaps::parse(caps.as_bytes());
        Client { caps, info: Some(Bytes::from_static(br#"{"name":"c"}"#)), log_rank }
    }

    #[test]
    fn between_modern_peers_only_id_and_token_change() {
        let mut call = with_meta(&format!(r#"{SAID}{{}} , "k": 1.0,"progressToken":"p""#));
        call.client = client("{}", None);
        let text = String::from_utf8(call.message.text().to_vec()).expect("UTF-8");
        let expected = text.replace(r#""id":1"#, r#""id":7"#).replace(r#""p""#, "7");
        assert_eq!(sent(&call, MODERN), expected);
    }

    #[test]
    fn whatever_a_client_said_of_itself_the_upstream_is_told_what_is_relayed() {
        let told = |members: &str, client: Client| {
            let mut call = with_meta(members);
            call.client = client;
            params(&call, MODERN)["_meta"].take()
        };
        let expected = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "c"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
            "k": 1,
        });
        let forms = r#"{"elicitation":{}}"#;
        for members in [
            format!(r#"{SAID}{{"elicitation":{{}},"x":{{}}}},"k":1"#),
            format!(r#"{SAID}{{}},"k":1,"io.modelcontextprotocol/logLevel":"info""#),
            format!(r#""k":1,{SAID}{{}},"io.modelcontextprotocol/clientInfo":{{"name":"other"}}"#),
            SAID.replace("clientInfo", "client") + r#"{},"k":1"#,
            r#"  "k":1"#.to_owned(),
        ] {
            let mut told = told(&members, client(forms, None));
            told.as_object_mut().map(|told| told.remove("io.modelcontextprotocol/client"));
            assert_eq!(told, expected, "{members}");
        }
        let level = r#","k":1,"io.modelcontextprotocol/logLevel":"debug""#;
        let told = told(&format!("{SAID}{forms}{level}"), client(forms, Some(4)));
        assert_eq!(told["io.modelcontextprotocol/logLevel"], "error");
        let told = with_meta(r#""progressToken":"p""#);
        assert_eq!(params(&told, MODERN)["_meta"]["progressToken"], 7);
    }

    #[test]
    fn a_legacy_upstream_gets_the_rest_of_meta_however_it_is_written() {
        for (members, rest) in [
            (format!("{SAID}{{}}"), "{}"),
            (format!(r#""progressToken":"p",{SAID}{{}}"#), r#"{"progressToken":7}"#),
            (format!(r#"{SAID}{{}},"k":1"#), r#"{"k":1}"#),
            (format!(r#"{SAID} {{}},"":0"#), r#"{"":0}"#),
            (SAID.replace('/', "\\/") + "{}", "{}"),
            (format!(r#"{SAID}{{}},"io.modelcontextprotocol/clientInfo":{{}}"#), "{}"),
        ] {
            let text = sent(&with_meta(&members), LEGACY);
            assert!(
                text.ends_with(&format!(r#""params":{{"name":"a","_meta":{rest}}}}}"#)),
                "{text}"
            );
        }
    }
}
