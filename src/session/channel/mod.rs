//! The one way to a client: the stream of HTTP+SSE (MCP 2024-11-05), whose client POSTs what it has to say under the
//! stream's token, or a WebSocket. All that is for the client goes there, in order, and its session ends with it. Nothing
//! is numbered or kept.

mod state;
mod table;

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

pub use self::state::Busy;
use self::state::{Entry, Life, MAX_OPEN, Phase, State};
pub use self::table::Channels;
use super::broadcast::Broadcast;
use super::live::{Session, SessionId};
use super::track::{MAX_UNREAD, MAX_UNREAD_BYTES};
use crate::config::RouteName;
use crate::jsonrpc::{Chunks, Id};

/// Most messages of exchanges that wait to be read; then exchanges wait, and with them their upstreams.
const MAX_SENT: usize = 16;
/// Most bytes of them, except that one message may always wait.
const MAX_SENT_BYTES: usize = 1 << 20;

/// A stream and who it belongs to.
#[derive(Debug)]
pub struct Channel {
    token: SessionId,
    route: RouteName,
    principal: Option<Arc<str>>,
    state: Mutex<State>,
    freed: Notify,
    closed: CancellationToken,
}

impl Channel {
    fn new(token: SessionId, route: RouteName, principal: Option<Arc<str>>) -> Arc<Self> {
        Self::of(token, route, principal, MAX_OPEN)
    }

    /// One that nobody can name, since its client speaks on it too: a WebSocket. At most `most` of what came on it is
    /// worked on at once.
    pub fn of_socket(route: RouteName, principal: Option<Arc<str>>, most: usize) -> Arc<Self> {
        Self::of(SessionId::none(), route, principal, most)
    }

