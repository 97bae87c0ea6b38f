//! One MCP session of an upstream over Streamable HTTP (MCP 2025-11-25, transports).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};

use super::channel::Channel;
use super::discover::tells_of_the_era;
use super::endpoint::{Endpoint, Outgoing, Via};
use super::judge::{Dialect, judge_text};
use super::listen::Listener;
use super::questions::Questions;
use super::reply::{Media, Reply};
use super::stream::Answers;
use super::timer::Timer;
use crate::jsonrpc::{Answer, Chunks, Member, Message};
use crate::mcp::ProtocolVersion;
use crate::upstream::CallError;
use crate::upstream::call::{CallerId, OutCall};
use crate::upstream::link::{Hello, LinkContext};

/// How long the end of a session may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// Why a call failed, and whether the link is gone with it.
#[derive(Debug)]
pub(in crate::upstream) enum Failed {
    /// The upstream does not know the session any more: it did not run the call.
    SessionLost(CallError),
    /// The upstream does not speak like that any more: it did not run the call.
    EraLost(CallError),
    /// Anything else.
    Call(CallError),
}

impl Failed {
    /// The error alone.
    pub(in crate::upstream) fn into_error(self) -> CallError {
        match self {
            Self::SessionLost(error) | Self::EraLost(error) | Self::Call(error) => error,
        }
    }
}

/// Why a link was not opened.
#[derive(Debug)]
pub(in crate::upstream) enum Unopened {
    /// The upstream answered as one does that does not speak like that.
    Refused(CallError),
    /// Anything else, which says nothing of the eras that it speaks.
    Failed(CallError),
}

impl Unopened {
    /// The error alone.
    pub(in crate::upstream) fn into_error(self) -> CallError {
        match self {
            Self::Refused(error) | Self::Failed(error) => error,
        }
    }
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// An initialized session.
#[derive(Debug)]
pub(in crate::upstream) struct HttpLink {
    channel: Arc<Channel>,
    hello: Arc<Hello>,
    open: AtomicBool,
    listener: Arc<Listener>,
    /// What may be asked on its stream; nothing may where no client of it can answer.
    questions: Option<Arc<Questions>>,
}

impl HttpLink {
    /// `initialize`, `notifications/initialized`, and a stream for what belongs to no call.
    pub(in crate::upstream) async fn open(
        context: LinkContext,
        endpoint: Arc<Endpoint>,
    ) -> Result<Arc<Self>, Unopened> {
        endpoint.forget_redirects();
        let (channel, status, answer) = introduce(context, endpoint).await?;
        let context = &channel.context;
        let hello = match context.read_hello(&answer) {
            Ok(hello) => hello,
            Err(error) => {
                end_session(&channel).await;
                let refused = answer.answer() == Answer::Error
                    && (status.is_success() || tells_of_the_era(status));
                return Err(if refused {
                    Unopened::Refused(error)
                } else {
                    Unopened::Failed(error)
                });
            }
        };
        let session = channel.post.get(super::channel::SESSION).cloned();
        let endpoint = Arc::clone(&channel.endpoint);
        let channel = Channel::new(context.clone(), endpoint, session, Some(hello.version));
        let text = Message::notification("notifications/initialized", None);
        let limit = channel.context.config.timeout;
        match channel.deliver(&text.text().clone().into(), &[], limit).await {
            // Some servers do not take it and serve well.
            Ok(()) | Err(CallError::Status { .. }) => {}
            Err(error) => return Err(Unopened::Failed(error)),
        }
        let questions = channel.context.caps.can_be_asked().then(Questions::new);
        let listener = Listener::new(questions.clone());
        Arc::clone(&listener).listen(&channel);
        let (hello, open) = (Arc::new(hello), AtomicBool::new(true));
        Ok(Arc::new(Self { channel, hello, open, listener, questions }))
    }

