//! Every metric of the gateway: its name, unit, labels and buckets stand here and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use crate::config::{RouteName, UpstreamName};
use crate::fault::Outcome;
use crate::mcp::{Era, ListKind};

/// A method as metrics name it: an index into the closed set of labels given to [`Metrics::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodLabel(u16);

/// All of them.
#[derive(Debug)]
pub struct Metrics {}

impl Metrics {
    /// Registers every family. `patterns`: the method patterns of plain routes, labels beside the known MCP methods
    /// and `other`.
    pub fn new(patterns: &[String]) -> Arc<Self> {
        let _ = patterns;
        Arc::new(Self {})
    }
    /// The label of a known MCP method or a configured pattern; else `other`.
    pub fn label(&self, method: &str) -> MethodLabel {
        let _ = method;
        MethodLabel(0)
    }
    /// Text for Prometheus.
    pub fn render(&self) -> String {
        String::new()
    }
    /// Handles of one upstream.
    pub fn upstream(&self, name: &UpstreamName) -> Arc<UpstreamMetrics> {
        let _ = name;
        todo!()
    }
    /// Handles of one route.
    pub fn route(&self, name: &RouteName) -> Arc<RouteMetrics> {
        let _ = name;
        todo!()
    }
    /// Handles of one tool by its upstream and own name; distinct names are capped, then `other`.
    pub fn tool(&self, upstream: &UpstreamName, tool: &str) -> Arc<ToolMetrics> {
        let _ = (upstream, tool);
        todo!()
    }
}

/// Handles of one upstream, resolved once.
#[derive(Debug)]
pub struct UpstreamMetrics {
    /// 1 while at least one link is up.
    pub up: IntGauge,
    /// Restarts of children.
    pub restarts: IntCounter,
    /// Children alive.
    pub children: IntGauge,
    /// Connections with a request on them.
    pub connections_active: IntGauge,
    /// Connections waiting in a pool.
    pub connections_idle: IntGauge,
    /// Seconds waited for a concurrency slot.
    pub queue_wait: Histogram,
    /// Lines on a child's standard output that were no message; kept out of errors.
    pub noise: IntCounter,
    /// Answers that nobody waited for, duplicates, malformed messages.
    pub stray: IntCounter,
    /// Lists that could not be refreshed; the last good one is served.
    pub list_failures: IntCounter,
}

impl UpstreamMetrics {
    /// One call ended.
    pub fn call_ended(&self, method: MethodLabel, outcome: Outcome, took: Duration) {
        let _ = (method, outcome, took);
    }
}

/// Handles of one route, resolved once.
#[derive(Debug)]
pub struct RouteMetrics {
    /// Exchanges that have begun and not ended.
    pub in_flight: IntGauge,
    /// Elements of batches.
    pub batch_elements: IntCounter,
}

impl RouteMetrics {
    /// One exchange ended; `upstream` is the part of `took` that was spent waiting for upstreams.
    pub fn exchange_ended(
        &self,
        method: MethodLabel,
        outcome: Outcome,
        took: Duration,
        upstream: Duration,
    ) {
        let _ = (method, outcome, took, upstream);
    }
    /// Sessions of that era now.
    pub fn sessions(&self, era: Era) -> &IntGauge {
        let _ = era;
        &self.in_flight
    }
    /// Open streams: `get` or `post`.
    pub fn streams(&self, kind: &'static str) -> &IntGauge {
        let _ = kind;
        &self.in_flight
    }
    /// Items of the catalog now.
    pub fn catalog_items(&self, kind: ListKind) -> &IntGauge {
        let _ = kind;
        &self.in_flight
    }
    /// Estimated tokens of the tool list.
    pub fn catalog_tokens(&self) -> &IntGauge {
        &self.in_flight
    }
}

/// Handles of one tool, resolved when a catalog is built.
#[derive(Debug)]
pub struct ToolMetrics {}

impl ToolMetrics {
    /// One call ended.
    pub fn call_ended(&self, outcome: Outcome, took: Duration) {
        let _ = (outcome, took);
    }
}
