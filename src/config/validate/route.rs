//! `[[routes]]`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Checks, KeyPath};
use crate::config::units::show_size;
use crate::config::{MethodConfig, Protocol, RouteConfig, UpstreamName, problem};

/// What stands behind the path of an MCP route where clients of HTTP+SSE are served.
const OLDER: [&str; 2] = ["/sse", "/message"];

impl Checks<'_> {
    pub(super) fn routes(&mut self) {
        let list = KeyPath::root().key("routes");
        let indices = self.document.kept(&list);
        let routes: Vec<_> = indices.into_iter().zip(&self.config.routes).collect();
        if routes.is_empty() && !self.document.is_damaged(&list) {
            let message = "there is no [[routes]], so nothing is served; add one with a `path`";
            self.warn(list.clone(), message);
        }
        for (index, route) in &routes {
            let at = list.index(*index);
            // What is left of a table with errors in it says too little to be judged as a whole.
            if !self.document.is_damaged(&at) {
                self.route(route, &at);
            }
        }
        self.paths(&routes, &list);
        self.strangers(&routes, &list);
        self.unused();
    }

    fn route(&mut self, route: &RouteConfig, at: &KeyPath) {
        match route.protocol {
            Protocol::Mcp => self.mcp_route(route, at),
            Protocol::JsonRpc => self.plain_route(route, at),
        }
        let idle: &[&str] = match route.protocol {
            Protocol::Mcp => {
                &["lenient_content_type", "allow", "deny", "subscriptions", "max_subscriptions"]
            }
            Protocol::JsonRpc => &["sessions", "batches", "names"],
        };
        for key in idle {
            let key_at = at.key(*key);
            if self.document.has(&key_at) {
                let (path, spoken) = (&route.path, word(route.protocol));
                let text = format!("`{key}` of route `{path}` has no effect on a {spoken} route");
                self.warn(key_at, text);
            }
        }
    }

    fn mcp_route(&mut self, route: &RouteConfig, at: &KeyPath) {
        let path = &route.path;
        if self.document.has(&at.key("methods")) {
            let message = format!(
                "route `{path}` speaks mcp, which is routed by `upstreams`, not by `methods`; \
                 remove `methods`, or set `protocol = \"jsonrpc\"`"
            );
            self.error(at.key("methods"), message);
        } else if route.upstreams.is_empty() {
            let message =
                format!("route `{path}` has no upstreams; name some: `upstreams = [\"…\"]`");
            self.error(at.clone(), message);
        }
        let mut seen = BTreeSet::new();
        for (index, name) in route.upstreams.iter().enumerate() {
            let at = at.key("upstreams").index(index);
            if !seen.insert(name) {
                let message = format!("route `{path}` names upstream `{name}` twice; remove one");
                self.error(at.clone(), message);
            }
            self.reference(route, name, at);
        }
    }

    fn plain_route(&mut self, route: &RouteConfig, at: &KeyPath) {
        let path = &route.path;
        if self.document.has(&at.key("upstreams")) {
            let message = format!(
                "route `{path}` speaks jsonrpc, which is routed by `methods`, not by `upstreams`; \
                 write `methods = {{ \"*\" = \"…\" }}`"
            );
            self.error(at.key("upstreams"), message);
        } else if route.methods.is_empty() {
            let message = format!(
                "route `{path}` has no methods; name some: `methods = {{ \"*\" = \"…\" }}`"
            );
            self.error(at.clone(), message);
        }
        for (pattern, method) in &route.methods {
            let at = at.key("methods").key(pattern);
            self.pattern(at.clone(), pattern);
            self.method(route, method, &at);
        }
        self.subscriptions(route, at);
        for (key, patterns) in [("allow", &route.allow), ("deny", &route.deny)] {
            for pattern in patterns {
                self.pattern(at.key(key), pattern);
            }
        }
    }

    /// Where the methods of one pattern go, and their limits.
    fn method(&mut self, route: &RouteConfig, method: &MethodConfig, at: &KeyPath) {
        if method.upstreams.is_empty() {
            self.wrong(at.clone(), "names no upstream; name at least one");
        }
        let mut seen = BTreeSet::new();
        for name in &method.upstreams {
            if !seen.insert(name) {
                self.wrong(at.clone(), &format!("names upstream `{name}` twice; remove one"));
            }
            self.reference(route, name, at.clone());
        }
        let replicas =
            |name| self.config.upstreams.get(name).is_some_and(|u| u.endpoints.len() > 1);
        let only = method.upstreams.len() == 1 && !method.upstreams.iter().any(replicas);
        if only && self.document.has(&at.key("balance")) {
            let text = format!("`balance`{} has no effect on one upstream", at.key("x").section());
            self.warn(at.key("balance"), text);
        }
        if let Some(limit) = method.max_body {
            self.positive(at, "max_body", limit);
            let most = self.config.server.max_body;
            if limit > most {
                let message = format!(
                    "is larger than `max_body` in [server], {}, which is what holds; raise that too",
                    show_size(most)
                );
                self.wrong(at.key("max_body"), &message);
            }
        }
        if let Some(timeout) = method.timeout {
            self.lasting(at, "timeout", timeout);
            self.method_timeout(method, timeout, at);
        }
    }

    fn method_timeout(&mut self, method: &MethodConfig, timeout: Duration, at: &KeyPath) {
        let upstreams = method.upstreams.iter().filter_map(|name| self.config.upstreams.get(name));
        if upstreams.map(|upstream| upstream.max_timeout).max().is_some_and(|max| timeout > max) {
            let message = "is longer than `max_timeout` of its upstreams; raise that too";
            self.wrong(at.key("timeout"), message);
        }
    }

    /// Whether a route may refer to this upstream.
    fn reference(&mut self, route: &RouteConfig, name: &UpstreamName, at: KeyPath) {
        let path = &route.path;
        let table = KeyPath::root().key("upstreams").key(name.as_str());
        if self.document.is_damaged(&table) {
            return;
        }
        let Some(upstream) = self.config.upstreams.get(name) else {
            let known = self.config.upstreams.keys().map(UpstreamName::as_str);
            let hint = problem::hint(name.as_str(), known, "upstreams");
            self.error(
                at,
                format!("route `{path}` names upstream `{name}`, which does not exist{hint}"),
            );
            return;
        };
        if upstream.protocol != route.protocol {
            let (needs, speaks) = (word(route.protocol), word(upstream.protocol));
            let message = format!(
                "route `{path}` speaks {needs}, but upstream `{name}` speaks {speaks}; \
                 set `protocol = \"{needs}\"` in [{table}], or `protocol = \"{speaks}\"` on the route"
            );
            self.error(at, message);
        }
    }

    fn paths(&mut self, routes: &[(usize, &RouteConfig)], list: &KeyPath) {
        let mut taken = BTreeMap::new();
        for (index, route) in routes {
            let at = list.index(*index).key("path");
            if let Some(earlier) = taken.insert(&route.path, at.clone()) {
                let line = self.document.place_of_key(&earlier).map_or(0, |place| place.line);
                let message = format!(
                    "path `{}` is already that of the route in line {line}; give each its own",
                    route.path
                );
                self.error(at, message);
            }
        }
        for (index, route) in routes {
            let holder =
                routes.iter().find(|(_, other)| serves_older_at(other, route.path.as_str()));
            if let Some((_, other)) = holder {
                let message = format!(
                    "path `{}` is where route `{}` serves older clients; choose another",
                    route.path, other.path
                );
                self.error(list.index(*index).key("path"), message);
            }
        }
    }

    fn unused(&mut self) {
        let table = KeyPath::root().key("upstreams");
        if self.document.is_damaged(&KeyPath::root().key("routes")) {
            return;
        }
        let routes = &self.config.routes;
        let used: BTreeSet<_> = routes
            .iter()
            .flat_map(|route| {
                let methods = route.methods.values().flat_map(|method| &method.upstreams);
                route.upstreams.iter().chain(methods)
            })
            .collect();
        for name in self.config.upstreams.keys().filter(|name| !used.contains(name)) {
            let message = format!("no route names upstream `{name}`, so it is never used");
            self.warn(table.key(name.as_str()), message);
        }
    }
}

/// Whether a route serves clients of HTTP+SSE at this path.
pub(super) fn serves_older_at(route: &RouteConfig, path: &str) -> bool {
    let below = route.path.as_str().trim_end_matches('/');
    route.protocol == Protocol::Mcp && OLDER.iter().any(|end| path.strip_suffix(end) == Some(below))
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Mcp => "mcp",
        Protocol::JsonRpc => "jsonrpc",
    }
}
