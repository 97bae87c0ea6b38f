//! `[[routes]]`: what is served where.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MethodConfig, Protocol, RouteName, UpstreamName, types};

/// Whether requests need a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sessions {
    /// A request without one is refused.
    #[default]
    Required,
    /// A request without one is served as if in a session of its own that ends with it.
    Optional,
}

/// How public names are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// Own names with one upstream, prefixed with several.
    #[default]
    Auto,
    /// `<upstream>__<name>`.
    Prefix,
    /// Own names; on a clash the first upstream of the route wins.
    Plain,
}

fn most_subscriptions() -> usize {
    100
}

/// What belongs to a method that subscribes: its result is an id that notifications carry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionConfig {
    /// The method of its notifications.
    pub notification: String,
    /// The method that ends it; its first parameter is the id.
    pub unsubscribe: String,
    /// Where the id stands in a notification, such as `params.subscription`.
    pub id: String,
    /// Whether clients that subscribe with the same params share one subscription at the upstream.
    #[serde(default)]
    pub share: bool,
    /// A notification of this method tells a client that the upstream was lost and is subscribed to again, so that
    /// something may have been missed. Without it, nothing tells.
    #[serde(default)]
    pub gap: Option<String>,
}

/// `[[routes]]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Path, exact, such as `/mcp`.
    pub path: RouteName,
    /// What is spoken there.
    #[serde(default)]
    pub protocol: Protocol,
    /// MCP: the upstreams that are merged, in this order.
    #[serde(default)]
    pub upstreams: Vec<UpstreamName>,
    /// MCP: whether requests need a session.
    #[serde(default)]
    pub sessions: Sessions,
    /// MCP: whether batches are served.
    #[serde(default = "types::yes")]
    pub batches: bool,
    /// MCP: how public names are made.
    #[serde(default)]
    pub names: Names,
    /// Plain JSON-RPC: method pattern to where its calls go: an upstream, a list of them, or a table with `upstreams`,
    /// `balance`, `timeout`, `max_body` and `idempotent`. The longest match wins, `*` is the default.
    #[serde(default)]
    pub methods: BTreeMap<String, MethodConfig>,
    /// Plain JSON-RPC: only methods that match one of these patterns are served; empty: all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Plain JSON-RPC: methods that match one of these patterns are not served.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Plain JSON-RPC: methods that subscribe, and what belongs to them. Their upstreams are spoken to over WebSocket, and
    /// so are the clients that call them.
    #[serde(default)]
    pub subscriptions: BTreeMap<String, SubscriptionConfig>,
    /// Plain JSON-RPC: most subscriptions of one client connection.
    #[serde(default = "most_subscriptions")]
    pub max_subscriptions: usize,
    /// Plain JSON-RPC: also accept requests without `Content-Type` or with `text/plain`.
    #[serde(default)]
    pub lenient_content_type: bool,
}
