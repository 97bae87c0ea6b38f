//! What a request must pass before it may cost anything.

mod concurrency;
mod origin;

pub use concurrency::{NoSlot, Slot, Slots};
pub use origin::{OriginGuard, Refused};
