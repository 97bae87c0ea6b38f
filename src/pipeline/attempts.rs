//! One plain call over the upstreams of its pattern: which one is tried, and when the next one may be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{cut_off, no_slot, not_sent};
use super::ledger::Ledger;
use super::plain::PlainContext;
use super::snapshot::{Backend, MethodRule};
use super::subscriptions::Subscribing;
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::Message;
use crate::policy::{NoSlot, Places, Slot};
use crate::telemetry::{MethodLabel, RetryReason};
use crate::upstream::{CallError, LargeAnswer, PlainAnswer, Retry};

/// With less time than this nothing is tried any more.
const WORTHWHILE: Duration = Duration::from_millis(5);

/// What a call came to; nothing for a notification.
pub(super) type Answer = Option<Message>;

/// Why an attempt brought no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The upstream had no slot: nothing was sent.
    Slot(Fault),
    /// The call failed.
    Call(CallError),
    /// The gateway must end.
    CutOff(Fault),
}

impl Failed {
    /// No slot of that upstream became free.
    pub(super) fn slot(backend: &Backend, refusal: NoSlot) -> Self {
        Self::Slot(no_slot(refusal, backend.upstream.name().as_str()))
    }

    /// What cannot be.
    pub(super) fn internal() -> Self {
        Self::CutOff(Fault::new(Reason::Internal, "Internal error"))
    }

    /// Why the call may be made again on another upstream; `None`: it may not.
    fn reason(&self, idempotent: bool) -> Option<RetryReason> {
        let error = match self {
            Self::Slot(_) => return Some(RetryReason::Overloaded),
            Self::CutOff(_) => return None,
            Self::Call(error) => error,
        };
        let may = match error.retry() {
            Retry::Always => true,
            Retry::IfIdempotent => idempotent,
            Retry::Never => false,
        };
        may.then_some(match error {
            CallError::Connect { .. } | CallError::Closed { written: false, .. } => {
                RetryReason::Connect
            }
            CallError::Closed { .. } => RetryReason::Closed,
            CallError::Timeout { .. } => RetryReason::Timeout,
            CallError::Status { .. } => RetryReason::Status,
            CallError::Protocol { .. } | CallError::HeaderMismatch { .. } => RetryReason::Protocol,
            CallError::Busy { .. } | CallError::NoRoom { .. } => RetryReason::Overloaded,
        })
    }

    /// What the client is told.
    pub(super) fn into_fault(self) -> Fault {
        match self {
            Self::Slot(fault) | Self::CutOff(fault) => fault,
            Self::Call(error) => {
                tracing::debug!(%error, source = ?std::error::Error::source(&error), "call failed");
                error.to_fault()
            }
        }
    }
}

/// How far a call came.
#[derive(Debug)]
pub(super) enum Came<'a> {
    /// To its end.
    Answer(Answer),
    /// To an answer that is still coming.
    Large(Flow<'a>),
}

/// A large answer, and what is kept as long as it comes.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    pub(super) answer: Box<LargeAnswer>,
    backend: &'a Backend,
    started: Instant,
    _slot: Slot,
}

impl Flow<'_> {
    /// The upstream's name.
    pub(super) fn upstream(&self) -> &str {
        self.backend.upstream.name().as_str()
    }

    /// It has ended.
    pub(super) fn ended(&self, method: MethodLabel, outcome: Outcome) {
        self.backend.metrics.call_ended(method, outcome, self.started.elapsed());
    }
}

/// The upstreams of one call, as they are tried.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    rule: &'a MethodRule,
    places: Places,
    /// How many were given up.
    failed: usize,
    /// The only one was asked twice.
    repeated: bool,
    began: Instant,
}

/// The order in which the upstreams of a pattern are tried now.
pub(super) fn order(rule: &MethodRule) -> Places {
    let backends = &rule.backends;
    rule.turns.order(
        backends.len(),
        |place| backends[place].standing.is_up(),
        |place| backends[place].slots.load(),
    )
}

impl<'a> Attempts<'a> {
    /// In this order, which names every upstream of the rule once.
    pub(super) fn new(rule: &'a MethodRule, places: Places) -> Self {
        Self { rule, places, failed: 0, repeated: false, began: Instant::now() }
    }

    /// The upstream to try now.
    pub(super) fn backend(&self) -> &'a Arc<Backend> {
        &self.rule.backends[self.places[self.failed]]
    }

    /// How long this attempt may take. One that may be followed by another takes at most the upstream's own timeout.
    pub(super) fn limit(&self) -> Duration {
        let left = match (self.failed, self.repeated) {
            (0, false) => self.rule.time(),
            _ => self.left(),
        };
        let followed = self.rule.idempotent && self.failed + 1 < self.places.len();
        match self.rule.timeout {
            Some(_) if !followed => left,
            Some(_) | None => left.min(self.backend().config().timeout),
        }
    }

    /// How long the call of this attempt may take once it has its slot: a pattern's timeout covers the wait for that, too.
    pub(super) fn limit_after(&self, waited: Duration, limit: Duration) -> Duration {
        match self.rule.timeout {
            Some(_) if !waited.is_zero() => limit.min(self.left()),
            Some(_) | None => limit,
        }
    }

    /// What is left of the time for all attempts, in whole milliseconds, since it is told to the client.
    fn left(&self) -> Duration {
        let left = self.rule.time().saturating_sub(self.began.elapsed());
        Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether the call goes on with another upstream, or once more with the only one; that is then the one to try.
    pub(super) fn go_on(&mut self, failed: &Failed) -> bool {
        let Some(reason) = failed.reason(self.rule.idempotent) else { return false };
        let again = reason == RetryReason::Closed && self.places.len() == 1 && !self.repeated;
        if self.left() < WORTHWHILE || (self.failed + 1 >= self.places.len() && !again) {
            return false;
        }
        self.backend().metrics.retried(reason);
        if again {
            // What ended was a connection: the upstream is there, perhaps.
            self.repeated = true;
        } else {
            self.failed += 1;
        }
        true
    }
}

