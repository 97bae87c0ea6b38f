//! What a request must pass before it may cost anything.

mod balance;
mod concurrency;
mod origin;

pub use balance::{Places, Standing, Turns};
pub use concurrency::{NoSlot, Slot, Slots};
pub use origin::{OriginGuard, Refused};
