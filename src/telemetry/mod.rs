//! Every metric, log line and label.

mod access_log;
mod families;
mod metrics;
mod series;
mod tools;

#[cfg(test)]
mod tests;

pub use metrics::{MethodLabel, Metrics, RouteMetrics, ToolMetrics, UpstreamMetrics};
