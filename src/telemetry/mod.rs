//! Every metric, log line and label.
//!
//! Metrics are handles that are resolved when something is compiled; log lines of exchanges and texts are written by
//! this room itself, everything else by `tracing`; all lines leave through one bounded buffer that nobody waits for.

mod access_log;
mod families;
mod line;
mod log;
mod mask;
mod metrics;
mod payload;
mod series;
mod sink;
mod tools;
mod trace;

#[cfg(test)]
mod tests;

pub use access_log::{AccessLine, SessionTag};
pub use families::Direction;
pub use log::{LogGuard, TelemetryError, init};
pub use metrics::{MethodLabel, Metrics, RetryReason, RouteMetrics, ToolMetrics, UpstreamMetrics};
pub use payload::PayloadLine;
pub use trace::{RequestId, TraceId, TraceParent};
