//! WebSocket clients: the upgrade, one task a connection, frames to messages and back.

mod frames;
mod task;
mod upgrade;

pub(super) use self::upgrade::{is_asked, upgrade};
