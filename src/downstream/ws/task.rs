//! The task of one WebSocket: it reads messages, polls what is worked on, and writes what is ready, all that is ready
//! in one write.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper::upgrade::Upgraded;
use tokio::time::{Instant, Sleep};

use super::super::body::Counted;
use super::super::http::Connection;
use super::frames::{Ended, Frames};
use crate::budget::Held;
use crate::config::ServerConfig;
use crate::jsonrpc::Chunks;
use crate::pipeline::{Inbound, Route, Socket, Work};
use crate::telemetry::RouteMetrics;
use crate::wire::{CloseCode, FrameError, Received};

/// Most messages that are read before what is ready is written.
const TURN: usize = 64;
/// When enough waits to be written; the rest stays where it is counted.
const ENOUGH: usize = 64 << 10;
/// Most bytes of messages that wait for their turn while enough is worked on, and most such messages; reading stops
/// with the first one beyond.
const AHEAD: usize = 64 << 10;
/// Less than this in the time for writing is nothing.
const PROGRESS: usize = 16 << 10;
/// How long the end may take: what is written last, and the client's word that it closes too.
const CLOSING: Duration = Duration::from_secs(5);
/// How long it is tried to tell a client that does not answer.
const DYING: Duration = Duration::from_millis(200);
/// Most bytes that are read from a client which goes on sending after the end.
const DISCARDED: usize = 16 << 20;

/// How a socket ends.
#[derive(Debug)]
enum End {
    /// The client is gone.
    Gone,
    /// The client closes.
    ByClient(Option<CloseCode>),
    /// We close.
    Ours { code: CloseCode, reason: &'static str, client: Client },
}

/// What is to be expected of a client that we close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// It closes, too.
    Answers,
    /// What it sends cannot be read any more.
    Garbles,
    /// Nothing.
    Dead,
}

impl End {
    fn ours(code: CloseCode, reason: &'static str) -> Self {
        Self::Ours { code, reason, client: Client::Answers }
    }

    fn broken(error: &FrameError) -> Self {
        let reason = match error {
            FrameError::Protocol(text) => text,
            FrameError::Utf8 => "a text is not UTF-8",
            FrameError::TooLarge { .. } => "a message is larger than max_body",
        };
        Self::Ours { code: error.code(), reason, client: Client::Garbles }
    }
}

/// Serves a connection to its end.
pub(super) async fn run(
    connection: &Connection,
    inbound: &Inbound,
    upgraded: Upgraded,
    socket: Socket,
) {
    let server = &inbound.snapshot.server;
    let metrics = inbound.route.metrics();
    let _counted = Counted::new(metrics.streams("ws"));
    let mut task = Task {
        frames: Frames::new(upgraded, server.max_body),
        socket,
        server,
        metrics,
        // Answers and cancellations of MCP clients must be read whatever runs.
        most: match &*inbound.route {
            Route::Plain(_) => server.ws_max_in_flight,
            Route::Mcp(_) => usize::MAX,
        },
        work: FuturesUnordered::new(),
        ahead: VecDeque::new(),
        ahead_bytes: 0,
        held: inbound.snapshot.budget.admit(0),
        unfinished: None,
        pong: None,
        heard: Instant::now(),
        asked: None,
        blocked: None,
        timer: Timer::new(Instant::now() + server.ws_ping_interval),
        finishing: false,
    };
    let serving = &connection.serving;
    let end = {
        let mut drained = pin!(serving.drain.cancelled());
        let mut cut = pin!(serving.cut.cancelled());
        // Looking at a token takes locks that all connections share: `drain` is looked at once, so that it wakes this
        // task, and then no more until the flag says so that is set before it.
        let mut registered = false;
        let served = std::future::poll_fn(|cx| {
            if !task.finishing && (!registered || connection.pipeline.is_draining()) {
                registered = true;
                if drained.as_mut().poll(cx).is_ready() {
                    task.finish();
                }
            }
            if task.finishing && cut.as_mut().poll(cx).is_ready() {
                task.wake_all();
            }
            task.poll(cx)
        });
        // What is worked on is polled here: should it fail in a way that nobody foresaw, its client is told.
        let ended = AssertUnwindSafe(served).catch_unwind().await;
        ended.unwrap_or_else(|_| End::ours(CloseCode::Error, "the gateway failed"))
    };
    task.close(end).await;
}

