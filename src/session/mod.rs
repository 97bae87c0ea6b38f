//! Legacy sessions: who they belong to, their streams, open calls and open questions.
//!
//! A session lives from `initialize` to DELETE, idle expiry or shutdown, one of HTTP+SSE as long as its stream; an open
//! stream or call counts as use. It knows no upstream: what an upstream must be told when a session ends, the pipeline does.

mod broadcast;
mod channel;
mod links;
mod live;
mod stream;
mod table;
mod track;

pub use broadcast::Broadcast;
pub use channel::{Busy, Channel, Channels, Entered, Listening};
pub use links::Links;
pub use live::{Ask, NewSession, OpenCall, Session, SessionId};
pub use stream::{Recorder, Stream};
pub use table::{Full, Sessions};
