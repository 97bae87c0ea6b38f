//! What is known of one list of one upstream: whether it is stale, when it may be asked for, who is to be told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::catalog::{Hints, Listing};
use crate::session::Session;

/// How long a failed list is not asked for again.
const COOL_DOWN: Duration = Duration::from_secs(2);
/// Longest pause before a failed list that somebody misses is tried again unasked.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The list of one kind of one upstream for one audience.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// Whose list it is, where it is that of one session only.
    pub(super) owner: Option<Arc<Session>>,
    pub(super) state: Mutex<State>,
    /// A refresh has ended.
    pub(super) finished: Notify,
}

/// What is known of it.
#[derive(Debug)]
pub(super) struct State {
    /// The last good one.
    pub(super) listing: Option<Arc<Listing>>,
    /// What its upstream said of how long it may be kept; legacy ones say nothing.
    pub(super) hints: Option<Hints>,
    /// Counts invalidations; the listing is stale while `have` is behind.
    wanted: u64,
    have: u64,
    fetched: Option<Instant>,
    failed: Option<Instant>,
    /// Until when its upstream does not want to be asked again, whatever happens.
    held: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
    pub(super) running: bool,
    /// It will be tried again unasked.
    pub(super) retrying: bool,
    /// A merged list was served without it, or with what it was before: whoever saw that is told.
    pub(super) missed: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            listing: None,
            hints: None,
            wanted: 1,
            have: 0,
            fetched: None,
            failed: None,
            held: None,
            failures: 0,
            running: false,
            retrying: false,
            missed: false,
        }
    }
}

/// A list as it was fetched, and what its upstream said of how long it may be kept.
pub(super) type Fetched = (Listing, Option<Hints>);

/// What a fetched list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Merged lists are to be built anew.
    pub(super) renews: bool,
    /// Whoever saw another list is to be told.
    pub(super) tell: bool,
}

impl State {
    /// Whether it was never fetched, or changed since.
    pub(super) fn is_stale(&self) -> bool {
        self.have < self.wanted
    }

    /// When it becomes due by age alone: as its upstream said, else as configured.
    pub(super) fn aged_at(&self, ttl: Duration, now: Instant) -> Instant {
        let ttl = self.hints.map_or(ttl, |hints| hints.ttl);
        self.fetched.map_or(now, |at| at + ttl)
    }

    /// What of the upstream's own word is left now.
    pub(super) fn left(&self, now: Instant) -> Hints {
        match (self.hints, self.is_stale()) {
            (Some(hints), false) => {
                let until = self.aged_at(hints.ttl, now);
                Hints { ttl: until.saturating_duration_since(now), ..hints }
            }
            _ => Hints::NONE,
        }
    }

    /// Whether a refresh may begin: none runs, and none has just failed.
    pub(super) fn may_start(&self, now: Instant) -> bool {
        let cooling = |at: Instant| now.saturating_duration_since(at) < COOL_DOWN;
        let held = self.held.is_some_and(|until| now < until);
        !self.running && !held && !self.failed.is_some_and(cooling)
    }

    /// The number to give to [`State::take`] with what is fetched from now on.
    pub(super) fn target(&self) -> u64 {
        self.wanted
    }

    /// It has changed upstream: what is fetched from now on is waited for.
    pub(super) fn invalidate(&mut self) {
        self.wanted += 1;
        self.missed = false;
        self.forgive();
    }

    /// It may be asked for again at once.
    pub(super) fn forgive(&mut self) {
        self.failed = None;
    }

    /// It was fetched; `target` is what was wanted when that began.
    pub(super) fn take(&mut self, (listing, hints): Fetched, target: u64, now: Instant) -> Taken {
        let changed = self.listing.as_deref() != Some(&listing);
        let taken = Taken {
            renews: changed || self.is_stale(),
            tell: changed && (self.listing.is_some() || self.missed),
        };
        if changed {
            self.listing = Some(Arc::new(listing));
        }
        self.hints = hints;
        self.have = target;
        self.fetched = Some(now);
        self.failed = None;
        self.held = None;
        self.failures = 0;
        self.missed = false;
        taken
    }

    /// It could not be fetched: how often in a row. `wait`: so long its upstream does not want to be asked again.
    pub(super) fn fail(&mut self, now: Instant, wait: Option<Duration>) -> u32 {
        self.failed = Some(now);
        self.held = wait.map(|wait| now + wait);
        self.failures = self.failures.saturating_add(1);
        self.missed = true;
        self.failures
    }

