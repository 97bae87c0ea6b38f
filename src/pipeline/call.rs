//! One request to one upstream, from its slot to its answer.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tokio::time::{Sleep, sleep};

use super::collect::{Collect, next, withdraw};
use super::ledger::{Caller, Ledger};
use super::snapshot::{Backend, Snapshot};
use super::{McpRoute, Outlet, Pipeline, hub, modern, rounds};
use crate::config::Isolation;
use crate::exchange::{Event, bridge, outcome_of};
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Edit, Id, Member, Message, NullId};
use crate::mcp::{ClientCaps, Era, ParamHeader, ProtocolVersion};
use crate::policy::{NoSlot, Slot};
use crate::session::{OpenCall, Session};
use crate::telemetry::ToolMetrics;
use crate::upstream::{
    Answered, CallError, CallerId, Client, EventQueue, LinkKey, LinkScope, OutCall, events,
};

/// When an answer is slow.
const SLOW: Duration = Duration::from_millis(100);
/// How many events of one call may wait for the exchange.
const EVENTS: usize = 32;

/// What every request of one session on one route knows.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) route: Arc<McpRoute>,
    pub(super) session: Arc<Session>,
    pub(super) caller: Caller,
    /// Whether the session outlives this exchange, so that its client can answer questions and cancel.
    pub(super) standing: bool,
    /// `Mcp-Param-*` of a modern request; `None` where messages have no headers.
    pub(super) repeated: Option<Vec<(HeaderName, HeaderValue)>>,
}

impl Context {
    /// Which link of an upstream this session uses.
    pub(super) fn link(&self, backend: &Backend) -> LinkKey {
        let session = &self.session;
        let modern = session.era() == Era::Modern;
        let scope = match (backend.config().isolation(), session.principal()) {
            (Isolation::Shared, _) => LinkScope::Shared,
            (Isolation::Principal, Some(principal)) => LinkScope::Principal(Arc::clone(principal)),
            (Isolation::Session, Some(principal)) if modern => {
                LinkScope::Principal(Arc::clone(principal))
            }
            // Without sessions there is nothing that tells one conversation from the next.
            (Isolation::Principal | Isolation::Session, None) if modern => LinkScope::Anonymous,
            (Isolation::Principal | Isolation::Session, _) => LinkScope::Session(session.number()),
        };
        LinkKey { scope, caps: session.caps(), era: session.era() }
    }

    /// Who makes its calls.
    fn caller_id(&self) -> CallerId {
        let number = self.session.number();
        if self.session.era() == Era::Legacy {
            return CallerId::of(number);
        }
        // Clients without a name are one principal.
        let mut hasher = DefaultHasher::new();
        self.session.principal().hash(&mut hasher);
        CallerId::of_principal(number, hasher.finish())
    }

    /// What modern upstreams are told of this client.
    fn client(&self) -> Client {
        let session = &self.session;
        Client { caps: session.caps(), info: session.info().cloned(), log_rank: session.log_rank() }
    }

    /// Whether a slow answer is better announced by a stream: the client can resume ours, and the upstream has none that
    /// could be resumed.
    fn resumes_instead(&self, backend: &Backend, key: &LinkKey) -> bool {
        self.standing
            && self.session.version() >= ProtocolVersion::V2025_11_25
            && backend.upstream.link_of(key).era == Era::Modern
    }

    /// Lowest rank of log messages that the client gets; `None`: the upstream decides.
    pub(super) fn log_floor(&self) -> Option<u8> {
        match (self.session.era(), self.session.log_rank()) {
            // Without a word of the request there are none.
            (Era::Modern, None) => Some(u8::MAX),
            (_, rank) => rank,
        }
    }

    /// Whose cursors a client's cursors are.
    pub(super) fn holder(&self) -> Cow<'_, str> {
        match (self.session.era(), self.session.principal()) {
            (Era::Legacy, _) => Cow::Borrowed(self.session.id().as_str()),
            (Era::Modern, None) => Cow::Borrowed("anonymous"),
            (Era::Modern, Some(principal)) => Cow::Owned(format!("principal {principal}")),
        }
    }

    /// How errors without an id spell it for this client.
    pub(super) fn null_id(&self) -> NullId {
        null_id(self.session.version())
    }
}

