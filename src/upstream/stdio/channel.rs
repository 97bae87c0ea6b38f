//! MCP on one pair of byte streams: calls out, answers back. What else comes in is in `inbound`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::judge::{Dialect, Invalid, Judged, judge};
use super::super::link::LinkContext;
use super::super::pending::{Pending, Slot, later};
use super::super::{CallError, CallEvent, Events, OutCall};
use super::listen::{Feed, Offers};
use super::output::{Flow, Tail};
use crate::jsonrpc::{Chunks, Message};
use crate::mcp::{Era, ListKind, ProtocolVersion};
use crate::wire::{LineDecoder, to_line};

/// Messages that may wait to be written.
const QUEUE: usize = 256;
/// Lines shorter than this are written together.
const SMALL_LINE: usize = 16 * 1024;
/// Room for a read, while little comes and while much comes.
const READ: (usize, usize) = (8 * 1024, 64 * 1024);
/// How long to read on once the child is gone: a process that left its group may hold the pipe for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// One connection to a server that speaks MCP line by line. It is used until it breaks and never mended: a child that
/// was started again is another channel, with ids of its own.
///
/// One task reads, one writes. The reader never waits for anybody: what a call is told before its answer goes
/// into the call's own bounded queue, where progress gives way to newer progress, other notifications are dropped
/// and questions refused when there is no room. The writer's queue is bounded too; a full one fails the call, not
/// the child.
#[derive(Debug)]
pub(super) struct Channel {
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
    outgoing: mpsc::Sender<Bytes>,
    signals: Signals,
}

/// The one-way switches of a channel.
#[derive(Clone, Debug, Default)]
struct Signals {
    /// Nothing can be read, or nothing can be written any more.
    broken: CancellationToken,
    /// The reader has ended.
    drained: CancellationToken,
    /// The writer shall close its end.
    finish: CancellationToken,
    /// Reader and writer shall end.
    gone: CancellationToken,
}

