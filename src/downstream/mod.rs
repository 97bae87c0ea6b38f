//! Who calls us: listeners, HTTP connections, bytes to [`crate::pipeline::Inbound`] and
//! [`crate::pipeline::Reply`] to bytes.

mod accept;
mod body;
mod cors;
mod http;
mod intake;
mod listener;

pub use listener::{BindError, Listener, Serving, bind, serve};
