//! Coming back to a session whose stream or connection ended, though nobody calls: it brings news that nobody asks for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::Upstream;
use crate::upstream::LinkKey;

/// The first pause, on average.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Attempts and short-lived streams in a row, after which the next call is waited for.
const MAX_RELAPSES: u32 = 8;
/// A stream that lasted that long was a good one.
const STEADY: Duration = Duration::from_secs(30);

impl Upstream {
    /// The link with that key was lost: where it was a stream or a connection, its place is empty now, and soon taken by another one.
    pub(super) fn recover(self: &Arc<Self>, key: &LinkKey) {
        let Some(slot) = self.links.get(key).map(|slot| Arc::clone(&slot)) else { return };
        let Some(link) = slot.open_link() else { return };
        let Some(age) = link.age().filter(|_| !link.is_up()) else { return };
        if age >= STEADY {
            self.relapses.store(0, Ordering::Relaxed);
        }
        slot.lose(&link);
        let reopen = reopen(Arc::downgrade(self), key.clone());
        let stop = self.stop.clone();
        self.deps.tasks.spawn(async move { stop.run_until_cancelled(reopen).await });
    }
}

/// A pause that is not the same for all whom the end of one server concerns.
fn spread(pause: Duration) -> Duration {
    let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
    pause.mul_f64(0.5 + f64::from(chance) / f64::from(u32::MAX))
}

async fn reopen(upstream: Weak<Upstream>, key: LinkKey) {
    loop {
        let Some(relapses) =
            upstream.upgrade().map(|upstream| upstream.relapses.fetch_add(1, Ordering::Relaxed))
        else {
            return;
        };
        if relapses >= MAX_RELAPSES {
            return;
        }
        sleep(spread(AGAIN_AFTER.saturating_mul(1 << relapses))).await;
        let Some(upstream) = upstream.upgrade() else { return };
        let Some(slot) = upstream.links.get(&key).map(|slot| Arc::clone(&slot)) else { return };
        if slot.open_link().is_some() || slot.is_opening() {
            return;
        }
        match upstream.reach(&key, upstream.config.timeout).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(upstream = %upstream.name, %error, "a stream was not opened again");
            }
        }
    }
}
