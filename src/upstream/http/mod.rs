//! Streamable HTTP and plain JSON-RPC over HTTP: connections, sessions, answers.

mod body;
mod channel;
mod conn;
mod discover;
mod endpoint;
mod feed;
mod large;
mod link;
mod listen;
mod modern;
mod plain;
mod questions;
mod reply;
mod shared;
mod sse;
mod standard;
mod stream;
mod subscribed;
#[cfg(test)]
mod tests;
mod timer;
mod worker;

use super::judge;

pub(in crate::upstream) use endpoint::{Endpoint, headers, path_of};
pub use large::{LargeAnswer, PlainAnswer};
pub(in crate::upstream) use link::{Failed, HttpLink, Unopened};
pub(in crate::upstream) use modern::ModernLink;
pub(in crate::upstream) use plain::Plain;
pub(in crate::upstream) use reply::parse_retry_after;
pub(in crate::upstream) use sse::SseLink;
pub use worker::{set_worker, worker};
