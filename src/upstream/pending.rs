//! Calls that wait for an answer on one connection, by the id that we minted.
//!
//! The table is a plain structure behind one short lock; it knows no transport. Its ids are also the progress
//! tokens that we send, so one look-up serves both. They are never used twice on one connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::{Ask, CallError, CallEvent, CallerId, Events};
use crate::jsonrpc::{Chunks, Message};

/// What a call ends with.
pub(super) type Reply = Result<Message, CallError>;

/// The calls in flight on one connection.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The id minted last.
    last: u64,
    /// In the order in which they began.
    waiting: BTreeMap<u64, Waiting>,
    /// Calls that nobody waits for any more though the upstream may still work on them.
    abandoned: BTreeMap<u64, Abandoned>,
    /// Until when more calls than are kept may have been abandoned.
    crowded: Option<Instant>,
    /// Why nothing can be called any more.
    closed: Option<Arc<str>>,
}

#[derive(Debug)]
struct Waiting {
    caller: CallerId,
    /// Whether it asked for log messages (2026-07-28).
    logs: bool,
    /// Whether it is answered only when a feed ends.
    standing: bool,
    inbox: Inbox,
    reply: oneshot::Sender<Reply>,
}

/// Until when the upstream may still speak of a call that was cancelled.
#[derive(Clone, Copy, Debug)]
struct Abandoned {
    caller: CallerId,
    logs: bool,
    until: Instant,
}

/// Most abandoned calls that are kept apart.
const MAX_ABANDONED: usize = 1024;

/// Which of several calls of one caller an unassociated message is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// The call that began first.
    Oldest,
    /// The call that began last.
    Newest,
    /// Of those that asked for log messages the one that began first; the others count for nothing.
    Logging,
}

impl Pick {
    /// Whether a call counts that asked for log messages or did not.
    fn counts(self, logs: bool) -> bool {
        match self {
            Self::Oldest | Self::Newest => true,
            Self::Logging => logs,
        }
    }
}

impl Pending {
    /// Mints the id for one call. Dropping the [`Slot`] forgets it, so a cancelled call leaves nothing. `token` is
    /// the client's progress token as JSON text.
    ///
    /// # Errors
    /// Why the connection is closed, when it is.
    pub(super) fn open(
        self: &Arc<Self>,
        caller: CallerId,
        token: Option<Bytes>,
        events: Events,
        now: Instant,
    ) -> Result<Slot, Arc<str>> {
        let inbox = Inbox { token, events, pulse: Pulse::new(now) };
        self.insert(caller, inbox, false)
    }

    /// Mints the id for a request of the gateway that opens a feed: it is answered when the feed ends.
    ///
    /// # Errors
    /// Why the connection is closed, when it is.
    pub(super) fn stand(self: &Arc<Self>, now: Instant) -> Result<Slot, Arc<str>> {
        let inbox = Inbox { token: None, events: Events::closed(), pulse: Pulse::new(now) };
        self.insert(CallerId::GATEWAY, inbox, true)
    }

    fn insert(
        self: &Arc<Self>,
        caller: CallerId,
        inbox: Inbox,
        standing: bool,
    ) -> Result<Slot, Arc<str>> {
        let (reply, answer) = oneshot::channel();
        let pulse = Arc::clone(&inbox.pulse);
        let mut table = self.0.lock();
        if let Some(why) = &table.closed {
            return Err(Arc::clone(why));
        }
        table.last += 1;
        let id = table.last;
        table.waiting.insert(id, Waiting { caller, logs: false, standing, inbox, reply });
        drop(table);
        Ok(Slot { id, answer, pulse, linger: None, pending: Arc::clone(self) })
    }

    /// Hands a reply to its call; `false` if nobody waits for it (too late, twice, or never ours).
    pub(super) fn settle(&self, id: u64, reply: Reply) -> bool {
        let mut table = self.0.lock();
        table.abandoned.remove(&id);
        let waiting = table.waiting.remove(&id);
        drop(table);
        waiting.is_some_and(|waiting| waiting.reply.send(reply).is_ok())
    }

    /// Where events of that call go; `None` when it has ended.
    pub(super) fn inbox(&self, id: u64) -> Option<Inbox> {
        self.0.lock().waiting.get(&id).map(|waiting| waiting.inbox.clone())
    }

