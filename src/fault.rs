//! The one table from what went wrong to what the client is told, and how it is counted.
//!
//! Pure. Codes of JSON-RPC and MCP keep their meaning (MCP digest §6); the gateway's own lie in
//! −31000…−31099 and always carry `data = { reason, upstream?, retryable, retryAfterMs? }`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use crate::jsonrpc::{ErrorObject, Rejected};
use crate::mcp::Era;

/// How an exchange or call ended, as the metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A result.
    Ok,
    /// A tool result with `isError`.
    ToolError,
    /// A result that asks for input (2026-07-28).
    InputRequired,
    /// A JSON-RPC error of the upstream, or of the gateway about the request itself.
    RpcError,
    /// The deadline passed.
    Timeout,
    /// No upstream could be reached, or it went away.
    Unavailable,
    /// A limit refused it.
    Rejected,
    /// Access or authentication refused it.
    Denied,
    /// The client cancelled it.
    Cancelled,
    /// The upstream's answer was not valid.
    Protocol,
}

impl Outcome {
    /// All outcomes, for metrics that are created at start.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::ToolError,
        Self::InputRequired,
        Self::RpcError,
        Self::Timeout,
        Self::Unavailable,
        Self::Rejected,
        Self::Denied,
        Self::Cancelled,
        Self::Protocol,
    ];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
            Self::RpcError => "rpc_error",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Rejected => "rejected",
            Self::Denied => "denied",
            Self::Cancelled => "cancelled",
            Self::Protocol => "protocol",
        }
    }
}

/// Conditions that the gateway itself answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The text is not JSON.
    ParseError,
    /// Not a JSON-RPC message, or one that is not allowed here.
    InvalidRequest,
    /// No such method here.
    MethodNotFound,
    /// Params that cannot be used: unknown tool, bad cursor.
    InvalidParams,
    /// An unexpected failure of the gateway.
    Internal,
    /// A limit on rate.
    RateLimited,
    /// A queue or concurrency limit, or draining.
    Overloaded,
    /// The deadline passed.
    UpstreamTimeout,
    /// Cannot connect, child down, breaker open.
    UpstreamUnavailable,
    /// The upstream went away in the middle of a call; it may have run.
    UpstreamClosed,
    /// The upstream's answer is not valid.
    UpstreamProtocol,
    /// More elements than `max_batch`.
    BatchTooLarge,
    /// Not allowed, and its existence need not be hidden.
    Forbidden,
    /// Same key, different content.
    IdempotencyConflict,
    /// A message over the size limit.
    MessageTooLarge,
    /// Nesting over the depth limit.
    TooDeep,
    /// The session is not known.
    SessionNotFound,
    /// A modern request does not say what each must say of its client.
    MissingMeta,
    /// A header of a modern request is missing, malformed, or says something else than the body.
    HeaderMismatch,
    /// The request cannot be served to a client without a certain capability.
    MissingCapability,
    /// The request names a revision that is not served without a handshake.
    UnsupportedVersion,
}

impl Reason {
    /// The JSON-RPC code.
    pub fn code(self) -> i64 {
        match self {
            Self::ParseError => -32700,
            Self::InvalidRequest | Self::SessionNotFound => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams | Self::MissingMeta => -32602,
            Self::HeaderMismatch => -32020,
            Self::MissingCapability => -32021,
            Self::UnsupportedVersion => -32022,
            Self::Internal => -32603,
            Self::RateLimited => -31001,
            Self::Overloaded => -31002,
            Self::UpstreamTimeout => -31003,
            Self::UpstreamUnavailable => -31004,
            Self::UpstreamClosed => -31005,
            Self::UpstreamProtocol => -31006,
            Self::BatchTooLarge => -31007,
            Self::Forbidden => -31008,
            Self::IdempotencyConflict => -31009,
            Self::MessageTooLarge | Self::TooDeep => -31010,
        }
    }

