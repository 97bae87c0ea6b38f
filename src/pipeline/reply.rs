//! What a transport is to send back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::Outlet;
use crate::fault::Fault;
use crate::jsonrpc::{Chunks, Id, NullId, error_response};
use crate::mcp::Era;
use crate::session::{Listening, Recorder, Session, SessionId, Stream};
use crate::telemetry::RouteMetrics;

/// What becomes of an exchange when its client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHangup {
    /// It goes on (legacy MCP over HTTP: a disconnect is no cancellation).
    Continue,
    /// It is cancelled.
    Cancel,
}

/// The end of an exchange.
#[derive(Debug)]
pub struct Done {
    /// HTTP status of a single answer; of no meaning once a stream has begun.
    pub status: StatusCode,
    /// The terminal message; `None` when nothing is owed (cancelled, all notifications).
    pub body: Option<Chunks>,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Done {
    /// 200 with a message.
    pub(super) fn ok(body: impl Into<Chunks>) -> Self {
        Self { status: StatusCode::OK, body: Some(body.into()), retry_after: None }
    }

    /// The gateway's own error as the answer to `id`.
    pub(super) fn fault(id: Option<&Id>, fault: &Fault, era: Option<Era>, null_id: NullId) -> Self {
        Self {
            status: fault.reason.status(era),
            body: Some(error_response(id, &fault.to_error(), null_id).into()),
            retry_after: fault.retry_after,
        }
    }
}

/// An exchange that runs while it is polled.
pub struct Run {
    /// Its end.
    pub future: Pin<Box<dyn Future<Output = Done> + Send>>,
    /// What it sends before.
    pub outlet: Arc<Outlet>,
    /// What becomes of it when the client goes away.
    pub on_hangup: OnHangup,
    /// The session that keeps its stream for resumption.
    pub(super) session: Option<Arc<Session>>,
    /// Counts its stream, once it is one.
    pub metrics: Arc<RouteMetrics>,
}

impl Run {
    /// Begins to record its stream, when its client can resume it.
    pub fn record(&self) -> Option<Recorder> {
        self.session.as_ref()?.record()
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("on_hangup", &self.on_hangup).finish_non_exhaustive()
    }
}

/// What a transport is to send back.
#[derive(Debug)]
pub enum Reply {
    /// One message, known now.
    One {
        /// HTTP status.
        status: StatusCode,
        /// The message.
        body: Chunks,
        /// A session that begins with it.
        session: Option<SessionId>,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Nothing but a status.
    Empty {
        /// HTTP status.
        status: StatusCode,
        /// `Allow`, with 405.
        allow: Option<&'static str>,
    },
    /// An exchange: one message, or a stream when something precedes it.
    Run(Run),
    /// The stream of a client of HTTP+SSE.
    Channel {
        /// Its messages.
        stream: Listening,
        /// Where the client is to POST: a reference relative to where it asked.
        endpoint: String,
        /// Counts it.
        metrics: Arc<RouteMetrics>,
    },
    /// A standing stream.
    Stream {
        /// Its messages.
        stream: Stream,
        /// Counts it.
        metrics: Arc<RouteMetrics>,
    },
}

impl Reply {
    /// Nothing but a status.
    pub fn empty(status: StatusCode) -> Self {
        Self::Empty { status, allow: None }
    }

    /// 405.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self::Empty { status: StatusCode::METHOD_NOT_ALLOWED, allow: Some(allow) }
    }

    /// The end of an exchange that needed no waiting.
    pub(super) fn done(done: Done) -> Self {
        match done.body {
            Some(body) => Self::One {
                status: done.status,
                body,
                session: None,
                retry_after: done.retry_after,
            },
            None => Self::empty(done.status),
        }
    }

    /// The gateway's own error without an exchange.
    pub fn fault(id: Option<&Id>, fault: &Fault, era: Option<Era>, null_id: NullId) -> Self {
        Self::done(Done::fault(id, fault, era, null_id))
    }
}