    /// The call that a message without association belongs to (MCP digest §19.8): all calls in flight must
    /// be of one caller. Calls of the gateway itself neither receive such a message nor stand in its way. A call that
    /// was cancelled but not answered stands in the way of other callers: the message may come from it.
    ///
    /// A question may also be put where callers are of one principal and all calls but those of one caller wait for answers
    /// themselves: such a call does not ask, and nobody else would see it if it did.
    pub(super) fn associate(&self, pick: Pick, now: Instant) -> Option<Inbox> {
        let mut table = self.0.lock();
        if !table.abandoned.is_empty() {
            table.abandoned.retain(|_, abandoned| abandoned.until > now);
        }
        let mut clients = table
            .waiting
            .values()
            .filter(|waiting| waiting.caller != CallerId::GATEWAY && pick.counts(waiting.logs));
        let oldest = clients.next()?;
        let (mut oldest, mut newest) = (oldest, oldest);
        for waiting in clients {
            if waiting.caller == newest.caller {
                newest = waiting;
                continue;
            }
            if pick != Pick::Newest || !waiting.caller.is_kin(newest.caller) {
                return None;
            }
            match (newest.inbox.pulse.asks(), waiting.inbox.pulse.asks()) {
                (true, _) => (oldest, newest) = (waiting, waiting),
                (false, true) => {}
                (false, false) => return None,
            }
        }
        let foreign = table
            .abandoned
            .values()
            .any(|abandoned| abandoned.caller != oldest.caller && pick.counts(abandoned.logs));
        if foreign || table.crowded.is_some_and(|until| until > now) {
            return None;
        }
        Some(match pick {
            Pick::Oldest | Pick::Logging => oldest.inbox.clone(),
            Pick::Newest => newest.inbox.clone(),
        })
    }

    /// The id of the call in flight, when there is exactly one. Feeds do not count.
    pub(super) fn only(&self) -> Option<u64> {
        let table = self.0.lock();
        let mut calls = table.waiting.iter().filter(|(_, waiting)| !waiting.standing);
        let first = calls.next().map(|(id, _)| *id);
        if calls.next().is_some() { None } else { first }
    }

    /// Closes the table and ends every call in it. Further calls of this do nothing.
    pub(super) fn fail_all(&self, why: &str, error: impl Fn() -> CallError) {
        let mut table = self.0.lock();
        table.closed.get_or_insert_with(|| why.into());
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        for (_, waiting) in waiting {
            let _ = waiting.reply.send(Err(error()));
        }
    }

    /// How many calls wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

/// The caller's half of one call.
#[derive(Debug)]
pub(super) struct Slot {
    /// The id towards the upstream, and the progress token.
    pub(super) id: u64,
    /// Resolves to the reply. Never fails while the slot lives: a call is only taken out of the table to reply.
    pub(super) answer: oneshot::Receiver<Reply>,
    /// Its signs of life.
    pub(super) pulse: Arc<Pulse>,
    /// How long the upstream may go on speaking of the call once nobody waits for it.
    linger: Option<Duration>,
    pending: Arc<Pending>,
}

impl Slot {
    /// The request is on its way: from now on the upstream may work on it, and when nobody waits any more, for as
    /// long as that beyond it, unless it answers.
    pub(super) fn sent(&mut self, linger: Duration) {
        self.linger = Some(linger);
    }

    /// The call has ended: the upstream speaks of it no more.
    pub(super) fn ended(&mut self) {
        self.linger = None;
    }

