//! Why a call failed.

use std::io;
use std::time::Duration;

use crate::config::UpstreamName;
use crate::fault::{Fault, Reason};

/// Whether another attempt is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing reached the upstream.
    Always,
    /// The upstream may have run it.
    IfIdempotent,
    /// Trying again gives the same.
    Never,
}

/// Why a call failed. `Display` says this level only; the cause is in `source()`.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection, child not up, or start failed.
    #[error("cannot connect to upstream {upstream}: {what}")]
    Connect {
        /// Which upstream.
        upstream: UpstreamName,
        /// What was tried, for the log: `connection refused`, `child is restarting`.
        what: String,
        /// The cause, where there is one.
        source: Option<io::Error>,
    },
    /// The upstream went away before it answered.
    #[error("upstream {upstream} closed before it answered: {what}")]
    Closed {
        /// Which upstream.
        upstream: UpstreamName,
        /// Whether the request may have arrived.
        written: bool,
        /// What happened, for the log: `exit status 137`.
        what: String,
    },
    /// The deadline passed; the upstream was told to cancel.
    #[error("upstream {upstream} did not answer within {after:?}")]
    Timeout {
        /// Which upstream.
        upstream: UpstreamName,
        /// The limit that passed.
        after: Duration,
    },
    /// The answer is no valid response to the request.
    #[error("upstream {upstream} sent an invalid answer: {what}")]
    Protocol {
        /// Which upstream.
        upstream: UpstreamName,
        /// What is wrong, for log and client; holds no text of the upstream beyond a bounded snippet.
        what: String,
        /// A non-standard `error` string of the upstream (`data.upstreamError`), bounded.
        upstream_error: Option<String>,
    },
    /// HTTP refused the request without a JSON-RPC body (429, 503, 5xx, 401 …).
    #[error("upstream {upstream} answered with HTTP status {status}")]
    Status {
        /// Which upstream.
        upstream: UpstreamName,
        /// The HTTP status.
        status: u16,
        /// `Retry-After`, parsed and capped.
        retry_after: Option<Duration>,
    },
    /// A modern upstream found that headers and body of the request do not agree (-32020): what is known of its tools
    /// is old. It did not run the request.
    #[error("upstream {upstream} wants other headers with this request")]
    HeaderMismatch {
        /// Which upstream.
        upstream: UpstreamName,
    },
    /// The gateway holds too many bytes to read the answer.
    #[error("no room to read the answer of upstream {upstream}")]
    NoRoom {
        /// Which upstream.
        upstream: UpstreamName,
    },
    /// An outgoing queue is full.
    #[error("upstream {upstream} is overloaded")]
    Busy {
        /// Which upstream.
        upstream: UpstreamName,
    },
}

