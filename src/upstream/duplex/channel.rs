//! Calls out, answers back. What else comes in is in `inbound`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::judge::{Dialect, judge};
use super::super::link::LinkContext;
use super::super::pending::{Pending, Slot, later};
use super::super::{CallError, CallEvent, Events, OutCall};
use super::listen::{Feed, Offers};
use super::noise::{Flow, Tail};
use crate::jsonrpc::{Chunks, Message};
use crate::mcp::{Era, ListKind, ProtocolVersion};
use crate::wire::to_line;

/// Messages that may wait to be written.
const QUEUE: usize = 256;

/// One connection to a server that all calls share. It is used until it breaks and never mended: a child that was
/// started again is another channel, with ids of its own.
///
/// Some task reads ([`Channel::take_line`]), some task writes (the [`Outlet`]). The reader never waits for anybody: what a call is told before its answer goes
/// into the call's own bounded queue, where progress gives way to newer progress, other notifications are dropped
/// and questions refused when there is no room. The writer's queue is bounded too; a full one fails the call, not
/// the child.
#[derive(Debug)]
pub(in crate::upstream) struct Channel {
    pub(super) ctx: LinkContext,
    pub(super) pending: Arc<Pending>,
    /// Open questions by the upstream's id; dropping the sender withdraws.
    pub(super) asks: Mutex<HashMap<Bytes, oneshot::Sender<()>>>,
    /// Lists whose change waits for room among the notices.
    pub(super) late_lists: Mutex<HashSet<ListKind>>,
    /// What it printed for people.
    pub(super) tail: Arc<Tail>,
    /// Limits log lines about noise.
    pub(super) noise: Mutex<Flow>,
    /// The revision that the greeting agreed on.
    pub(super) version: OnceLock<ProtocolVersion>,
    /// What a modern server offers to tell unasked.
    pub(super) offers: OnceLock<Offers>,
    /// Subscriptions at a modern server.
    pub(super) feed: Feed,
    /// See [`Channel::is_probing`].
    pub(super) probing: AtomicBool,
    outgoing: mpsc::Sender<Out>,
    pub(super) signals: Signals,
}

/// The one-way switches of a channel.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    /// Nothing can be read, or nothing can be written any more.
    pub(super) broken: CancellationToken,
    /// The reader has ended.
    pub(super) drained: CancellationToken,
    /// The writer shall close its end.
    finish: CancellationToken,
    /// Reader and writer shall end.
    pub(super) gone: CancellationToken,
}

/// One message to write: a line, with its end.
#[derive(Debug)]
pub(in crate::upstream) struct Out {
    pub(in crate::upstream) line: Bytes,
    pub(in crate::upstream) sort: Sort,
}

/// What a message is that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Sort {
    /// A request with that id.
    Request(u64),
    /// The answer to a request of the upstream.
    Answer,
    /// A notification.
    Notification,
}

/// What a channel wants written, for whatever carries it.
#[derive(Debug)]
pub(in crate::upstream) struct Outlet {
    queue: mpsc::Receiver<Out>,
    pub(super) signals: Signals,
}

impl Outlet {
    /// Waits for messages to write. None come any more once the channel was closed and everything was taken. Cancel safe.
    pub(in crate::upstream) async fn take(&mut self, batch: &mut Vec<Out>, most: usize) -> usize {
        loop {
            tokio::select! {
                biased;
                () = self.signals.finish.cancelled(), if !self.queue.is_closed() => {
                    self.queue.close();
                }
                count = self.queue.recv_many(batch, most) => return count,
            }
        }
    }

    /// Takes no more, and gives away what waits to be written.
    pub(in crate::upstream) fn rest(&mut self) -> Vec<Out> {
        self.queue.close();
        std::iter::from_fn(|| self.queue.try_recv().ok()).collect()
    }
}