/// How errors without an id spell it in that revision (MCP digest §2.3).
pub(super) fn null_id(version: ProtocolVersion) -> NullId {
    if version >= ProtocolVersion::V2025_11_25 { NullId::Omit } else { NullId::Null }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing is kept for a request without a session.
        if self.session.era() == Era::Modern {
            return;
        }
        if !self.standing {
            self.pipeline.sessions.end(&self.session);
        }
        // A session may end while its requests still fetch lists and open links for it.
        if self.session.has_ended() {
            self.pipeline.forget_session(&self.route, self.session.number());
        }
    }
}

/// Where a request goes and how it is changed on the way.
#[derive(Clone, Debug)]
pub(super) struct Target<'a> {
    pub(super) backend: &'a Arc<Backend>,
    pub(super) edits: SmallVec<[Edit; 2]>,
    pub(super) timeout: Duration,
    pub(super) tool: Option<Arc<ToolMetrics>>,
    /// Arguments that are repeated as headers.
    pub(super) params: Option<Arc<[ParamHeader]>>,
    /// Whether legacy clients were shown another `outputSchema` of the tool; `None` when it is in no list.
    pub(super) wrapped: Option<bool>,
}

impl<'a> Target<'a> {
    /// Unchanged, with the upstream's own timeout.
    pub(super) fn plain(backend: &'a Arc<Backend>) -> Self {
        Self {
            backend,
            edits: SmallVec::new(),
            timeout: backend.config().timeout,
            tool: None,
            params: None,
            wrapped: None,
        }
    }
}

/// How a call ended without an answer of the upstream.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client cancelled: nothing is owed.
    Cancelled,
    /// The gateway answers.
    Fault(Fault),
    /// The upstream wants other headers than what is known of its tools gives. It did not run the call.
    HeaderMismatch(Fault),
}

impl From<&CallError> for Ended {
    fn from(error: &CallError) -> Self {
        tracing::debug!(%error, source = ?std::error::Error::source(error), "call failed");
        match error {
            CallError::HeaderMismatch { .. } => Self::HeaderMismatch(error.to_fault()),
            error => Self::Fault(error.to_fault()),
        }
    }
}

/// A refusal of the concurrency slots.
pub(super) fn no_slot(reason: NoSlot, upstream: &str) -> Fault {
    let text = match reason {
        NoSlot::QueueFull => format!("upstream {upstream} is overloaded: its queue is full"),
        NoSlot::TimedOut => {
            format!("upstream {upstream} is overloaded: no slot became free in time")
        }
    };
    let mut fault = Fault::new(Reason::Overloaded, text).at(upstream);
    fault.retry_after = Some(Duration::from_secs(1));
    fault
}

/// What a call is told that still waits for its turn when the gateway must end.
pub(super) fn not_sent(backend: &Backend) -> Fault {
    Fault::new(Reason::Overloaded, "the gateway is shutting down")
        .at(backend.upstream.name().as_str())
}

/// What a call is told that still runs when the gateway must end.
pub(super) fn cut_off(upstream: Option<&str>) -> Fault {
    let text = "the gateway is shutting down; the call may have run";
    let fault = Fault::new(Reason::UpstreamClosed, text);
    match upstream {
        Some(upstream) => fault.at(upstream),
        None => fault,
    }
}

/// Sends a client's request and sees it through. The answer still has the upstream's id.
pub(super) async fn call<'a>(
    cx: &Context,
    message: &Message,
    target: Target<'a>,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Result<Answered, Ended> {
    let backend = target.backend;
    let tool = target.tool.clone();
    let method = ledger.method();
    ledger.goes_to(backend.upstream.name());
    let started = Instant::now();
    let result = rounds_of(cx, message, &target, outlet).await;
    let took = started.elapsed();
    ledger.waited(took);
    let outcome = match &result {
        Ok(answer) => {
            ledger.answered(&answer.message);
            outcome_of(&answer.message)
        }
        Err(Ended::Cancelled) => Outcome::Cancelled,
        Err(Ended::Fault(fault) | Ended::HeaderMismatch(fault)) => fault.reason.outcome(),
    };
    backend.metrics.call_ended(method, outcome, took);
    if let Some(tool) = tool {
        tool.call_ended(outcome, took);
    }
    result
}

