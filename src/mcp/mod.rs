//! Vocabulary of the Model Context Protocol. Pure.

mod capabilities;
mod methods;
mod version;

pub use capabilities::{ClientCaps, ServerCaps};
pub use methods::{Kind as ListKind, METHODS, MethodSpec, To, method_spec};
pub use version::{Era, ProtocolVersion};

/// Header that names a legacy session.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// Header that repeats the protocol version.
pub const VERSION_HEADER: &str = "mcp-protocol-version";

/// Log levels in rising order (RFC 5424 names).
pub const LOG_LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The rank of a log level; `None` for an unknown one.
pub fn log_rank(level: &str) -> Option<u8> {
    LOG_LEVELS.iter().position(|known| *known == level).and_then(|rank| u8::try_from(rank).ok())
}
