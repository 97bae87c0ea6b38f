//! Streams that break before the answer and that the client comes back to (MCP 2025-11-25,
//! transports, `Last-Event-ID`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::outbox::Outgoing;
use super::session::Session;
use super::sse::Events;

/// Broken streams that may wait in one session.
const MAX_BROKEN: usize = 64;

/// The broken streams of a session, by the id of their last event.
#[derive(Default)]
pub(super) struct Broken {
    waiting: Mutex<HashMap<String, mpsc::Receiver<Outgoing>>>,
    serials: AtomicU64,
}

impl Broken {
    /// Lays a stream by and gives the id to come back with, or the stream when there is no room.
    fn lay_by(&self, events: mpsc::Receiver<Outgoing>) -> Result<String, mpsc::Receiver<Outgoing>> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_BROKEN {
            return Err(events);
        }
        let id = format!("call-{}", self.serials.fetch_add(1, Ordering::Relaxed));
        waiting.insert(id.clone(), events);
        Ok(id)
    }

    /// The stream that broke with this event, once.
    pub(super) fn take(&self, id: &str) -> Option<mpsc::Receiver<Outgoing>> {
        self.waiting.lock().remove(id)
    }
}

/// The events of one call, until its stream breaks.
pub(super) struct Breakable {
    session: Arc<Session>,
    events: Option<mpsc::Receiver<Outgoing>>,
}

impl Breakable {
    /// The events of a call in this session.
    pub(super) fn new(session: &Arc<Session>, events: mpsc::Receiver<Outgoing>) -> Self {
        Self { session: Arc::clone(session), events: Some(events) }
    }
}

impl Events for Breakable {
    async fn next(&mut self) -> Option<Outgoing> {
        let message = self.events.as_mut()?.recv().await?;
        if message != Outgoing::Break {
            return Some(message);
        }
        match self.session.broken.lay_by(self.events.take()?) {
            Ok(id) => Some(Outgoing::Broken(id)),
            Err(events) => {
                self.events = Some(events);
                Some(message)
            }
        }
    }
}