/// One timer that is only set anew when it must ring earlier, or has rung.
struct Timer {
    sleep: Pin<Box<Sleep>>,
    at: Instant,
}

impl Timer {
    fn new(at: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(at)), at }
    }

    fn set(&mut self, at: Instant) {
        self.at = at;
        self.sleep.as_mut().reset(at);
    }

    /// Whether it has rung; else the task is woken when it does.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.sleep.as_mut().poll(cx).is_ready()
    }
}

/// A write that goes no further.
struct Blocked {
    since: Instant,
    /// What waited then.
    pending: usize,
}

/// A message that has begun and goes no further.
struct Unfinished {
    since: Instant,
    /// What was there then.
    held: usize,
}

struct Task<'a> {
    frames: Frames,
    socket: Socket,
    server: &'a ServerConfig,
    metrics: &'a RouteMetrics,
    /// Above so much work no message is taken.
    most: usize,
    work: FuturesUnordered<Work>,
    /// Messages that wait until they may be taken. What follows them is read, too, so that an end is seen.
    ahead: VecDeque<Bytes>,
    ahead_bytes: usize,
    /// What was read and is not worked on counts, too.
    held: Held,
    unfinished: Option<Unfinished>,
    /// The payload of the ping that is to be answered.
    pong: Option<Bytes>,
    /// When something came last.
    heard: Instant,
    /// When the client was asked whether it is there.
    asked: Option<Instant>,
    blocked: Option<Blocked>,
    timer: Timer,
    /// No new work is taken.
    finishing: bool,
}

