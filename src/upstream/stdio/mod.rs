//! Children on standard input and output.
//!
//! [`StdioLink`] is an MCP link whose other end is a child; [`Process`] is a child that is dialled elsewhere. Both are
//! kept running by a `supervisor`, which starts a `child`, sends its standard error to the log (`output`) and
//! starts it again after a [`Backoff`]. The protocol is in `greet` (which era), `channel` (out, and answers), `inbound` (all
//! that a server may send) and `listen` (subscriptions of 2026-07-28), on any pair of byte streams.

mod backoff;
mod channel;
mod child;
mod greet;
mod inbound;
mod link;
mod listen;
mod output;
mod process;
mod salvage;
mod supervisor;
#[cfg(test)]
mod tests;

pub(in crate::upstream) use backoff::Backoff;
pub(in crate::upstream) use link::StdioLink;
pub(in crate::upstream) use process::Process;