impl CallError {
    /// The same once more, for everybody who waited for one outcome.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Connect { upstream, what, source } => Self::Connect {
                upstream: upstream.clone(),
                what: what.clone(),
                source: source
                    .as_ref()
                    .map(|error| io::Error::new(error.kind(), error.to_string())),
            },
            Self::Closed { upstream, written, what } => {
                Self::Closed { upstream: upstream.clone(), written: *written, what: what.clone() }
            }
            Self::Timeout { upstream, after } => {
                Self::Timeout { upstream: upstream.clone(), after: *after }
            }
            Self::Protocol { upstream, what, upstream_error } => Self::Protocol {
                upstream: upstream.clone(),
                what: what.clone(),
                upstream_error: upstream_error.clone(),
            },
            Self::Status { upstream, status, retry_after } => Self::Status {
                upstream: upstream.clone(),
                status: *status,
                retry_after: *retry_after,
            },
            Self::HeaderMismatch { upstream } => {
                Self::HeaderMismatch { upstream: upstream.clone() }
            }
            Self::NoRoom { upstream } => Self::NoRoom { upstream: upstream.clone() },
            Self::Busy { upstream } => Self::Busy { upstream: upstream.clone() },
        }
    }

    /// Why, without naming the upstream or where it is.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Connect { what, .. }
            | Self::Closed { what, .. }
            | Self::Protocol { what, .. } => what.clone(),
            Self::Timeout { after, .. } => format!("no answer within {after:?}"),
            Self::Status { status, .. } => format!("HTTP status {status}"),
            Self::Busy { .. } => "overloaded".to_owned(),
            Self::HeaderMismatch { .. } | Self::NoRoom { .. } => self.to_string(),
        }
    }

    /// Whether another attempt is safe.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Connect { .. } | Self::Closed { written: false, .. } | Self::Busy { .. } => {
                Retry::Always
            }
            // A refusal of something in between, or of the upstream itself: whether it ran is not known.
            Self::Status { status: 429 | 502..=504, .. } | Self::Protocol { .. } => {
                Retry::IfIdempotent
            }
            Self::Status { .. } | Self::HeaderMismatch { .. } | Self::NoRoom { .. } => Retry::Never,
            Self::Closed { written: true, .. } | Self::Timeout { .. } => Retry::IfIdempotent,
        }
    }

    /// What the client is told.
    pub fn to_fault(&self) -> Fault {
        match self {
            Self::Connect { upstream, .. } => Fault::new(
                Reason::UpstreamUnavailable,
                format!("upstream {upstream} is unavailable"),
            )
            .at(upstream.as_str()),
            Self::Closed { upstream, written: false, .. } => Fault::new(
                Reason::UpstreamUnavailable,
                format!("upstream {upstream} is unavailable"),
            )
            .at(upstream.as_str()),
            Self::Closed { upstream, .. } => Fault::new(
                Reason::UpstreamClosed,
                format!("upstream {upstream} closed before it answered; the call may have run"),
            )
            .at(upstream.as_str()),
            Self::Timeout { upstream, after } => Fault::new(
                Reason::UpstreamTimeout,
                format!(
                    "upstream {upstream} did not answer within {after:?}; the call was cancelled"
                ),
            )
            .at(upstream.as_str()),
            Self::Protocol { upstream, what, upstream_error } => {
                let fault = Fault::new(
                    Reason::UpstreamProtocol,
                    format!("upstream {upstream} sent an invalid answer: {what}"),
                )
                .at(upstream.as_str());
                match upstream_error {
                    Some(text) => fault
                        .with("upstreamError", serde_json::Value::from(text.as_str()).to_string()),
                    None => fault,
                }
            }
            Self::Status { upstream, status, retry_after } => {
                let reason = match status {
                    429 | 503 => Reason::Overloaded,
                    _ => Reason::UpstreamUnavailable,
                };
                let mut fault = Fault::new(
                    reason,
                    format!("upstream {upstream} answered with HTTP status {status}"),
                )
                .at(upstream.as_str())
                .with("upstreamStatus", status.to_string());
                // Too large: so it is the next time.
                if matches!(status, 413 | 414 | 431) {
                    fault = fault.with("retryable", "false");
                }
                fault.retry_after = *retry_after;
                fault
            }
            Self::HeaderMismatch { upstream } => Fault::new(
                Reason::UpstreamProtocol,
                format!("upstream {upstream} refused the headers of the request"),
            )
            .at(upstream.as_str()),
            Self::NoRoom { upstream } => Fault::new(
                Reason::Overloaded,
                format!(
                    "the gateway is overloaded: it has no room for the answer of upstream \
                     {upstream}; the call has run"
                ),
            )
            .at(upstream.as_str())
            .with("retryable", "false"),
            Self::Busy { upstream } => {
                Fault::new(Reason::Overloaded, format!("upstream {upstream} is overloaded"))
                    .at(upstream.as_str())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_large_for_an_upstream_is_not_worth_another_try() {
        for (status, retryable) in
            [(431, false), (414, false), (413, false), (500, true), (503, true)]
        {
            let upstream = UpstreamName::new("up").expect("a name");
            let error = CallError::Status { upstream, status, retry_after: None };
            let data = error.to_fault().to_error().data.expect("our errors have data");
            let data: serde_json::Value = serde_json::from_slice(&data).expect("JSON");
            assert_eq!(data["retryable"], retryable, "{status}");
        }
    }
}
