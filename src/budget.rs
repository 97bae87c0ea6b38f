//! Bytes in flight: how much of requests and answers the gateway holds at once, and when that is too much.
//!
//! What is held is counted by a guard that lives as long as the bytes do, however far they travel: the last slice that is
//! dropped gives them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use prometheus::IntGauge;

/// There is no room for so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many bytes are in flight")]
pub struct Full;

/// A limit on the bytes that are held at once, and how many there are.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// Shows it.
    gauge: Option<IntGauge>,
}

/// Bytes that are counted; dropping it gives them back.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

/// A text and the room that it takes.
struct Counted {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Budget {
    /// With a limit in bytes, and the gauge that shows what is held.
    pub fn new(limit: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), gauge: Some(gauge) })
    }

    /// Without a limit.
    pub fn unlimited() -> Arc<Self> {
        Arc::new(Self { limit: usize::MAX, used: AtomicUsize::new(0), gauge: None })
    }

    fn add(&self, bytes: usize) -> usize {
        if let Some(gauge) = &self.gauge {
            gauge.add(signed(bytes));
        }
        self.used.fetch_add(bytes, Ordering::Relaxed)
    }

    fn sub(&self, bytes: usize) {
        if let Some(gauge) = &self.gauge {
            gauge.sub(signed(bytes));
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many bytes are held now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether more is held than may be: what could not be refused before it was there.
    pub fn is_over(&self) -> bool {
        self.used() > self.limit
    }

    /// Room for so many bytes.
    ///
    /// # Errors
    /// There is none.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Result<Held, Full> {
        let mut held = Held { budget: Arc::clone(self), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }

    /// Room for what is there already, also beyond the limit: what comes next is refused then.
    pub fn admit(self: &Arc<Self>, bytes: usize) -> Held {
        self.add(bytes);
        Held { budget: Arc::clone(self), bytes }
    }
}

impl Held {
    /// More room.
    ///
    /// # Errors
    /// There is none; it keeps what it had.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let before = self.budget.add(bytes);
        if before.saturating_add(bytes) > self.budget.limit {
            self.budget.sub(bytes);
            return Err(Full);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Room for what is there now, more or less than before, also beyond the limit: what comes next is refused then.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.budget.sub(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// How many bytes it stands for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ties it to the text that it was taken for: it is given back with the last slice of that.
    pub fn keep(mut self, text: Bytes) -> Bytes {
        if text.is_empty() {
            return text;
        }
        let unused = self.bytes.saturating_sub(text.len());
        self.budget.sub(unused);
        self.bytes -= unused;
        Bytes::from_owner(Counted { text, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.sub(self.bytes);
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_with_the_last_slice() {
        let gauge = IntGauge::new("held", "bytes").expect("a gauge");
        let budget = Budget::new(100, gauge.clone());
        let held = budget.hold(80).expect("there is room");
        assert_eq!(budget.hold(21).map(|held| held.bytes()), Err(Full));
        let text = held.keep(Bytes::from(vec![b'x'; 60]));
        assert_eq!(budget.used(), 60, "what was not needed is given back at once");
        let slice = text.slice(10..20);
        drop(text);
        assert_eq!((budget.used(), &slice[..]), (60, &[b'x'; 10][..]));
        assert_eq!(gauge.get(), 60);
        drop(slice);
        assert_eq!((budget.used(), gauge.get()), (0, 0));
    }

    #[test]
    fn room_grows_up_to_the_limit_and_a_refusal_costs_nothing() {
        let budget = Budget::new(10, IntGauge::new("held", "bytes").expect("a gauge"));
        let mut held = budget.hold(4).expect("there is room");
        assert_eq!((held.grow(7), held.grow(6), held.grow(1)), (Err(Full), Ok(()), Err(Full)));
        assert_eq!((held.bytes(), budget.used()), (10, 10));
        let more = budget.admit(5);
        assert_eq!((budget.used(), budget.is_over()), (15, true));
        assert!(budget.hold(1).is_err());
        held.set(3);
        assert_eq!((held.bytes(), budget.used()), (3, 8));
        held.set(20);
        assert_eq!((budget.used(), budget.is_over()), (25, true));
        drop((held, more));
        assert_eq!(budget.used(), 0);
    }
}
