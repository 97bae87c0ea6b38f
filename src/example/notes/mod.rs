//! Kind `notes`: notes in memory, and tools that show everything an MCP server can do.

mod demo;
mod prompts;
mod report;
mod resources;
mod store;
mod tools;

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::tasks::Job;
use store::Store;

/// How often `grow` may be called.
const MAX_GROWN: usize = 200;

/// The notes, and what has grown beside them.
pub(super) struct Notes {
    store: Mutex<Store>,
    /// How many tools, prompts and resources named `grown_N` there are; N counts from 1.
    grown: AtomicUsize,
}

impl Notes {
    /// The notes of the start.
    pub(super) fn seeded() -> Self {
        Self { store: Mutex::new(Store::seeded()), grown: AtomicUsize::new(0) }
    }

    /// How a tool becomes a task, if it is a long job.
    pub(super) fn job(name: &str) -> Option<Job> {
        (name == report::NAME).then_some(Job::Optional)
    }

    /// How much has grown.
    fn grown(&self) -> usize {
        self.grown.load(Ordering::Acquire)
    }

    /// Lets one more grow and gives its number; `None` when it is enough.
    fn grow(&self) -> Option<usize> {
        let more = |n| (n < MAX_GROWN).then_some(n + 1);
        let before = self.grown.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        before.ok().map(|before| before + 1)
    }

    /// Whether `name` is `grown_N` with an N that has grown.
    fn has_grown(&self, name: &str) -> bool {
        let number = name.strip_prefix("grown_").and_then(|n| n.parse().ok());
        number.is_some_and(|n: usize| (1..=self.grown()).contains(&n) && name == grown_name(n))
    }
}

fn grown_name(number: usize) -> String {
    format!("grown_{number}")
}
