//! Latencies in buckets of less than one per cent.

use std::time::Duration;

/// Buckets for each doubling, as a power of two.
const BITS: u32 = 7;
const STEPS: usize = 1 << BITS;
const BUCKETS: usize = (64 - BITS as usize + 1) * STEPS;

/// Counts of durations, by nanoseconds; any duration fits.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }

    /// Counts one duration.
    pub(crate) fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    /// Adds what another one counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// How many durations were counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The duration that `share` of all do not exceed, in microseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let rank = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return lower_bound(index) as f64 / 1000.0;
            }
        }
        0.0
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - BITS;
    shift as usize * STEPS + (nanos >> shift) as usize
}

fn lower_bound(index: usize) -> u64 {
    if index < 2 * STEPS {
        return index as u64;
    }
    let shift = index / STEPS - 1;
    ((index % STEPS + STEPS) as u64) << shift
}