impl Channel {
    /// Nothing is carried yet: that is up to whoever takes the [`Outlet`]. What is no message goes to the log and to `tail`.
    pub(in crate::upstream) fn new(ctx: &LinkContext, tail: Arc<Tail>) -> (Arc<Self>, Outlet) {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let signals = Signals::default();
        let outlet = Outlet { queue, signals: signals.clone() };
        let channel = Arc::new(Self {
            ctx: ctx.clone(),
            pending: Arc::default(),
            asks: Mutex::default(),
            late_lists: Mutex::default(),
            tail,
            noise: Mutex::new(Flow::new(Instant::now())),
            version: OnceLock::new(),
            offers: OnceLock::new(),
            feed: Feed::default(),
            probing: AtomicBool::new(false),
            outgoing,
            signals,
        });
        (channel, outlet)
    }

    /// One request to its answer, which still has our id. Dropping the future tells the upstream to cancel.
    pub(in crate::upstream) async fn call(&self, call: OutCall) -> Result<Message, CallError> {
        self.round_trip(call, self.version(), OnHangUp::Cancel).await
    }

    /// The same with a call that may have to be made again.
    pub(in crate::upstream) async fn call_by(&self, call: &OutCall) -> Result<Message, CallError> {
        let version = self.version();
        let flight = self.begin(call, version)?;
        self.finish(flight, &call.events, OnHangUp::Cancel).await
    }

    /// The revision that is spoken; before the greeting nothing is sent that depends on it.
    fn version(&self) -> ProtocolVersion {
        self.version.get().copied().unwrap_or(ProtocolVersion::NEWEST_LEGACY)
    }

    /// Whether the server speaks 2026-07-28.
    pub(in crate::upstream) fn is_modern(&self) -> bool {
        self.version().era() == Era::Modern
    }

