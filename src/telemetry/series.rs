//! Counters by outcome and a histogram of time, each made when it is first used and then found by index.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::families::Methods;
use crate::fault::Outcome;

/// The two families of one kind of event. Both begin with the same labels; the counter ends with `outcome`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) total: &'a IntCounterVec,
    pub(super) seconds: &'a HistogramVec,
}

/// What is recorded for one value of the labels before `outcome`.
#[derive(Debug, Default)]
pub(super) struct Series {
    outcomes: [OnceLock<IntCounter>; Outcome::ALL.len()],
    seconds: OnceLock<Histogram>,
}

impl Series {
    /// Counts one event. After the first of its kind this is three atomic additions.
    pub(super) fn record(
        &self,
        pair: Pair<'_>,
        labels: [&str; 2],
        outcome: Outcome,
        took: Duration,
    ) {
        self.counter(pair, labels, outcome).inc();
        self.histogram(pair, labels).observe(took.as_secs_f64());
    }

    /// Makes every counter and the histogram, so that they are on the first scrape.
    pub(super) fn open(&self, pair: Pair<'_>, labels: [&str; 2], outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.counter(pair, labels, *outcome);
        }
        self.histogram(pair, labels);
    }

    fn counter(&self, pair: Pair<'_>, [first, second]: [&str; 2], outcome: Outcome) -> &IntCounter {
        self.outcomes[outcome as usize]
            .get_or_init(|| pair.total.with_label_values(&[first, second, outcome.as_str()]))
    }

    fn histogram(&self, pair: Pair<'_>, labels: [&str; 2]) -> &Histogram {
        self.seconds.get_or_init(|| pair.seconds.with_label_values(&labels))
    }
}

/// A [`Series`] for each method label of one route or upstream.
#[derive(Debug)]
pub(super) struct ByMethod {
    series: Box<[OnceLock<Box<Series>>]>,
}

impl ByMethod {
    /// A table for these labels, with `other` open from the start.
    pub(super) fn new(methods: &Methods, pair: Pair<'_>, name: &str) -> Self {
        let table = Self { series: (0..methods.len()).map(|_| OnceLock::new()).collect() };
        let labels = [name, methods.name(methods.other())];
        table.at(methods, methods.other()).open(pair, labels, &Outcome::ALL);
        table
    }

    /// The series at a label; `other` for an index of another set.
    pub(super) fn at(&self, methods: &Methods, index: u16) -> &Series {
        let cell = self.series.get(usize::from(index));
        let cell = cell.unwrap_or(&self.series[usize::from(methods.other())]);
        cell.get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_index_their_counters_in_the_order_of_all() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
