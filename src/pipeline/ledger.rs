//! The end of an exchange: counted and written down once, whatever happened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::Outcome;
use crate::telemetry::{MethodLabel, RouteMetrics};

/// What is known of one exchange; ended by [`Ledger::end`], or as cancelled when it is dropped.
#[derive(Debug)]
pub(super) struct Ledger {
    metrics: Arc<RouteMetrics>,
    method: MethodLabel,
    started: Instant,
    upstream_took: Duration,
    ended: bool,
}

impl Ledger {
    /// An exchange begins.
    pub(super) fn open(metrics: &Arc<RouteMetrics>, method: MethodLabel) -> Self {
        metrics.in_flight.inc();
        Self {
            metrics: Arc::clone(metrics),
            method,
            started: Instant::now(),
            upstream_took: Duration::ZERO,
            ended: false,
        }
    }

    /// Its method as metrics name it.
    pub(super) fn method(&self) -> MethodLabel {
        self.method
    }

    /// Time spent waiting for an upstream.
    pub(super) fn waited(&mut self, took: Duration) {
        self.upstream_took += took;
    }

    /// It has ended.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.metrics.in_flight.dec();
        self.metrics.exchange_ended(
            self.method,
            outcome,
            self.started.elapsed(),
            self.upstream_took,
        );
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.finish(Outcome::Cancelled);
    }
}