    /// Tells the upstream that the answer to one of our requests is not wanted any more.
    pub(super) fn cancel(&self, id: u64, reason: &str) {
        let params = format!(r#"{{"requestId":{id},"reason":"{reason}"}}"#);
        let cancelled = Message::notification("notifications/cancelled", Some(params.as_bytes()));
        // An upstream that reads nothing would not read this either.
        let _ = self.notify(&cancelled);
    }

    /// Sends a notification as it is.
    pub(in crate::upstream) fn notify(&self, message: &Message) -> Result<(), CallError> {
        self.post(&Chunks::from(message.text().clone()), Sort::Notification)
    }

    /// Calls in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// The request with that id was not taken.
    pub(in crate::upstream) fn fail(&self, id: u64, error: CallError) {
        self.pending.settle(id, Err(error));
    }

    /// Whether the server was greeted.
    pub(in crate::upstream) fn is_greeted(&self) -> bool {
        self.version.get().is_some()
    }

    /// Fails every call, takes no more, and closes the upstream's input behind what is queued.
    pub(in crate::upstream) fn close(&self, why: &str) {
        self.pending.fail_all(why, || self.ctx.closed(true, why));
        self.asks.lock().clear();
        self.signals.finish.cancel();
    }

    /// The upstream is gone; both tasks end.
    pub(in crate::upstream) fn gone(&self) {
        self.signals.gone.cancel();
    }

    /// Whether something can be read and written.
    pub(in crate::upstream) fn is_whole(&self) -> bool {
        !self.signals.broken.is_cancelled()
    }

    /// Nothing will be read any more.
    pub(in crate::upstream) fn ended(&self) {
        self.signals.drained.cancel();
        self.signals.broken.cancel();
    }

    /// Resolves when nothing can be read, or nothing can be written any more.
    pub(in crate::upstream) async fn broken(&self) {
        self.signals.broken.cancelled().await;
    }

    /// Resolves when everything was read.
    pub(in crate::upstream) async fn drained(&self) {
        self.signals.drained.cancelled().await;
    }

    /// Resolves when the channel was closed from our side.
    pub(in crate::upstream) async fn closed(&self) {
        self.signals.finish.cancelled().await;
    }

    /// Queues one message to be written.
    pub(super) fn post(&self, message: &Chunks, sort: Sort) -> Result<(), CallError> {
        let out = Out { line: to_line(message), sort };
        self.outgoing.try_send(out).map_err(|error| match error {
            TrySendError::Full(_) => CallError::Busy { upstream: self.ctx.name.clone() },
            TrySendError::Closed(_) => self.ctx.closed(false, "its input is closed"),
        })
    }

    /// One request to its answer, in the form of that revision.
    pub(super) async fn round_trip(
        &self,
        call: OutCall,
        version: ProtocolVersion,
        on_hang_up: OnHangUp,
    ) -> Result<Message, CallError> {
        let flight = self.begin(&call, version)?;
        // What was sent is not needed any more; a large one would be held until the answer.
        let OutCall { events, .. } = call;
        self.finish(flight, &events, on_hang_up).await
    }

    /// Sends a request.
    fn begin(&self, call: &OutCall, version: ProtocolVersion) -> Result<Flight, CallError> {
        if call.message.id_span().is_none() {
            return Err(self.ctx.protocol("only a request can be called"));
        }
        let start = Instant::now();
        let mut slot = self
            .pending
            .open(call.caller, call.token(), call.events.clone(), start)
            .map_err(|why| self.ctx.closed(false, &*why))?;
        if call.client.log_rank.is_some() {
            slot.wants_logs();
        }
        self.post(&call.text(slot.id, version), Sort::Request(slot.id))?;
        slot.sent(call.timeout);
        let (timeout, max_timeout) = (call.timeout, call.max_timeout);
        let limits = Limits { start, timeout, hard: later(start, max_timeout), max_timeout };
        Ok(Flight { slot, limits })
    }

    /// Waits for the answer to a request that was sent.
    async fn finish(
        &self,
        flight: Flight,
        events: &Events,
        on_hang_up: OnHangUp,
    ) -> Result<Message, CallError> {
        let Flight { slot, limits } = flight;
        let id = slot.id;
        let mut recall = Recall { channel: self, id, reason: Some("the client hung up") };
        if on_hang_up == OnHangUp::Forget {
            recall.reason = None;
        }
        let answer = self.await_answer(slot, &limits, events).await;
        recall.reason = match &answer {
            Err(CallError::Timeout { .. }) => recall.reason.map(|_| "timeout"),
            _ => None,
        };
        drop(recall);
        self.ctx.settled(judge(answer?, id, Dialect::Mcp))
    }

    async fn await_answer(
        &self,
        mut slot: Slot,
        limits: &Limits,
        events: &Events,
    ) -> Result<Message, CallError> {
        let pulse = Arc::clone(&slot.pulse);
        let due = pulse.silent_until(limits.timeout, limits.start).min(limits.hard);
        let timer = tokio::time::sleep_until(due);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                biased;
                answer = &mut slot.answer => {
                    return answer.unwrap_or_else(|_| Err(self.ctx.closed(true, "it was forgotten")));
                }
                room = events.reserve(), if pulse.holds_progress() => {
                    if let (Some(progress), Ok(room)) = (pulse.take_progress(), room) {
                        room.send(CallEvent::Progress(progress));
                    }
                }
                // The condition of the branch above has changed.
                () = pulse.woken() => {}
                () = &mut timer => {
                    let now = Instant::now();
                    if now >= limits.hard {
                        return Err(self.ctx.timeout(limits.max_timeout));
                    }
                    let due = pulse.silent_until(limits.timeout, now);
                    if due <= now {
                        return Err(self.ctx.timeout(limits.timeout));
                    }
                    timer.as_mut().reset(due.min(limits.hard));
                }
            }
        }
    }
}

/// What the upstream is told when nobody waits for a call any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHangUp {
    /// That it shall stop.
    Cancel,
    /// Nothing.
    Forget,
}

/// A request that was sent.
struct Flight {
    slot: Slot,
    limits: Limits,
}

/// The two limits of one call.
#[derive(Debug)]
struct Limits {
    start: Instant,
    /// Longest silence.
    timeout: Duration,
    /// End of it all.
    hard: Instant,
    max_timeout: Duration,
}

/// Tells the upstream to cancel when it is dropped with a reason (MCP 2025-11-25, cancellation).
struct Recall<'a> {
    channel: &'a Channel,
    id: u64,
    reason: Option<&'static str>,
}

impl Drop for Recall<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            self.channel.cancel(self.id, reason);
        }
    }
}
