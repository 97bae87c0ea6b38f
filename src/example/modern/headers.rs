//! Headers that repeat what the body says (MCP 2026-07-28, transports): each must be there and say
//! the same.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::HeaderMap;
use serde_json::Value;

use super::super::content::Content;
use super::super::message::{HEADER_MISMATCH, Request, RpcError};
use super::claims;
use crate::mcp::{METHOD_HEADER, NAME_HEADER, VERSION_HEADER, header, param_headers};

/// Checks the header that repeats the revision.
pub(super) fn check_revision(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let named = claims::revision(&request.params).and_then(Value::as_str);
    match named {
        Some(named) => same(headers, VERSION_HEADER, named, Form::Plain),
        // What the body lacks is told by whoever reads it, unless even the era is a guess.
        None if headers.contains_key(VERSION_HEADER) || request.method == "initialize" => Ok(()),
        None => Err(mismatch(VERSION_HEADER, "is missing")),
    }
}

/// Checks the headers that repeat what is to be done.
pub(super) fn check(
    headers: &HeaderMap,
    request: &Request,
    content: &Content,
) -> Result<(), RpcError> {
    let Request { method, params, .. } = request;
    same(headers, METHOD_HEADER, method, Form::Plain)?;
    let member = match method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(()),
    };
    // Without a usable member it is the parameters that are wrong, whatever the header says.
    let Some(name) = params[member].as_str() else { return Ok(()) };
    same(headers, NAME_HEADER, name, Form::Encoded)?;
    if method == "tools/call" { check_arguments(headers, name, params, content) } else { Ok(()) }
}

/// Checks the headers that repeat arguments, as the tool's schema asks.
fn check_arguments(
    headers: &HeaderMap,
    name: &str,
    params: &Value,
    content: &Content,
) -> Result<(), RpcError> {
    let tools = content.tools();
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else { return Ok(()) };
    let expected = param_headers(tool.input.to_string().as_bytes()).unwrap_or_default();
    if expected.is_empty() {
        return Ok(());
    }
    let arguments = Bytes::from(params["arguments"].to_string());
    for param in expected {
        let Some(argument) = param.argument(&arguments) else { continue };
        let value = single(headers, &param.header)?;
        if !param.agrees(&argument, value) {
            return Err(mismatch(&param.header, "says something else than the argument"));
        }
    }
    Ok(())
}

/// How a header spells what the body says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Encoded,
}

fn same(headers: &HeaderMap, name: &str, body: &str, form: Form) -> Result<(), RpcError> {
    let value = single(headers, name)?;
    let value = match form {
        Form::Plain => Cow::Borrowed(value.trim()),
        Form::Encoded => header::decode(value).map_err(|_| mismatch(name, "is no valid Base64"))?,
    };
    if value == body { Ok(()) } else { Err(mismatch(name, "says something else than the body")) }
}

/// The text of a header that must be there once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, RpcError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| mismatch(name, "is not ASCII")),
        (None, _) => Err(mismatch(name, "is missing")),
        (Some(_), Some(_)) => Err(mismatch(name, "is given twice")),
    }
}

fn mismatch(name: &str, what: &str) -> RpcError {
    RpcError::new(HEADER_MISMATCH, format!("header mismatch: {name} {what}"))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use serde_json::json;

    use super::super::super::Kind;
    use super::super::super::message::{Incoming, Piece};
    use super::*;

    fn judge(method: &str, params: Value, given: &[(&str, &str)]) -> Result<(), i64> {
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let piece = Piece::read(text.to_string().as_bytes()).unwrap();
        let Piece::One(Incoming::Request(request)) = piece else { panic!("no request") };
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let content = Content::new(Kind::Suite);
        check(&headers, &request, &content).map_err(|why| why.code)
    }

    #[test]
    fn every_header_must_be_there_once_and_say_the_same() {
        let read = |given: &[(&str, &str)]| judge("resources/read", json!({"uri": "a:ü"}), given);
        let (method, name) =
            (("mcp-method", "resources/read"), ("mcp-name", "=?base64?YTrDvA==?="));
        assert_eq!(read(&[method, name]), Ok(()));
        for wrong in [
            &[method][..],
            &[name],
            &[method, name, name],
            &[method, method, name],
            &[("mcp-method", "Resources/read"), name],
            &[method, ("mcp-name", "a:u")],
            &[method, ("mcp-name", "=?base64?YTrDvA?=")],
        ] {
            assert_eq!(read(wrong), Err(HEADER_MISMATCH), "{wrong:?}");
        }
        assert_eq!(judge("tools/list", json!({}), &[("mcp-method", "tools/list")]), Ok(()));
    }

    #[test]
    fn annotated_arguments_are_repeated_unless_they_are_absent() {
        let call = |arguments: Value, more: &[(&str, &str)]| {
            let params = json!({"name": "test_x_mcp_header", "arguments": arguments});
            let fixed = [("mcp-method", "tools/call"), ("mcp-name", "test_x_mcp_header")];
            judge("tools/call", params, &[&fixed[..], more].concat())
        };
        let region = json!({"region": "eu"});
        assert_eq!(call(region.clone(), &[("mcp-param-region", "eu")]), Ok(()));
        assert_eq!(call(region.clone(), &[("mcp-param-region", "us")]), Err(HEADER_MISMATCH));
        assert_eq!(call(region, &[]), Err(HEADER_MISMATCH));
        assert_eq!(call(json!({"region": null}), &[]), Ok(()));
    }
}