    /// One request. Dropping the future, or a timeout, cancels it upstream.
    pub(in crate::upstream) async fn call(&self, call: &OutCall) -> Result<Message, Failed> {
        self.listener.revive(&self.channel);
        let mut slot = match &self.questions {
            Some(questions) if call.caller != CallerId::GATEWAY => {
                questions.ready(call.timeout / 4).await;
                questions.call(call)
            }
            Some(_) | None => None,
        };
        let (channel, id, begun) = (&self.channel, self.channel.mint(), Instant::now());
        let mut guard = CancelGuard { channel, id, begun, armed: false };
        let sleep = pin!(Timer::sleep(call.timeout, call.max_timeout));
        let mut timer = Timer::new(sleep, call.timeout, call.max_timeout);
        if let Some(slot) = &slot {
            timer.heed(Arc::clone(&slot.pulse));
        }
        let result = exchange(&self.channel, call, id, &mut timer, &mut guard.armed).await;
        if let Some(slot) = &mut slot
            && !matches!(result, Err(Failed::Call(CallError::Timeout { .. })))
        {
            slot.ended();
        }
        if !matches!(result, Err(Failed::Call(CallError::Timeout { .. }))) {
            guard.armed = false;
        }
        result
    }

    /// One notification.
    pub(in crate::upstream) async fn notify(&self, message: &Message) -> Result<(), CallError> {
        let text = message.text().clone().into();
        self.channel.deliver(&text, &[], self.channel.context.config.timeout).await
    }

    /// What the upstream said at `initialize`.
    pub(in crate::upstream) fn hello(&self) -> Arc<Hello> {
        Arc::clone(&self.hello)
    }

    /// Whether the upstream keeps a session.
    pub(in crate::upstream) fn has_session(&self) -> bool {
        self.channel.has_session
    }

    /// Whether it can be used.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The upstream does not know the session: nothing is left to end there. Calls that still wait for an answer
    /// go on.
    pub(in crate::upstream) fn abandon(&self) {
        self.open.store(false, Ordering::Release);
        self.channel.context.stop.cancel();
    }

    /// Ends the session.
    pub(in crate::upstream) async fn close(&self) {
        if self.is_open() {
            self.abandon();
            self.channel.delivered().await;
            end_session(&self.channel).await;
        }
    }
}

/// Cancels its request upstream when it is dropped armed.
struct CancelGuard<'a> {
    channel: &'a Arc<Channel>,
    id: u64,
    begun: Instant,
    /// Whether the upstream may be working on it.
    armed: bool,
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.channel.cancel(self.id, self.begun);
        }
    }
}

/// Sends `initialize`. What comes back is the channel with the session id, and the answer with its HTTP status.
async fn introduce(
    context: LinkContext,
    endpoint: Arc<Endpoint>,
) -> Result<(Arc<Channel>, StatusCode, Message), Unopened> {
    let limit = context.config.timeout;
    let call = context.own_call(context.initialize(), limit);
    let sleep = pin!(Timer::sleep(limit, limit));
    let mut timer = Timer::new(sleep, limit, limit);
    let unknown = Channel::new(context.clone(), Arc::clone(&endpoint), None, None);
    let id = unknown.mint();
    let reply = unknown
        .post(&|| call.text(id, ProtocolVersion::NEWEST_LEGACY), &mut timer, &mut false)
        .await
        .map_err(Unopened::Failed)?;
    let status = reply.status();
    let session = unknown.session_of(&reply).map_err(Unopened::Failed)?;
    let channel = Channel::new(context, endpoint, session, None);
    match settle(&channel, &call, id, reply, &mut timer).await.map_err(Failed::into_error) {
        Ok(answer) => Ok((channel, status, answer)),
        Err(error @ CallError::Status { status: 400 | 404 | 405, retry_after: None, .. }) => {
            Err(Unopened::Refused(error))
        }
        Err(error) => Err(Unopened::Failed(error)),
    }
}

/// Sends one request and waits for its answer.
async fn exchange(
    channel: &Arc<Channel>,
    call: &OutCall,
    id: u64,
    timer: &mut Timer<'_>,
    written: &mut bool,
) -> Result<Message, Failed> {
    let reply = channel.post(&|| call.text(id, channel.version), timer, written).await?;
    settle(channel, call, id, reply, timer).await
}

/// Reads the answer, whatever status and form it has.
async fn settle<'a>(
    channel: &'a Arc<Channel>,
    call: &'a OutCall,
    id: u64,
    reply: Reply<'a>,
    timer: &mut Timer<'_>,
) -> Result<Message, Failed> {
    if !reply.status().is_success() {
        // Boxed: the future of a call stays small where it is answered in one piece.
        return Box::pin(refused(channel, id, reply, timer)).await;
    }
    taken(channel, call, id, reply, timer).await
}