    /// The request asks for log messages.
    pub(super) fn wants_logs(&self) {
        if let Some(waiting) = self.pending.0.lock().waiting.get_mut(&self.id) {
            waiting.logs = true;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.pending.0.lock();
        let Some(waiting) = table.waiting.remove(&self.id) else { return };
        if let Some(linger) = self.linger
            && waiting.caller != CallerId::GATEWAY
        {
            let until = later(Instant::now(), linger);
            let Waiting { caller, logs, .. } = waiting;
            table.abandon(self.id, Abandoned { caller, logs, until });
        }
    }
}

impl Table {
    /// Keeps who cancelled a call, in bounded room.
    fn abandon(&mut self, id: u64, abandoned: Abandoned) {
        self.abandoned.insert(id, abandoned);
        if self.abandoned.len() > MAX_ABANDONED
            && let Some((_, dropped)) = self.abandoned.pop_first()
        {
            self.crowded = self.crowded.max(Some(dropped.until));
        }
    }
}

/// `start` plus a duration from the configuration, which may be absurdly long.
pub(super) fn later(start: Instant, wait: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    start + wait.min(FOREVER)
}

/// The reader's half of one call: takes events and never blocks, so that one slow consumer delays no other call.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    token: Option<Bytes>,
    events: Events,
    pulse: Arc<Pulse>,
}

/// Signs of life of one call, and the newest progress that found the event queue full.
#[derive(Debug)]
pub(super) struct Pulse {
    beat: Mutex<Beat>,
    wake: Notify,
}

#[derive(Debug)]
struct Beat {
    /// When the call was sent, or last heard of.
    heard: Instant,
    /// Questions to the client that are open; while there are any, silence does not count.
    asks: usize,
    held: Option<Chunks>,
}

impl Pulse {
    fn new(now: Instant) -> Arc<Self> {
        let beat = Mutex::new(Beat { heard: now, asks: 0, held: None });
        Arc::new(Self { beat, wake: Notify::new() })
    }

    /// When the silence will have lasted too long, as far as is known at `now`.
    pub(super) fn silent_until(&self, timeout: Duration, now: Instant) -> Instant {
        let beat = self.beat.lock();
        let since = if beat.asks > 0 { now } else { beat.heard };
        later(since, timeout)
    }

    /// Whether it waits for the answer to a question.
    fn asks(&self) -> bool {
        self.beat.lock().asks > 0
    }

    /// Whether progress waits for room in the event queue.
    pub(super) fn holds_progress(&self) -> bool {
        self.beat.lock().held.is_some()
    }

    /// Takes the progress that waits for room.
    pub(super) fn take_progress(&self) -> Option<Chunks> {
        self.beat.lock().held.take()
    }

    /// Resolves when progress has begun to wait for room.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Inbox {
    /// The client's progress token, if it gave one.
    pub(super) fn token(&self) -> Option<&Bytes> {
        self.token.as_ref()
    }

    /// Progress: ends the silence. When the queue is full it waits for room in the call, and takes the place of
    /// older progress that waits there: progress only grows, the newest says it all.
    pub(super) fn progress(&self, progress: Chunks, now: Instant) {
        let mut beat = self.pulse.beat.lock();
        beat.heard = now;
        // What waits must not be overtaken.
        let refused = if beat.held.is_some() {
            Some(progress)
        } else {
            match self.events.try_send(CallEvent::Progress(progress)) {
                Err(TrySendError::Full(CallEvent::Progress(progress))) => Some(progress),
                Ok(()) | Err(_) => None,
            }
        };
        if let Some(progress) = refused {
            beat.held = Some(progress);
            drop(beat);
            self.pulse.wake.notify_one();
        }
    }

    /// Another notification; `false` when it was dropped, since the queue is full or nobody reads it.
    pub(super) fn notify(&self, message: Message) -> bool {
        self.events.try_send(CallEvent::Notification(message)).is_ok()
    }

    /// A question. Silence does not count until the returned guard is dropped.
    ///
    /// # Errors
    /// Whether the queue is full or nobody reads it.
    pub(super) fn ask(&self, ask: Ask) -> Result<OpenAsk, TrySendError<()>> {
        self.pulse.beat.lock().asks += 1;
        let open = OpenAsk(Arc::clone(&self.pulse));
        match self.events.try_send(CallEvent::Ask(ask)) {
            Ok(()) => Ok(open),
            Err(TrySendError::Full(_)) => Err(TrySendError::Full(())),
            Err(TrySendError::Closed(_)) => Err(TrySendError::Closed(())),
        }
    }
}

/// A question that the client has not answered yet.
#[derive(Debug)]
pub(super) struct OpenAsk(Arc<Pulse>);

impl Drop for OpenAsk {
    fn drop(&mut self) {
        let mut beat = self.0.beat.lock();
        beat.asks -= 1;
        beat.heard = Instant::now();
    }
}

#[cfg(test)]
mod tests;
