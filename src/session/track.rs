//! What one event stream has carried: numbered, kept for a while, so that a client whose connection broke can see
//! the rest (MCP 2025-11-25, transports, resumability). Bounded in bytes and age.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::broadcast::Broadcast;

/// Most bytes that wait for one reader; a reader slower than that loses its stream.
pub(super) const MAX_UNREAD_BYTES: usize = 1 << 20;
/// Most messages that wait for one reader.
pub(super) const MAX_UNREAD: usize = 1024;
/// Most bytes of what was read that are kept for replay; the newest message is kept whatever its size.
const MAX_REPLAY_BYTES: usize = 128 << 10;
/// How long messages are kept.
pub(super) const MAX_AGE: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Entry {
    number: u64,
    text: Bytes,
    at: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first, numbered without gaps.
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Number of the newest entry there ever was; the first is 1.
    newest: u64,
    /// Number of the newest entry that was handed to a reader.
    read: u64,
    /// Counts readers: only the latest reads.
    reader: u64,
    attached: bool,
    closed: bool,
}

impl State {
    fn append(&mut self, text: Bytes) -> u64 {
        self.newest += 1;
        self.bytes += text.len();
        self.entries.push_back(Entry { number: self.newest, text, at: Instant::now() });
        self.newest
    }

    fn pop(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.text.len();
        }
    }

    fn unread(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev().take_while(|entry| entry.number > self.read)
    }

    /// Drops the oldest: of what was read always, of what nobody reads too.
    fn trim(&mut self) {
        while self.bytes > MAX_REPLAY_BYTES && self.entries.len() > 1 {
            let oldest = self.entries.front().map_or(0, |entry| entry.number);
            if self.attached && oldest > self.read {
                return;
            }
            self.pop();
        }
    }
}

/// The record of one stream.
#[derive(Debug)]
pub(super) struct Track {
    number: u64,
    state: Mutex<State>,
    changed: Notify,
}

impl Track {
    /// An empty one; its number is unique within its session.
    pub(super) fn new(number: u64) -> Self {
        Self { number, state: Mutex::default(), changed: Notify::new() }
    }

    /// Its number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds a message that waits to be read. `false` when the stream is closed, or was closed now since its reader
    /// is too slow.
    pub(super) fn push(&self, broadcast: &Broadcast) -> bool {
        let text = broadcast.text();
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        if broadcast.merges() && state.unread().any(|entry| entry.text == text) {
            return true;
        }
        let (count, bytes) =
            state.unread().fold((0, text.len()), |(n, b), entry| (n + 1, b + entry.text.len()));
        if state.attached && (count >= MAX_UNREAD || bytes > MAX_UNREAD_BYTES) {
            state.closed = true;
            state.entries.clear();
            state.bytes = 0;
        } else {
            state.append(text);
            state.trim();
        }
        let open = !state.closed;
        drop(state);
        self.changed.notify_waiters();
        open
    }

