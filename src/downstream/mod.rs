//! Who calls us: listeners, HTTP connections and WebSockets, bytes to [`crate::pipeline::Inbound`] and
//! [`crate::pipeline::Reply`] to bytes.

mod accept;
mod bind;
mod body;
mod connection;
mod cors;
mod http;
mod inflate;
mod intake;
mod listener;
mod multiplexed;
mod paced;
mod peek;
mod watched;
mod ws;

pub use bind::{BindError, Listener, bind, bind_tcp};
pub use listener::{Serving, serve};
