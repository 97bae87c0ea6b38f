//! `server/discover`: what the gateway is and offers (MCP digest §9.2).

use serde_json::json;

use super::check::supported;
use crate::mcp::{Era, meta};
use crate::pipeline::McpRoute;
use crate::pipeline::offer::{Offer, offer, server_info};

/// The result. It may change whenever an upstream comes or goes, so it is not to be kept.
pub(in crate::pipeline) async fn discover(route: &McpRoute) -> serde_json::Value {
    let Offer { caps, instructions } = offer(route, Era::Modern).await;
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": supported(),
        "capabilities": caps.to_json(Era::Modern),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": { meta::SERVER_INFO: server_info() },
    });
    if let Some(text) = instructions {
        result["instructions"] = text.into();
    }
    result
}
