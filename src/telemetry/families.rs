//! Every family of metrics: name, help, labels and buckets.
//!
//! Label sets are closed: routes, upstreams and method labels come from the configuration, outcomes and kinds
//! from enums, and tool names are capped (see `tools`). Nothing a client or an upstream sends makes a label.

use std::collections::BTreeSet;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use super::access_log;
use crate::mcp::METHODS;

/// Prefix of every family.
const NAMESPACE: &str = "trunkline";

/// Label of a method that is neither a known one nor a configured pattern, and of tools over the cap.
pub(super) const OTHER: &str = "other";

/// Which way bytes go; `direction` in `bytes_total`. Bodies and messages only, without HTTP heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests of clients.
    In,
    /// Answers and events to clients.
    Out,
    /// Requests to upstreams.
    UpstreamOut,
    /// Answers and events from upstreams.
    UpstreamIn,
}

impl Direction {
    const ALL: [Self; 4] = [Self::In, Self::Out, Self::UpstreamOut, Self::UpstreamIn];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::UpstreamOut => "upstream_out",
            Self::UpstreamIn => "upstream_in",
        }
    }
}

/// Whole exchanges and calls: from a local answer without an upstream to a call that runs into its timeout.
const LATENCY: &[f64] =
    &[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];
/// Time in the gateway itself; past a millisecond something waits.
const OVERHEAD: &[f64] =
    &[0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0];
/// Waiting for a concurrency slot.
const WAIT: &[f64] = &[0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];
/// Fewer than [`LATENCY`], since this is the one family that grows with the catalog.
const TOOL: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];
/// Elements of a batch.
const ELEMENTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0];

/// The families and the registry they are in.
#[derive(Debug)]
pub(super) struct Families {
    pub(super) registry: Registry,
    pub(super) methods: Methods,
    pub(super) exchanges: IntCounterVec,
    pub(super) exchange_seconds: HistogramVec,
    pub(super) exchanges_in_flight: IntGaugeVec,
    pub(super) overhead_seconds: HistogramVec,
    pub(super) upstream_calls: IntCounterVec,
    pub(super) upstream_call_seconds: HistogramVec,
    pub(super) tool_calls: IntCounterVec,
    pub(super) tool_call_seconds: HistogramVec,
    pub(super) queue_wait_seconds: HistogramVec,
    pub(super) upstream_up: IntGaugeVec,
    pub(super) upstream_restarts: IntCounterVec,
    pub(super) children: IntGaugeVec,
    pub(super) upstream_connections: IntGaugeVec,
    pub(super) upstream_noise: IntCounterVec,
    pub(super) upstream_stray: IntCounterVec,
    pub(super) upstream_list_failures: IntCounterVec,
    pub(super) retries: IntCounterVec,
    pub(super) sessions: IntGaugeVec,
    pub(super) streams: IntGaugeVec,
    pub(super) streams_unreplayable: IntCounterVec,
    parked_calls: IntGaugeVec,
    bytes_in_flight: IntGaugeVec,
    pub(super) catalog_items: IntGaugeVec,
    pub(super) catalog_tokens: IntGaugeVec,
    pub(super) batch_elements: Histogram,
    bytes: IntCounterVec,
}

impl Families {
    /// Registers every family in a registry of its own.
    #[rustfmt::skip]
    pub(super) fn new(patterns: &[String]) -> Self {
        let r = Registry::new();
        let families = Self {
            exchanges: counters(&r, "exchanges_total", "Requests and notifications of clients that ended.", &["route", "method", "outcome"]),
            exchange_seconds: histograms(&r, "exchange_seconds", "Time from a request to the end of its answer.", &["route", "method"], LATENCY),
            exchanges_in_flight: gauges(&r, "exchanges_in_flight", "Exchanges that have begun and not ended.", &["route"]),
            overhead_seconds: histograms(&r, "overhead_seconds", "Part of an exchange spent in the gateway, without upstreams.", &["route"], OVERHEAD),
            upstream_calls: counters(&r, "upstream_calls_total", "Calls to upstreams that ended.", &["upstream", "method", "outcome"]),
            upstream_call_seconds: histograms(&r, "upstream_call_seconds", "Time from a call to the end of its answer.", &["upstream", "method"], LATENCY),
            tool_calls: counters(&r, "tool_calls_total", "Tool calls that ended, by the upstream's own tool name.", &["upstream", "tool", "outcome"]),
            tool_call_seconds: histograms(&r, "tool_call_seconds", "Time of tool calls, by the upstream's own tool name.", &["upstream", "tool"], TOOL),
            queue_wait_seconds: histograms(&r, "queue_wait_seconds", "Time that calls waited for a concurrency slot.", &["upstream"], WAIT),
            upstream_up: gauges(&r, "upstream_up", "1 while the upstream can be called.", &["upstream"]),
            upstream_restarts: counters(&r, "upstream_restarts_total", "Restarts of children.", &["upstream"]),
            children: gauges(&r, "children", "Child processes that are alive.", &["upstream"]),
            upstream_connections: gauges(&r, "upstream_connections", "Connections to the upstream.", &["upstream", "state"]),
            upstream_noise: counters(&r, "upstream_noise_lines_total", "Lines on a child's standard output that were no message.", &["upstream"]),
            upstream_stray: counters(&r, "upstream_stray_messages_total", "Answers nobody waited for, duplicates, malformed messages.", &["upstream"]),
            upstream_list_failures: counters(&r, "upstream_list_failures_total", "Lists that could not be refreshed; the last good one is served.", &["upstream"]),
            retries: counters(&r, "retries_total", "Calls that were made again after they failed on this upstream.", &["upstream", "reason"]),
            sessions: gauges(&r, "sessions", "Sessions that are open.", &["route", "era"]),
            streams: gauges(&r, "streams", "Event streams and WebSockets that are open.", &["route", "kind"]),
            streams_unreplayable: counters(&r, "streams_unreplayable_total", "Last-Event-ID values that could not be served.", &["route"]),
            parked_calls: gauges(&r, "parked_calls", "Calls that wait for their client to answer a question.", &[]),
            bytes_in_flight: gauges(&r, "bytes_in_flight", "Bytes of request bodies and buffered answers that are held.", &[]),
            catalog_items: gauges(&r, "catalog_items", "Items in the catalog.", &["route", "kind"]),
            catalog_tokens: gauges(&r, "catalog_tokens", "Estimated tokens of the tool list.", &["route"]),
            batch_elements: batch_elements(&r),
            bytes: counters(&r, "bytes_total", "Bytes of bodies and messages.", &["direction"]),
            methods: Methods::new(patterns),
            registry: r,
        };
        families.register_constant();
        families
    }