    /// When to try again unasked. `None`: nobody misses it, or it is on its way, or that is arranged already.
    pub(super) fn plan_retry(&mut self, now: Instant) -> Option<Duration> {
        if !self.is_stale() || self.failed.is_none() || self.running || self.retrying {
            return None;
        }
        self.retrying = true;
        let doublings = self.failures.saturating_sub(1).min(8);
        let held = self.held.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        Some((COOL_DOWN * 2_u32.pow(doublings)).min(MAX_PAUSE).max(held))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::catalog::parse_page;
    use crate::mcp::ListKind;

    fn listing(text: &'static str) -> Listing {
        let (items, _) = parse_page(ListKind::Tools, &Bytes::from_static(text.as_bytes()), &mut 0)
            .expect("a page");
        Listing { items }
    }

    fn one() -> Listing {
        listing(r#"{"tools":[{"name":"a"}]}"#)
    }

    fn take(state: &mut State, listing: Listing, now: Instant) -> Taken {
        let target = state.target();
        state.take((listing, None), target, now)
    }

    #[test]
    fn nobody_is_told_of_the_first_list_unless_one_was_served_without_it() {
        let now = Instant::now();
        let mut state = State::default();
        assert!(state.is_stale());
        assert_eq!(take(&mut state, one(), now), Taken { renews: true, tell: false });
        assert!(!state.is_stale());
        let mut late = State { missed: true, ..State::default() };
        assert_eq!(take(&mut late, one(), now), Taken { renews: true, tell: true });
        assert!(!late.missed);
    }

    #[test]
    fn only_another_list_is_told() {
        let now = Instant::now();
        let mut state = State::default();
        take(&mut state, one(), now);
        assert_eq!(take(&mut state, one(), now), Taken { renews: false, tell: false });
        let empty = Listing::default();
        assert_eq!(take(&mut state, empty, now), Taken { renews: true, tell: true });
    }

    #[test]
    fn what_was_fetched_before_a_change_is_stale() {
        let now = Instant::now();
        let mut state = State::default();
        let target = state.target();
        state.invalidate();
        state.take((one(), None), target, now);
        assert!(state.is_stale());
        take(&mut state, one(), now);
        assert!(!state.is_stale());
    }

    #[test]
    fn a_failed_list_cools_down_and_a_notice_of_the_upstream_ends_that() {
        let now = Instant::now();
        let mut state = State::default();
        assert!(state.may_start(now));
        state.fail(now, None);
        assert!(!state.may_start(now + COOL_DOWN / 2));
        assert!(state.may_start(now + COOL_DOWN));
        state.invalidate();
        assert!(state.may_start(now) && !state.missed);
        state.running = true;
        assert!(!state.may_start(now));
    }

    #[test]
    fn what_the_upstream_says_of_when_to_come_back_is_kept_to() {
        let now = Instant::now();
        let mut state = State::default();
        let wait = 30 * COOL_DOWN;
        state.fail(now, Some(wait));
        assert_eq!(state.plan_retry(now), Some(wait));
        state.retrying = false;
        state.invalidate();
        assert!(!state.may_start(now + wait / 2), "a change is no reason to come earlier");
        assert!(state.may_start(now + wait));
        state.fail(now + wait, None);
        assert_eq!(state.plan_retry(now + wait), Some(2 * COOL_DOWN));
        take(&mut state, one(), now);
        assert!(state.may_start(now));
    }

    #[test]
    fn a_missed_list_is_tried_again_ever_more_rarely_and_once_at_a_time() {
        let now = Instant::now();
        let mut state = State::default();
        assert_eq!(state.plan_retry(now), None, "it has not failed");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            state.fail(now, None);
            pauses.extend(state.plan_retry(now));
            assert_eq!(state.plan_retry(now), None, "one is arranged");
            state.retrying = false;
        }
        assert!(pauses.is_sorted() && pauses[0] == COOL_DOWN && pauses[7] == MAX_PAUSE);
        take(&mut state, one(), now);
        state.fail(now, None);
        assert_eq!(
            state.plan_retry(now),
            None,
            "the last good one is still what the upstream said"
        );
    }
}
