//! The configuration file: what may stand in it, and what it means when it does not.
//!
//! The structs are the file as written, already typed (durations, sizes, names) and with defaults filled
//! in. Unknown keys are errors. [`load`] adds what only the whole can tell: references, clashes.

mod decode;
mod document;
mod expand;
mod import;
mod jsonc;
mod load;
mod methods;
mod problem;
mod route;
mod schema;
mod server;
mod types;
mod units;
mod upstream;
mod validate;

#[cfg(test)]
mod example;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use import::{ImportError, Imported, import, load_mcp_servers};
pub use load::{load, parse};
pub use methods::{Balance, MethodConfig};
pub use problem::{Checked, ConfigError, Place, Problem, Problems};
pub use route::{Names, RouteConfig, Sessions, SubscriptionConfig};
pub use schema::schema;
pub use server::{ServerConfig, ServerTls};
pub use types::{OneOrMany, Revision, RouteName, Secret, UpstreamName};
pub use upstream::{Isolation, ToolsConfig, UpstreamConfig, UpstreamTls};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The client side.
    pub server: ServerConfig,
    /// The operator's side.
    pub admin: AdminConfig,
    /// The servers behind the gateway, by name.
    pub upstreams: BTreeMap<UpstreamName, UpstreamConfig>,
    /// What is served where.
    pub routes: Vec<RouteConfig>,
    /// Logs.
    pub telemetry: TelemetryConfig,
    /// Where state is kept.
    pub store: StoreConfig,
}

impl Config {
    /// Files of certificates are named relative to the file that names them.
    fn place_files_in(&mut self, folder: &Path) {
        let mut files: Vec<&mut PathBuf> = Vec::new();
        if let Some(ServerTls { cert, key, client_ca }) = &mut self.server.tls {
            files.extend([cert, key]);
            files.extend(client_ca);
        }
        for upstream in self.upstreams.values_mut() {
            let UpstreamTls { ca, cert, key, .. } = &mut upstream.tls;
            files.extend([ca, cert, key].into_iter().flatten());
        }
        files.into_iter().for_each(|file| *file = folder.join(&*file));
    }
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Address of `/metrics`, `/livez`, `/readyz`.
    #[serde(with = "types::address")]
    #[schemars(with = "SocketAddr")]
    pub listen: SocketAddr,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9808)) }
    }
}

/// What an upstream speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Model Context Protocol.
    #[default]
    Mcp,
    /// Plain JSON-RPC 2.0.
    JsonRpc,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether texts of requests and answers are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Payloads {
    /// Never.
    #[default]
    Off,
    /// With the values of secret-looking members masked.
    Masked,
    /// As they are.
    Full,
}

/// `[telemetry]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Format of log lines.
    pub log: LogFormat,
    /// Filter of log lines, such as `info` or `trunkline=debug`; `RUST_LOG` overrides it.
    pub level: String,
    /// Whether texts of requests and answers are logged.
    pub payloads: Payloads,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self { log: LogFormat::Text, level: "info".to_owned(), payloads: Payloads::Off }
    }
}

/// `[store]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Seals cursors; made at random when absent.
    pub secret: Option<Secret>,
}
