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
    /// Lays a stream by under a new id, or gives it back when there is no room.
    fn lay_by(&self, events: mpsc::Receiver<Outgoing>) -> Result<String, mpsc::Receiver<Outgoing>> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_BROKEN {
            return Err(events);
        }
        let id = format!("call-{}", self.serials.fetch_add(1, Ordering::Relaxed));
        waiting.insert(id.clone(), events);
        Ok(id)
    }

    /// Lays a stream by again, whose reader left once more.
    fn lay_back(&self, id: String, events: mpsc::Receiver<Outgoing>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_BROKEN {
            waiting.insert(id, events);
        }
    }

    fn take(&self, id: &str) -> Option<mpsc::Receiver<Outgoing>> {
        self.waiting.lock().remove(id)
    }
}

/// The events of one call, until its stream breaks.
pub(super) struct Breakable {
    session: Arc<Session>,
    /// Absent after the last one.
    events: Option<mpsc::Receiver<Outgoing>>,
    /// Under what the client came back for it, if it did.
    id: Option<String>,
}

impl Breakable {
    /// The events of a call in this session.
    pub(super) fn new(session: &Arc<Session>, events: mpsc::Receiver<Outgoing>) -> Self {
        Self { session: Arc::clone(session), events: Some(events), id: None }
    }

    /// What followed on the stream that broke with this event.
    pub(super) fn again(session: &Arc<Session>, id: &str) -> Option<Self> {
        let events = session.broken.take(id)?;
        let (session, id) = (Arc::clone(session), Some(id.to_owned()));
        Some(Self { session, events: Some(events), id })
    }
}

impl Events for Breakable {
    async fn next(&mut self) -> Option<Outgoing> {
        let message = self.events.as_mut()?.recv().await;
        match message {
            Some(Outgoing::Break) => match self.session.broken.lay_by(self.events.take()?) {
                Ok(id) => Some(Outgoing::Broken(id)),
                Err(events) => {
                    self.events = Some(events);
                    message
                }
            },
            None | Some(Outgoing::Answer(_)) => {
                self.events = None;
                message
            }
            Some(_) => message,
        }
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        if let (Some(id), Some(events)) = (self.id.take(), self.events.take()) {
            self.session.broken.lay_back(id, events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::super::content::Content;
    use super::super::outbox::Standing;
    use super::super::revision::Offered;
    use super::super::service::Server;
    use super::*;

    #[tokio::test]
    async fn a_stream_can_be_come_back_to_until_its_answer_is_read() {
        let server = Server::new(Content::new(Kind::Files), Offered::All, 50, true);
        let session = Arc::new(server).open(Standing::none());
        let (queue, events) = mpsc::channel(8);
        let mut first = Breakable::new(&session, events);
        queue.send(Outgoing::Break).await.unwrap();
        let Some(Outgoing::Broken(id)) = first.next().await else { panic!("not broken") };
        assert_eq!(first.next().await, None, "what follows is for who comes back");
        drop(first);
        assert!(Breakable::again(&session, "other").is_none());
        let second = Breakable::again(&session, &id).unwrap();
        assert!(Breakable::again(&session, &id).is_none(), "one reader at a time");
        drop(second);
        let mut third = Breakable::again(&session, &id).unwrap();
        queue.send(Outgoing::Answer("{}".to_owned())).await.unwrap();
        assert_eq!(third.next().await, Some(Outgoing::Answer("{}".to_owned())));
        drop(third);
        assert!(Breakable::again(&session, &id).is_none(), "nothing follows");
    }
}