    /// Calls that wait for their client to answer a question.
    pub(super) fn parked_calls(&self) -> IntGauge {
        self.parked_calls.with_label_values::<&str>(&[])
    }

    /// Bytes that are held.
    pub(super) fn bytes_in_flight(&self) -> IntGauge {
        self.bytes_in_flight.with_label_values::<&str>(&[])
    }

    /// The counter of one direction.
    pub(super) fn bytes(&self, direction: Direction) -> IntCounter {
        self.bytes.with_label_values(&[direction.as_str()])
    }

    /// What needs no handle: build, process, dropped log lines, and the closed values of `direction`.
    fn register_constant(&self) {
        self.parked_calls();
        self.bytes_in_flight();
        for direction in Direction::ALL {
            self.bytes(direction);
        }
        let labels = ["version", "os", "arch"];
        let build = gauges(&self.registry, "build_info", "Always 1.", &labels);
        build
            .with_label_values(&[
                env!("CARGO_PKG_VERSION"),
                std::env::consts::OS,
                std::env::consts::ARCH,
            ])
            .set(1);
        // One writer serves the process, so every registry shows the same counter.
        register(&self.registry, access_log::dropped().clone());
        #[cfg(target_os = "linux")]
        register(&self.registry, prometheus::process_collector::ProcessCollector::for_self());
    }
}

/// The counter of log lines that were dropped because the writer was behind.
pub(super) fn log_dropped() -> IntCounter {
    IntCounter::with_opts(opts("log_dropped_total", "Log lines dropped: the reader is too slow."))
        .expect("the name is valid")
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(NAMESPACE)
}

fn histogram_opts(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).namespace(NAMESPACE).buckets(buckets.to_vec())
}

fn register<C: Collector + 'static>(registry: &Registry, collector: C) {
    registry.register(Box::new(collector)).expect("names of metrics are distinct");
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    let family = IntCounterVec::new(opts(name, help), labels).expect("names are valid");
    register(registry, family.clone());
    family
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    let family = IntGaugeVec::new(opts(name, help), labels).expect("names are valid");
    register(registry, family.clone());
    family
}

fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> HistogramVec {
    let opts = histogram_opts(name, help, buckets);
    let family = HistogramVec::new(opts, labels).expect("names are valid and buckets rise");
    register(registry, family.clone());
    family
}

fn batch_elements(registry: &Registry) -> Histogram {
    let opts = histogram_opts("batch_elements", "Elements of each batch.", ELEMENTS);
    let family = Histogram::with_opts(opts).expect("names are valid and buckets rise");
    register(registry, family.clone());
    family
}

/// The closed set of method labels; the index of a label is what handles are found by.
#[derive(Debug)]
pub(super) struct Methods {
    /// Sorted by length, then by text; `other` has a place like any.
    names: Vec<Box<str>>,
    other: u16,
}

impl Methods {
    /// Most labels; what the configuration names beyond is `other`.
    const MAX: usize = 1_000;

    fn new(patterns: &[String]) -> Self {
        let known = METHODS.iter().map(|spec| spec.name);
        let known = known.chain([OTHER]).chain(patterns.iter().map(String::as_str));
        // First the fixed ones, then patterns in the order of the file, as far as there is room.
        let mut names = BTreeSet::new();
        for name in known {
            if names.len() < Self::MAX {
                names.insert(name);
            }
        }
        let mut names: Vec<Box<str>> = names.into_iter().map(Into::into).collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        let other = Self::position(&names, OTHER).expect("`other` is among the first");
        Self { names, other }
    }

    fn position(names: &[Box<str>], name: &str) -> Option<u16> {
        let index = names
            .binary_search_by(|known| (known.len(), known.as_ref()).cmp(&(name.len(), name)))
            .ok()?;
        u16::try_from(index).ok()
    }

    /// The index of a method's label.
    pub(super) fn index(&self, method: &str) -> u16 {
        Self::position(&self.names, method).unwrap_or(self.other)
    }

    /// The label at an index; `other` when there is none.
    pub(super) fn name(&self, index: u16) -> &str {
        self.names.get(usize::from(index)).map_or(OTHER, |name| name)
    }

    /// The index of `other`.
    pub(super) fn other(&self) -> u16 {
        self.other
    }

    /// How many labels there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
