//! A server without sessions (2026-07-28). It takes nothing but what this revision has: every request is read as a
//! whole, and its headers are compared with it.

use std::borrow::Cow;

use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::reply::{Reply, changes, json, sse, status};
use super::{check_media, faults, single};
use crate::catalog::Modern;
use crate::scenario::MODERN;

/// What the run's clients declare, as the gateway may spell it.
const CAPABILITIES: [&str; 3] = ["{}", r#"{"elicitation":{}}"#, r#"{"elicitation":{"form":{}}}"#];

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    notifications: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta", default)]
    meta: Meta<'a>,
}

#[derive(Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientInfo")]
    client: Option<ClientInfo<'a>>,
}

#[derive(Deserialize)]
struct ClientInfo<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

pub(super) fn answer(headers: &HeaderMap, body: &[u8], answers: &Modern) -> Response<Reply> {
    let Ok(request) = serde_json::from_slice::<Request<'_>>(body) else {
        return wrong(headers, "no request", body);
    };
    if request.method == "initialize" {
        // The question whether it speaks with sessions.
        return refused(request.id, StatusCode::BAD_REQUEST, &answers.unsupported);
    }
    if let Err(what) = check(headers, &request) {
        return wrong(headers, what, body);
    }
    let Some(id) = request.id else { return status(StatusCode::ACCEPTED) };
    let id = id.get().as_bytes();
    match &*request.method {
        "server/discover" => json(id, &answers.discover),
        "tools/list" => json(id, &answers.server.list),
        "tools/call" => match request.params.name.as_deref() {
            Some("text_1k") => json(id, &answers.server.text_1k),
            Some("text_64k") => json(id, &answers.server.text_64k),
            Some("sse_1k") => sse(id, &answers.server.text_1k),
            _ => json(id, &answers.unknown_tool),
        },
        "subscriptions/listen" => listen(id, request.params.notifications),
        _ => refused(request.id, StatusCode::NOT_FOUND, &answers.unknown_method),
    }
}

/// Every rule of a request (MCP 2026-07-28, transports and `_meta`).
fn check(headers: &HeaderMap, request: &Request<'_>) -> Result<(), &'static str> {
    check_media(headers)?;
    if ["mcp-session-id", "last-event-id"].iter().any(|name| headers.contains_key(*name)) {
        return Err("a header of another era");
    }
    if single(headers, "mcp-protocol-version") != Some(MODERN) {
        return Err("MCP-Protocol-Version is not the revision of this server");
    }
    if single(headers, "mcp-method") != Some(&*request.method) {
        return Err("Mcp-Method is not the method");
    }
    let calls = request.method == "tools/call";
    let name = request.params.name.as_deref().filter(|_| calls);
    if headers.contains_key("mcp-name") != calls || single(headers, "mcp-name") != name {
        return Err("Mcp-Name is not the name");
    }
    if request.id.is_none() {
        return Ok(());
    }
    let meta = &request.params.meta;
    if meta.version.as_deref() != Some(MODERN) {
        return Err("_meta has another protocolVersion");
    }
    let declared = meta.capabilities.map(RawValue::get);
    if !declared.is_some_and(|declared| CAPABILITIES.contains(&declared)) {
        return Err("_meta has other clientCapabilities");
    }
    if calls && meta.client.as_ref().is_none_or(|client| client.name != "load") {
        return Err("_meta has another clientInfo");
    }
    Ok(())
}

fn wrong(headers: &HeaderMap, what: &str, body: &[u8]) -> Response<Reply> {
    faults::note("the server without sessions", &format!("{what}: {headers:?}"), body);
    status(StatusCode::BAD_REQUEST)
}

fn refused(id: Option<&RawValue>, code: StatusCode, error: &hyper::body::Bytes) -> Response<Reply> {
    let mut response = json(id.map_or("null", RawValue::get).as_bytes(), error);
    *response.status_mut() = code;
    response
}

/// A stream of changes of the list of tools, whatever else was asked for.
fn listen(id: &[u8], filter: Option<&RawValue>) -> Response<Reply> {
    let id = String::from_utf8_lossy(id);
    let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
    let message = |method: &str, more: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{{meta}{more}}}}}"#
        )
    };
    let filter = format!(r#","notifications":{}"#, filter.map_or("{}", RawValue::get));
    let agreed = message("subscriptions/acknowledged", &filter);
    changes(Some(agreed.into()), message("tools/list_changed", "").into())
}
