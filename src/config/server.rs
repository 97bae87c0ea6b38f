//! `[server]`: the client side.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OneOrMany, types, units};
use crate::net::Place;
use crate::net::tls::ServerRecipe;

/// `tls` of `[server]`. Files are in PEM, relative to the folder of the configuration, and read anew when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// The certificate, and what leads from it to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of clients; with it, only clients with a certificate of theirs are served.
    pub client_ca: Option<PathBuf>,
}

impl ServerTls {
    /// What it is made from.
    pub fn recipe(&self) -> ServerRecipe {
        let Self { cert, key, client_ca } = self.clone();
        ServerRecipe { cert, key, client_ca }
    }
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where to listen, one place or several: `127.0.0.1:8808`, `[::1]:8808`, `unix:/run/trunkline.sock`.
    #[serde(with = "types::places")]
    #[schemars(with = "OneOrMany<String>")]
    pub listen: OneOrMany<Place>,
    /// Permissions of the unix sockets in `listen`, as `chmod` takes them.
    #[serde(with = "types::mode")]
    #[schemars(with = "String")]
    pub socket_mode: u32,
    /// TLS on the addresses in `listen`; unix sockets stay without.
    pub tls: Option<ServerTls>,
    /// Where clients reach this gateway, when something in front of it changes the path: `https://example.com/tools`.
    /// Clients of HTTP+SSE are told a path below it. Without it they are told one relative to where they asked.
    #[serde(with = "types::optional_url")]
    #[schemars(with = "Option<url::Url>")]
    pub public_url: Option<url::Url>,
    /// Allows listening beyond loopback while no identity is configured.
    pub allow_unauthenticated: bool,
    /// Values of `Host` that are served besides the addresses listened on and loopback names. Checked on loopback
    /// listeners, and everywhere once it is set.
    pub allowed_hosts: Vec<String>,
    /// Origins that browsers may call from, such as `https://app.example.com`, besides loopback ones. `*` allows all.
    pub allowed_origins: Vec<String>,
    /// Largest request body.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub max_body: usize,
    /// Most elements in one JSON-RPC batch.
    pub max_batch: usize,
    /// Elements of one batch in flight at once.
    pub batch_concurrency: usize,
    /// How long a whole batch may take; what is not finished then is answered with an error each. Default: the longest
    /// timeout of the route's upstreams.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::Span>")]
    pub batch_timeout: Option<Duration>,
    /// Largest answer to a batch; elements that do not fit are answered with an error each.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub max_batch_answer: usize,
    /// Most bytes of request bodies and buffered answers that are held at once; what comes beyond is refused, or not read.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub max_bytes_in_flight: usize,
    /// Deepest nesting of a message.
    pub max_depth: u16,
    /// Largest request head.
    #[serde(with = "units::size")]
    #[schemars(with = "units::Size")]
    pub max_header: usize,
    /// Most requests at once on one connection of HTTP/2.
    pub max_streams: u32,
    /// How long a client may take to send a request head, or to set up TLS; also how long an idle connection is kept.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub header_timeout: Duration,
    /// How long a client may pause while it sends a body, or a message of a WebSocket.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub body_timeout: Duration,
    /// How long a client may read nothing of what waits for it; then its connection is closed; on HTTP/2 the
    /// stream that it does not read. WebSockets have `ws_write_timeout`.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub write_timeout: Duration,
    /// Interval of keep-alive comments on idle event streams; also how long an answer may stay away before an
    /// event stream is opened for it.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub keep_alive: Duration,
    /// Most requests, notifications and batches of one WebSocket in flight at once. Plain routes take no more until
    /// one has ended; MCP routes, where answers and cancellations must be read, refuse what is over it.
    pub ws_max_in_flight: usize,
    /// How long a WebSocket may be silent before its client is asked whether it is still there.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub ws_ping_interval: Duration,
    /// How long the answer to that may take; then the connection is closed.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub ws_ping_timeout: Duration,
    /// How long the client of a WebSocket may read nothing of what waits for it; then the connection is closed with 1013.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub ws_write_timeout: Duration,
    /// Most client connections at once.
    pub max_connections: usize,
    /// Most legacy sessions at once, and most open `subscriptions/listen` requests; of these a client has a quarter at most.
    pub max_sessions: usize,
    /// When an unused session ends.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub session_idle_timeout: Duration,
    /// Most calls at once that have asked their client something and wait for it to come back (clients of revision
    /// 2026-07-28 in front of older upstreams).
    pub max_parked: usize,
    /// How long such a call waits; then its upstream is told that nobody answers, and it is cancelled.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub park_timeout: Duration,
    /// How long running exchanges may finish after SIGTERM.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::Span")]
    pub drain_timeout: Duration,
    /// Worker threads; default: one for each core.
    pub workers: Option<usize>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: OneOrMany(vec![Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 8808)))]),
            socket_mode: 0o600,
            tls: None,
            public_url: None,
            allow_unauthenticated: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: 4 << 20,
            max_batch: 50,
            batch_concurrency: 10,
            batch_timeout: None,
            max_batch_answer: 32 << 20,
            max_bytes_in_flight: 512 << 20,
            max_depth: 128,
            max_header: 32 << 10,
            max_streams: 256,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            ws_max_in_flight: 64,
            ws_ping_interval: Duration::from_secs(30),
            ws_ping_timeout: Duration::from_secs(10),
            ws_write_timeout: Duration::from_secs(10),
            max_connections: 20_000,
            max_sessions: 100_000,
            session_idle_timeout: Duration::from_secs(30 * 60),
            max_parked: 1_000,
            park_timeout: Duration::from_secs(600),
            drain_timeout: Duration::from_secs(30),
            workers: None,
        }
    }
}