impl Channel {
    /// Starts the two tasks. What is no message goes to the log and to `tail`.
    pub(super) fn open(
        ctx: &LinkContext,
        tail: Arc<Tail>,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Arc<Self> {
        let (outgoing, lines) = mpsc::channel(QUEUE);
        let signals = Signals::default();
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
            signals: signals.clone(),
        });
        ctx.tasks.spawn(Arc::clone(&channel).read_all(reader));
        ctx.tasks.spawn(write_all(lines, writer, signals));
        channel
    }

    /// One request to its answer, which still has our id. Dropping the future tells the upstream to cancel.
    pub(super) async fn call(&self, call: OutCall) -> Result<Message, CallError> {
        self.round_trip(call, self.version(), OnHangUp::Cancel).await
    }

    /// The revision that is spoken; before the greeting nothing is sent that depends on it.
    fn version(&self) -> ProtocolVersion {
        self.version.get().copied().unwrap_or(ProtocolVersion::NEWEST_LEGACY)
    }

    /// Whether the server speaks 2026-07-28.
    pub(super) fn is_modern(&self) -> bool {
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
    pub(super) fn notify(&self, message: &Message) -> Result<(), CallError> {
        self.post(&Chunks::from(message.text().clone()))
    }

    /// Calls in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Fails every call, takes no more, and closes the upstream's input behind what is queued.
    pub(super) fn close(&self, why: &str) {
        self.pending.fail_all(why, || self.ctx.closed(true, why));
        self.asks.lock().clear();
        self.signals.finish.cancel();
    }

    /// The upstream is gone; both tasks end.
    pub(super) fn gone(&self) {
        self.signals.gone.cancel();
    }

    /// Resolves when nothing can be read, or nothing can be written any more.
    pub(super) async fn broken(&self) {
        self.signals.broken.cancelled().await;
    }

    /// Resolves when everything was read.
    pub(super) async fn drained(&self) {
        self.signals.drained.cancelled().await;
    }

    /// Resolves when the channel was closed from our side.
    pub(super) async fn closed(&self) {
        self.signals.finish.cancelled().await;
    }

    /// Queues one message to be written.
    pub(super) fn post(&self, message: &Chunks) -> Result<(), CallError> {
        self.outgoing.try_send(to_line(message)).map_err(|error| match error {
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
        if call.message.id_span().is_none() {
            return Err(self.ctx.protocol("only a request can be called"));
        }
        let start = Instant::now();
        let mut slot = self
            .pending
            .open(call.caller, call.token(), call.events.clone(), start)
            .map_err(|why| self.ctx.closed(false, &*why))?;
        let id = slot.id;
        if call.client.log_rank.is_some() {
            slot.wants_logs();
        }
        self.post(&call.text(id, version))?;
        slot.sent(call.timeout);
        // What was sent is not needed any more; a large one would be held until the answer.
        let OutCall { timeout, max_timeout, events, .. } = call;
        let mut recall = Recall { channel: self, id, reason: Some("the client hung up") };
        if on_hang_up == OnHangUp::Forget {
            recall.reason = None;
        }
        let limits = Limits { start, timeout, hard: later(start, max_timeout), max_timeout };
        let answer = self.await_answer(slot, &limits, &events).await;
        recall.reason = match &answer {
            Err(CallError::Timeout { .. }) => recall.reason.map(|_| "timeout"),
            _ => None,
        };
        drop(recall);
        self.settle(answer?, id)
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

    /// The outcome of a call that was answered.
    fn settle(&self, answer: Message, id: u64) -> Result<Message, CallError> {
        match judge(answer, id, Dialect::Mcp) {
            Ok(Judged::Answer(answer)) => Ok(answer),
            Ok(Judged::Mended(answer)) => {
                self.ctx.metrics.stray.inc();
                Ok(answer)
            }
            Ok(Judged::Foreign) => Err(self.ctx.protocol("its answer has another id")),
            Err(Invalid { what, upstream_error }) => {
                Err(CallError::Protocol { upstream: self.ctx.name.clone(), what, upstream_error })
            }
        }
    }

    async fn read_all(self: Arc<Self>, reader: impl AsyncRead + Send + Unpin) {
        let too_long = async {
            self.signals.gone.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.read(reader) => {}
            () = too_long => {}
        }
        self.signals.drained.cancel();
        self.signals.broken.cancel();
    }

    async fn read(self: &Arc<Self>, mut reader: impl AsyncRead + Unpin) {
        let mut decoder = LineDecoder::new(self.ctx.config.max_message);
        let mut buffer = BytesMut::new();
        let mut room = READ.0;
        loop {
            if buffer.capacity() < READ.0 / 2 {
                buffer.reserve(room);
            }
            match reader.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => room = if length >= READ.0 / 2 { READ.1 } else { READ.0 },
            }
            decoder.push(buffer.split().freeze());
            while let Some(line) = decoder.next_line() {
                self.take_line(line);
            }
        }
        if let Some(line) = decoder.finish() {
            self.take_line(line);
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

/// Writes lines until told to finish, then what is queued, and closes the upstream's input.
async fn write_all(
    mut lines: mpsc::Receiver<Bytes>,
    mut writer: impl AsyncWrite + Send + Unpin,
    signals: Signals,
) {
    let write = async {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = signals.finish.cancelled(), if !lines.is_closed() => lines.close(),
                count = lines.recv_many(&mut batch, 64) => {
                    if count == 0 {
                        return writer.shutdown().await;
                    }
                    write_batch(&mut batch, &mut writer).await?;
                }
            }
        }
    };
    let written: std::io::Result<()> = tokio::select! {
        written = write => written,
        () = signals.gone.cancelled() => Ok(()),
    };
    if let Err(error) = written {
        tracing::debug!("cannot write to a child: {error}");
        signals.broken.cancel();
    }
}

/// Small lines are joined: one system call for many of them.
async fn write_batch(
    batch: &mut Vec<Bytes>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let mut joined = BytesMut::new();
    let alone = batch.len() == 1;
    for line in batch.drain(..) {
        if !alone && line.len() < SMALL_LINE {
            joined.extend_from_slice(&line);
            continue;
        }
        if !joined.is_empty() {
            writer.write_all(&joined.split()).await?;
        }
        writer.write_all(&line).await?;
    }
    writer.write_all(&joined).await?;
    writer.flush().await
}
