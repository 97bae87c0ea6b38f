//! What an upstream writes for people, within limits.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many lines are kept for diagnosis.
const KEPT_LINES: usize = 50;
/// How many of them are told when the child fails.
const LAST_LINES: usize = 5;
/// Lines a second, in the long run.
const LINES_PER_SECOND: f64 = 20.0;
/// Lines at once.
const LINES_AT_ONCE: f64 = 100.0;

/// A limit on log lines that counts what it holds back.
#[derive(Debug)]
pub(in crate::upstream) struct Flow {
    tokens: f64,
    filled: Instant,
    suppressed: u64,
}

impl Flow {
    /// Full.
    pub(in crate::upstream) fn new(now: Instant) -> Self {
        Self { tokens: LINES_AT_ONCE, filled: now, suppressed: 0 }
    }

    /// `Some` when a line may be logged now, with the number of lines held back before it.
    pub(in crate::upstream) fn admit(&mut self, now: Instant) -> Option<u64> {
        let gained = now.saturating_duration_since(self.filled).as_secs_f64() * LINES_PER_SECOND;
        self.tokens = (self.tokens + gained).min(LINES_AT_ONCE);
        self.filled = now;
        if self.tokens < 1.0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1.0;
        Some(self.take_suppressed())
    }

    /// Whether there are lines that were held back and not told of.
    pub(in crate::upstream) fn holds_back(&self) -> bool {
        self.suppressed > 0
    }

    /// How many lines were held back and not told of.
    pub(in crate::upstream) fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

/// The last lines of a child and its predecessors.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Tail(Mutex<VecDeque<String>>);

impl Tail {
    /// Adds one.
    pub(in crate::upstream) fn push(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The last few as one line: the limit on log lines may have held back just these.
    pub(in crate::upstream) fn last_words(&self) -> String {
        let lines = self.0.lock();
        let last: Vec<&str> =
            lines.iter().rev().take(LAST_LINES).rev().map(String::as_str).collect();
        last.join(" | ")
    }

    /// Oldest first.
    #[cfg(test)]
    pub(in crate::upstream) fn lines(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

/// Text without what would confuse a terminal or a log.
pub(in crate::upstream) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
