//! The table of all sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;

use super::live::{NewSession, Session, SessionId};

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// As many as allowed are open.
    #[error("there are already {limit} sessions")]
    Limit {
        /// The limit.
        limit: usize,
    },
    /// The system gives no randomness.
    #[error("no random numbers to be had")]
    NoRandomness,
}

/// Every live session by its id.
#[derive(Debug)]
pub struct Sessions {
    map: DashMap<SessionId, Arc<Session>>,
    by_number: DashMap<u64, Arc<Session>>,
    open: AtomicUsize,
    limit: usize,
    idle_timeout: Duration,
    numbers: AtomicU64,
}

impl Sessions {
    /// At most `limit` sessions, each ended after `idle_timeout` without use.
    pub fn new(limit: usize, idle_timeout: Duration) -> Self {
        Self {
            map: DashMap::new(),
            by_number: DashMap::new(),
            open: AtomicUsize::new(0),
            limit,
            idle_timeout,
            numbers: AtomicU64::new(1),
        }
    }

    /// Opens one.
    pub fn open(&self, opened: NewSession) -> Result<Arc<Session>, Full> {
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < self.limit).then_some(open + 1)
        });
        if taken.is_err() {
            return Err(Full::Limit { limit: self.limit });
        }
        let Ok(id) = SessionId::random() else {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(Full::NoRandomness);
        };
        let session = Session::new(id.clone(), self.number(), opened);
        self.by_number.insert(session.number(), Arc::clone(&session));
        self.map.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// A session of one exchange: it is in no table and ends when it is dropped.
    pub fn passing(&self, opened: NewSession) -> Result<Arc<Session>, Full> {
        let id = SessionId::random().map_err(|_| Full::NoRandomness)?;
        Ok(Session::new(id, self.number(), opened))
    }

    /// What stands for the session of a request that needs none (2026-07-28): in no table, without a name.
    pub fn stateless(&self, opened: NewSession) -> Arc<Session> {
        Session::nameless(self.number(), opened)
    }

    /// The live session of that id, marked as used. An expired one is not found, whether or not it was swept.
    pub fn find(&self, id: &str) -> Option<Arc<Session>> {
        let session = self.map.get(id).map(|entry| Arc::clone(entry.value()))?;
        if session.idle() > self.idle_timeout {
            return None;
        }
        session.touch();
        Some(session)
    }

    /// The live session of that number.
    pub fn numbered(&self, number: u64) -> Option<Arc<Session>> {
        self.by_number.get(&number).map(|entry| Arc::clone(entry.value()))
    }

    /// Ends one; `false` if it was gone already.
    pub fn end(&self, session: &Session) -> bool {
        let removed = self.map.remove(session.id().as_str());
        if removed.is_some() {
            self.by_number.remove(&session.number());
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        session.end();
        removed.is_some()
    }

    /// Ends the expired ones and returns them; forgets what is too old to be replayed.
    pub fn sweep(&self) -> Vec<Arc<Session>> {
        let now = Instant::now();
        for entry in &self.map {
            entry.value().age(now);
        }
        let mut expired = self.collect(|session| session.idle() > self.idle_timeout);
        expired.retain(|session| self.end(session));
        expired
    }

    /// All sessions for which `wanted` holds.
    pub fn collect(&self, wanted: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let matching = self.map.iter().filter(|entry| wanted(entry.value()));
        matching.map(|entry| Arc::clone(entry.value())).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Why no other could be opened now.
    pub fn full(&self) -> Option<Full> {
        (self.len() >= self.limit).then_some(Full::Limit { limit: self.limit })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Broadcast;
    use super::*;
    use crate::config::RouteName;
    use crate::jsonrpc::{Id, Message};
    use crate::mcp::{ClientCaps, ListKind, ProtocolVersion};

    fn opened() -> NewSession {
        NewSession {
            route: RouteName::new("/mcp").unwrap(),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            caps: ClientCaps::NONE,
            info: None,
        }
    }

    fn message(text: String) -> Message {
        Message::parse(Bytes::from(text), 64).unwrap()
    }

    #[test]
    fn sessions_are_bounded_and_an_ended_one_makes_room() {
        let sessions = Sessions::new(1, Duration::from_secs(60));
        let session = sessions.open(opened()).unwrap();
        assert_eq!(sessions.open(opened()).unwrap_err(), Full::Limit { limit: 1 });
        assert!(sessions.find(session.id().as_str()).is_some());
        assert!(sessions.end(&session));
        assert!(!sessions.end(&session));
        assert!(sessions.find(session.id().as_str()).is_none());
        assert!(sessions.open(opened()).is_ok());
    }

    #[test]
    fn an_idle_session_expires_but_not_with_a_stream_or_call() {
        let sessions = Sessions::new(9, Duration::ZERO);
        let session = sessions.open(opened()).unwrap();
        let stream = session.open_stream().unwrap();
        assert!(sessions.sweep().is_empty());
        drop(stream);
        let call = session.open_call(Id::from_number(1));
        assert!(sessions.sweep().is_empty());
        drop(call);
        while session.idle().is_zero() {
            std::hint::spin_loop();
        }
        assert_eq!(sessions.sweep().len(), 1);
        assert!(sessions.is_empty() && session.has_ended());
    }

    #[tokio::test]
    async fn cancelling_reaches_every_request_of_that_id_and_no_other() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        let number = Id::from_number(1);
        let text = Id::from_text(Bytes::from_static(b"\"1\""));
        let mut first = session.open_call(number.clone());
        let mut second = session.open_call(number.clone());
        let mut other = session.open_call(text);
        assert!(session.cancel(&number));
        assert!(!session.cancel(&number));
        first.cancelled().await;
        second.cancelled().await;
        let waits = tokio::time::timeout(Duration::ZERO, other.cancelled());
        assert!(waits.await.is_err());
    }

    #[tokio::test]
    async fn a_request_without_a_session_is_cancelled_by_nobody() {
        let session = Sessions::new(0, Duration::ZERO).stateless(opened());
        let id = Id::from_number(1);
        let mut call = session.open_call(id.clone());
        assert!(!session.cancel(&id));
        let waits = tokio::time::timeout(Duration::ZERO, call.cancelled());
        assert!(waits.await.is_err());
    }

    #[tokio::test]
    async fn an_answer_reaches_its_question_once() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        let mut ask = session.open_ask().unwrap();
        let id = ask.id();
        let id = std::str::from_utf8(id.text()).unwrap();
        let answer = || message(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        let foreign = message(r#"{"jsonrpc":"2.0","id":"x","result":{}}"#.into());
        assert!(!session.settle(foreign));
        assert!(session.settle(answer()));
        assert!(!session.settle(answer()));
        assert!(ask.answer().await.is_some());
    }

    #[tokio::test]
    async fn a_message_goes_to_one_stream_and_missed_changes_come_first() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        session.publish(&Broadcast::ListChanged(ListKind::Tools));
        session.publish(&Broadcast::Message(Bytes::from_static(b"lost")));
        let mut old = session.open_stream().unwrap();
        let mut new = session.open_stream().unwrap();
        let first = old.next().await.unwrap().1.into_bytes();
        assert!(first.ends_with(br#"notifications/tools/list_changed"}"#));
        session.publish(&Broadcast::Message(Bytes::from_static(b"one")));
        assert_eq!(new.next().await.unwrap().1.into_bytes(), "one");
        let nothing = tokio::time::timeout(Duration::ZERO, old.next());
        assert!(nothing.await.is_err());
        drop(new);
        session.publish(&Broadcast::Message(Bytes::from_static(b"two")));
        assert_eq!(old.next().await.unwrap().1.into_bytes(), "two");
    }

    #[tokio::test]
    async fn a_stream_is_resumed_behind_the_event_that_was_seen_and_only_in_its_session() {
        let sessions = Sessions::new(2, Duration::from_secs(60));
        let (session, other) = (sessions.open(opened()).unwrap(), sessions.open(opened()).unwrap());
        let text = |text: &'static str| Broadcast::Message(Bytes::from_static(text.as_bytes()));
        let mut stream = session.open_stream().unwrap();
        let primed = stream.priming().unwrap();
        session.publish(&text("1"));
        session.publish(&text("2"));
        let (seen, _) = stream.next().await.unwrap();
        drop(stream);
        session.publish(&text("3"));
        assert!(other.resume(&seen).is_none());
        for unknown in ["", "zzz", "1-2-3", "00000000-1-1", &format!("{seen}-1"), &seen[1..]] {
            assert!(session.resume(unknown).is_none(), "{unknown}");
        }
        let mut resumed = session.resume(&seen).unwrap();
        for expected in ["2", "3"] {
            assert_eq!(resumed.next().await.unwrap().1.into_bytes(), expected);
        }
        session.publish(&text("4"));
        assert_eq!(resumed.next().await.unwrap().1.into_bytes(), "4");
        let mut whole = session.resume(&primed).unwrap();
        assert_eq!(whole.next().await.unwrap().1.into_bytes(), "1");
        assert!(resumed.next().await.is_none(), "it is read elsewhere");
    }

    #[tokio::test]
    async fn the_answer_of_a_request_waits_for_a_client_that_comes_back() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        let recorder = session.record().unwrap();
        let seen = recorder.sent(&Bytes::from_static(b"progress").into());
        recorder.left_alone();
        recorder.kept(&Bytes::from_static(b"answer").into());
        drop(recorder);
        let mut resumed = session.resume(&seen).unwrap();
        assert_eq!(resumed.next().await.unwrap().1.into_bytes(), "answer");
        assert!(resumed.next().await.is_none());
    }

    #[test]
    fn finished_streams_make_room_first_and_are_forgotten_in_the_end() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        let stream = session.open_stream().unwrap();
        let primed = stream.priming().unwrap();
        drop(session.record().unwrap());
        drop(stream);
        for _ in 0..40 {
            let recorder = session.record().unwrap();
            recorder.sent(&Bytes::from_static(b"answer").into());
        }
        assert!(session.resume(&primed).is_some(), "a standing stream outlives finished ones");
        session.age(Instant::now() + crate::session::track::MAX_AGE + Duration::from_secs(1));
        assert_eq!(session.inner.lock().tracks.len(), 1);
    }

    #[tokio::test]
    async fn what_waits_on_a_stream_without_reader_is_told_on_the_next_one_once() {
        let session = Sessions::new(1, Duration::from_secs(60)).open(opened()).unwrap();
        drop(session.open_stream().unwrap());
        session.publish(&Broadcast::Message(Bytes::from_static(b"1")));
        let mut stream = session.open_stream().unwrap();
        assert_eq!(stream.next().await.unwrap().1.into_bytes(), "1");
        drop(stream);
        let mut stream = session.open_stream().unwrap();
        let nothing = tokio::time::timeout(Duration::ZERO, stream.next());
        assert!(nothing.await.is_err());
    }
}
