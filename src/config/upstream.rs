//! `[upstreams.NAME]`: the servers behind the gateway.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Protocol, Revision, Secret, types, units};
use crate::net::tls::ClientRecipe;

/// Who shares one child or upstream session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Everybody.
    Shared,
    /// The exchanges of one client session.
    Session,
    /// The sessions of one principal; without identity those of one session.
    Principal,
}

/// `[upstreams.NAME]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// What it speaks.
    pub protocol: Protocol,
    /// Program and arguments of a child process; `{self}` is this binary. Alone: MCP on its standard input and output.
    /// With `url`: it is started and supervised, and dialled at `url`.
    pub command: Option<Vec<String>>,
    /// Environment of the child, added to what `env_inherit` lets through.
    pub env: BTreeMap<String, Secret>,
    /// Variables that the child inherits from the gateway's environment.
    pub env_inherit: Vec<String>,
    /// Working folder of the child.
    pub cwd: Option<PathBuf>,
    /// Address of the server: `http://…`, `https://…`, or a unix socket and the path behind it: `unix:/run/x.sock:/mcp`;
    /// `ws://…` or `wss://…` for WebSocket.
    #[serde(with = "types::optional_url")]
    #[schemars(with = "Option<url::Url>")]
    pub url: Option<url::Url>,
    /// HTTP/2. Left out: with `https:` if the server agrees, with `http:` not. `true`: always, with `http:` without asking;
    /// `false`: never.
    pub http2: Option<bool>,
    /// Certificates of `https:` and `wss:`.
    pub tls: UpstreamTls,
    /// Plain JSON-RPC over HTTP: addresses of replicas, instead of `url`. Each has limits and connections of its own.
    #[serde(with = "types::urls")]
    #[schemars(with = "Vec<url::Url>")]
    pub endpoints: Vec<url::Url>,
    /// Headers sent with each request; over WebSocket with the upgrade.
    pub headers: BTreeMap<String, Secret>,
    /// Pins the revision: `auto` or one revision.
    pub revision: Revision,
    /// Who shares one child or upstream session. Default: `shared` for stdio, `principal` for http.
    pub isolation: Option<Isolation>,
    /// One call; progress may extend it up to `max_timeout`.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub timeout: Duration,
    /// Hard limit of one call.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub max_timeout: Duration,
    /// Making a connection.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub connect_timeout: Duration,
    /// From a request to the head of its response; default: as `timeout` says.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::Span>")]
    pub first_byte_timeout: Option<Duration>,
    /// From the start of a child to its answer to `initialize` (or until it accepts at `url`).
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub start_timeout: Duration,
    /// How long an upstream may take to answer when it is asked which era it speaks.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub probe_timeout: Duration,
    /// How long lists of this upstream are waited for before the others are served without it.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub list_timeout: Duration,
    /// How old a list may become when the upstream does not announce changes.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub list_ttl: Duration,
    /// When a child or upstream session that no client uses is ended; the last one of an upstream stays unless
    /// this is set.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::Span>")]
    pub idle_timeout: Option<Duration>,
    /// Calls in flight at once.
    pub max_concurrency: usize,
    /// Calls that may wait for a slot; more are refused.
    pub max_queue: usize,
    /// Largest message from the upstream.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub max_message: usize,
    /// Plain JSON-RPC over HTTP: an answer that is larger goes to a client of a single call while it still comes.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub stream_above: usize,
    /// Plain JSON-RPC over HTTP: the upstream answers batches itself, so elements may travel together.
    pub batch: bool,
    /// Most elements that travel together (with `batch`); more of them travel in several arrays.
    pub max_batch: Option<usize>,
    /// Plain JSON-RPC over WebSocket: how many connections all calls share.
    pub connections: usize,
    /// WebSocket: the subprotocol that is offered. Default: `mcp` for MCP, else none; `""` for none.
    pub subprotocol: Option<String>,
    /// WebSocket: after how much silence the upstream is asked whether it lives.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub ping_interval: Duration,
    /// WebSocket: how long it may then stay silent before the connection is given up.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub ping_timeout: Duration,
    /// Schemes of resource URIs that it owns though it lists no such resource, such as `file`.
    pub uri_schemes: Vec<String>,
    /// Choice and naming of its tools.
    pub tools: ToolsConfig,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            protocol: Protocol::Mcp,
            command: None,
            env: BTreeMap::new(),
            env_inherit: [
                "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ",
                "TMPDIR",
            ]
            .map(str::to_owned)
            .to_vec(),
            cwd: None,
            url: None,
            http2: None,
            tls: UpstreamTls::default(),
            endpoints: Vec::new(),
            headers: BTreeMap::new(),
            revision: Revision::Auto,
            isolation: None,
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: None,
            start_timeout: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(2),
            list_timeout: Duration::from_secs(5),
            list_ttl: Duration::from_secs(60),
            idle_timeout: None,
            max_concurrency: 64,
            max_queue: 256,
            max_message: 16 << 20,
            stream_above: 256 << 10,
            batch: false,
            max_batch: None,
            connections: 1,
            subprotocol: None,
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
            uri_schemes: Vec::new(),
            tools: ToolsConfig::default(),
        }
    }
}

impl UpstreamConfig {
    /// One for each replica, each with a `url`; itself when there are none.
    pub fn replicas(&self) -> Vec<Self> {
        let replica =
            |url: &url::Url| Self { url: Some(url.clone()), endpoints: Vec::new(), ..self.clone() };
        match self.endpoints.is_empty() {
            true => vec![self.clone()],
            false => self.endpoints.iter().map(replica).collect(),
        }
    }

    /// Who shares one child or upstream session, with the default of its transport.
    pub fn isolation(&self) -> Isolation {
        self.isolation.unwrap_or(if self.url.is_none() {
            Isolation::Shared
        } else {
            Isolation::Principal
        })
    }
}

/// `[upstreams.NAME.tls]`. Files are in PEM, relative to the folder of the configuration, and read anew when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTls {
    /// Authorities that are trusted in place of those of the system.
    pub ca: Option<PathBuf>,
    /// Our certificate, for servers that want one.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must be for, when that is not the host of `url`.
    pub server_name: Option<String>,
    /// Believes any certificate. Whoever sits between can then read and change everything.
    pub insecure: bool,
}

impl UpstreamTls {
    /// What it is made from, with the protocols that are offered.
    pub fn recipe(&self, alpn: Vec<Vec<u8>>) -> ClientRecipe {
        let identity = self.cert.clone().zip(self.key.clone());
        ClientRecipe { ca: self.ca.clone(), identity, insecure: self.insecure, alpn }
    }
}

/// `[upstreams.NAME.tools]`; all by the upstream's own names, patterns are globs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// Only these are offered; empty: all.
    pub allow: Vec<String>,
    /// These are not offered.
    pub deny: Vec<String>,
    /// Own name to the name it is offered under (before any prefix).
    pub rename: BTreeMap<String, String>,
    /// Timeout of one call by pattern; the longest pattern that matches wins.
    #[serde(with = "units::durations")]
    #[schemars(with = "BTreeMap<String, units::Span>")]
    pub timeout: BTreeMap<String, Duration>,
}
