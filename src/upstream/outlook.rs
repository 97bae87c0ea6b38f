//! What may be expected of an upstream.

use super::{LinkKey, State, Upstream};

impl Upstream {
    /// Whether nothing is known of it yet, and it has not failed either: its first answer may be near.
    pub fn may_come_up(&self) -> bool {
        self.known().is_none() && !matches!(self.state(), State::Down(_))
    }

    /// Whether a link is open now.
    pub fn is_open(&self, _key: &LinkKey) -> bool {
        true
    }
}
