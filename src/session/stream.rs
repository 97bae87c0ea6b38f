//! Reading and writing the event streams of a session.

use std::sync::Arc;
use std::time::Instant;

use super::channel::Channel;
use super::live::{Inner, Session};
use super::track::Track;
use crate::jsonrpc::Chunks;
use crate::mcp::ProtocolVersion;

/// Most streams of one session that are kept.
const MAX_TRACKS: usize = 16;
/// Most standing streams of one session with a reader.
const MAX_STANDING: usize = 8;
/// The first revision whose clients know events without data.
const PRIMED: ProtocolVersion = ProtocolVersion::V2025_11_25;

/// A stream that is read: a standing one, or the rest of one whose connection broke. Dropping it leaves what was not
/// read for a resumption.
#[derive(Debug)]
pub struct Stream {
    session: Arc<Session>,
    track: Arc<Track>,
    turn: u64,
    after: u64,
    primed: bool,
}

impl Stream {
    fn new(session: &Arc<Session>, track: Arc<Track>, after: u64, primed: bool) -> Self {
        session.enter();
        let turn = track.attach();
        Self { session: Arc::clone(session), track, turn, after, primed }
    }

    /// The id of an event without data to begin with, so that even a stream that breaks before its first message can
    /// be resumed. Only for clients that know such events.
    pub fn priming(&self) -> Option<String> {
        self.primed.then(|| self.session.event_id(self.track.number(), self.after))
    }

