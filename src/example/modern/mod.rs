//! Revision 2026-07-28: no handshake and no sessions. Every request says what its client is and can
//! do, and is answered by that alone. `http` and `line` carry such requests.

mod claims;
mod era;
mod headers;
mod http;
mod line;
mod listen;

use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};

use super::call::Call;
use super::message::{
    Id, NoId, Request, RpcError, UNSUPPORTED_REVISION, print_error, print_result,
};
use super::outbox::Outbox;
use super::revision::Revision;
use super::service::{self, Server};
use super::tasks;
use crate::mcp::{TASKS_EXTENSION, meta};

pub(super) use claims::Claims;
pub(super) use era::{Era, is_modern};
pub(super) use http::{Taken, respond};
pub(super) use line::Line;
pub(super) use listen::Listeners;

/// How long a client may take the description of the server for true.
const DISCOVER_TTL_MS: u64 = 3_600_000;
/// How long it may take a list for true.
const LIST_TTL_MS: u64 = 60_000;
/// How long it may take a resource for true.
const READ_TTL_MS: u64 = 5_000;

/// A result as JSON text, or an error.
type Answer = Result<String, RpcError>;

/// What becomes of a request.
enum Served {
    /// It is answered.
    Now(Answer),
    /// It is answered when this is run to its end; `None` if the server ended before. Dropping it
    /// cancels the request.
    Later(Pin<Box<dyn Future<Output = Option<Answer>> + Send>>),
}

/// Reads what a request says of its client and checks that its revision is offered.
fn check(server: &Server, request: &Request) -> Result<Claims, RpcError> {
    let named = claims::revision(&request.params);
    // An old client knows no better than to begin with this; it is told what is offered.
    let old = (named.is_none() && request.method == "initialize")
        .then(|| request.params.get("protocolVersion").unwrap_or(&Value::Null));
    if let Some(wish) = old {
        return Err(unsupported(server, wish));
    }
    let claims = Claims::read(&request.params)?;
    match named {
        Some(Value::String(name)) if name == Revision::MODERN.as_str() => Ok(claims),
        other => Err(unsupported(server, other.unwrap_or(&Value::Null))),
    }
}

fn unsupported(server: &Server, requested: &Value) -> RpcError {
    let names = server.offered.names();
    let message = format!("unsupported protocol version; supported: {}", names.join(", "));
    let requested = requested.as_str().unwrap_or_default();
    let data = Some(json!({"supported": names, "requested": requested}));
    RpcError { data, ..RpcError::new(UNSUPPORTED_REVISION, message) }
}

/// Serves a request that has been checked. What precedes its answer goes into `outbox`.
fn serve(server: &Arc<Server>, request: Request, claims: Claims, outbox: &Outbox) -> Served {
    let Request { id, method, params } = request;
    if let Err(why) = claims.check() {
        return Served::Now(Err(why));
    }
    let found = match method.as_str() {
        "tools/call" | "prompts/get" => return call(server, method, params, claims, outbox),
        "subscriptions/listen" => {
            return match listen::listen(server, id, &params, &claims, outbox) {
                Ok(listening) => Served::Later(Box::pin(listening)),
                Err(why) => Served::Now(Err(why)),
            };
        }
        "server/discover" => Ok(discover(server)),
        "tasks/get" | "tasks/update" | "tasks/cancel" if server.content.has_jobs() => {
            tasks::answer(server, &method, &params, &claims)
        }
        _ => service::look_up(server, Revision::MODERN, &method, &params)
            .unwrap_or_else(|| Err(RpcError::no_method(&method))),
    };
    Served::Now(found.map(|result| finish(server, &method, result)))
}

fn call(
    server: &Arc<Server>,
    method: String,
    params: Value,
    claims: Claims,
    outbox: &Outbox,
) -> Served {
    let job = (method == "tools/call").then(|| params["name"].as_str()).flatten();
    let begins = match job.and_then(|name| server.content.job(name)) {
        Some(job) => job.begins(&claims),
        None => Ok(false),
    };
    if begins != Ok(false) {
        let started = begins.and_then(|_| tasks::start(server, claims, params));
        return Served::Now(started.map(|result| finish(server, &method, result)));
    }
    let purpose = claims::purpose(&method, &params);
    let call = Call::alone(server, claims, purpose, outbox.clone(), &params);
    Served::Later(Box::pin(async move {
        let outcome = call.run(&method, &params).await?;
        Some(outcome.map(|result| finish(&call.server, &method, result)))
    }))
}

fn discover(server: &Server) -> Value {
    let mut capabilities = service::capabilities_of(true, Revision::MODERN);
    if server.content.has_jobs() {
        capabilities["extensions"] = json!({TASKS_EXTENSION: {}});
    }
    json!({
        "supportedVersions": server.offered.names(),
        "capabilities": capabilities,
        "instructions": server.content.instructions(),
    })
}

/// Adds what every result of this revision holds, and what those hold that may be cached.
fn finish(server: &Server, method: &str, mut result: Value) -> String {
    if result.get("resultType").is_none() {
        result["resultType"] = json!("complete");
    }
    let ttl = match method {
        "server/discover" => Some(DISCOVER_TTL_MS),
        "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
            Some(LIST_TTL_MS)
        }
        "resources/read" => Some(READ_TTL_MS),
        _ => None,
    };
    if let Some(ttl) = ttl {
        result["ttlMs"] = json!(ttl);
        result["cacheScope"] = json!("public");
    }
    result["_meta"][meta::SERVER_INFO] = service::info(server, Revision::MODERN);
    result.to_string()
}

/// Prints the answer to a request.
fn print(id: &Id, answer: &Answer) -> String {
    match answer {
        Ok(result) => print_result(id, result),
        Err(why) => print_error(Some(id), NoId::Absent, why),
    }
}
