//! How many calls run on one upstream at once, and how many may wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSlot {
    /// Too many wait already.
    #[error("the queue is full")]
    QueueFull,
    /// None became free in time.
    #[error("no slot became free in time")]
    TimedOut,
}

/// The slots of one upstream.
#[derive(Debug)]
pub struct Slots {
    slots: Arc<Semaphore>,
    max: usize,
    waiting: AtomicUsize,
    max_waiting: usize,
}

/// One running call; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    /// `max` calls at once, `max_waiting` in the queue.
    pub fn new(max: usize, max_waiting: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            slots: Arc::new(Semaphore::new(max)),
            max,
            waiting: AtomicUsize::new(0),
            max_waiting,
        }
    }

    /// A slot if one is free now. The usual case.
    pub fn try_take(&self) -> Option<Slot> {
        Arc::clone(&self.slots).try_acquire_owned().ok().map(|permit| Slot { _permit: permit })
    }

    /// A slot, waiting in the queue for at most `patience`; first come, first served.
    pub async fn take(&self, patience: Duration) -> Result<Slot, NoSlot> {
        if let Some(slot) = self.try_take() {
            return Ok(slot);
        }
        let _place = self.queue()?;
        let permit = tokio::time::timeout(patience, Arc::clone(&self.slots).acquire_owned());
        match permit.await {
            Ok(Ok(permit)) => Ok(Slot { _permit: permit }),
            // The semaphore is never closed; a slot that cannot come is like one that came too late.
            Ok(Err(_)) | Err(_) => Err(NoSlot::TimedOut),
        }
    }

    /// Calls that run or wait now.
    pub fn load(&self) -> usize {
        let running = self.max.saturating_sub(self.slots.available_permits());
        running + self.waiting.load(Ordering::Relaxed)
    }

    fn queue(&self) -> Result<Place<'_>, NoSlot> {
        let taken = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < self.max_waiting).then_some(waiting + 1)
        });
        taken.map(|_| Place(&self.waiting)).map_err(|_| NoSlot::QueueFull)
    }
}

/// A place in the queue; dropping it leaves the queue.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_a_freed_slot_goes_to_the_first_in_it() {
        let slots = Arc::new(Slots::new(1, 1));
        let held = slots.take(Duration::from_secs(1)).await.unwrap();
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take(Duration::from_secs(1)).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let refused = slots.take(Duration::from_secs(1)).await;
        assert_eq!(refused.unwrap_err(), NoSlot::QueueFull);
        drop(held);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_in_time_and_leaves_the_queue() {
        let slots = Slots::new(1, 1);
        let _held = slots.take(Duration::from_secs(1)).await.unwrap();
        for _ in 0..2 {
            assert_eq!(slots.take(Duration::from_secs(1)).await.unwrap_err(), NoSlot::TimedOut);
        }
    }
}
