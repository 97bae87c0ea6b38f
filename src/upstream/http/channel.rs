//! How one upstream is spoken to over one link: the headers of its session, if there are sessions, and what is sent beside
//! calls.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::endpoint::{Endpoint, Outgoing, Via};
use super::judge::{Invalid, Judged};
use super::reply::Reply;
use super::timer::Timer;
use crate::jsonrpc::{Chunks, Id, Message, result_response};
use crate::mcp::{Era, ProtocolVersion, SESSION_HEADER, VERSION_HEADER};
use crate::upstream::CallError;
use crate::upstream::link::LinkContext;

/// Bounds what is sent in the background: replies to questions, cancellations.
const BACKGROUND: Duration = Duration::from_secs(3);
/// How long after its call began a cancellation is sent: on another connection it could overtake the call, and would be
/// about one that the upstream does not know.
const BEHIND_ITS_CALL: Duration = Duration::from_millis(30);
/// Longest session id that is accepted.
const MAX_SESSION_ID: usize = 1024;

/// `mcp-session-id`
pub(super) const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);
/// `last-event-id`
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The headers of one link, made once, and the connections they go over.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) context: LinkContext,
    pub(super) endpoint: Arc<Endpoint>,
    /// Whether there are sessions.
    pub(super) era: Era,
    /// Headers of every POST.
    pub(super) post: HeaderMap,
    /// Headers of every GET and DELETE.
    pub(super) get: HeaderMap,
    /// The revision that was agreed on; before that, our newest one.
    pub(super) version: ProtocolVersion,
    /// Whether the upstream issued a session id.
    pub(super) has_session: bool,
    ids: AtomicU64,
    /// What is being POSTed where nobody waits for the outcome.
    background: TaskTracker,
}

impl Channel {
    /// Before `initialize`, or with what was learnt by it.
    pub(super) fn new(
        context: LinkContext,
        endpoint: Arc<Endpoint>,
        session: Option<HeaderValue>,
        version: Option<ProtocolVersion>,
    ) -> Arc<Self> {
        let era = version.map_or(Era::Legacy, ProtocolVersion::era);
        let mut post = endpoint.headers.clone();
        let has_session = session.is_some();
        if let Some(session) = session {
            post.insert(SESSION, session);
        }
        // Known since 2025-06-18; older servers have no use for it.
        if let Some(version) = version.filter(|v| *v >= ProtocolVersion::V2025_06_18) {
            let name = HeaderName::from_static(VERSION_HEADER);
            post.insert(name, HeaderValue::from_static(version.as_str()));
        }
        let mut get = post.clone();
        get.remove(CONTENT_TYPE);
        get.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let version = version.unwrap_or(ProtocolVersion::NEWEST_LEGACY);
        let ids = AtomicU64::new(1);
        let background = TaskTracker::new();
        Arc::new(Self { context, endpoint, era, post, get, version, has_session, ids, background })
    }

    /// The session id of an `initialize` answer (visible ASCII, MCP 2025-11-25, transports).
    pub(super) fn session_of(&self, reply: &Reply<'_>) -> Result<Option<HeaderValue>, CallError> {
        let Some(value) = reply.header(&SESSION) else { return Ok(None) };
        let legal = (1..=MAX_SESSION_ID).contains(&value.len())
            && value.as_bytes().iter().all(|byte| (0x21..=0x7e).contains(byte));
        if !legal {
            return Err(self.endpoint.protocol("its session id is not visible ASCII"));
        }
        let mut value = value.clone();
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// An id that no other request of this session has.
    pub(super) fn mint(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// POSTs a request and waits for the head of the answer.
    pub(super) async fn post(
        &self,
        body: &(dyn Fn() -> Chunks + Sync),
        timer: &mut Timer<'_>,
        written: &mut bool,
    ) -> Result<Reply<'_>, CallError> {
        self.post_with(&[], body, timer, written).await
    }

    /// POSTs with headers of this request alone.
    pub(super) async fn post_with(
        &self,
        extra: &[(HeaderName, HeaderValue)],
        body: &(dyn Fn() -> Chunks + Sync),
        timer: &mut Timer<'_>,
        written: &mut bool,
    ) -> Result<Reply<'_>, CallError> {
        let out = Outgoing { method: Method::POST, headers: &self.post, extra, body };
        self.endpoint.send(&out, Via::Pool, timer, written).await
    }

    /// POSTs what has no answer. Any 2xx is fine.
    pub(super) async fn deliver(
        &self,
        text: &Chunks,
        extra: &[(HeaderName, HeaderValue)],
        limit: Duration,
    ) -> Result<(), CallError> {
        let sleep = pin!(Timer::sleep(limit, limit));
        let mut timer = Timer::new(sleep, limit, limit);
        let reply = self.post_with(extra, &|| text.clone(), &mut timer, &mut false).await?;
        if !reply.status().is_success() {
            let refusal = reply.refusal();
            reply.finish(&mut timer).await;
            return Err(refusal);
        }
        reply.finish(&mut timer).await;
        Ok(())
    }

    /// POSTs in the background, where nobody waits for the outcome.
    pub(super) fn deliver_later(self: &Arc<Self>, text: Chunks) {
        self.deliver_after(Duration::ZERO, text);
    }

    fn deliver_after(self: &Arc<Self>, pause: Duration, text: Chunks) {
        let channel = Arc::clone(self);
        let Ok(runtime) = Handle::try_current() else { return };
        let deliver = async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            if let Err(error) = channel.deliver(&text, &[], BACKGROUND).await {
                tracing::debug!(upstream = %channel.context.name, %error, "a message was not taken");
            }
        };
        self.context.tasks.spawn_on(self.background.track_future(deliver), &runtime);
    }

    /// Returns once all that is POSTed in the background has gone: in a session that has ended nothing can be cancelled.
    pub(super) async fn delivered(&self) {
        self.background.close();
        let _ = tokio::time::timeout(BACKGROUND, self.background.wait()).await;
    }

    /// Answers a `ping` of the upstream.
    pub(super) fn pong(self: &Arc<Self>, id: &Id) {
        self.deliver_later(result_response(id, b"{}").into());
    }

    /// Tells the upstream that the answer to request `id` is no longer wanted, which began at `begun`.
    pub(super) fn cancel(self: &Arc<Self>, id: u64, begun: Instant) {
        let params = format!(r#"{{"requestId":{id},"reason":"the call was cancelled"}}"#);
        let message = Message::notification("notifications/cancelled", Some(params.as_bytes()));
        let pause = BEHIND_ITS_CALL.saturating_sub(begun.elapsed());
        self.deliver_after(pause, message.text().clone().into());
    }

    /// The verdict on a text as the outcome of request `id`.
    pub(super) fn settle(&self, judged: Result<Judged, Invalid>) -> Result<Message, CallError> {
        settle(&self.endpoint, judged)
    }
}

/// The verdict on a text as the outcome of a request.
pub(super) fn settle(
    endpoint: &Endpoint,
    judged: Result<Judged, Invalid>,
) -> Result<Message, CallError> {
    match judged {
        Ok(Judged::Answer(message)) => Ok(message),
        Ok(Judged::Mended(message)) => {
            endpoint.metrics.stray.inc();
            Ok(message)
        }
        Ok(Judged::Foreign) => {
            endpoint.metrics.stray.inc();
            Err(endpoint.protocol("its answer has another id"))
        }
        Err(Invalid { what, upstream_error }) => {
            Err(CallError::Protocol { upstream: endpoint.name.clone(), what, upstream_error })
        }
    }
}
