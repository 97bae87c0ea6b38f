//! What the upstreams of a route offer together: what `initialize` and `server/discover` say (MCP digest §19.5).

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::{McpRoute, lists};
use crate::catalog::Naming;
use crate::mcp::{Era, ServerCaps};

/// How long upstreams are waited for of which nothing is known yet, so that what is promised is right when they are
/// quick. Slow ones are never waited for.
const GRACE: Duration = Duration::from_millis(300);
/// Longest instructions that are passed on.
const MAX_INSTRUCTIONS: usize = 32 << 10;

/// What all upstreams offer together.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) caps: ServerCaps,
    pub(super) instructions: Option<String>,
}

/// Who the gateway is.
pub(super) fn server_info() -> serde_json::Value {
    json!({ "name": "trunkline", "version": env!("CARGO_PKG_VERSION") })
}

/// Asks what is known of what clients of that era are offered.
pub(super) async fn offer(route: &McpRoute, era: Era) -> Offer {
    let unknown: Vec<_> =
        route.backends.iter().filter(|backend| backend.upstream.may_come_up(era)).collect();
    if !unknown.is_empty() {
        let hellos = unknown.iter().map(|backend| async move {
            let _ = backend.upstream.hello(&lists::home(backend, era)).await;
        });
        let _ = tokio::time::timeout(GRACE, join_all(hellos)).await;
    }
    let mut caps = ServerCaps::default();
    let mut instructions = Vec::new();
    for backend in &route.backends {
        let hello = backend.upstream.known(era);
        // Of an upstream that is not known yet everything is promised: what is not advertised now, a legacy client never
        // asks for.
        caps = caps.union(hello.as_ref().map_or(ServerCaps::PROMISED, |hello| hello.caps));
        if let Some(text) = hello.and_then(|hello| hello.instructions.clone()) {
            instructions.push((backend.upstream.name().as_str().to_owned(), text));
        }
    }
    Offer { caps, instructions: merged(route, instructions) }
}

/// One upstream's instructions as they are; of several, a section each under its name and prefix.
fn merged(route: &McpRoute, parts: Vec<(String, String)>) -> Option<String> {
    let mut text = String::new();
    for (upstream, part) in parts {
        if route.backends.len() > 1 {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str("# ");
            text.push_str(&Naming::title(route.naming, &upstream));
            text.push('\n');
        }
        text.push_str(&part);
    }
    let end = text.floor_char_boundary(MAX_INSTRUCTIONS);
    text.truncate(end);
    (!text.is_empty()).then_some(text)
}
