//! `subscriptions` of `[[routes]]`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Checks, KeyPath};
use crate::config::{MethodConfig, Protocol, RouteConfig, SubscriptionConfig, UpstreamName};
use crate::jsonrpc::ParamsPath;

impl Checks<'_> {
    pub(super) fn subscriptions(&mut self, route: &RouteConfig, at: &KeyPath) {
        self.positive(at, "max_subscriptions", route.max_subscriptions);
        if route.subscriptions.is_empty() && self.document.has(&at.key("max_subscriptions")) {
            let text = "`max_subscriptions` has no effect without `subscriptions`";
            self.warn(at.key("max_subscriptions"), text);
        }
        let mut enders = BTreeMap::new();
        for (subscribe, kind) in &route.subscriptions {
            let at = at.key("subscriptions").key(subscribe);
            self.subscription(route, (subscribe, kind), &at);
            enders.insert(&kind.unsubscribe, at);
        }
        for (ender, at) in enders {
            if route.subscriptions.contains_key(ender) {
                let message = format!("is ended by `{ender}`, which subscribes itself");
                self.wrong(at, &message);
            }
        }
    }

    fn subscription(
        &mut self,
        route: &RouteConfig,
        (subscribe, kind): (&str, &SubscriptionConfig),
        at: &KeyPath,
    ) {
        let gap = kind.gap.as_deref().unwrap_or("gap");
        for (key, method) in [
            ("notification", &*kind.notification),
            ("unsubscribe", &kind.unsubscribe),
            ("gap", gap),
        ] {
            if method.is_empty() {
                self.wrong(at.key(key), "is empty; name a method");
            }
        }
        if ParamsPath::parse(&kind.id).is_none() {
            let message = "is no way into `params`; write it as in \"params.subscription\"";
            self.wrong(at.key("id"), message);
        }
        match rule(route, subscribe) {
            None => self.wrong(at.clone(), "is matched by no pattern in `methods`"),
            Some(method) => self.over_websocket(subscribe, method, at),
        }
        if rule(route, &kind.unsubscribe).is_none() {
            self.wrong(at.key("unsubscribe"), "is matched by no pattern in `methods`");
        }
    }

    /// Routes that hand methods of another's subscriptions to the same upstream as any call: their clients would end
    /// what they did not subscribe to, since all share its connections.
    pub(super) fn strangers(&mut self, routes: &[(usize, &RouteConfig)], list: &KeyPath) {
        let mut told = BTreeSet::new();
        for (_, owner) in routes {
            for (method, name) in subscribed(owner) {
                for (index, route) in routes.iter().filter(|(_, route)| passes(route, method, name))
                {
                    let at = list.index(*index);
                    if self.document.is_damaged(&at) || !told.insert((*index, method)) {
                        continue;
                    }
                    let (path, other) = (&route.path, &owner.path);
                    let message = format!(
                        "route `{path}` hands `{method}` to upstream `{name}` as any call, where it would reach what \
                         clients of route `{other}` subscribed to; name it in `subscriptions` of `{path}`, or \
                         `deny = [\"{method}\"]` there"
                    );
                    self.error(at.key("methods"), message);
                }
            }
        }
    }

    /// Only a connection brings notifications.
    fn over_websocket(&mut self, subscribe: &str, method: &MethodConfig, at: &KeyPath) {
        for name in &method.upstreams {
            let Some(upstream) = self.config.upstreams.get(name) else { continue };
            let is_ws = upstream.url.as_ref().is_some_and(|url| url.scheme().starts_with("ws"));
            if !is_ws {
                let message = format!(
                    "leads to upstream `{name}`, which is not spoken to over WebSocket; give it a \
                     `ws:` url, or `{subscribe}` a pattern of its own in `methods`"
                );
                self.wrong(at.clone(), &message);
            }
        }
    }
}

/// The methods of a route's subscriptions, with each upstream that is subscribed to.
fn subscribed(route: &RouteConfig) -> Vec<(&str, &UpstreamName)> {
    let mut pairs = Vec::new();
    for (subscribe, kind) in &route.subscriptions {
        let upstreams = rule(route, subscribe).map(|rule| &*rule.upstreams).unwrap_or_default();
        for name in upstreams.iter().filter(|_| route.protocol == Protocol::JsonRpc) {
            pairs.extend([(&**subscribe, name), (&*kind.unsubscribe, name)]);
        }
    }
    pairs
}

/// Whether a route serves a method by handing it to that upstream, and knows it for none of its subscriptions.
fn passes(route: &RouteConfig, method: &str, upstream: &UpstreamName) -> bool {
    let subscriptions = &route.subscriptions;
    let is_known = subscriptions.contains_key(method)
        || subscriptions.values().any(|kind| kind.unsubscribe == method);
    let among = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, method));
    let is_served = (route.allow.is_empty() || among(&route.allow)) && !among(&route.deny);
    let leads_there = || rule(route, method).is_some_and(|rule| rule.upstreams.contains(upstream));
    route.protocol == Protocol::JsonRpc && !is_known && is_served && leads_there()
}

fn matches(pattern: &str, method: &str) -> bool {
    globset::Glob::new(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(method))
}

/// Where a method goes: its own entry, or the longest pattern that matches.
fn rule<'r>(route: &'r RouteConfig, method: &str) -> Option<&'r MethodConfig> {
    route.methods.get(method).or_else(|| {
        let patterns = route.methods.iter().filter(|(pattern, _)| matches(pattern, method));
        patterns.max_by_key(|(pattern, _)| pattern.len()).map(|(_, rule)| rule)
    })
}
