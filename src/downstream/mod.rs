//! Who calls us: listeners, HTTP connections and WebSockets, bytes to [`crate::pipeline::Inbound`] and
//! [`crate::pipeline::Reply`] to bytes.

mod accept;
mod body;
mod cors;
mod http;
mod intake;
mod listener;
mod ws;

pub use listener::{BindError, Listener, Serving, bind, serve};
