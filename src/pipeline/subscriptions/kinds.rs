//! What can be subscribed to on a route.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::config::{RouteConfig, SubscriptionConfig};
use crate::jsonrpc::ParamsPath;
use crate::upstream::FeedKind;

/// The subscriptions of one route, by their methods.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Kinds {
    subscribe: HashMap<String, Arc<Kind>>,
    unsubscribe: HashSet<String>,
    /// Most of one client.
    pub(super) most: usize,
}

/// One kind of them.
#[derive(Debug)]
pub(in crate::pipeline) struct Kind {
    pub(super) feed: Arc<FeedKind>,
    /// The method that tells a client that something may have been missed.
    pub(super) gap: Option<String>,
}

impl Kinds {
    /// As they are configured.
    pub(in crate::pipeline) fn new(route: &RouteConfig) -> Self {
        let kinds = route.subscriptions.iter().filter_map(|(subscribe, config)| {
            Some((subscribe.clone(), Arc::new(Kind::new(config)?)))
        });
        let unsubscribe = route.subscriptions.values().map(|config| config.unsubscribe.clone());
        Self {
            subscribe: kinds.collect(),
            unsubscribe: unsubscribe.collect(),
            most: route.max_subscriptions,
        }
    }

    /// What a (decoded) method subscribes to.
    pub(super) fn of(&self, method: &str) -> Option<&Arc<Kind>> {
        if self.subscribe.is_empty() { None } else { self.subscribe.get(method) }
    }

    /// Whether a (decoded) method takes a subscription back.
    pub(super) fn ends(&self, method: &str) -> bool {
        !self.unsubscribe.is_empty() && self.unsubscribe.contains(method)
    }

    /// Whether a (decoded) method is either.
    pub(in crate::pipeline) fn concerns(&self, method: &str) -> bool {
        self.of(method).is_some() || self.ends(method)
    }
}

impl Kind {
    /// `None` when its path is none, which checked configurations do not have.
    fn new(config: &SubscriptionConfig) -> Option<Self> {
        let feed = FeedKind {
            notification: config.notification.clone(),
            unsubscribe: config.unsubscribe.clone(),
            id: ParamsPath::parse(&config.id)?,
            share: config.share,
        };
        Some(Self { feed: Arc::new(feed), gap: config.gap.clone() })
    }
}
