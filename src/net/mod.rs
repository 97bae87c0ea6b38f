//! Sockets of every kind, and TLS: where to listen and what to dial, one stream type, certificates that are read anew
//! when their files change. It knows neither the configuration nor HTTP.

mod peer;
mod place;
mod stream;
mod target;
pub mod tls;

pub use peer::Peer;
pub use place::Place;
pub use stream::Stream;
pub use target::{Site, Target};