    /// The next message and its event id; `None` when the stream is to end. Cancel-safe.
    pub async fn next(&mut self) -> Option<(String, Chunks)> {
        let (number, text) = self.track.next(self.turn, self.after).await?;
        self.after = number;
        Some((self.session.event_id(self.track.number(), number), text.into()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.track.detach(self.turn);
        self.session.leave();
    }
}

/// The stream of one request, written by its exchange and kept for resumption.
#[derive(Debug)]
pub struct Recorder {
    session: Arc<Session>,
    track: Arc<Track>,
    turn: u64,
}

impl Recorder {
    /// The id of an event without data to begin with; see [`Stream::priming`].
    pub fn priming(&self) -> Option<String> {
        let primed = self.session.version() >= PRIMED;
        primed.then(|| self.session.event_id(self.track.number(), 0))
    }

    /// Notes a message that is sent to the client now; the id to send it with.
    pub fn sent(&self, message: &Chunks) -> String {
        let number = self.track.note(message.clone().into_bytes(), true);
        self.session.event_id(self.track.number(), number)
    }

    /// Notes a message while the client is away.
    pub fn kept(&self, message: &Chunks) {
        self.track.note(message.clone().into_bytes(), false);
    }

    /// The client has gone away.
    pub fn left_alone(&self) {
        self.track.detach(self.turn);
    }

    /// Whether the client reads the stream elsewhere by now.
    pub fn is_taken_over(&self) -> bool {
        self.track.is_taken_over(self.turn)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.track.detach(self.turn);
        self.track.close();
    }
}

impl Inner {
    /// A new track; the oldest that nobody reads makes room, first of those that nothing is added to.
    fn track(&mut self, number: u64) -> Arc<Track> {
        if self.tracks.len() >= MAX_TRACKS {
            let mut idle = self.tracks.iter().enumerate().filter(|(_, track)| !track.is_attached());
            let first = idle.clone().next();
            let ended = idle.find(|(_, track)| !track.is_open()).or(first);
            let place = ended.map_or(0, |(place, _)| place);
            self.tracks.remove(place);
        }
        let track = Arc::new(Track::new(number));
        self.tracks.push_back(Arc::clone(&track));
        track
    }
}

impl Session {
    /// Opens a standing stream (GET). Changes that nobody could be told of come first. `None` when there are too
    /// many, or the session has ended.
    pub fn open_stream(self: &Arc<Self>) -> Option<Stream> {
        let number = self.mint();
        let mut inner = self.inner.lock();
        inner.standing.retain(|track| track.is_open());
        let attached = inner.standing.iter().filter(|track| track.is_attached()).count();
        if inner.ended || attached >= MAX_STANDING {
            return None;
        }
        let track = inner.track(number);
        for kind in std::mem::take(&mut inner.missed) {
            track.push(&super::Broadcast::ListChanged(kind));
        }
        // What waits on streams that nobody reads any more is told on this one.
        inner.standing.retain(|old| {
            if old.is_attached() {
                return true;
            }
            for text in old.take_unread() {
                track.note(text, false);
            }
            old.close();
            false
        });
        inner.standing.push(Arc::clone(&track));
        drop(inner);
        Some(Stream::new(self, track, 0, self.version() >= PRIMED))
    }

    /// Goes on with the stream of an event id, behind that event. `None` when the id is of no stream of this
    /// session, or what followed it is not kept any more.
    pub fn resume(self: &Arc<Self>, event_id: &str) -> Option<Stream> {
        let (stream, after) = self.read_event_id(event_id)?;
        let inner = self.inner.lock();
        let track = inner.tracks.iter().find(|track| track.number() == stream).cloned()?;
        drop(inner);
        if track.has_lost(after) {
            return None;
        }
        Some(Stream::new(self, track, after, false))
    }

    /// Begins to record the stream of one request.
    pub fn record(self: &Arc<Self>) -> Option<Recorder> {
        let number = self.mint();
        let mut inner = self.inner.lock();
        if inner.ended {
            return None;
        }
        let track = inner.track(number);
        drop(inner);
        let turn = track.attach();
        Some(Recorder { session: Arc::clone(self), track, turn })
    }

    /// Ends the standing streams once what waits is written.
    pub fn close_streams(&self) {
        let streams = std::mem::take(&mut self.inner.lock().standing);
        for stream in streams {
            stream.close();
        }
    }

    /// All that belongs to no request goes to this stream from now on; changes that nobody could be told of come first.
    /// `false` when the session has ended.
    pub(super) fn speak_on(&self, channel: &Arc<Channel>) -> bool {
        let mut inner = self.inner.lock();
        if inner.ended {
            return false;
        }
        self.enter();
        inner.channel = Some(Arc::clone(channel));
        let missed = std::mem::take(&mut inner.missed);
        drop(inner);
        for kind in missed {
            channel.tell(&super::Broadcast::ListChanged(kind));
        }
        true
    }

    /// Sends a message to exactly one of the standing streams: the newest that is read, else the newest that can be
    /// resumed. Without one, list changes are remembered and anything else is dropped.
    pub fn publish(&self, broadcast: &super::Broadcast) {
        let mut inner = self.inner.lock();
        if let Some(channel) = inner.channel.clone() {
            drop(inner);
            return channel.tell(broadcast);
        }
        inner.standing.retain(|track| track.is_open());
        let read = inner.standing.iter().rev().filter(|track| track.is_attached());
        let unread = inner.standing.iter().rev().filter(|track| !track.is_attached());
        if read.chain(unread).any(|track| track.push(broadcast)) {
            return;
        }
        if let super::Broadcast::ListChanged(kind) = broadcast
            && !inner.missed.contains(kind)
        {
            inner.missed.push(*kind);
        }
    }

    /// Forgets messages that are too old to be replayed.
    pub(super) fn age(&self, now: Instant) {
        self.inner.lock().tracks.retain(|track| !track.age(now));
    }

    /// The id of an event: opaque to the client, and of no use in another session.
    fn event_id(&self, stream: u64, number: u64) -> String {
        format!("{:08x}-{stream}-{number}", self.tag())
    }

    fn read_event_id(&self, id: &str) -> Option<(u64, u64)> {
        let mut parts = id.split('-');
        let tag = parts.next()?;
        let (stream, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let exact = tag == format!("{:08x}", self.tag()) && parts.next().is_none();
        exact.then_some((stream, number))
    }
}