    /// The stable word in `data.reason`; `None` where the code is JSON-RPC's own.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::ParseError
            | Self::InvalidRequest
            | Self::MethodNotFound
            | Self::InvalidParams
            | Self::Internal
            | Self::SessionNotFound
            | Self::MissingMeta
            | Self::HeaderMismatch
            | Self::MissingCapability
            | Self::UnsupportedVersion => None,
            Self::RateLimited => Some("rate_limited"),
            Self::Overloaded => Some("overloaded"),
            Self::UpstreamTimeout => Some("upstream_timeout"),
            Self::UpstreamUnavailable => Some("upstream_unavailable"),
            Self::UpstreamClosed => Some("upstream_closed"),
            Self::UpstreamProtocol => Some("upstream_protocol"),
            Self::BatchTooLarge => Some("batch_too_large"),
            Self::Forbidden => Some("forbidden"),
            Self::IdempotencyConflict => Some("idempotency_conflict"),
            Self::MessageTooLarge => Some("message_too_large"),
            Self::TooDeep => Some("too_deep"),
        }
    }

    /// Whether the same request may succeed later (`data.retryable`).
    pub fn retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::UpstreamUnavailable)
    }

    /// How it is counted.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::ParseError
            | Self::InvalidRequest
            | Self::MethodNotFound
            | Self::InvalidParams
            | Self::Internal
            | Self::IdempotencyConflict
            | Self::SessionNotFound
            | Self::MissingMeta
            | Self::HeaderMismatch
            | Self::MissingCapability
            | Self::UnsupportedVersion => Outcome::RpcError,
            Self::RateLimited
            | Self::Overloaded
            | Self::BatchTooLarge
            | Self::MessageTooLarge
            | Self::TooDeep => Outcome::Rejected,
            Self::UpstreamTimeout => Outcome::Timeout,
            Self::UpstreamUnavailable | Self::UpstreamClosed => Outcome::Unavailable,
            Self::UpstreamProtocol => Outcome::Protocol,
            Self::Forbidden => Outcome::Denied,
        }
    }

    /// The HTTP status of a single answer (DESIGN §5). `era` is `None` on plain JSON-RPC routes.
    ///
    /// Legacy MCP clients get 200 for request-level failures, since several SDKs discard the body of
    /// other statuses.
    pub fn status(self, era: Option<Era>) -> StatusCode {
        let strict = match self {
            Self::ParseError
            | Self::InvalidRequest
            | Self::BatchTooLarge
            | Self::TooDeep
            | Self::MissingMeta
            | Self::HeaderMismatch
            | Self::MissingCapability
            | Self::UnsupportedVersion => return StatusCode::BAD_REQUEST,
            Self::SessionNotFound => return StatusCode::NOT_FOUND,
            Self::MessageTooLarge => return StatusCode::PAYLOAD_TOO_LARGE,
            Self::Forbidden => return StatusCode::FORBIDDEN,
            Self::MethodNotFound if era == Some(Era::Modern) => StatusCode::NOT_FOUND,
            Self::MethodNotFound | Self::InvalidParams | Self::Internal => StatusCode::OK,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::UpstreamUnavailable | Self::UpstreamClosed | Self::UpstreamProtocol => {
                StatusCode::BAD_GATEWAY
            }
            Self::IdempotencyConflict => StatusCode::CONFLICT,
        };
        if era == Some(Era::Legacy) { StatusCode::OK } else { strict }
    }
}

/// One failure on its way to the client: the reason, a sentence, and what may be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it is.
    pub reason: Reason,
    /// One sentence for the client: no addresses, tokens, paths or foreign text.
    pub message: Cow<'static, str>,
    /// The upstream's name, where one is concerned.
    pub upstream: Option<String>,
    /// How long to wait before trying again.
    pub retry_after: Option<Duration>,
    /// Further members of `data`, as JSON text of each value.
    pub extra: Vec<(&'static str, Bytes)>,
}

impl Fault {
    /// A failure with a sentence.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            upstream: None,
            retry_after: None,
            extra: Vec::new(),
        }
    }

    /// Names the upstream.
    #[must_use]
    pub fn at(mut self, upstream: &str) -> Self {
        self.upstream = Some(upstream.to_owned());
        self
    }

    /// Adds a member to `data`; `value` is JSON text.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Bytes>) -> Self {
        self.extra.push((key, value.into()));
        self
    }

    /// The JSON-RPC error object.
    pub fn to_error(&self) -> ErrorObject {
        ErrorObject { code: self.reason.code(), message: self.message.clone(), data: self.data() }
    }

    fn data(&self) -> Option<Bytes> {
        let mut data = serde_json::Map::new();
        if let Some(word) = self.reason.word() {
            data.insert("reason".into(), word.into());
            if let Some(upstream) = &self.upstream {
                data.insert("upstream".into(), upstream.as_str().into());
            }
            data.insert("retryable".into(), self.reason.retryable().into());
            if let Some(after) = self.retry_after {
                let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                data.insert("retryAfterMs".into(), millis.into());
            }
        }
        for (key, value) in &self.extra {
            if let Ok(value) = serde_json::from_slice(value) {
                data.insert((*key).into(), value);
            }
        }
        if data.is_empty() {
            return None;
        }
        Some(Bytes::from(serde_json::Value::Object(data).to_string()))
    }
}

impl From<&Rejected> for Fault {
    fn from(rejected: &Rejected) -> Self {
        match rejected {
            Rejected::Syntax { .. } => Self::new(Reason::ParseError, "Parse error"),
            Rejected::Invalid { reason, .. } => {
                Self::new(Reason::InvalidRequest, format!("Invalid Request: {reason}"))
            }
            Rejected::TooDeep { limit } => Self::new(
                Reason::TooDeep,
                format!("the message is nested deeper than max_depth = {limit}"),
            ),
            Rejected::EmptyBatch => {
                Self::new(Reason::InvalidRequest, "Invalid Request: the batch is empty")
            }
            Rejected::BatchTooLarge { limit } => Self::new(
                Reason::BatchTooLarge,
                format!("the batch has more elements than max_batch = {limit}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_codes_carry_reason_and_upstream() {
        let fault = Fault::new(Reason::UpstreamTimeout, "no answer in time").at("search");
        let error = fault.to_error();
        assert_eq!(error.code, -31003);
        let data: serde_json::Value = serde_json::from_slice(&error.data.unwrap()).unwrap();
        assert_eq!(data["reason"], "upstream_timeout");
        assert_eq!(data["upstream"], "search");
        assert_eq!(data["retryable"], false);
    }

    #[test]
    fn legacy_clients_get_200_for_request_failures_only() {
        assert_eq!(Reason::UpstreamTimeout.status(Some(Era::Legacy)), StatusCode::OK);
        assert_eq!(Reason::UpstreamTimeout.status(None), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(Reason::UpstreamTimeout.status(Some(Era::Modern)), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(
            Reason::MessageTooLarge.status(Some(Era::Legacy)),
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(Reason::SessionNotFound.status(Some(Era::Legacy)), StatusCode::NOT_FOUND);
        assert_eq!(Reason::Overloaded.status(None), StatusCode::SERVICE_UNAVAILABLE);
    }
}
