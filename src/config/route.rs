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
    /// Plain JSON-RPC: also accept requests without `Content-Type` or with `text/plain`.
    #[serde(default)]
    pub lenient_content_type: bool,
}
