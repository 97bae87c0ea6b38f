//! What every modern request must say, in its body and once more in its headers (MCP digest §5.3, §8.4).

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Member, Message};
use crate::mcp::{
    ClientCaps, Era, METHOD_HEADER, NAME_HEADER, ParamHeader, ProtocolVersion, VERSION_HEADER,
    header, log_rank, meta, method_spec,
};

// Made once: a name that is given as text is parsed at each look.
const VERSION: HeaderName = HeaderName::from_static(VERSION_HEADER);
const METHOD: HeaderName = HeaderName::from_static(METHOD_HEADER);
const NAME: HeaderName = HeaderName::from_static(NAME_HEADER);

/// What a request says of its client.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) caps: ClientCaps,
    pub(super) info: Option<Bytes>,
    pub(super) log_rank: Option<u8>,
}

/// The versions that are served: those that a request can name first.
pub(super) fn supported() -> Vec<&'static str> {
    let mut versions: Vec<_> = ProtocolVersion::ALL.map(ProtocolVersion::as_str).to_vec();
    versions.reverse();
    versions
}

/// Reads and judges `_meta`.
pub(super) fn claims(message: &Message) -> Result<Claims, Fault> {
    if message.member_str(Member::MetaProtocolVersion).is_none() {
        return Err(missing(meta::PROTOCOL_VERSION, "a string"));
    }
    let caps = message.member(Member::MetaClientCapabilities);
    let caps = caps.filter(|caps| caps.starts_with(b"{"));
    let caps = caps.ok_or_else(|| missing(meta::CLIENT_CAPABILITIES, "an object"))?;
    let level = message.member(Member::MetaLogLevel);
    let rank = match &level {
        None => None,
        Some(_) => {
            let rank = message.member_str(Member::MetaLogLevel).and_then(|level| log_rank(&level));
            Some(rank.ok_or_else(|| {
                let text = format!("Invalid params: _meta.{} is not a log level", meta::LOG_LEVEL);
                Fault::new(Reason::InvalidParams, text)
            })?)
        }
    };
    let info = message.member(Member::MetaClientInfo).filter(|info| info.starts_with(b"{"));
    let caps = if &caps[..] == b"{}" { ClientCaps::NONE } else { ClientCaps::parse(&caps) };
    Ok(Claims { caps, info, log_rank: rank })
}

fn missing(key: &str, kind: &str) -> Fault {
    let text = format!("Invalid params: params._meta[\"{key}\"] must be {kind}");
    Fault::new(Reason::MissingMeta, text)
}

/// Compares the standard headers with the body; the revision that both name must be one that is served.
pub(super) fn headers(message: &Message, headers: &HeaderMap) -> Result<(), Fault> {
    let version = message.member_str(Member::MetaProtocolVersion).unwrap_or_default();
    same("MCP-Protocol-Version", headers, &VERSION, &version, false)?;
    served(message)?;
    same("Mcp-Method", headers, &METHOD, message.method(), false)?;
    let named = method_spec(message.method()).and_then(|spec| spec.named.member());
    // Without a usable member the params are wrong, whatever the header says.
    match named.and_then(|member| message.member_str(member)) {
        Some(name) => same("Mcp-Name", headers, &NAME, &name, true),
        None => Ok(()),
    }
}

/// Whether the revision that a request names is served without a session.
pub(super) fn served(message: &Message) -> Result<(), Fault> {
    let version = message.member_str(Member::MetaProtocolVersion).unwrap_or_default();
    if ProtocolVersion::parse(&version).is_some_and(|known| known.era() == Era::Modern) {
        return Ok(());
    }
    let text = "Unsupported protocol version: name one of data.supported; legacy ones begin with initialize";
    Err(Fault::new(Reason::UnsupportedVersion, text)
        .with("supported", json!(supported()).to_string())
        .with("requested", json!(version).to_string()))
}

