//! Sessions over HTTP: ids, the standing stream of each, expiry.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::outbox::{Outgoing, QUEUE, Standing};
use super::service::Server;
use super::session::Session;
use super::sse::Events;

/// Sessions there may be.
const MAX_SESSIONS: usize = 50_000;
/// A session that is not used for this long ends.
pub(super) const IDLE: Duration = Duration::from_secs(30 * 60);

/// A session and its standing stream.
pub(super) struct Entry {
    pub(super) session: Arc<Session>,
    /// The standing queue while no stream reads it.
    events: Mutex<Option<mpsc::Receiver<Outgoing>>>,
    used: Mutex<Instant>,
}

impl Entry {
    /// A session that has yet to be entered.
    pub(super) fn new(server: &Arc<Server>) -> Self {
        let (queue, events) = mpsc::channel(QUEUE);
        let session = server.open(Standing::queue(queue));
        Self { session, events: Mutex::new(Some(events)), used: Mutex::new(Instant::now()) }
    }

    /// Takes the standing stream; `None` while another reader has it.
    pub(super) fn tap(self: &Arc<Self>) -> Option<Tap> {
        let events = self.events.lock().take()?;
        self.session.standing.set_read(true);
        Some(Tap { entry: Arc::clone(self), events: Some(events) })
    }

    /// An open stream and a running call count as use.
    fn is_expired(&self) -> bool {
        let idle = self.used.lock().elapsed() > IDLE;
        idle && !self.session.is_busy() && !self.session.standing.is_read()
    }
}

/// The standing stream while it is read. Dropping it lets another reader have it.
pub(super) struct Tap {
    entry: Arc<Entry>,
    events: Option<mpsc::Receiver<Outgoing>>,
}

impl Events for Tap {
    async fn next(&mut self) -> Option<Outgoing> {
        let ending = &self.entry.session.server.ending;
        // Both are cancel-safe.
        tokio::select! {
            biased;
            message = self.events.as_mut()?.recv() => message,
            () = ending.cancelled() => None,
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.entry.session.standing.set_read(false);
        *self.entry.used.lock() = Instant::now();
        *self.entry.events.lock() = self.events.take();
    }
}

/// Sessions by id.
#[derive(Default)]
pub(super) struct Sessions {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
}

impl Sessions {
    /// Enters a session and gives its id; `None` when there is no room.
    pub(super) fn enter(&self, entry: Arc<Entry>) -> Option<String> {
        let id = random_id()?;
        if self.entries.lock().len() >= MAX_SESSIONS {
            self.sweep();
        }
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_SESSIONS {
            return None;
        }
        entries.insert(id.clone(), entry);
        Some(id)
    }

    /// A living session by id, which counts as use.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Entry>> {
        let entry = self.entries.lock().get(id).cloned()?;
        if entry.is_expired() {
            self.end(id);
            return None;
        }
        *entry.used.lock() = Instant::now();
        Some(entry)
    }

    /// Ends a session; `false` if there was none.
    pub(super) fn end(&self, id: &str) -> bool {
        let entry = self.entries.lock().remove(id);
        if let Some(entry) = &entry {
            entry.session.closing().cancel();
        }
        entry.is_some()
    }

    /// Ends all sessions that have not been used for long.
    pub(super) fn sweep(&self) {
        let expired: Vec<String> = {
            let entries = self.entries.lock();
            let expired = entries.iter().filter(|(_, entry)| entry.is_expired());
            expired.map(|(id, _)| id.clone()).collect()
        };
        for id in expired {
            self.end(&id);
        }
    }
}

/// 128 random bits in hexadecimal; `None` if the system has no randomness to give.
pub(super) fn random_id() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().fold(String::with_capacity(32), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    }))
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::super::content::Content;
    use super::super::revision::Offered;
    use super::*;

    fn server() -> Arc<Server> {
        Arc::new(Server::new(Content::new(Kind::Files), Offered::All, 50, true))
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_session_ends_and_one_in_use_does_not() {
        let (server, sessions) = (server(), Sessions::default());
        let ids: Vec<String> =
            (0..3).map(|_| sessions.enter(Arc::new(Entry::new(&server))).unwrap()).collect();
        let tap = sessions.find(&ids[2]).unwrap().tap().unwrap();
        tokio::time::advance(IDLE).await;
        assert!(sessions.find(&ids[1]).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        sessions.sweep();
        assert!(sessions.find(&ids[0]).is_none(), "idle");
        assert!(sessions.find(&ids[1]).is_some(), "used a second ago");
        assert!(sessions.find(&ids[2]).is_some(), "its stream is open");
        drop(tap);
        tokio::time::advance(IDLE + Duration::from_secs(1)).await;
        assert!(sessions.find(&ids[2]).is_none(), "expiry needs no sweep");
    }

    #[tokio::test]
    async fn ids_are_long_and_never_the_same() {
        let (one, other) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
