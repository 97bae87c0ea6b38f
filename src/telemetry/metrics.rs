//! The metrics of the gateway as the other rooms use them: handles that are resolved once.
//!
//! A handle is asked for when a route, an upstream or a catalog is compiled. What a request does with it is an index
//! into a table and atomic additions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter, IntGauge, TextEncoder};

use super::families::{Direction, Families};
use super::series::{ByMethod, Pair};
pub use super::tools::ToolMetrics;
use super::tools::{self, Tools};
use crate::config::{RouteName, UpstreamName};
use crate::fault::Outcome;
use crate::mcp::{Era, ListKind};

/// Kinds of event streams: one that answers a POST, one that a session keeps open, one of `subscriptions/listen`, that of a
/// client of HTTP+SSE, a WebSocket, and a subscription on a plain route.
const STREAMS: [&str; 6] = ["post", "get", "listen", "sse", "ws", "subscription"];

/// A method as metrics name it: an index into the closed set of labels given to [`Metrics::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodLabel(u16);

/// Why a call was made again; `reason` in `retries_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryReason {
    /// It could not be connected, or closed before it took the request.
    Connect,
    /// It closed before it answered.
    Closed,
    /// It did not answer in time.
    Timeout,
    /// It answered with a refusing HTTP status.
    Status,
    /// Its answer was not valid.
    Protocol,
    /// It has no slot or queue free.
    Overloaded,
}

impl RetryReason {
    const ALL: [Self; 6] = [
        Self::Connect,
        Self::Closed,
        Self::Timeout,
        Self::Status,
        Self::Protocol,
        Self::Overloaded,
    ];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Protocol => "protocol",
            Self::Overloaded => "overloaded",
        }
    }
}

/// All of them.
#[derive(Debug)]
pub struct Metrics {
    families: Arc<Families>,
    upstreams: Mutex<HashMap<UpstreamName, Arc<UpstreamMetrics>>>,
    routes: Mutex<HashMap<RouteName, Arc<RouteMetrics>>>,
    tools: Arc<Tools>,
}

impl Metrics {
    /// Registers every family. `patterns`: the method patterns of plain routes, labels beside the known MCP methods
    /// and `other`.
    pub fn new(patterns: &[String]) -> Arc<Self> {
        Arc::new(Self {
            families: Arc::new(Families::new(patterns)),
            upstreams: Mutex::default(),
            routes: Mutex::default(),
            tools: Arc::default(),
        })
    }

    /// Calls that wait for their client to answer a question.
    pub fn parked_calls(&self) -> IntGauge {
        self.families.parked_calls()
    }

    /// Bytes of request bodies and buffered answers that are held.
    pub fn bytes_in_flight(&self) -> IntGauge {
        self.families.bytes_in_flight()
    }

    /// The label of a known MCP method or a configured pattern; else `other`.
    pub fn label(&self, method: &str) -> MethodLabel {
        MethodLabel(self.families.methods.index(method))
    }

    /// Text for Prometheus. Its size is bounded by the configuration and the cap on tools.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if let Err(error) =
            TextEncoder::new().encode_utf8(&self.families.registry.gather(), &mut text)
        {
            // Only a family without a series can do this, and `gather` leaves those out.
            tracing::error!(%error, "metrics cannot be printed");
        }
        text
    }

    /// Handles of one upstream; the same ones each time. Its series are on the next scrape.
    pub fn upstream(&self, name: &UpstreamName) -> Arc<UpstreamMetrics> {
        let mut upstreams = self.upstreams.lock();
        let handles = upstreams.entry(name.clone()).or_insert_with(|| {
            tools::open_other(&self.families, name);
            Arc::new(UpstreamMetrics::new(Arc::clone(&self.families), name))
        });
        Arc::clone(handles)
    }

    /// Handles of one route; the same ones each time. Its series are on the next scrape.
    pub fn route(&self, name: &RouteName) -> Arc<RouteMetrics> {
        let mut routes = self.routes.lock();
        let handles = routes
            .entry(name.clone())
            .or_insert_with(|| Arc::new(RouteMetrics::new(Arc::clone(&self.families), name)));
        Arc::clone(handles)
    }

    /// Handles of one tool by its upstream and own name; distinct names are capped, then `other`.
    pub fn tool(&self, upstream: &UpstreamName, tool: &str) -> Arc<ToolMetrics> {
        self.tools.handle(&self.families, upstream, tool)
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
    /// Bytes of messages sent to upstreams (one counter for all of them).
    pub bytes_out: IntCounter,
    /// Bytes of messages received from upstreams (one counter for all of them).
    pub bytes_in: IntCounter,
    retries: [IntCounter; RetryReason::ALL.len()],
    calls: ByMethod,
    name: UpstreamName,
    families: Arc<Families>,
}