/// Makes a call and everything that its upstream wants to know before it answers (MCP digest §13).
async fn rounds_of(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    outlet: &Outlet,
) -> Result<Answered, Ended> {
    if cx.session.era() == Era::Modern {
        let asked = cx.session.caps() != ClientCaps::NONE
            || message.member_span(Member::RequestState).is_some();
        if asked {
            return Box::pin(modern::call(cx, message, target, outlet)).await;
        }
    }
    let modern = cx.session.era() == Era::Modern && cx.session.log_rank().is_some();
    let _wanting = if modern { Box::pin(hub::lower_level(cx, target.backend)).await } else { None };
    let answered = run(cx, message, target, outlet).await?;
    if answered.version.era() == Era::Legacy {
        return Ok(answered);
    }
    match (cx.session.era(), bridge::input_required(&answered.message)) {
        (_, None) => Ok(answered),
        (Era::Legacy, Some(wanted)) => {
            Box::pin(rounds::go_on(cx, message, target, outlet, wanted)).await
        }
        (Era::Modern, Some(_)) => modern::relayed(cx, message, target, answered, 0),
    }
}

/// The call to send, and where what precedes its answer comes in.
pub(super) fn outgoing(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
) -> (OutCall, EventQueue) {
    let (events, incoming) = events(EVENTS);
    let out = OutCall {
        message: message.clone(),
        edits: target.edits.clone(),
        caller: cx.caller_id(),
        client: cx.client(),
        params: target.params.clone(),
        timeout: target.timeout,
        max_timeout: target.backend.config().max_timeout.max(target.timeout),
        events,
    };
    (out, incoming)
}

/// Makes one call and sees it through, while its client is there.
pub(super) async fn run(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    outlet: &Outlet,
) -> Result<Answered, Ended> {
    let backend = target.backend;
    let mut open = cx.session.open_call(message.id().unwrap_or_else(|| Id::from_number(0)));
    let _slot = slot(cx, backend, target.timeout, &mut open).await?;
    let (out, mut incoming) = outgoing(cx, message, target);
    let key = cx.link(backend);
    let mut collect = Collect::new(cx, outlet);
    let mut version = cx.session.version();
    let mut slow = cx.resumes_instead(backend, &key).then(|| Box::pin(sleep(SLOW)));
    let mut call = std::pin::pin!(backend.upstream.call(&key, out));
    loop {
        // Every branch is cancel-safe: the call itself is polled by reference.
        let ended = tokio::select! {
            biased;
            () = open.cancelled() => collect.end(Event::Cancelled),
            () = cx.pipeline.cut_off() => {
                collect.end(Event::Failed(cut_off(Some(backend.upstream.name().as_str()))))
            }
            Some(event) = incoming.recv() => {
                Box::pin(collect.take(event)).await;
                continue;
            }
            Some((ask, id, end)) = next(&mut collect.asked), if collect.asked.is_some() => {
                Box::pin(collect.asked_ended(ask, id, end)).await;
                continue;
            }
            () = due(&mut slow) => {
                slow = None;
                outlet.begin_stream();
                continue;
            }
            answer = &mut call => {
                // What came before the answer goes out before it.
                while let Ok(event) = incoming.try_recv() {
                    Box::pin(collect.take(event)).await;
                }
                match answer {
                    Ok(answer) => {
                        version = answer.version;
                        collect.end(Event::Answered(answer.message))
                    }
                    Err(error) => collect.failed(&error),
                }
            }
        };
        if matches!(ended, Err(Ended::Fault(_))) {
            for id in std::mem::take(&mut collect.open) {
                Box::pin(withdraw(outlet, &id)).await;
            }
        }
        return ended.map(|message| Answered { message, version });
    }
}

/// Returns when a timer that is set has run out.
pub(super) async fn due(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

/// A concurrency slot of an upstream.
pub(super) async fn slot(
    cx: &Context,
    backend: &Backend,
    patience: Duration,
    open: &mut OpenCall,
) -> Result<Slot, Ended> {
    match backend.slots.try_take() {
        Some(slot) => {
            backend.metrics.queue_wait.observe(0.0);
            Ok(slot)
        }
        None => Box::pin(queued(cx, backend, patience, open)).await,
    }
}

/// Waits for a concurrency slot.
async fn queued(
    cx: &Context,
    backend: &Backend,
    patience: Duration,
    open: &mut OpenCall,
) -> Result<Slot, Ended> {
    let began = Instant::now();
    let slot = tokio::select! {
        slot = backend.slots.take(patience) => slot,
        () = open.cancelled() => return Err(Ended::Cancelled),
        () = cx.pipeline.cut_off() => return Err(Ended::Fault(not_sent(backend))),
    };
    let slot =
        slot.map_err(|refusal| Ended::Fault(no_slot(refusal, backend.upstream.name().as_str())))?;
    backend.metrics.queue_wait.observe(began.elapsed().as_secs_f64());
    Ok(slot)
}
