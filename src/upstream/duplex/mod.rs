//! MCP over one connection that all calls share, in both directions: pipes of a child, and whatever else carries whole
//! messages.
//!
//! The protocol is in `greet` (which era), `channel` (out, and answers), `inbound` (all that a server may send) and `listen`
//! (subscriptions of 2026-07-28). `lines` carries it over a pair of byte streams.

mod channel;
mod greet;
mod inbound;
mod lines;
mod listen;
mod noise;
mod salvage;
#[cfg(test)]
pub(in crate::upstream) mod tests;

pub(in crate::upstream) use channel::{Channel, Out, Outlet, Sort};
pub(in crate::upstream) use listen::Watched;
pub(in crate::upstream) use noise::{Flow, Tail, printable};
pub(in crate::upstream) use salvage::salvage_id;