/// How a request is put to an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way<'s> {
    /// As a call.
    Call,
    /// As a call whose answer may still be coming when it is large.
    Large,
    /// As what keeps a subscription up, too.
    Subscription(&'s Subscribing<'s>),
}

/// Tries one upstream after the other until one answers, or none may be tried any more. The answer is read whole.
pub(super) async fn run<'a>(
    cx: &PlainContext,
    message: &Message,
    way: Way<'_>,
    (attempts, ledger): (&mut Attempts<'a>, &mut Ledger<'a>),
) -> Result<Answer, Failed> {
    match come(cx, message, way, (attempts, ledger)).await? {
        Came::Answer(answer) => Ok(answer),
        Came::Large(_) => Err(Failed::internal()),
    }
}

/// The same; a large answer may still be coming, if the way says so.
pub(super) async fn come<'a>(
    cx: &PlainContext,
    message: &Message,
    way: Way<'_>,
    (attempts, ledger): (&mut Attempts<'a>, &mut Ledger<'a>),
) -> Result<Came<'a>, Failed> {
    loop {
        let failed = match once(cx, message, way, (attempts, ledger)).await {
            Ok(came) => return Ok(came),
            Err(failed) => failed,
        };
        if !attempts.go_on(&failed) {
            return Err(failed);
        }
    }
}

async fn once<'a>(
    cx: &PlainContext,
    message: &Message,
    way: Way<'_>,
    (attempts, ledger): (&Attempts<'a>, &mut Ledger<'a>),
) -> Result<Came<'a>, Failed> {
    let backend = attempts.backend();
    ledger.goes_to(backend.upstream.name());
    let limit = attempts.limit();
    let (slot, waited) = tokio::select! {
        biased;
        slot = slot(backend, limit) => slot?,
        () = cx.pipeline.cut_off() => return Err(Failed::CutOff(not_sent(backend))),
    };
    let started = Instant::now();
    let limit = attempts.limit_after(waited, limit);
    let call = backend.timed_call(message.clone(), limit);
    let put = async {
        match way {
            Way::Call => backend.upstream.call_plain(call).await.map(PlainAnswer::from),
            Way::Large => backend.upstream.call_plain_large(call).await,
            Way::Subscription(subscribing) => {
                Box::pin(subscribing.ask(backend, call)).await.map(PlainAnswer::from)
            }
        }
    };
    let answer = tokio::select! {
        biased;
        answer = put => answer.map_err(Failed::Call),
        () = cx.pipeline.cut_off() => {
            Err(Failed::CutOff(cut_off(Some(backend.upstream.name().as_str()))))
        }
    };
    let took = started.elapsed();
    ledger.waited(took);
    let answer = match answer {
        Ok(PlainAnswer::Large(answer)) => {
            backend.standing.reached();
            return Ok(Came::Large(Flow { answer, backend, started, _slot: slot }));
        }
        Ok(PlainAnswer::Whole(answer)) => Ok(Some(answer)),
        Ok(PlainAnswer::None) => Ok(None),
        Err(failed) => Err(failed),
    };
    noted(backend, &answer);
    backend.metrics.call_ended(ledger.method(), outcome(&answer), took);
    answer.map(Came::Answer)
}

/// Remembers whether the upstream could be connected.
pub(super) fn noted(backend: &Backend, answer: &Result<Answer, Failed>) {
    match answer {
        Err(Failed::Call(CallError::Connect { .. } | CallError::Closed { written: false, .. })) => {
            backend.standing.unreachable();
        }
        Err(Failed::Slot(_) | Failed::CutOff(_)) => {}
        Err(Failed::Call(CallError::Timeout { .. } | CallError::Busy { .. })) => {}
        Ok(_) | Err(Failed::Call(_)) => backend.standing.reached(),
    }
}

/// How an attempt counts.
pub(super) fn outcome(answer: &Result<Answer, Failed>) -> Outcome {
    match answer {
        Ok(Some(answer)) => outcome_of(answer),
        Ok(None) => Outcome::Ok,
        Err(Failed::Slot(fault) | Failed::CutOff(fault)) => fault.reason.outcome(),
        Err(Failed::Call(error)) => error.to_fault().reason.outcome(),
    }
}

/// A concurrency slot of an upstream, and how long it took to get it.
pub(super) async fn slot(
    backend: &Backend,
    patience: Duration,
) -> Result<(Slot, Duration), Failed> {
    if let Some(slot) = backend.slots.try_take() {
        backend.metrics.queue_wait.observe(0.0);
        return Ok((slot, Duration::ZERO));
    }
    let queued = Instant::now();
    let slot = backend.slots.take(patience).await;
    let waited = queued.elapsed();
    backend.metrics.queue_wait.observe(waited.as_secs_f64());
    slot.map(|slot| (slot, waited)).map_err(|refusal| Failed::slot(backend, refusal))
}
