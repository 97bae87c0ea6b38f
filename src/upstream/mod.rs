//! The servers behind the gateway: transports, pools, correlation, supervision of children.
//!
//! An [`Upstream`] is one logical server of the configuration. Its MCP *links* (initialized sessions or
//! children) are pooled by [`LinkKey`]; plain JSON-RPC calls need no link. This room mints every id and
//! progress token that goes upstream and maps them back; it knows no client session and no route.

mod backoff;
mod call;
mod dial;
mod duplex;
mod error;
mod events;
mod http;
mod judge;
mod link;
mod pending;
mod pool;
mod stamp;
mod stdio;
mod subscription;
mod verdict;
mod ws;

pub use call::{Answered, Ask, AskReply, CallEvent, CallerId, Client, OutCall};
pub use error::{CallError, Retry};
pub use events::{EventQueue, Events, events};
pub use http::{LargeAnswer, PlainAnswer, set_worker, worker};
pub use link::{Hello, LinkKey, LinkScope, Notice, NoticeKind};
pub use pool::{Kept, State, Upstream, UpstreamDeps};
pub use ws::{Feed, FeedKind, Listener};
