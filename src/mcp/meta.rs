//! Keys of `_meta` that MCP keeps for itself (MCP 2026-07-28, `_meta`).

/// The revision of a request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// What the client of a request can do.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Who the client of a request is.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Lowest level of log messages that a request wants.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Who made a result.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// The `subscriptions/listen` request that a notification belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The token under which progress is told.
pub const PROGRESS_TOKEN: &str = "progressToken";

/// What a client says of itself on each modern request: hop by hop, never passed on as it is.
pub const OF_THE_HOP: [&str; 4] = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL];
