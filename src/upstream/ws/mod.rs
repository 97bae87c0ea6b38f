//! Upstreams over WebSocket (RFC 6455): MCP over a connection for each link, plain JSON-RPC over a few that all calls share.
//!
//! A [`Target`] is where connections lead and how they are opened. `socket` moves frames, whatever they hold: it writes
//! what waits together, pings, and finds out that the other end is gone. [`WsLink`] carries a [`super::duplex::Channel`]
//! over one; [`Plain`] keeps `seat`s, in each of which one connection (`wire`) follows another, and `feeds`, what the upstream is
//! subscribed to whatever the connection.

mod feeds;
mod link;
mod plain;
mod seat;
mod socket;
mod subscribing;
mod target;
#[cfg(test)]
mod tests;
mod wire;

pub use feeds::{FeedKind, Listener};
pub(in crate::upstream) use link::WsLink;
pub(in crate::upstream) use plain::Plain;
pub use subscribing::Feed;
pub(in crate::upstream) use target::Target;