impl Task<'_> {
    /// What runs is answered; what comes is refused.
    fn finish(&mut self) {
        self.finishing = true;
        self.socket.finish();
    }

    /// Has all that is worked on polled once more.
    fn wake_all(&mut self) {
        self.work = std::mem::take(&mut self.work).into_iter().collect();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.socket.awake();
        loop {
            while let Poll::Ready(Some(())) = self.work.poll_next_unpin(cx) {}
            let reads = self.reads();
            let read = self.read(cx);
            self.count();
            let more = match read {
                Ok(more) => more,
                Err(end) => return Poll::Ready(end),
            };
            if let Some(end) = self.write(cx) {
                return Poll::Ready(end);
            }
            // What was not read from wakes nobody.
            if !more && (reads || !self.reads()) {
                break;
            }
        }
        match self.look_at_clock(cx) {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    }

    /// Whether the client is read from: not while it does not read itself, nor while enough of it is worked on and
    /// enough waits for that.
    fn reads(&self) -> bool {
        let room = self.ahead_bytes < AHEAD && self.ahead.len() < TURN;
        self.blocked.is_none() && (self.takes() || room)
    }

    /// Whether one more message may be worked on.
    fn takes(&self) -> bool {
        self.work.len() < self.most
    }

    /// Reads a number of messages; whether there may be more, or work that has not been polled.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut begun = false;
        for _ in 0..TURN {
            if !self.reads() {
                return Ok(begun);
            }
            if self.takes()
                && let Some(text) = self.ahead.pop_front()
            {
                self.ahead_bytes -= text.len();
                self.held.set(self.ahead_bytes);
                begun |= self.take(text);
                continue;
            }
            match self.frames.poll_read(cx) {
                Poll::Pending => return Ok(begun),
                Poll::Ready(Ok(Received::Message(text))) => {
                    self.metrics.bytes_in.inc_by(text.len() as u64);
                    self.unfinished = None;
                    if self.takes() {
                        // From here on it is counted where it is.
                        self.held.set(self.ahead_bytes);
                        begun |= self.take(text);
                    } else {
                        self.ahead_bytes += text.len();
                        self.ahead.push_back(text);
                    }
                }
                // Only the last of several pings need be answered (RFC 6455 §5.5.3).
                Poll::Ready(Ok(Received::Ping(payload))) => self.pong = Some(payload),
                Poll::Ready(Ok(Received::Pong)) => {}
                Poll::Ready(Ok(Received::Close(code))) => return Err(End::ByClient(code)),
                Poll::Ready(Err(Ended::Gone)) => return Err(End::Gone),
                Poll::Ready(Err(Ended::Broken(error))) => {
                    if matches!(error, FrameError::TooLarge { .. }) {
                        self.socket.too_large();
                    }
                    return Err(End::broken(&error));
                }
            }
        }
        Ok(true)
    }

    /// Counts what was read and is not worked on, and notes since when a message goes no further.
    fn count(&mut self) {
        let held = self.frames.held();
        self.held.set(held + self.ahead_bytes);
        if held == 0 {
            self.unfinished = None;
        } else if self.unfinished.as_ref().is_none_or(|unfinished| unfinished.held != held) {
            self.unfinished = Some(Unfinished { since: Instant::now(), held });
        }
    }

    /// Has a message worked on; whether anything is left to be done for it.
    fn take(&mut self, text: Bytes) -> bool {
        let work = self.socket.take(text);
        let begun = work.is_some();
        self.work.extend(work);
        begun
    }

    /// Writes what is ready.
    fn write(&mut self, cx: &mut Context<'_>) -> Option<End> {
        if let Some(payload) = self.pong.take() {
            self.frames.writer.pong(&payload);
        }
        loop {
            let ended = self.gather(cx);
            match self.frames.poll_write(cx) {
                Poll::Ready(Ok(())) => self.blocked = None,
                Poll::Ready(Err(_)) => return Some(End::Gone),
                Poll::Pending => {
                    let pending = self.frames.writer.pending();
                    self.blocked.get_or_insert_with(|| Blocked { since: Instant::now(), pending });
                    return None;
                }
            }
            match ended {
                Poll::Ready(true) if self.socket.was_too_slow() => {
                    return Some(End::ours(CloseCode::Again, TOO_SLOW));
                }
                Poll::Ready(true) if self.socket.was_cut() => {
                    return Some(End::ours(CloseCode::Restart, "a subscription was lost"));
                }
                Poll::Ready(true) if self.finishing => {
                    return Some(End::ours(CloseCode::Away, "the gateway is shutting down"));
                }
                Poll::Ready(true) => {
                    return Some(End::ours(CloseCode::Error, "the session has ended"));
                }
                Poll::Ready(false) => {}
                Poll::Pending => return None,
            }
        }
    }

    /// Frames what is ready, as long as not enough waits. Ready: whether that was the end.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        while self.frames.writer.pending() < ENOUGH {
            match self.socket.poll_next(cx) {
                Poll::Ready(Some(text)) => self.frame(&text),
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(false)
    }

    fn frame(&mut self, text: &Chunks) {
        self.metrics.bytes_out.inc_by(text.len() as u64);
        self.frames.writer.message(text);
    }

    /// Asks a silent client whether it is there, and ends with one that is not, or does not read.
    fn look_at_clock(&mut self, cx: &mut Context<'_>) -> Option<End> {
        loop {
            if self.frames.was_heard() {
                self.heard = Instant::now();
                self.asked = None;
            }
            let due = self.due();
            if due < self.timer.at {
                self.timer.set(due);
            }
            if !self.timer.poll(cx) {
                return None;
            }
            let now = Instant::now();
            if let Some(end) = self.rung(now) {
                return Some(end);
            }
            // A ping may have been added.
            if let Some(end) = self.write(cx) {
                return Some(end);
            }
            let due = self.due();
            self.timer.set(due);
            if self.reads() {
                cx.waker().wake_by_ref();
            }
        }
    }

    /// When the clock must be looked at next.
    fn due(&self) -> Instant {
        let silent = match self.asked {
            Some(asked) => asked + self.server.ws_ping_timeout,
            None => self.heard + self.server.ws_ping_interval,
        };
        let mut due = silent;
        if let Some(blocked) = &self.blocked {
            due = due.min(blocked.since + self.server.ws_write_timeout);
        }
        if let Some(unfinished) = &self.unfinished {
            due = due.min(unfinished.since + self.server.body_timeout);
        }
        due
    }

    fn rung(&mut self, now: Instant) -> Option<End> {
        if let Some(blocked) = &mut self.blocked
            && now >= blocked.since + self.server.ws_write_timeout
        {
            let pending = self.frames.writer.pending();
            if blocked.pending.saturating_sub(pending) < PROGRESS {
                return Some(End::ours(CloseCode::Again, TOO_SLOW));
            }
            *blocked = Blocked { since: now, pending };
        }
        if !self.reads() {
            // Nobody listens to what it may have said.
            self.heard = now;
            self.asked = None;
            if let Some(unfinished) = &mut self.unfinished {
                unfinished.since = now;
            }
            return None;
        }
        if let Some(unfinished) = &self.unfinished
            && now >= unfinished.since + self.server.body_timeout
        {
            let reason = "a message that has begun does not go on";
            return Some(End::Ours { code: CloseCode::Policy, reason, client: Client::Garbles });
        }
        match self.asked {
            Some(asked) if now >= asked + self.server.ws_ping_timeout => {
                let reason = "no answer to a ping in time";
                Some(End::Ours { code: CloseCode::Policy, reason, client: Client::Dead })
            }
            None if now >= self.heard + self.server.ws_ping_interval => {
                self.asked = Some(now);
                self.frames.writer.ping();
                None
            }
            _ => None,
        }
    }

    /// Says why it ends, and waits a little for the client to say so too. What is worked on is cancelled before.
    async fn close(self, end: End) {
        let Self { mut frames, mut socket, work, .. } = self;
        drop(work);
        let (code, reason, client) = match end {
            End::Gone => return,
            // The code comes back (RFC 6455 §5.5.1).
            End::ByClient(code) => (code.unwrap_or(CloseCode::Status), "", None),
            End::Ours { code, reason, client } => (code, reason, Some(client)),
        };
        if code == CloseCode::Again {
            tracing::info!(reason, "a WebSocket client is disconnected");
        }
        // Refusals that nobody waited for go before it.
        if client.is_some() && code != CloseCode::Again {
            let mut ready = Context::from_waker(std::task::Waker::noop());
            while let Poll::Ready(Some(text)) = socket.poll_next(&mut ready) {
                frames.writer.message(&text);
            }
        }
        drop(socket);
        frames.writer.close(code, reason);
        let goodbye = async {
            std::future::poll_fn(|cx| frames.poll_write(cx)).await.ok()?;
            if client == Some(Client::Answers) {
                heard_of_close(&mut frames).await;
            }
            std::future::poll_fn(|cx| frames.poll_shutdown(cx)).await.ok()?;
            if client == Some(Client::Dead) {
                return None;
            }
            // Closed with something unread, the connection would be reset, and the client might not see the reason.
            let mut left = DISCARDED;
            while let read @ 1.. = std::future::poll_fn(|cx| frames.poll_discard(cx)).await {
                left = left.checked_sub(read)?;
            }
            Some(())
        };
        let patience = if client == Some(Client::Dead) { DYING } else { CLOSING };
        let _ = tokio::time::timeout(patience, goodbye).await;
    }
}

const TOO_SLOW: &str = "what was sent is read too slowly";

/// Reads until the client closes.
async fn heard_of_close(frames: &mut Frames) {
    loop {
        match std::future::poll_fn(|cx| frames.poll_read(cx)).await {
            Ok(Received::Close(_)) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
