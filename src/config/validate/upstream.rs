//! `[upstreams.NAME]`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use url::Host;

use super::route::serves_older_at;
use super::{Checks, KeyPath};
use crate::config::{Protocol, ToolsConfig, UpstreamConfig, UpstreamName};
use crate::net::{Place, Site, Target};

/// Headers that the gateway writes itself on requests to an upstream.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Most connections that calls share.
const MOST_CONNECTIONS: usize = 64;

/// Longest name of a tool (MCP 2025-11-25, tools).
const LONGEST_TOOL: usize = 128;

/// Whether the gateway writes this header itself on requests to an upstream.
pub(in crate::config) fn is_own_header(name: &str) -> bool {
    OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

impl Checks<'_> {
    pub(super) fn upstream(&mut self, name: &UpstreamName) {
        let table = KeyPath::root().key("upstreams").key(name.as_str());
        // What is left of a table with errors in it says too little to be judged as a whole.
        if self.document.is_damaged(&table) {
            return;
        }
        let Some(upstream) = self.config.upstreams.get(name) else { return };
        self.reach(name, upstream, &table);
        self.urls(upstream, &table);
        self.upstream_tls(upstream, &table);
        self.child(upstream, &table);
        self.headers(upstream, &table);
        self.times(upstream, &table);
        self.websocket(upstream, &table);
        self.schemes(upstream, &table);
        self.tools(&upstream.tools, upstream, &table.key("tools"));
        self.no_effect(upstream, &table);
    }

    /// Whether there is something to start or to dial.
    fn reach(&mut self, name: &UpstreamName, upstream: &UpstreamConfig, table: &KeyPath) {
        if !upstream.endpoints.is_empty() {
            self.replicas(upstream, table);
            return;
        }
        match (upstream.protocol, &upstream.command, &upstream.url) {
            (_, None, None) => {
                let message = format!(
                    "upstream `{name}` has neither `command` nor `url`, so it cannot be reached; \
                     give one of them"
                );
                self.error(table.clone(), message);
            }
            (Protocol::JsonRpc, Some(_), None) => {
                let message = format!(
                    "upstream `{name}` speaks jsonrpc, which needs a `url`; a `command` alone is \
                     for MCP on standard input and output"
                );
                self.error(table.clone(), message);
            }
            _ => {}
        }
    }

    /// Whether replicas make sense here.
    fn replicas(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        let at = table.key("endpoints");
        for key in ["url", "command"] {
            if self.document.has(&table.key(key)) {
                let message = format!("stands beside `{key}`, which it is instead of; remove one");
                self.wrong(at.clone(), &message);
            }
        }
        if upstream.protocol != Protocol::JsonRpc {
            let message = "is for `protocol = \"jsonrpc\"`: sessions of MCP stay with one server; \
                           give a `url`";
            self.wrong(at.clone(), message);
        }
        for (place, url) in upstream.endpoints.iter().enumerate() {
            if upstream.endpoints[..place].contains(url) {
                self.wrong(at.clone(), "names one address twice; remove one");
            }
            if Site::of(url).is_ok_and(|site| site.websocket) {
                self.wrong(
                    at.clone(),
                    "holds an address of WebSocket; give it an upstream of its own",
                );
            }
        }
    }

    fn urls(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        if let Some(url) = &upstream.url {
            self.url(url, table.key("url"));
        }
        for url in &upstream.endpoints {
            self.url(url, table.key("endpoints"));
        }
    }

    fn url(&mut self, url: &url::Url, at: KeyPath) {
        let site = match Site::of(url) {
            Ok(site) => site,
            Err(what) => return self.wrong(at, &what),
        };
        if !url.username().is_empty() || url.password().is_some() {
            let message = "holds a user or password, which would show in logs; \
                           send them with `headers = { Authorization = \"…\" }`";
            self.wrong(at.clone(), message);
        }
        if url.fragment().is_some() {
            self.wrong(at.clone(), "holds a `#…`, which is never sent; remove it");
        }
        if self.is_own_route(&site) {
            self.wrong(at, "is a route of this gateway, which would call itself without end");
        }
    }

    /// Whether the address and path are those of a route of this very file.
    fn is_own_route(&self, site: &Site) -> bool {
        let place = match &site.target {
            Target::Unix(path) => Place::Unix(path.clone()),
            Target::Tcp(host, port) => {
                let ip = match host {
                    Host::Ipv4(ip) => IpAddr::V4(*ip),
                    Host::Ipv6(ip) => IpAddr::V6(*ip),
                    Host::Domain(name) if name == "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    Host::Domain(_) => return false,
                };
                Place::Tcp(SocketAddr::from((ip, *port)))
            }
        };
        let path = site.url.path();
        self.config.server.listen.0.contains(&place)
            && self
                .config
                .routes
                .iter()
                .any(|route| route.path.as_str() == path || serves_older_at(route, path))
    }

    fn child(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        if let Some(command) = &upstream.command {
            let at = table.key("command");
            if command.first().is_none_or(String::is_empty) {
                let message = "is empty; name the program, then its arguments, as in \
                               [\"npx\", \"-y\", \"server\"]";
                self.wrong(at.clone(), message);
            }
            if command.iter().any(|word| word.contains('\0')) {
                self.wrong(at, "holds a zero character, which no command line can");
            }
        }
        for (variable, value) in &upstream.env {
            if value.expose().contains('\0') {
                self.wrong(table.key("env").key(variable), "holds a zero character");
            }
        }
        let names = upstream.env.keys().map(|name| ("env", name));
        let names = names.chain(upstream.env_inherit.iter().map(|name| ("env_inherit", name)));
        for (key, name) in names {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.wrong(
                    table.key(key),
                    &format!("names `{name}`, which no variable can be named"),
                );
            }
        }
    }

    fn headers(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        for (name, value) in &upstream.headers {
            let at = table.key("headers").key(name);
            let Ok(parsed) = name.parse::<http::HeaderName>() else {
                self.wrong(at, "is no name of a header: letters, digits and `-`");
                continue;
            };
            if is_own_header(parsed.as_str()) {
                self.wrong(at.clone(), "is a header that the gateway sets itself; remove it");
            }
            if http::HeaderValue::from_str(value.expose()).is_err() {
                self.wrong(at, "has a value that holds line breaks or control characters");
            }
        }
        for name in upstream.headers.keys() {
            let twice = upstream
                .headers
                .keys()
                .any(|other| other < name && other.eq_ignore_ascii_case(name));
            if twice {
                self.wrong(table.key("headers").key(name), "is given twice; case does not matter");
            }
        }
    }

    fn websocket(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        self.positive(table, "connections", upstream.connections);
        if upstream.connections > MOST_CONNECTIONS {
            let message = format!("must be at most {MOST_CONNECTIONS}");
            self.wrong(table.key("connections"), &message);
        }
        let is_token = |text: &str| text.is_empty() || text.parse::<http::Method>().is_ok();
        if upstream.subprotocol.as_deref().is_some_and(|name| !is_token(name)) {
            let message = "is no name of a subprotocol: letters, digits, `.`, `-` and `_`";
            self.wrong(table.key("subprotocol"), message);
        }
    }

    fn times(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        for (key, number) in [
            ("max_concurrency", upstream.max_concurrency),
            ("max_message", upstream.max_message),
            ("stream_above", upstream.stream_above),
            ("max_batch", upstream.max_batch.unwrap_or(1)),
        ] {
            self.positive(table, key, number);
        }
        for (key, duration) in [
            ("timeout", Some(upstream.timeout)),
            ("max_timeout", Some(upstream.max_timeout)),
            ("connect_timeout", Some(upstream.connect_timeout)),
            ("first_byte_timeout", upstream.first_byte_timeout),
            ("start_timeout", Some(upstream.start_timeout)),
            ("probe_timeout", Some(upstream.probe_timeout)),
            ("list_timeout", Some(upstream.list_timeout)),
            ("idle_timeout", upstream.idle_timeout),
            ("ping_interval", Some(upstream.ping_interval)),
            ("ping_timeout", Some(upstream.ping_timeout)),
        ] {
            duration.into_iter().for_each(|duration| self.lasting(table, key, duration));
        }
        if upstream.max_timeout < upstream.timeout {
            let key = if self.document.has(&table.key("max_timeout")) {
                "max_timeout"
            } else {
                "timeout"
            };
            let message = "makes `max_timeout` shorter than `timeout`, which it limits; \
                           raise `max_timeout` or lower `timeout`";
            self.wrong(table.key(key), message);
        }
    }

    /// Schemes as RFC 3986 §3.1 has them, without the colon.
    fn schemes(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        for scheme in &upstream.uri_schemes {
            let legal = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
            let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
            if !begins || !scheme.chars().all(legal) {
                let message = format!("holds `{scheme}`, which is no scheme such as `file`");
                self.wrong(table.key("uri_schemes"), &message);
            }
        }
    }

    fn tools(&mut self, tools: &ToolsConfig, upstream: &UpstreamConfig, table: &KeyPath) {
        for pattern in &tools.allow {
            self.pattern(table.key("allow"), pattern);
        }
        for pattern in &tools.deny {
            self.pattern(table.key("deny"), pattern);
        }
        for (pattern, timeout) in &tools.timeout {
            let at = table.key("timeout").key(pattern);
            self.pattern(at.clone(), pattern);
            self.lasting(&table.key("timeout"), pattern, *timeout);
            if *timeout > upstream.max_timeout {
                self.wrong(at, "is longer than `max_timeout` of its upstream; raise that too");
            }
        }
        let mut taken = BTreeMap::new();
        for (own, public) in &tools.rename {
            let at = table.key("rename").key(own);
            let legal = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            if public.is_empty() || public.len() > LONGEST_TOOL || !public.chars().all(legal) {
                let message = format!(
                    "becomes `{public}`, which is no name of a tool: 1 to {LONGEST_TOOL} letters, \
                     digits, `_`, `-`, `.` or `/`"
                );
                self.wrong(at.clone(), &message);
            }
            if let Some(other) = taken.insert(public, own) {
                let message = format!("becomes `{public}`, as `{other}` does; give each its own");
                self.wrong(at, &message);
            }
        }
    }

    /// Keys that are there but mean nothing for this kind of upstream.
    fn no_effect(&mut self, upstream: &UpstreamConfig, table: &KeyPath) {
        let mcp_only: &[&str] = &[
            "revision",
            "isolation",
            "probe_timeout",
            "list_timeout",
            "list_ttl",
            "idle_timeout",
            "uri_schemes",
            "tools",
        ];
        let mut idle = Vec::new();
        if upstream.command.is_none() {
            let keys = ["env", "env_inherit", "cwd", "start_timeout"];
            idle.extend(keys.map(|key| (key, "is for children, and there is no `command`")));
        }
        if upstream.url.is_none() && upstream.endpoints.is_empty() {
            let keys = ["headers", "connect_timeout", "first_byte_timeout"];
            idle.extend(keys.map(|key| (key, "is for HTTP and WebSocket, and there is no `url`")));
        }
        let is_ws = upstream.url.as_ref().is_some_and(|url| url.scheme().starts_with("ws"));
        if !is_ws {
            let keys = ["connections", "subprotocol", "ping_interval", "ping_timeout"];
            idle.extend(keys.map(|key| (key, "is for WebSocket, and `url` is none")));
        } else {
            idle.push(("http2", "is for HTTP: a WebSocket begins with HTTP/1.1"));
        }
        if upstream.url.is_none() && upstream.endpoints.is_empty() {
            idle.push(("http2", "is for HTTP, and there is no `url`"));
        }
        if is_ws && upstream.protocol == Protocol::Mcp {
            idle.push(("connections", "is for `protocol = \"jsonrpc\"`"));
        } else if is_ws {
            idle.push(("batch", "is for HTTP: over WebSocket elements travel one by one"));
        }
        match upstream.protocol {
            Protocol::Mcp => {
                let keys = ["batch", "max_batch", "stream_above"];
                idle.extend(keys.map(|key| (key, "is for `protocol = \"jsonrpc\"`")));
            }
            Protocol::JsonRpc => {
                idle.extend(mcp_only.iter().map(|key| (*key, "is for `protocol = \"mcp\"`")));
            }
        }
        for (key, reason) in idle {
            let at = table.key(key);
            if self.document.has(&at) {
                let text = format!("`{key}`{} {reason}; it has no effect", at.section());
                self.warn(at, text);
            }
        }
    }

    /// Names whose prefixes can be read in two ways.
    pub(super) fn upstream_names(&mut self) {
        let table = KeyPath::root().key("upstreams");
        let names: Vec<_> = self.config.upstreams.keys().map(UpstreamName::as_str).collect();
        for name in &names {
            let before = names.iter().find(|other| {
                name.strip_prefix(**other).is_some_and(|rest| rest.starts_with("__"))
            });
            let message = match before {
                Some(other) => format!(
                    "the names of upstream `{name}` can be mistaken for those of `{other}`: both \
                     prefixes begin with `{other}__`; rename one of them"
                ),
                None if name.contains("__") => format!(
                    "upstream name `{name}` holds `__`, which also stands between prefix and name \
                     of a tool; use one `_`"
                ),
                None => continue,
            };
            self.warn(table.key(*name), message);
        }
    }
}
