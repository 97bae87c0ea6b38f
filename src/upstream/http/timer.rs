//! The one timer of a call: silence, begun anew by progress, under a hard limit.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::upstream::pending::Pulse;

/// Longest duration that is counted; more means none.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A limit passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired {
    /// Which: its length.
    pub(super) after: Duration,
}

/// Bounds every step of one call. The `Sleep` is pinned by the caller, so that no call allocates for it.
#[derive(Debug)]
pub(super) struct Timer<'a> {
    sleep: Pin<&'a mut Sleep>,
    silence: Duration,
    max: Duration,
    hard: Instant,
    /// The limit that `sleep` stands for now.
    running: Duration,
    /// Questions that are open: silence does not count while there are any.
    pauses: usize,
    /// The same of questions that come elsewhere, and since when they count.
    heeded: Option<(Arc<Pulse>, Instant)>,
}

impl<'a> Timer<'a> {
    /// What a timer with those limits begins with.
    pub(super) fn sleep(silence: Duration, max: Duration) -> Sleep {
        sleep_until(Instant::now() + silence.min(max).min(FOREVER))
    }

    /// Begins to count. `sleep` comes from [`Timer::sleep`] with the same limits.
    pub(super) fn new(sleep: Pin<&'a mut Sleep>, silence: Duration, max: Duration) -> Self {
        let (silence, max) = (silence.min(FOREVER), max.min(FOREVER));
        let hard = sleep.deadline() + max.saturating_sub(silence);
        Self { sleep, silence, max, hard, running: silence.min(max), pauses: 0, heeded: None }
    }

    /// Waits for `future` while no limit passes. A result that is ready wins over a limit that passed.
    pub(super) async fn within<F: Future>(&mut self, future: F) -> Result<F::Output, Expired> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            loop {
                ready!(self.sleep.as_mut().poll(context));
                if !self.goes_on() {
                    return Poll::Ready(Err(Expired { after: self.running }));
                }
            }
        })
        .await
    }

    /// From now on questions that were put elsewhere stop the counting too.
    pub(super) fn heed(&mut self, pulse: Arc<Pulse>) {
        self.heeded = Some((pulse, Instant::now()));
    }

    /// Whether a question that is open elsewhere, or was until lately, gives more time.
    fn goes_on(&mut self) -> bool {
        let Some((pulse, since)) = &self.heeded else { return false };
        let now = Instant::now();
        let asked = pulse.silent_until(Duration::ZERO, now);
        let until = asked + self.silence;
        if asked <= *since || until <= now || now >= self.hard {
            return false;
        }
        self.running = if until < self.hard { self.silence } else { self.max };
        self.sleep.as_mut().reset(until.min(self.hard));
        true
    }

    /// The upstream gave a sign of life.
    pub(super) fn restart(&mut self) {
        let counted = if self.pauses == 0 { self.silence } else { self.max };
        let soft = Instant::now() + counted;
        self.running = if soft < self.hard { counted } else { self.max };
        self.sleep.as_mut().reset(soft.min(self.hard));
    }

    /// Somebody else is waited for: only the hard limit counts.
    pub(super) fn pause(&mut self) {
        self.pauses += 1;
        self.restart();
    }

    /// Ends one [`Timer::pause`].
    pub(super) fn resume(&mut self) {
        self.pauses = self.pauses.saturating_sub(1);
        self.restart();
    }

    /// Counts at most `limit` until the next [`Timer::restart`].
    pub(super) fn narrow(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit.min(FOREVER);
        if deadline < self.sleep.deadline() {
            self.running = limit;
            self.sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_call_and_progress_extends_it_up_to_the_hard_limit() {
        let start = Instant::now();
        let sleep = pin!(Timer::sleep(SECOND, 3 * SECOND));
        let mut timer = Timer::new(sleep, SECOND, 3 * SECOND);
        for _ in 0..3 {
            tokio::time::advance(SECOND * 9 / 10).await;
            timer.restart();
        }
        let expired = timer.within(pending::<()>()).await;
        assert_eq!(expired, Err(Expired { after: 3 * SECOND }));
        assert_eq!(start.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_does_not_count_while_a_question_is_open() {
        let start = Instant::now();
        let sleep = pin!(Timer::sleep(SECOND, 60 * SECOND));
        let mut timer = Timer::new(sleep, SECOND, 60 * SECOND);
        timer.pause();
        let waited = timer.within(tokio::time::sleep(30 * SECOND)).await;
        assert_eq!(waited, Ok(()));
        timer.resume();
        let expired = timer.within(pending::<()>()).await;
        assert_eq!(expired, Err(Expired { after: SECOND }));
        assert_eq!(start.elapsed().as_secs(), 31);
    }

    #[tokio::test(start_paused = true)]
    async fn limits_beyond_counting_mean_none() {
        let sleep = pin!(Timer::sleep(Duration::MAX, Duration::MAX));
        let mut timer = Timer::new(sleep, Duration::MAX, Duration::MAX);
        timer.restart();
        timer.narrow(SECOND);
        assert_eq!(timer.within(pending::<()>()).await, Err(Expired { after: SECOND }));
    }
}
