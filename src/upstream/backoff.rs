//! When a child may be started again.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The first pause.
const FIRST: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);
/// How long a child must have served before its failures are forgotten.
const STEADY: Duration = Duration::from_secs(30);

/// Exponential back-off between starts: 200 ms doubling to 30 s, 20 % more or less.
///
/// A start that succeeds forgets nothing: else a child that answers and dies would be started for ever at the
/// shortest pause. Only steady service does. The pool keeps one for all links of an upstream, so that opening
/// a link whose child dies at once, again and again, starts no more children than one link would.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Backoff(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// In a row, without steady service between them.
    count: u32,
    until: Option<Instant>,
    why: String,
    /// The last start failed, or what it started died.
    down: bool,
    /// Children that failed to start and are being ended.
    ending: usize,
}

/// While it lives, a child that failed to start is being ended, and no other is started beside it.
#[derive(Debug)]
pub(super) struct Ending<'a>(&'a Backoff);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.0.lock().ending -= 1;
    }
}

impl Backoff {
    /// Why no child may be started now: the last failure. `None` once the pause is over.
    pub(super) fn refusal(&self, now: Instant) -> Option<String> {
        let failures = self.0.lock();
        let pausing = failures.until.is_some_and(|until| now < until);
        (pausing || failures.ending > 0).then(|| failures.why.clone())
    }

    /// A child failed at `now`, `uptime` after it began to serve (zero: it never did). Returns how long to pause
    /// until the next start. `chance` is random.
    pub(super) fn failed(
        &self,
        why: &str,
        uptime: Duration,
        now: Instant,
        chance: u32,
    ) -> Duration {
        let mut failures = self.0.lock();
        failures.count = if uptime >= STEADY { 1 } else { failures.count.saturating_add(1) };
        let doublings = (failures.count - 1).min(16);
        let pause = FIRST.saturating_mul(1 << doublings).min(LONGEST);
        // 80 % to 120 %.
        let pause = pause.mul_f64(0.8 + 0.4 * f64::from(chance) / f64::from(u32::MAX));
        failures.until = Some(now + pause);
        failures.down = true;
        why.clone_into(&mut failures.why);
        pause
    }

    /// A child ended on our wish, `uptime` after it began to serve.
    pub(super) fn ended(&self, uptime: Duration) {
        if uptime >= STEADY {
            let mut failures = self.0.lock();
            failures.count = 0;
            failures.until = None;
        }
    }

    /// A child serves.
    pub(super) fn serves(&self) {
        self.0.lock().down = false;
    }

    /// Whether the next start is a restart: no child served since the last failure.
    pub(super) fn is_down(&self) -> bool {
        self.0.lock().down
    }

    /// Refuses starts until the guard is dropped.
    pub(super) fn ending(&self) -> Ending<'_> {
        self.0.lock().ending += 1;
        Ending(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: u32 = u32::MAX / 2;

    fn pauses(backoff: &Backoff, uptime: Duration, times: usize) -> Vec<u64> {
        let pause = || backoff.failed("exit status 1", uptime, Instant::now(), MIDDLE);
        (0..times).map(|_| (pause().as_secs_f64() * 1000.0).round() as u64).collect()
    }

    #[test]
    fn pauses_double_up_to_thirty_seconds() {
        let backoff = Backoff::default();
        let expected = [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
        assert_eq!(pauses(&backoff, Duration::ZERO, 10), expected);
    }

    #[test]
    fn only_steady_service_shortens_the_pause_again() {
        let backoff = Backoff::default();
        pauses(&backoff, Duration::ZERO, 5);
        assert_eq!(pauses(&backoff, Duration::from_secs(29), 1), [6400]);
        assert_eq!(pauses(&backoff, STEADY, 2), [200, 200]);
        assert_eq!(pauses(&backoff, Duration::ZERO, 1), [400]);
        backoff.ended(Duration::from_secs(29));
        assert_eq!(pauses(&backoff, Duration::ZERO, 1), [800]);
        backoff.ended(STEADY);
        assert_eq!(pauses(&backoff, Duration::ZERO, 1), [200]);
    }

    #[test]
    fn a_restart_is_a_start_after_a_failure() {
        let backoff = Backoff::default();
        assert!(!backoff.is_down());
        pauses(&backoff, Duration::ZERO, 1);
        assert!(backoff.is_down());
        backoff.serves();
        assert!(!backoff.is_down());
    }

    #[test]
    fn starts_are_refused_with_the_last_failure_until_the_pause_is_over() {
        let backoff = Backoff::default();
        let now = Instant::now();
        assert_eq!(backoff.refusal(now), None);
        let pause = backoff.failed("start timeout", Duration::ZERO, now, u32::MAX);
        assert_eq!(pause.as_millis(), 240);
        assert_eq!(backoff.refusal(now).as_deref(), Some("start timeout"));
        let ending = backoff.ending();
        assert_eq!(backoff.refusal(now + pause).as_deref(), Some("start timeout"));
        drop(ending);
        assert_eq!(backoff.refusal(now + pause), None);
    }

    #[test]
    fn a_child_that_dies_at_once_is_started_a_handful_of_times_in_thirty_seconds() {
        let backoff = Backoff::default();
        let begin = Instant::now();
        let (mut now, mut starts) = (begin, 0);
        while now < begin + Duration::from_secs(30) {
            starts += 1;
            now += backoff.failed("exit status 1", Duration::ZERO, now, 0);
        }
        assert!(starts <= 10, "{starts} starts");
    }
}