impl UpstreamMetrics {
    fn new(families: Arc<Families>, name: &UpstreamName) -> Self {
        let label = name.as_str();
        let connections = |state| families.upstream_connections.with_label_values(&[label, state]);
        let retries =
            |reason: RetryReason| families.retries.with_label_values(&[label, reason.as_str()]);
        Self {
            up: families.upstream_up.with_label_values(&[label]),
            restarts: families.upstream_restarts.with_label_values(&[label]),
            children: families.children.with_label_values(&[label]),
            connections_active: connections("active"),
            connections_idle: connections("idle"),
            queue_wait: families.queue_wait_seconds.with_label_values(&[label]),
            noise: families.upstream_noise.with_label_values(&[label]),
            stray: families.upstream_stray.with_label_values(&[label]),
            list_failures: families.upstream_list_failures.with_label_values(&[label]),
            bytes_out: families.bytes(Direction::UpstreamOut),
            bytes_in: families.bytes(Direction::UpstreamIn),
            retries: RetryReason::ALL.map(retries),
            calls: ByMethod::new(&families.methods, Self::pair(&families), label),
            name: name.clone(),
            families,
        }
    }

    /// One call ended.
    pub fn call_ended(&self, method: MethodLabel, outcome: Outcome, took: Duration) {
        let methods = &self.families.methods;
        let labels = [self.name.as_str(), methods.name(method.0)];
        let pair = Self::pair(&self.families);
        self.calls.at(methods, method.0).record(pair, labels, outcome, took);
    }

    /// A call failed on it and is made again.
    pub fn retried(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }

    fn pair(families: &Families) -> Pair<'_> {
        Pair { total: &families.upstream_calls, seconds: &families.upstream_call_seconds }
    }
}

/// Handles of one route, resolved once.
#[derive(Debug)]
pub struct RouteMetrics {
    /// Exchanges that have begun and not ended.
    pub in_flight: IntGauge,
    /// Elements of each batch (one histogram for all routes).
    pub batch_elements: Histogram,
    /// Bytes of request bodies from clients (one counter for all routes).
    pub bytes_in: IntCounter,
    /// Bytes of answers to clients (one counter for all routes).
    pub bytes_out: IntCounter,
    /// `Last-Event-ID` values that could not be served: a fresh stream was opened instead.
    pub unreplayable: IntCounter,
    overhead: Histogram,
    sessions: [IntGauge; 2],
    streams: [IntGauge; STREAMS.len()],
    catalog_items: [IntGauge; ListKind::ALL.len()],
    catalog_tokens: IntGauge,
    exchanges: ByMethod,
    name: RouteName,
    families: Arc<Families>,
}

impl RouteMetrics {
    fn new(families: Arc<Families>, name: &RouteName) -> Self {
        let label = name.as_str();
        let sessions = |era: Era| families.sessions.with_label_values(&[label, era.as_str()]);
        let streams = |kind| families.streams.with_label_values(&[label, kind]);
        let items =
            |kind: ListKind| families.catalog_items.with_label_values(&[label, kind.as_str()]);
        Self {
            in_flight: families.exchanges_in_flight.with_label_values(&[label]),
            batch_elements: families.batch_elements.clone(),
            bytes_in: families.bytes(Direction::In),
            bytes_out: families.bytes(Direction::Out),
            unreplayable: families.streams_unreplayable.with_label_values(&[label]),
            overhead: families.overhead_seconds.with_label_values(&[label]),
            sessions: [Era::Legacy, Era::Modern].map(sessions),
            streams: STREAMS.map(streams),
            catalog_items: ListKind::ALL.map(items),
            catalog_tokens: families.catalog_tokens.with_label_values(&[label]),
            exchanges: ByMethod::new(&families.methods, Self::pair(&families), label),
            name: name.clone(),
            families,
        }
    }

    /// One exchange ended; `upstream` is the part of `took` that was spent waiting for upstreams.
    pub fn exchange_ended(
        &self,
        method: MethodLabel,
        outcome: Outcome,
        took: Duration,
        upstream: Duration,
    ) {
        let methods = &self.families.methods;
        let labels = [self.name.as_str(), methods.name(method.0)];
        let pair = Self::pair(&self.families);
        self.exchanges.at(methods, method.0).record(pair, labels, outcome, took);
        self.overhead.observe(took.saturating_sub(upstream).as_secs_f64());
    }

    /// Sessions of that era now.
    pub fn sessions(&self, era: Era) -> &IntGauge {
        match era {
            Era::Legacy => &self.sessions[0],
            Era::Modern => &self.sessions[1],
        }
    }

    /// Open streams of a kind: `post`, `get`, `listen`, `sse`, `ws`; of the first for any other word.
    pub fn streams(&self, kind: &'static str) -> &IntGauge {
        &self.streams[STREAMS.iter().position(|known| *known == kind).unwrap_or(0)]
    }

    /// Items of the catalog now.
    pub fn catalog_items(&self, kind: ListKind) -> &IntGauge {
        &self.catalog_items[kind as usize]
    }

    /// Estimated tokens of the tool list.
    pub fn catalog_tokens(&self) -> &IntGauge {
        &self.catalog_tokens
    }

    fn pair(families: &Families) -> Pair<'_> {
        Pair { total: &families.exchanges, seconds: &families.exchange_seconds }
    }
}
