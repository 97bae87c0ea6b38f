//! `[server]`, `[admin]`, `[telemetry]`, `[store]`.

use super::{Checks, KeyPath};
use crate::config::units::show_size;
use crate::net::Place;

/// What the HTTP parser needs at least to hold one head.
const SMALLEST_HEAD: usize = 8 << 10;
/// Nesting that the envelopes of the protocol itself need.
const SHALLOWEST: u16 = 4;
/// More threads than any machine has use for.
const MOST_WORKERS: usize = 1024;
/// Shorter secrets can be guessed.
const SHORTEST_SECRET: usize = 16;

impl Checks<'_> {
    pub(super) fn server(&mut self) {
        let server = &self.config.server;
        let table = KeyPath::root().key("server");
        self.listen();
        if let Some(tls) = &server.tls {
            self.server_tls(tls);
        }
        self.public_url();
        self.hosts();
        for (key, number) in [
            ("max_body", server.max_body),
            ("max_batch", server.max_batch),
            ("batch_concurrency", server.batch_concurrency),
            ("max_batch_answer", server.max_batch_answer),
            ("ws_max_in_flight", server.ws_max_in_flight),
            ("max_bytes_in_flight", server.max_bytes_in_flight),
            ("max_connections", server.max_connections),
            ("max_sessions", server.max_sessions),
            ("max_streams", server.max_streams as usize),
        ] {
            self.positive(&table, key, number);
        }
        for (key, duration) in [
            ("header_timeout", server.header_timeout),
            ("body_timeout", server.body_timeout),
            ("write_timeout", server.write_timeout),
            ("batch_timeout", server.batch_timeout.unwrap_or(std::time::Duration::MAX)),
            ("keep_alive", server.keep_alive),
            ("ws_ping_interval", server.ws_ping_interval),
            ("ws_ping_timeout", server.ws_ping_timeout),
            ("ws_write_timeout", server.ws_write_timeout),
            ("session_idle_timeout", server.session_idle_timeout),
            ("park_timeout", server.park_timeout),
        ] {
            self.lasting(&table, key, duration);
        }
        if server.max_bytes_in_flight < server.max_body && server.max_bytes_in_flight > 0 {
            let message = format!(
                "is smaller than `max_body`, {}, so that not one request of that size could be served; raise it",
                show_size(server.max_body)
            );
            self.wrong(table.key("max_bytes_in_flight"), &message);
        }
        if server.max_header < SMALLEST_HEAD {
            let message = format!("must be at least {}", show_size(SMALLEST_HEAD));
            self.wrong(table.key("max_header"), &message);
        }
        if server.max_depth < SHALLOWEST {
            let message = format!("must be at least {SHALLOWEST}, which the protocol itself needs");
            self.wrong(table.key("max_depth"), &message);
        }
        if server.workers.is_some_and(|workers| workers == 0 || workers > MOST_WORKERS) {
            let message =
                format!("must be 1 to {MOST_WORKERS}; leave it out for one for each core");
            self.wrong(table.key("workers"), &message);
        }
    }

    fn listen(&mut self) {
        let server = &self.config.server;
        let at = KeyPath::root().key("server").key("listen");
        let addresses = &server.listen.0;
        if addresses.is_empty() {
            self.wrong(at.clone(), "is an empty list; name at least one address");
        }
        // With `client_ca`, TLS asks who calls.
        let asked = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        for (index, address) in addresses.iter().enumerate() {
            if !address.is_local() && !server.allow_unauthenticated && !asked {
                let message = format!(
                    "`{address}` can be reached from other machines, and nothing asks who calls; \
                     listen on 127.0.0.1, or set `allow_unauthenticated = true` in [server]"
                );
                self.error(at.clone(), message);
            }
            if addresses[..index].iter().any(|earlier| earlier.clashes(address)) {
                self.error(at.clone(), format!("`{address}` is listened on twice; remove one"));
            }
        }
        let mode = KeyPath::root().key("server").key("socket_mode");
        let unix = |place: &Place| matches!(place, Place::Unix(_));
        if self.document.has(&mode) && !addresses.iter().any(unix) {
            let message = "`socket_mode` in [server] has no effect: no unix socket is listened on";
            self.warn(mode, message);
        }
        let admin = self.config.admin.listen;
        let at = KeyPath::root().key("admin").key("listen");
        if addresses.iter().any(|address| address.clashes(&Place::Tcp(admin))) {
            self.error(
                at.clone(),
                format!("`{admin}` is the address of [server] too; give [admin] a port of its own"),
            );
        }
        if !admin.ip().is_loopback() {
            self.warn(
                at,
                format!(
                    "the admin address `{admin}` can be reached from other machines without a \
                     password; see that only those who may can reach it"
                ),
            );
        }
    }

    fn public_url(&mut self) {
        let Some(url) = &self.config.server.public_url else { return };
        let at = KeyPath::root().key("server").key("public_url");
        if !matches!(url.scheme(), "http" | "https") {
            self.wrong(at.clone(), "must begin with `http:` or `https:`");
        }
        let bare = url.username().is_empty() && url.password().is_none();
        if !bare || url.query().is_some() || url.fragment().is_some() {
            self.wrong(at, "must be no more than scheme, host and path");
        }
    }

    fn hosts(&mut self) {
        let server = &self.config.server;
        let table = KeyPath::root().key("server");
        for host in &server.allowed_hosts {
            if host.parse::<http::uri::Authority>().is_err() || host.contains('@') {
                let message = format!("holds `{host}`, which is no host such as `mcp.example.com`");
                self.wrong(table.key("allowed_hosts"), &message);
            }
        }
        for origin in server.allowed_origins.iter().filter(|origin| *origin != "*") {
            let parsed = url::Url::parse(origin).map(|url| url.origin().ascii_serialization());
            match parsed {
                Ok(right) if right == *origin => {}
                Ok(right) if right != "null" => {
                    let message = format!("holds `{origin}`; write it as browsers do: `{right}`");
                    self.wrong(table.key("allowed_origins"), &message);
                }
                _ => {
                    let message = format!(
                        "holds `{origin}`, which is no origin such as `https://app.example.com`"
                    );
                    self.wrong(table.key("allowed_origins"), &message);
                }
            }
        }
    }

    pub(super) fn rest(&mut self) {
        let level = &self.config.telemetry.level;
        if let Err(cause) = tracing_subscriber::EnvFilter::builder().parse(level) {
            let message =
                format!("`{level}` is not a filter such as `info` or `trunkline=debug`: {cause}");
            let at = KeyPath::root().key("telemetry").key("level");
            self.wrong(at, &format!("cannot be used: {message}"));
        }
        let secret = self.config.store.secret.as_ref().map(|secret| secret.expose().len());
        let at = KeyPath::root().key("store").key("secret");
        match secret {
            Some(0) => self.wrong(at, "is empty; leave it out to have one made at random"),
            Some(length) if length < SHORTEST_SECRET => self.warn(
                at,
                format!("`secret` in [store] is short; use at least {SHORTEST_SECRET} characters"),
            ),
            _ => {}
        }
    }
}
