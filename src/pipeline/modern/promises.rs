//! Calls that are made once more when their client agrees: each at most once, however often it says so.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Most of them; then the oldest is not kept.
const MAX_PROMISES: usize = 10_000;

/// What is promised.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Promises(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// What has to be accepted, by handle.
    open: HashMap<u128, Vec<String>>,
    /// In the order in which they lapse.
    order: VecDeque<(Instant, u128)>,
}

impl Promises {
    /// Promises to make a call once more when all of `keys` are accepted. `None`: there are no random numbers to be had.
    pub(super) fn give(&self, keys: Vec<String>, lasts: Duration) -> Option<u128> {
        let mut handle = [0_u8; 16];
        getrandom::fill(&mut handle).ok()?;
        let handle = u128::from_be_bytes(handle);
        let mut table = self.0.lock();
        if table.order.len() >= MAX_PROMISES
            && let Some((_, oldest)) = table.order.pop_front()
        {
            table.open.remove(&oldest);
        }
        table.open.insert(handle, keys);
        table.order.push_back((Instant::now() + lasts, handle));
        Some(handle)
    }

    /// Takes a promise up. It is gone with that.
    pub(super) fn redeem(&self, handle: u128) -> Option<Vec<String>> {
        self.0.lock().open.remove(&handle)
    }

    /// Forgets what has lapsed.
    pub(in crate::pipeline) fn sweep(&self) {
        let mut table = self.0.lock();
        let now = Instant::now();
        while let Some((until, handle)) = table.order.front().copied() {
            // What was taken up needs no place any more.
            if until > now && table.open.contains_key(&handle) {
                return;
            }
            table.order.pop_front();
            table.open.remove(&handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_promise_is_kept_once_and_lapses() {
        let promises = Promises::default();
        let give = || promises.give(vec!["k0".into()], LASTS).expect("a handle");
        let (one, two) = (give(), give());
        assert_eq!(promises.redeem(one), Some(vec!["k0".to_owned()]));
        assert_eq!(promises.redeem(one), None);
        promises.sweep();
        assert_eq!(promises.0.lock().order.len(), 1);
        tokio::time::advance(LASTS).await;
        promises.sweep();
        assert_eq!(promises.redeem(two), None);
        assert!(promises.0.lock().order.is_empty());
    }

    #[test]
    fn there_are_not_more_than_so_many() {
        let promises = Promises::default();
        let first = promises.give(Vec::new(), LASTS).expect("a handle");
        for _ in 0..MAX_PROMISES {
            promises.give(Vec::new(), LASTS);
        }
        assert_eq!(promises.redeem(first), None);
        let table = promises.0.lock();
        assert_eq!((table.open.len(), table.order.len()), (MAX_PROMISES, MAX_PROMISES));
    }
}