fn same(
    shown: &str,
    headers: &HeaderMap,
    name: &HeaderName,
    body: &str,
    encoded: bool,
) -> Result<(), Fault> {
    let value =
        single(headers, name).ok_or_else(|| mismatch(shown, "is missing or given twice"))?;
    let value = value.to_str().map_err(|_| mismatch(shown, "is not ASCII"))?;
    let value = match encoded {
        true => header::decode(value).map_err(|_| mismatch(shown, "is no valid Base64"))?,
        false => Cow::Borrowed(value.trim_matches([' ', '\t'])),
    };
    if value == body { Ok(()) } else { Err(mismatch(shown, "says something else than the body")) }
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn mismatch(header: &str, what: &str) -> Fault {
    Fault::new(Reason::HeaderMismatch, format!("Header mismatch: {header} {what}"))
}

/// Compares `Mcp-Param-*` with the arguments of a tool that has them annotated.
pub(in crate::pipeline) fn params(
    message: &Message,
    expected: &[ParamHeader],
    given: &[(HeaderName, HeaderValue)],
) -> Result<(), Fault> {
    let arguments = message.member(Member::Arguments).unwrap_or_default();
    for param in expected {
        let Some(argument) = param.argument(&arguments) else { continue };
        let mut values = given.iter().filter(|(name, _)| *name == param.header.as_str());
        let (value, more) = (values.next(), values.next());
        let (Some((_, value)), None) = (value, more) else {
            return Err(mismatch(&param.header, "is missing or given twice"));
        };
        if !value.to_str().is_ok_and(|value| param.agrees(&argument, value)) {
            return Err(mismatch(&param.header, "says something else than the argument"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(meta: &str) -> Message {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"Zür","_meta":{meta}}}}}"#
        );
        Message::parse(text.into(), 64).expect("a message")
    }

    const META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn headers(of: &[(&'static str, &'static str)]) -> Result<(), Reason> {
        let mut map = HeaderMap::new();
        for (name, value) in of {
            map.append(*name, HeaderValue::from_static(value));
        }
        super::headers(&message(META), &map).map_err(|fault| fault.reason)
    }

    const RIGHT: [(&str, &str); 3] = [
        ("mcp-protocol-version", " 2026-07-28 "),
        ("mcp-method", "tools/call\t"),
        ("mcp-name", "=?base64?WsO8cg==?="),
    ];

    #[test]
    fn headers_must_say_what_the_body_says() {
        assert_eq!(headers(&RIGHT), Ok(()));
        for wrong in 0..3 {
            let mut given = RIGHT.to_vec();
            given.remove(wrong);
            assert_eq!(headers(&given), Err(Reason::HeaderMismatch), "without {wrong}");
            given.push((RIGHT[wrong].0, "x"));
            assert_eq!(headers(&given), Err(Reason::HeaderMismatch), "with another {wrong}");
            let twice = [&RIGHT[..], &RIGHT[wrong..=wrong]].concat();
            assert_eq!(headers(&twice), Err(Reason::HeaderMismatch), "with two of {wrong}");
        }
        let method = [RIGHT[0], ("mcp-method", "Tools/Call"), RIGHT[2]];
        assert_eq!(headers(&method), Err(Reason::HeaderMismatch), "values are case-sensitive");
        let name = [RIGHT[0], RIGHT[1], ("mcp-name", "=?base64?WsO8cg=?=")];
        assert_eq!(headers(&name), Err(Reason::HeaderMismatch), "sloppy Base64");
    }

    #[test]
    fn what_each_request_must_say_of_its_client_is_required() {
        let reason = |meta: &str| claims(&message(meta)).map(|_| ()).map_err(|fault| fault.reason);
        assert_eq!(reason(META), Ok(()));
        assert_eq!(reason("{}"), Err(Reason::MissingMeta));
        let version = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
        let caps = r#""io.modelcontextprotocol/clientCapabilities":{}"#;
        assert_eq!(reason(&format!("{{{version}}}")), Err(Reason::MissingMeta));
        assert_eq!(reason(&format!("{{{caps}}}")), Err(Reason::MissingMeta));
        let list = r#""io.modelcontextprotocol/clientCapabilities":[]"#;
        assert_eq!(reason(&format!("{{{version},{list}}}")), Err(Reason::MissingMeta));
        let level = r#""io.modelcontextprotocol/logLevel":"loud""#;
        assert_eq!(reason(&format!("{{{version},{caps},{level}}}")), Err(Reason::InvalidParams));
        for old in ["2025-11-25", "2099-01-01"] {
            let message = message(&META.replace("2026-07-28", old));
            let mut map = HeaderMap::new();
            map.insert("mcp-protocol-version", HeaderValue::from_static(old));
            let reason = super::headers(&message, &map).map_err(|fault| fault.reason);
            assert_eq!(reason, Err(Reason::UnsupportedVersion), "{old}");
            map.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
            let reason = super::headers(&message, &map).map_err(|fault| fault.reason);
            assert_eq!(reason, Err(Reason::HeaderMismatch), "{old}");
        }
    }

    #[test]
    fn an_annotated_argument_must_stand_in_its_header() {
        let schema = br#"{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}}"#;
        let expected = crate::mcp::param_headers(schema).expect("valid");
        let call = |arguments: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","arguments":{arguments}}}}}"#
            );
            Message::parse(text.into(), 64).expect("a message")
        };
        let header =
            |value| (HeaderName::from_static("mcp-param-n"), HeaderValue::from_static(value));
        let judge = |arguments: &str, given: &[(HeaderName, HeaderValue)]| {
            params(&call(arguments), &expected, given).is_ok()
        };
        assert!(judge(r#"{"n":7}"#, &[header("7")]) && judge(r#"{"n":null}"#, &[]));
        assert!(judge("{}", &[header("9")]), "it is not expected, so it is not looked at");
        assert!(!judge(r#"{"n":7}"#, &[]) && !judge(r#"{"n":7}"#, &[header("8")]));
        assert!(!judge(r#"{"n":7}"#, &[header("7"), header("7")]));
    }
}
