//! Series of single tools. Tool names come from upstreams, so their number is capped.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::families::{Families, OTHER};
use super::series::{Pair, Series};
use crate::config::UpstreamName;
use crate::fault::Outcome;

/// Most (upstream, tool) pairs with series of their own. A pair takes a place at its first call, so that a large
/// catalog does not crowd out the tools that are used.
pub(super) const MAX_NAMED: usize = 1_000;

/// Longest tool name that becomes a label, in bytes (MCP allows 128 characters).
pub(super) const MAX_NAME: usize = 128;

type Key = (UpstreamName, Box<str>);

/// All tools that were asked for.
#[derive(Debug, Default)]
pub(super) struct Tools {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Handles that somebody still holds, and dead ones until the next sweep.
    handles: HashMap<Key, Weak<ToolMetrics>>,
    /// Size of `handles` at which dead ones are swept.
    sweep_at: usize,
    /// Pairs with series of their own. They stay, since a counter must not start anew.
    named: HashSet<Key>,
}

impl Tools {
    /// The one handle of this pair.
    pub(super) fn handle(
        self: &Arc<Self>,
        families: &Arc<Families>,
        upstream: &UpstreamName,
        tool: &str,
    ) -> Arc<ToolMetrics> {
        let key: Key = (upstream.clone(), tool.into());
        let mut state = self.state.lock();
        if let Some(handle) = state.handles.get(&key).and_then(Weak::upgrade) {
            return handle;
        }
        if state.handles.len() >= state.sweep_at {
            state.handles.retain(|_, handle| handle.strong_count() > 0);
            state.sweep_at = (state.handles.len() * 2).max(64);
        }
        let handle = Arc::new(ToolMetrics {
            key: key.clone(),
            tools: Arc::clone(self),
            families: Arc::clone(families),
            label: OnceLock::new(),
            series: Series::default(),
        });
        state.handles.insert(key, Arc::downgrade(&handle));
        handle
    }

    /// Whether the pair has, or now gets, series of its own.
    fn admit(&self, key: &Key) -> bool {
        if key.1.len() > MAX_NAME {
            return false;
        }
        let mut state = self.state.lock();
        if state.named.contains(key) {
            return true;
        }
        let room = state.named.len() < MAX_NAMED;
        if room {
            state.named.insert(key.clone());
        }
        room
    }
}

/// Opens the series of an upstream's tools beyond the cap.
pub(super) fn open_other(families: &Families, upstream: &UpstreamName) {
    Series::default().open(pair(families), [upstream.as_str(), OTHER], &[Outcome::Ok]);
}

fn pair(families: &Families) -> Pair<'_> {
    Pair { total: &families.tool_calls, seconds: &families.tool_call_seconds }
}

/// Handles of one tool, resolved when a catalog is built.
#[derive(Debug)]
pub struct ToolMetrics {
    key: Key,
    tools: Arc<Tools>,
    families: Arc<Families>,
    /// Whether it is counted under its name; settled at the first call.
    label: OnceLock<bool>,
    series: Series,
}

impl ToolMetrics {
    /// One call ended.
    pub fn call_ended(&self, outcome: Outcome, took: Duration) {
        let named = *self.label.get_or_init(|| self.tools.admit(&self.key));
        let tool = if named { &self.key.1 } else { OTHER };
        self.series.record(pair(&self.families), [self.key.0.as_str(), tool], outcome, took);
    }
}