    /// Notes a message that its writer sends itself, or, with nobody to send it to, one that waits for a reader.
    /// Returns its number.
    pub(super) fn note(&self, text: Bytes, sent: bool) -> u64 {
        let mut state = self.state.lock();
        let number = state.append(text);
        if sent {
            state.read = number;
        }
        state.trim();
        drop(state);
        self.changed.notify_waiters();
        number
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Whether messages can be added.
    pub(super) fn is_open(&self) -> bool {
        !self.state.lock().closed
    }

    /// Whether somebody reads it.
    pub(super) fn is_attached(&self) -> bool {
        self.state.lock().attached
    }

    /// A reader begins: any earlier one has ended. Returns its turn.
    pub(super) fn attach(&self) -> u64 {
        let mut state = self.state.lock();
        state.reader += 1;
        state.attached = true;
        let turn = state.reader;
        drop(state);
        self.changed.notify_waiters();
        turn
    }

    /// A reader ends. `true` when it was the latest.
    pub(super) fn detach(&self, turn: u64) -> bool {
        let mut state = self.state.lock();
        let latest = state.reader == turn;
        if latest {
            state.attached = false;
        }
        latest
    }

    /// Whether a later reader has begun.
    pub(super) fn is_taken_over(&self, turn: u64) -> bool {
        self.state.lock().reader != turn
    }

    /// Whether messages behind `after` were dropped, or there never was such a number.
    pub(super) fn has_lost(&self, after: u64) -> bool {
        let state = self.state.lock();
        let oldest = state.entries.front().map_or(state.newest + 1, |entry| entry.number);
        after > state.newest || after + 1 < oldest
    }

    /// The first message behind `after` and its number; `None` when the stream has ended, or somebody else reads
    /// it. Cancel-safe.
    pub(super) async fn next(&self, turn: u64, after: u64) -> Option<(u64, Bytes)> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.reader != turn {
                    return None;
                }
                let found = state.entries.iter().find(|entry| entry.number > after);
                if let Some((number, text)) = found.map(|entry| (entry.number, entry.text.clone()))
                {
                    state.read = state.read.max(number);
                    state.trim();
                    return Some((number, text));
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Takes what nobody has read.
    pub(super) fn take_unread(&self) -> Vec<Bytes> {
        let mut state = self.state.lock();
        let mut unread: Vec<Bytes> = state.unread().map(|entry| entry.text.clone()).collect();
        unread.reverse();
        state.read = state.newest;
        unread
    }

    /// Forgets what is too old. `true` when nothing is left and nothing will come.
    pub(super) fn age(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        while state.entries.front().is_some_and(|entry| now.duration_since(entry.at) > MAX_AGE) {
            let oldest = state.entries.front().map_or(0, |entry| entry.number);
            if state.attached && oldest > state.read {
                break;
            }
            state.pop();
        }
        state.entries.is_empty() && state.closed && !state.attached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::ListKind;

    fn message(text: &'static str) -> Broadcast {
        Broadcast::Message(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn waiting_list_changes_merge_and_others_keep_their_order() {
        let track = Track::new(1);
        let turn = track.attach();
        assert!(track.push(&Broadcast::ListChanged(ListKind::Tools)));
        assert!(track.push(&message("1")));
        assert!(track.push(&Broadcast::ListChanged(ListKind::Tools)));
        assert!(track.push(&message("1")));
        track.close();
        let mut seen = Vec::new();
        while let Some((number, text)) = track.next(turn, seen.len() as u64).await {
            assert_eq!(number, seen.len() as u64 + 1);
            seen.push(text);
        }
        assert_eq!(seen.len(), 3);
        assert_eq!((&seen[1][..], &seen[2][..]), (&b"1"[..], &b"1"[..]));
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_loses_its_stream() {
        let track = Track::new(1);
        let turn = track.attach();
        let big = Broadcast::Message(Bytes::from(vec![b'x'; MAX_UNREAD_BYTES / 2]));
        assert!(track.push(&big) && track.push(&big));
        assert!(!track.push(&big));
        assert!(!track.is_open());
        assert!(track.next(turn, 0).await.is_none());
    }

    #[tokio::test]
    async fn a_later_reader_goes_on_where_it_says_and_the_earlier_one_ends() {
        let track = Track::new(1);
        let first = track.attach();
        for text in ["1", "2", "3"] {
            track.push(&message(text));
        }
        assert_eq!(track.next(first, 0).await.unwrap().1, "1");
        let second = track.attach();
        assert!(track.next(first, 1).await.is_none());
        assert!(!track.detach(first));
        assert_eq!(track.next(second, 1).await.unwrap(), (2, Bytes::from_static(b"2")));
        assert_eq!(track.next(second, 2).await.unwrap().0, 3);
        track.close();
        assert!(track.next(second, 3).await.is_none());
    }

    #[tokio::test]
    async fn what_was_read_is_kept_within_its_bytes_and_what_is_lost_is_known() {
        let track = Track::new(1);
        let chunk = || Bytes::from(vec![b'x'; MAX_REPLAY_BYTES / 4]);
        for _ in 0..6 {
            track.note(chunk(), true);
        }
        assert!(track.has_lost(1) && !track.has_lost(2) && !track.has_lost(6) && track.has_lost(7));
        let turn = track.attach();
        assert_eq!(track.next(turn, 2).await.unwrap().0, 3);
    }

    #[test]
    fn without_a_reader_the_oldest_goes_but_the_newest_stays() {
        let track = Track::new(1);
        for _ in 0..3 {
            track.note(Bytes::from(vec![b'x'; MAX_REPLAY_BYTES]), false);
        }
        assert!(track.has_lost(1) && !track.has_lost(2));
        assert_eq!(track.take_unread().len(), 1);
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let track = Track::new(1);
        track.note(Bytes::from_static(b"x"), true);
        track.close();
        assert!(!track.age(Instant::now()));
        assert!(track.age(Instant::now() + MAX_AGE + Duration::from_secs(1)));
    }
}
