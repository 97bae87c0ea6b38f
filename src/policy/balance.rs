//! Which of several upstreams is asked first, and which are left out for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::config::Balance;

/// How long an upstream is left out after the first failure to connect; doubled with each further one.
const SHORTEST: Duration = Duration::from_millis(500);
/// The longest that it is left out.
const LONGEST: Duration = Duration::from_secs(8);

/// Candidates by their place in the configured list.
pub type Places = SmallVec<[usize; 4]>;

/// Takes turns among the upstreams of one method pattern.
#[derive(Debug, Default)]
pub struct Turns {
    balance: Balance,
    next: AtomicUsize,
}

impl Turns {
    /// None was taken yet.
    pub fn new(balance: Balance) -> Self {
        Self { balance, next: AtomicUsize::new(0) }
    }

    /// The order in which to try `count` upstreams: those that are left out for now come last. `load`: calls in flight
    /// on one, those that wait included.
    pub fn order(
        &self,
        count: usize,
        is_up: impl Fn(usize) -> bool,
        load: impl Fn(usize) -> usize,
    ) -> Places {
        let mut places: Places = (0..count).collect();
        if count < 2 {
            return places;
        }
        match self.balance {
            Balance::Order => {}
            Balance::RoundRobin => places.rotate_left(self.turn() % count),
            Balance::LeastRequests => {
                // In turn first, so that equal ones share.
                places.rotate_left(self.turn() % count);
                let loads: SmallVec<[usize; 4]> = (0..count).map(load).collect();
                places.sort_by_key(|place| loads[*place]);
            }
        }
        // Of those that are down only the ones in front of the first healthy one matter.
        let healthy = places.iter().position(|place| is_up(*place));
        if let Some(first @ 1..) = healthy {
            places[..=first].rotate_right(1);
        }
        places
    }

    fn turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Whether an upstream could be connected lately.
#[derive(Debug)]
pub struct Standing {
    born: Instant,
    failures: AtomicU32,
    /// Milliseconds after `born` until which it is left out; 0 when it is not.
    until: AtomicU64,
}

impl Default for Standing {
    fn default() -> Self {
        Self { born: Instant::now(), failures: AtomicU32::new(0), until: AtomicU64::new(0) }
    }
}

impl Standing {
    /// Whether it is to be tried. When its time is over, one caller finds out whether it is back, and the others still go
    /// elsewhere.
    pub fn is_up(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let now = self.now();
        if now < until {
            return false;
        }
        let next = now + pause_after(self.failures.load(Ordering::Relaxed) + 1);
        let claimed =
            self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if claimed {
            // Counted as failed until it is reached.
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        claimed
    }

    /// It was reached, whatever it said.
    pub fn reached(&self) {
        if self.until.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
    }

    /// It could not be connected: it is left out for a while. Calls that failed together count once.
    pub fn unreachable(&self) {
        let until = self.until.load(Ordering::Relaxed);
        let now = self.now();
        if until <= now {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            self.until.store(now + pause_after(failures), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX / 2) + 1
    }
}

/// Milliseconds that it is left out after so many failures in a row.
fn pause_after(failures: u32) -> u64 {
    let doubled = failures.saturating_sub(1).min(8);
    let pause = (SHORTEST * 2_u32.pow(doubled)).min(LONGEST);
    u64::try_from(pause.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(turns: &Turns, up: [bool; 3], load: [usize; 3]) -> Vec<usize> {
        turns.order(3, |place| up[place], |place| load[place]).to_vec()
    }

    #[test]
    fn in_order_the_first_that_is_up_comes_first_and_none_is_left_out() {
        let turns = Turns::new(Balance::Order);
        let all = [true; 3];
        assert_eq!(order(&turns, all, [9, 0, 0]), [0, 1, 2]);
        assert_eq!(order(&turns, [false, true, true], [0; 3]), [1, 0, 2]);
        assert_eq!(order(&turns, [false, false, true], [0; 3]), [2, 0, 1]);
        assert_eq!(order(&turns, [false; 3], [0; 3]), [0, 1, 2], "all down: all are tried");
    }

    #[test]
    fn in_turn_each_comes_first_as_often() {
        let turns = Turns::new(Balance::RoundRobin);
        let firsts: Vec<_> = (0..6).map(|_| order(&turns, [true; 3], [0; 3])[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        let firsts: Vec<_> =
            (0..3).map(|_| order(&turns, [true, false, true], [0; 3])[0]).collect();
        assert_eq!(firsts, [0, 2, 2]);
    }

    #[test]
    fn the_least_busy_comes_first_and_equal_ones_share() {
        let turns = Turns::new(Balance::LeastRequests);
        assert_eq!(order(&turns, [true; 3], [3, 1, 2]), [1, 2, 0]);
        let firsts: Vec<_> = (0..3).map(|_| order(&turns, [true; 3], [0, 0, 7])[0]).collect();
        assert!(firsts.contains(&0) && firsts.contains(&1) && !firsts.contains(&2), "{firsts:?}");
        assert_eq!(order(&turns, [true, false, true], [3, 0, 2])[0], 2);
    }

    #[test]
    fn one_that_cannot_be_connected_is_left_out_and_then_tried_by_one() {
        let standing = Standing::default();
        assert!(standing.is_up());
        standing.unreachable();
        standing.unreachable();
        assert!(!standing.is_up());
        assert_eq!(standing.failures.load(Ordering::Relaxed), 1, "those that failed together");
        standing.until.store(1, Ordering::Relaxed);
        assert!(standing.is_up());
        assert!(!standing.is_up(), "the others still go elsewhere");
        standing.unreachable();
        assert_eq!(standing.failures.load(Ordering::Relaxed), 2, "the one that tried counts once");
        standing.reached();
        assert!(standing.is_up() && standing.is_up());
        assert_eq!([0, 1, 2, 3, 5, 99].map(pause_after), [500, 500, 1000, 2000, 8000, 8000]);
    }
}
