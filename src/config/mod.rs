//! The configuration file: what may stand in it, and what it means when it does not.
//!
//! The structs are the file as written, already typed (durations, sizes, names) and with defaults filled
//! in. Unknown keys are errors. [`load`] adds what only the whole can tell: references, clashes.

mod types;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub use types::{OneOrMany, Revision, RouteName, Secret, UpstreamName};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
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

/// `[server]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address or addresses to listen on.
    pub listen: OneOrMany<SocketAddr>,
    /// Allows listening beyond loopback while no identity is configured.
    pub allow_unauthenticated: bool,
    /// Values of `Host` that are served besides the addresses listened on and loopback names. Checked on loopback
    /// listeners, and everywhere once it is set.
    pub allowed_hosts: Vec<String>,
    /// Origins that browsers may call from, such as `https://app.example.com`, besides loopback ones. `*` allows all.
    pub allowed_origins: Vec<String>,
    /// Largest request body.
    #[serde(deserialize_with = "types::size")]
    #[schemars(with = "String")]
    pub max_body: usize,
    /// Most elements in one JSON-RPC batch.
    pub max_batch: usize,
    /// Elements of one batch in flight at once.
    pub batch_concurrency: usize,
    /// Deepest nesting of a message.
    pub max_depth: u16,
    /// Largest request head.
    #[serde(deserialize_with = "types::size")]
    #[schemars(with = "String")]
    pub max_header: usize,
    /// How long a client may take to send a request head; also how long an idle connection is kept.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub header_timeout: Duration,
    /// How long a client may pause while it sends a body.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub body_timeout: Duration,
    /// Interval of keep-alive comments on idle event streams; also how long an answer may stay away before an
    /// event stream is opened for it.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub keep_alive: Duration,
    /// Most client connections at once.
    pub max_connections: usize,
    /// Most legacy sessions at once.
    pub max_sessions: usize,
    /// When an unused session ends.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub session_idle_timeout: Duration,
    /// How long running exchanges may finish after SIGTERM.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub drain_timeout: Duration,
    /// Worker threads; default: one for each core.
    pub workers: Option<usize>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: OneOrMany(vec![SocketAddr::from(([127, 0, 0, 1], 8808))]),
            allow_unauthenticated: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: 4 << 20,
            max_batch: 50,
            batch_concurrency: 10,
            max_depth: 128,
            max_header: 32 << 10,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            max_connections: 20_000,
            max_sessions: 100_000,
            session_idle_timeout: Duration::from_secs(30 * 60),
            drain_timeout: Duration::from_secs(30),
            workers: None,
        }
    }
}

/// `[admin]`
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Address of `/metrics`, `/livez`, `/readyz`.
    pub listen: SocketAddr,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9808)) }
    }
}

/// What an upstream speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Model Context Protocol.
    #[default]
    Mcp,
    /// Plain JSON-RPC 2.0.
    JsonRpc,
}

/// Who shares one child or upstream session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Deserialize, JsonSchema)]
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
    /// Address of the server: `http://…`.
    pub url: Option<url::Url>,
    /// Headers sent with each request.
    pub headers: BTreeMap<String, Secret>,
    /// Pins the revision: `auto` or one revision.
    pub revision: types::Revision,
    /// Who shares one child or upstream session. Default: `shared` for stdio, `principal` for http.
    pub isolation: Option<Isolation>,
    /// One call; progress may extend it up to `max_timeout`.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Hard limit of one call.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub max_timeout: Duration,
    /// Making a connection.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
    /// From a request to the head of its response; default: as `timeout` says.
    #[serde(deserialize_with = "types::optional_duration")]
    #[schemars(with = "Option<String>")]
    pub first_byte_timeout: Option<Duration>,
    /// From the start of a child to its answer to `initialize` (or until it accepts at `url`).
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub start_timeout: Duration,
    /// How long lists of this upstream are waited for before the others are served without it.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub list_timeout: Duration,
    /// How old a list may become when the upstream does not announce changes.
    #[serde(deserialize_with = "types::duration")]
    #[schemars(with = "String")]
    pub list_ttl: Duration,
    /// When a child or upstream session that no client uses is ended; the last one of an upstream stays unless
    /// this is set.
    #[serde(deserialize_with = "types::optional_duration")]
    #[schemars(with = "Option<String>")]
    pub idle_timeout: Option<Duration>,
    /// Calls in flight at once.
    pub max_concurrency: usize,
    /// Calls that may wait for a slot; more are refused.
    pub max_queue: usize,
    /// Largest message from the upstream.
    #[serde(deserialize_with = "types::size")]
    #[schemars(with = "String")]
    pub max_message: usize,
    /// Plain JSON-RPC over HTTP: the upstream answers batches itself, so elements may travel together.
    pub batch: bool,
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
            headers: BTreeMap::new(),
            revision: types::Revision::Auto,
            isolation: None,
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: None,
            start_timeout: Duration::from_secs(30),
            list_timeout: Duration::from_secs(5),
            list_ttl: Duration::from_secs(60),
            idle_timeout: None,
            max_concurrency: 64,
            max_queue: 256,
            max_message: 16 << 20,
            batch: false,
            tools: ToolsConfig::default(),
        }
    }
}

impl UpstreamConfig {
    /// Who shares one child or upstream session, with the default of its transport.
    pub fn isolation(&self) -> Isolation {
        self.isolation.unwrap_or(if self.url.is_none() {
            Isolation::Shared
        } else {
            Isolation::Principal
        })
    }
}

/// `[upstreams.NAME.tools]`; all by the upstream's own names, patterns are globs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// Only these are offered; empty: all.
    pub allow: Vec<String>,
    /// These are not offered.
    pub deny: Vec<String>,
    /// Own name to the name it is offered under (before any prefix).
    pub rename: BTreeMap<String, String>,
    /// Timeout of one call by pattern; the longest pattern that matches wins.
    #[serde(deserialize_with = "types::durations")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub timeout: BTreeMap<String, Duration>,
}

/// Whether requests need a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sessions {
    /// A request without one is refused.
    #[default]
    Required,
    /// A request without one is served as if in a session of its own that ends with it.
    Optional,
}

/// How public names are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Deserialize, JsonSchema)]
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
    /// Plain JSON-RPC: method pattern to upstream; the longest match wins, `*` is the default.
    #[serde(default)]
    pub methods: BTreeMap<String, UpstreamName>,
    /// Plain JSON-RPC: also accept requests without `Content-Type` or with `text/plain`.
    #[serde(default)]
    pub lenient_content_type: bool,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether texts of requests and answers are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Seals cursors; made at random when absent.
    pub secret: Option<Secret>,
}
