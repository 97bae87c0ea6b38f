//! Where messages to a client are put: the stream of one call, or the standing stream of a session.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

/// Messages that wait for a reader: of one call, or of a session's standing stream.
pub(super) const QUEUE: usize = 64;

/// A message on its way to the client, as JSON text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Something on the way: progress, a log line, a question.
    Interim(String),
    /// The answer; nothing of this request follows.
    Answer(String),
    /// Here the stream may break, if the client can come back to it; else this is nothing.
    Break,
    /// Here the stream ends. Who comes back with this id gets what follows.
    Broken(String),
}

impl Outgoing {
    /// The JSON text, if there is one.
    pub(super) fn into_text(self) -> Option<String> {
        match self {
            Self::Interim(text) | Self::Answer(text) => Some(text),
            Self::Break | Self::Broken(_) => None,
        }
    }
}

/// Where messages of one call go. It may lead nowhere: an answer in plain JSON has no room for more.
#[derive(Clone)]
pub(super) struct Outbox(Option<mpsc::Sender<Outgoing>>);

impl Outbox {
    /// An outbox into this queue.
    pub(super) fn into(queue: mpsc::Sender<Outgoing>) -> Self {
        Self(Some(queue))
    }

    /// An outbox that drops what is put into it.
    pub(super) fn nowhere() -> Self {
        Self(None)
    }

    /// Whether there is a reader.
    pub(super) fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|queue| !queue.is_closed())
    }

    /// Puts a message in, waiting for room; drops it when nobody reads any more.
    pub(super) async fn send(&self, text: String) {
        if let Some(queue) = &self.0 {
            let _ = queue.send(Outgoing::Interim(text)).await;
        }
    }

    /// Breaks the stream here, if it can be broken.
    pub(super) async fn send_break(&self) {
        if let Some(queue) = &self.0 {
            let _ = queue.send(Outgoing::Break).await;
        }
    }

    /// Waits for room for one message; `None` when nobody reads any more.
    pub(super) async fn reserve(&self) -> Option<Room<'_>> {
        self.0.as_ref()?.reserve().await.ok().map(Room)
    }

    /// Puts a message in if there is room right now.
    pub(super) fn offer(&self, text: String) {
        if let Some(queue) = &self.0 {
            let _ = queue.try_send(Outgoing::Interim(text));
        }
    }
}

/// Room for one message.
pub(super) struct Room<'a>(mpsc::Permit<'a, Outgoing>);

impl Room<'_> {
    /// Puts the message in.
    pub(super) fn send(self, text: String) {
        self.0.send(Outgoing::Interim(text));
    }
}

/// Where messages go that belong to no call: the one line of stdio, the GET stream of HTTP.
pub(super) struct Standing {
    outbox: Outbox,
    /// Whether somebody reads now. Until a GET stream is open, messages only wait.
    read: AtomicBool,
}

impl Standing {
    /// A line that is always read.
    pub(super) fn line(queue: mpsc::Sender<Outgoing>) -> Self {
        Self { outbox: Outbox::into(queue), read: AtomicBool::new(true) }
    }

    /// A queue that a stream may come to read.
    pub(super) fn queue(queue: mpsc::Sender<Outgoing>) -> Self {
        Self { outbox: Outbox::into(queue), read: AtomicBool::new(false) }
    }

    /// For requests that stand alone.
    pub(super) fn none() -> Self {
        Self { outbox: Outbox::nowhere(), read: AtomicBool::new(false) }
    }

    /// Puts a message in; drops it when too many wait already.
    pub(super) fn tell(&self, text: String) {
        self.outbox.offer(text);
    }

    /// Says whether somebody reads now.
    pub(super) fn set_read(&self, read: bool) {
        self.read.store(read, Ordering::Release);
    }

    /// Whether somebody reads now.
    pub(super) fn is_read(&self) -> bool {
        self.read.load(Ordering::Acquire)
    }

    /// The same for a call that has no stream of its own; leads nowhere while nobody reads.
    pub(super) fn outbox(&self) -> Outbox {
        if self.is_read() { self.outbox.clone() } else { Outbox::nowhere() }
    }
}
