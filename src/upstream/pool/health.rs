//! How an upstream is, by what its last calls came to.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Upstream;
use super::Ws;
use super::slot::Link;
use crate::config::Protocol;
use crate::upstream::CallError;

/// State for `/readyz` and the start-up summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was tried yet.
    Idle,
    /// Being opened.
    Starting,
    /// At least one link is up (plain JSON-RPC: the last call reached it).
    Up,
    /// The last attempt failed; the text names why, without addresses.
    Down(String),
}

/// Whether the last attempt reached it.
#[derive(Debug, Default)]
pub(super) struct Health {
    reached: AtomicBool,
    failed: AtomicBool,
    /// It is counted as one that can be called.
    shown: AtomicBool,
    why: Mutex<String>,
}

impl Upstream {
    /// How it is.
    pub fn state(&self) -> State {
        if let Some(shared) = self.ws.as_ref().and_then(Ws::shared) {
            return shared.state();
        }
        let failed = self.health.failed.load(Ordering::Relaxed);
        let down = || State::Down(self.health.why.lock().clone());
        // Whether an address is reached is known from the last attempt only; a child is known to live.
        if failed && !self.is_child() {
            return down();
        }
        if self.config.protocol == Protocol::JsonRpc {
            let reached = self.health.reached.load(Ordering::Relaxed);
            return if reached { State::Up } else { State::Idle };
        }
        let (mut opening, mut restarting) = (false, false);
        for slot in &self.links {
            match slot.open_link() {
                Some(link) if link.is_up() => return State::Up,
                Some(Link::Stdio(_)) => restarting = true,
                // The next call opens another.
                Some(Link::Http(_) | Link::Modern(_) | Link::Sse(_) | Link::Ws(_)) => {}
                None => opening |= slot.is_opening(),
            }
        }
        match (opening, failed, restarting) {
            (true, ..) => State::Starting,
            (false, true, _) => down(),
            (false, false, true) => State::Down("the child is being restarted".to_owned()),
            (false, false, false) => State::Idle,
        }
    }

    /// Notes what a call came to.
    pub(super) fn noted<T>(&self, result: Result<T, CallError>) -> Result<T, CallError> {
        match &result {
            Err(error @ (CallError::Connect { .. } | CallError::Closed { written: false, .. })) => {
                self.failed(error);
            }
            Err(CallError::Timeout { .. } | CallError::Busy { .. }) => {}
            Ok(_)
            | Err(
                CallError::Closed { .. }
                | CallError::Protocol { .. }
                | CallError::Status { .. }
                | CallError::HeaderMismatch { .. }
                | CallError::NoRoom { .. },
            ) => {
                self.reached();
            }
        }
        result
    }

    pub(super) fn reached(&self) {
        let health = &self.health;
        if !health.reached.load(Ordering::Relaxed) || health.failed.load(Ordering::Relaxed) {
            health.reached.store(true, Ordering::Relaxed);
            health.failed.store(false, Ordering::Relaxed);
            self.refresh();
        }
    }

    pub(super) fn failed(&self, error: &CallError) {
        let why = error.reason();
        let before = std::mem::replace(&mut *self.health.why.lock(), why.clone());
        let failed = self.health.failed.swap(true, Ordering::Relaxed);
        // Of others, the refresh of their lists tells.
        if self.config.protocol == Protocol::JsonRpc && !(failed && before == why) {
            tracing::warn!(upstream = %self.name, why, "upstream cannot be reached");
        }
        self.refresh();
    }

    /// Sets the metric to what [`Upstream::state`] says.
    pub(super) fn refresh(&self) {
        self.show(self.state() == State::Up);
    }

    /// Counts it among the replicas that can be called.
    pub(super) fn show(&self, up: bool) {
        if self.ws.is_some() {
            // Its connections tell the same by themselves; there are no replicas.
            self.deps.metrics.up.set(i64::from(up));
        } else if self.health.shown.swap(up, Ordering::Relaxed) != up {
            self.deps.metrics.up.add(if up { 1 } else { -1 });
        }
    }
}
