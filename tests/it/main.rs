//! Tests from outside: the real binary in front of fakes, example servers and real peers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod client;
mod fake;
mod gateway;
mod jsonrpc_rows;
mod layout;
mod mcp;
mod metrics;
