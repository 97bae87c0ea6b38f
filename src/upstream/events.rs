//! What precedes the answer of one call, on its way to whoever made it: a small bounded queue that costs next to
//! nothing until it is used, which most calls never do.
//!
//! It behaves as a bounded `mpsc` of tokio and shares its errors; that one allocates room for all its messages
//! at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};

use super::CallEvent;

/// A queue for at most `capacity` events.
pub fn events(capacity: usize) -> (Events, EventQueue) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State { senders: 1, ..State::default() }),
        room: Notify::new(),
        capacity,
    });
    (Events(Some(Arc::clone(&shared))), EventQueue(shared))
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// An event was taken, or nobody takes any more.
    room: Notify,
    capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<CallEvent>,
    /// Places that are kept for a [`Room`].
    reserved: usize,
    senders: usize,
    reader: Option<Waker>,
    /// The reader is gone.
    closed: bool,
}

impl State {
    fn is_full(&self, capacity: usize) -> bool {
        self.queue.len() + self.reserved >= capacity
    }

    fn push(&mut self, event: CallEvent) {
        self.queue.push_back(event);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// The end that events are put in.
#[derive(Debug)]
pub struct Events(Option<Arc<Shared>>);

impl Events {
    /// Nobody reads: whatever is put in is dropped.
    pub fn closed() -> Self {
        Self(None)
    }

    /// Puts an event in, if there is room.
    #[expect(clippy::result_large_err, reason = "a refused event goes back as it came")]
    pub(super) fn try_send(&self, event: CallEvent) -> Result<(), TrySendError<CallEvent>> {
        let Some(shared) = &self.0 else { return Err(TrySendError::Closed(event)) };
        let mut state = shared.state.lock();
        if state.closed {
            return Err(TrySendError::Closed(event));
        }
        if state.is_full(shared.capacity) {
            return Err(TrySendError::Full(event));
        }
        state.push(event);
        Ok(())
    }

    /// Puts an event in once there is room.
    pub(super) async fn send(&self, event: CallEvent) -> Result<(), SendError<CallEvent>> {
        match self.reserve().await {
            Ok(room) => {
                room.send(event);
                Ok(())
            }
            Err(SendError(())) => Err(SendError(event)),
        }
    }

    /// Waits for room and keeps it. Cancel-safe.
    pub(super) async fn reserve(&self) -> Result<Room<'_>, SendError<()>> {
        let Some(shared) = &self.0 else { return Err(SendError(())) };
        loop {
            // Made before the state is looked at: what changes from here on is heard of.
            let changed = shared.room.notified();
            {
                let mut state = shared.state.lock();
                if state.closed {
                    return Err(SendError(()));
                }
                if !state.is_full(shared.capacity) {
                    state.reserved += 1;
                    return Ok(Room(shared));
                }
            }
            changed.await;
        }
    }
}

impl Clone for Events {
    fn clone(&self) -> Self {
        if let Some(shared) = &self.0 {
            shared.state.lock().senders += 1;
        }
        Self(self.0.clone())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state.lock();
        state.senders -= 1;
        if state.senders == 0 {
            state.wake();
        }
    }
}

/// Room for one event.
#[derive(Debug)]
pub(super) struct Room<'a>(&'a Shared);

impl Room<'_> {
    /// Puts the event in; without a reader it is dropped.
    pub(super) fn send(self, event: CallEvent) {
        let mut state = self.0.state.lock();
        if !state.closed {
            return state.push(event);
        }
        drop(state);
        drop(event);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.state.lock().reserved -= 1;
        self.0.room.notify_one();
    }
}

/// The end that events are taken from.
#[derive(Debug)]
pub struct EventQueue(Arc<Shared>);

impl EventQueue {
    /// The next event; `None` when none can come any more. Cancel-safe.
    pub async fn recv(&mut self) -> Option<CallEvent> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<Option<CallEvent>> {
        let mut state = self.0.state.lock();
        if let Some(event) = state.queue.pop_front() {
            drop(state);
            self.0.room.notify_one();
            return Poll::Ready(Some(event));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The next event if one waits.
    pub fn try_recv(&mut self) -> Result<CallEvent, TryRecvError> {
        let mut state = self.0.state.lock();
        let Some(event) = state.queue.pop_front() else {
            let ended = state.senders == 0;
            return Err(if ended { TryRecvError::Disconnected } else { TryRecvError::Empty });
        };
        drop(state);
        self.0.room.notify_one();
        Ok(event)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        let unread = std::mem::take(&mut state.queue);
        drop(state);
        // A question that is dropped is refused; that must not happen under the lock.
        drop(unread);
        self.0.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(text: &'static str) -> CallEvent {
        CallEvent::Progress(Bytes::from_static(text.as_bytes()).into())
    }

    fn text(event: Option<CallEvent>) -> String {
        let Some(CallEvent::Progress(text)) = event else { panic!("{event:?}") };
        String::from_utf8(text.into_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn events_come_in_order_and_the_end_is_told() {
        let (events, mut queue) = events(2);
        assert!(matches!(queue.try_recv(), Err(TryRecvError::Empty)));
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(event) = queue.recv().await {
                all.push(text(Some(event)));
            }
            all
        });
        tokio::task::yield_now().await;
        let other = events.clone();
        for text in ["a", "b", "c", "d"] {
            other.send(event(text)).await.unwrap();
        }
        drop(other);
        events.send(event("e")).await.unwrap();
        drop(events);
        assert_eq!(reader.await.unwrap(), ["a", "b", "c", "d", "e"]);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_or_holds_the_sender_until_one_is_taken() {
        let (events, mut queue) = events(1);
        events.try_send(event("a")).unwrap();
        assert!(matches!(events.try_send(event("b")), Err(TrySendError::Full(_))));
        let sender = tokio::spawn(async move { events.send(event("c")).await.is_ok() });
        tokio::task::yield_now().await;
        assert!(!sender.is_finished());
        assert_eq!(text(queue.recv().await), "a");
        assert!(sender.await.unwrap());
        assert_eq!(text(queue.try_recv().ok()), "c");
        assert!(matches!(queue.try_recv(), Err(TryRecvError::Disconnected)));
    }

    #[tokio::test]
    async fn reserved_room_counts_until_it_is_used_or_given_up() {
        let (events, mut queue) = events(1);
        let room = events.reserve().await.unwrap();
        assert!(matches!(events.try_send(event("a")), Err(TrySendError::Full(_))));
        drop(room);
        let room = events.reserve().await.unwrap();
        room.send(event("b"));
        assert!(matches!(events.try_send(event("c")), Err(TrySendError::Full(_))));
        assert_eq!(text(queue.recv().await), "b");
        assert!(events.try_send(event("d")).is_ok());
    }

    #[tokio::test]
    async fn without_a_reader_everything_is_closed_also_for_who_waits() {
        let (events, queue) = events(1);
        events.try_send(event("a")).unwrap();
        let waiting = events.clone();
        let sender = tokio::spawn(async move { waiting.send(event("b")).await.is_err() });
        tokio::task::yield_now().await;
        drop(queue);
        assert!(sender.await.unwrap());
        assert!(matches!(events.try_send(event("c")), Err(TrySendError::Closed(_))));
        let nobody = Events::closed();
        assert!(nobody.clone().reserve().await.is_err());
        assert!(matches!(nobody.try_send(event("d")), Err(TrySendError::Closed(_))));
    }
}