    fn of(
        token: SessionId,
        route: RouteName,
        principal: Option<Arc<str>>,
        most: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            token,
            route,
            principal,
            state: Mutex::new(State::new(most)),
            freed: Notify::new(),
            closed: CancellationToken::new(),
        })
    }

    /// What its client names in each POST: as unguessable as a session id, and none.
    pub fn token(&self) -> &SessionId {
        &self.token
    }

    /// The session, once there is one.
    pub fn session(&self) -> Option<Arc<Session>> {
        match &self.state.lock().phase {
            Phase::Live(session) => Some(Arc::clone(session)),
            Phase::Fresh | Phase::Opening => None,
        }
    }

    /// The client sent `initialize`; `false` if it has done so before.
    pub fn start(&self) -> bool {
        let mut state = self.state.lock();
        let fresh = matches!(state.phase, Phase::Fresh);
        if fresh {
            state.phase = Phase::Opening;
        }
        fresh
    }

    /// Its `initialize` was refused: it may try again.
    pub fn refused(&self) {
        self.state.lock().phase = Phase::Fresh;
    }

    /// It has a session from now on; `answer` says so, and comes before all that the session has to tell. `false` when
    /// the stream is closed: the session is to end.
    pub fn begin(self: &Arc<Self>, session: &Arc<Session>, answer: Chunks) -> bool {
        let mut state = self.state.lock();
        if state.life == Life::Closed {
            return false;
        }
        state.phase = Phase::Live(Arc::clone(session));
        state.push(Entry { text: answer, sent: false, merges: None });
        wake(state);
        session.speak_on(self)
    }

    /// Begins to work on a request. One whose id is in use already must be refused, since nobody could tell the answers
    /// apart.
    pub fn enter(self: &Arc<Self>, id: Id) -> Result<Entered, Busy> {
        let (cancel, cancelled) = oneshot::channel();
        let number = self.state.lock().enter(id, cancel)?;
        Ok(Entered { channel: Arc::clone(self), number, cancelled: Some(cancelled) })
    }

    /// Begins to work on a request that its client cannot cancel, or on a notification.
    pub fn hold(self: &Arc<Self>, id: Option<Id>) -> Result<Entered, Busy> {
        let number = self.state.lock().hold(id)?;
        Ok(Entered { channel: Arc::clone(self), number, cancelled: None })
    }

    /// Begins to work on a batch with requests of these ids. Those that others use already are given back. The client's
    /// own fault, one id twice within the batch, is none here: the answers stand in order.
    pub fn enter_batch(self: &Arc<Self>, ids: Vec<Id>) -> Result<(Entered, Vec<Id>), Busy> {
        let (number, used) = self.state.lock().enter_batch(ids)?;
        Ok((Entered { channel: Arc::clone(self), number, cancelled: None }, used))
    }

    /// The client cancels a request that is not part of a batch.
    pub fn cancel(&self, id: &Id) {
        let cancel = self.state.lock().cancelled(id);
        if let Some(cancel) = cancel {
            let _ = cancel.send(());
        }
    }

    /// Sends a message of an exchange, waiting while the client is slow. `false` when the stream is closed.
    pub async fn send(&self, message: Chunks) -> bool {
        let bytes = message.len();
        let mut message = Some(message);
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                if state.life == Life::Closed {
                    return false;
                }
                let load = &state.sent;
                let fits =
                    load.count < MAX_SENT && load.bytes.saturating_add(bytes) <= MAX_SENT_BYTES;
                if fits || load.count == 0 {
                    if let Some(text) = message.take() {
                        state.push(Entry { text, sent: true, merges: None });
                    }
                    wake(state);
                    return true;
                }
            }
            tokio::select! {
                () = freed => {}
                () = self.closed.cancelled() => return false,
            }
        }
    }

    /// Sends a message for which nobody can wait. A client that is too slow for that loses its connection.
    pub fn put(&self, message: Chunks) {
        self.add(message, None);
    }

    /// Sends what belongs to no request.
    pub(super) fn tell(&self, broadcast: &Broadcast) {
        let text = broadcast.text();
        let merges = broadcast.merges().then(|| text.clone());
        self.add(text.into(), merges);
    }

    fn add(&self, text: Chunks, merges: Option<Bytes>) {
        let mut state = self.state.lock();
        if state.life == Life::Closed
            || (merges.is_some() && state.queue.iter().any(|entry| entry.merges == merges))
        {
            return;
        }
        if state.told.count >= MAX_UNREAD || state.told.bytes + text.len() > MAX_UNREAD_BYTES {
            state.slow = true;
            drop(state);
            tracing::debug!(
                "a client reads too slowly what is sent to it, and loses its connection"
            );
            return self.hang_up();
        }
        state.push(Entry { text, sent: false, merges });
        wake(state);
    }

    /// Whether it was closed since its client read too slowly.
    pub fn was_too_slow(&self) -> bool {
        self.state.lock().slow
    }

    /// Closes it: the client relies on something that was lost, and should come back.
    pub fn cut(&self) {
        self.state.lock().cut = true;
        self.close();
    }

    /// Whether it was closed by [`Channel::cut`].
    pub fn was_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// Begins to read it; there is one reader.
    pub fn read(self: &Arc<Self>) -> Listening {
        Listening { channel: Arc::clone(self) }
    }

    /// The next message; none at the end.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Chunks>> {
        let mut state = self.state.lock();
        if let Some(entry) = state.pop() {
            drop(state);
            if entry.sent {
                self.freed.notify_one();
            }
            return Poll::Ready(Some(entry.text));
        }
        if state.life == Life::Closed {
            return Poll::Ready(None);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// It closes as soon as what is worked on is answered; nothing new is begun.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        if state.life == Life::Open {
            state.life = Life::Finishing;
        }
        let idle = state.is_idle();
        drop(state);
        if idle {
            self.close();
        }
    }

    /// Nothing more is added; what waits may still be read.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.life = Life::Closed;
        wake(state);
        self.closed.cancel();
    }

    /// Nobody reads it any more.
    fn hang_up(&self) {
        self.state.lock().clear();
        self.close();
    }

    /// Returns once it is closed.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// Wakes whoever waits for something to read.
fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

/// What is worked on; dropping it frees its ids.
#[derive(Debug)]
pub struct Entered {
    channel: Arc<Channel>,
    number: u64,
    cancelled: Option<oneshot::Receiver<()>>,
}

impl Entered {
    /// Returns once the client cancelled it; never for a batch, nor for what is only held.
    pub async fn cancelled(&mut self) {
        match &mut self.cancelled {
            // The other end lives until it is used.
            Some(cancelled) => drop(cancelled.await),
            None => std::future::pending().await,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.leave(self.number);
        let last = state.life == Life::Finishing && state.is_idle();
        drop(state);
        if last {
            self.channel.close();
        }
    }
}

/// The reading end of a stream. The stream closes when it is dropped.
#[derive(Debug)]
pub struct Listening {
    channel: Arc<Channel>,
}

impl Listening {
    /// The next message; `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<Chunks> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message; none at the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Chunks>> {
        self.channel.poll_next(cx)
    }

    /// Nobody need be woken, since it is going to be asked again before it is waited for.
    pub fn awake(&mut self) {
        self.channel.state.lock().reader = None;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.channel.hang_up();
    }
}

#[cfg(test)]
mod tests;
