//! Every metric, log line and label.

mod metrics;

pub use metrics::{MethodLabel, Metrics, RouteMetrics, ToolMetrics, UpstreamMetrics};