/// Reads the answer that a 2xx status brings, whatever form it has.
pub(super) async fn taken<'a>(
    channel: &'a Arc<Channel>,
    call: &'a OutCall,
    id: u64,
    reply: Reply<'a>,
    timer: &mut Timer<'_>,
) -> Result<Message, Failed> {
    let status = reply.status();
    reply.check_encoding()?;
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        reply.finish(timer).await;
        let what = format!("it answered a request with HTTP status {}", status.as_u16());
        return Err(channel.endpoint.protocol(what).into());
    }
    match reply.media() {
        Media::Json | Media::Unnamed => {
            let text = reply.read(timer).await?;
            Ok(channel.settle(judge_text(text, id, Dialect::Mcp))?)
        }
        Media::EventStream => {
            let answers = Answers::new(channel, call, id);
            Ok(Box::pin(answers.read(reply, timer)).await?)
        }
        Media::Other(name) => Err(channel
            .endpoint
            .protocol(format!("it answered with the content type {name}"))
            .into()),
    }
}

/// Any status but 2xx. An error that answers this request is its answer (JSONRPC row 29), unless it is about this
/// hop: authentication, the session, what we accept and send (MCP digest §6.4).
async fn refused(
    channel: &Arc<Channel>,
    id: u64,
    reply: Reply<'_>,
    timer: &mut Timer<'_>,
) -> Result<Message, Failed> {
    let (status, error) = (reply.status(), reply.refusal());
    let waits = matches!(error, CallError::Status { retry_after: Some(_), .. });
    let text = reply.read_refusal(timer).await;
    let answer = text.and_then(|text| channel.settle(judge_text(text, id, Dialect::Mcp)).ok());
    let answer = answer.filter(|answer| answer.answer() == Answer::Error);
    match (failed(channel, status, answer.as_ref(), error), answer) {
        (Failed::Call(_), Some(answer)) if !waits && !is_of_this_hop(status) => Ok(answer),
        (failed, _) => Err(failed),
    }
}

/// Whether the session is gone: 404 to a request that named one, or 400 with an error about it (C003).
fn failed(
    channel: &Channel,
    status: StatusCode,
    answer: Option<&Message>,
    error: CallError,
) -> Failed {
    let lost = match status {
        StatusCode::NOT_FOUND => channel.has_session,
        StatusCode::BAD_REQUEST => answer.is_some_and(is_about_the_session),
        _ => false,
    };
    if lost { Failed::SessionLost(error) } else { Failed::Call(error) }
}

/// Whether a status is about the request as HTTP has it, not about what was asked.
pub(super) fn is_of_this_hop(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 406 | 407 | 415 | 421 | 431)
}

/// The code of an error.
pub(super) fn error_code(answer: &Message) -> Option<i64> {
    let code = answer.member(Member::ErrorCode)?;
    std::str::from_utf8(&code).ok()?.parse().ok()
}

/// How servers word that they do not know a session.
pub(super) fn is_about_the_session(answer: &Message) -> bool {
    const GONE: [&str; 11] = [
        "missing",
        "not found",
        "invalid",
        "no valid",
        "unknown",
        "expired",
        "required",
        "not exist",
        "terminated",
        "closed",
        "no session",
    ];
    let error = answer.error().unwrap_or_default();
    let error = serde_json::from_slice::<serde_json::Value>(&error).unwrap_or_default();
    let text = error["message"].as_str().unwrap_or_default().to_ascii_lowercase();
    (text.contains("session") && GONE.iter().any(|gone| text.contains(gone)))
        || text.contains("server not initialized")
}

/// DELETE with the session id. Servers may refuse it.
async fn end_session(channel: &Channel) {
    if !channel.has_session {
        return;
    }
    let sleep = pin!(Timer::sleep(GOODBYE, GOODBYE));
    let mut timer = Timer::new(sleep, GOODBYE, GOODBYE);
    let out = Outgoing {
        method: Method::DELETE,
        headers: &channel.get,
        extra: &[],
        body: &Chunks::default,
    };
    match channel.endpoint.send(&out, Via::Pool, &mut timer, &mut false).await {
        Ok(reply) => reply.finish(&mut timer).await,
        Err(error) => tracing::debug!(%error, "a session was not ended"),
    }
}
