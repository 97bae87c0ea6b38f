//! `subscriptions` of `[[routes]]`.

use std::collections::BTreeMap;

use super::{Checks, KeyPath};
use crate::config::{MethodConfig, RouteConfig, SubscriptionConfig};
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

/// Where a method goes: its own entry, or the longest pattern that matches.
fn rule<'r>(route: &'r RouteConfig, method: &str) -> Option<&'r MethodConfig> {
    let matches = |pattern: &str| {
        globset::Glob::new(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(method))
    };
    route.methods.get(method).or_else(|| {
        let patterns = route.methods.iter().filter(|(pattern, _)| matches(pattern));
        patterns.max_by_key(|(pattern, _)| pattern.len()).map(|(_, rule)| rule)
    })
}
