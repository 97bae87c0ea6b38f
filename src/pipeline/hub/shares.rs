//! How many standing requests each client has: nobody takes the room of all others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::net::Peer;

/// Whatever the limits are, so many are for everybody.
const LEAST: usize = 16;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::pipeline) enum Holder {
    /// Of one principal.
    Principal(Arc<str>),
    /// Of nobody by name: from one address.
    Address(IpAddr),
    /// The same from this machine, without an address.
    Local,
}

impl Holder {
    /// Of nobody by name.
    pub(in crate::pipeline) fn at(peer: Peer) -> Self {
        match peer {
            Peer::Tcp(address) => Self::Address(address.ip()),
            Peer::Unix => Self::Local,
        }
    }
}

/// Counts by holder.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<Holder, usize>>);

impl Shares {
    /// One more, if that is not more than a quarter of `most` which all may have together.
    pub(super) fn take(&self, holder: &Holder, most: usize) -> bool {
        let mut counts = self.0.lock();
        let count = counts.get(holder).copied().unwrap_or_default();
        if count >= most.div_ceil(4).max(LEAST) {
            return false;
        }
        counts.insert(holder.clone(), count + 1);
        true
    }

    /// One less.
    pub(super) fn give_back(&self, holder: &Holder) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(holder) {
            *count -= 1;
            if *count == 0 {
                counts.remove(holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_a_share_and_what_ends_makes_room() {
        let shares = Shares::default();
        let (one, two) = (Holder::Principal("a".into()), Holder::Address([10, 0, 0, 1].into()));
        assert!((0..25).all(|_| shares.take(&one, 100)));
        assert!(!shares.take(&one, 100) && shares.take(&two, 100));
        shares.give_back(&one);
        assert!(shares.take(&one, 100));
        (0..25).for_each(|_| shares.give_back(&one));
        shares.give_back(&two);
        assert!(shares.0.lock().is_empty());
        assert!((0..LEAST).all(|_| shares.take(&two, 3)), "the least is for everybody");
    }
}
