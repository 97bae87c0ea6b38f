//! Vocabulary of the Model Context Protocol. Pure.

mod capabilities;
pub mod header;
pub mod meta;
mod methods;
mod param;
mod version;

pub use capabilities::{ClientCaps, ServerCaps, TASKS_EXTENSION};
pub use methods::{Eras, Kind as ListKind, METHODS, MethodSpec, Named, To, method_spec};
pub use param::{BadAnnotation, ParamHeader, ParamKind, param_headers, strip_annotations};
pub use version::{Era, ProtocolVersion};

/// Header that names a legacy session.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// Header that repeats the protocol version.
pub const VERSION_HEADER: &str = "mcp-protocol-version";
/// Header that repeats the method of a modern request.
pub const METHOD_HEADER: &str = "mcp-method";
/// Header that repeats name, URI or task of a modern request.
pub const NAME_HEADER: &str = "mcp-name";
/// How headers begin that repeat an argument of a tool.
pub const PARAM_HEADER: &str = "mcp-param-";

/// Log levels in rising order (RFC 5424 names).
pub const LOG_LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The rank of a log level; `None` for an unknown one.
pub fn log_rank(level: &str) -> Option<u8> {
    LOG_LEVELS.iter().position(|known| *known == level).and_then(|rank| u8::try_from(rank).ok())
}
