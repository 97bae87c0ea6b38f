//! One open connection: what waits is written together, what comes is given away, and silence is noticed.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;

use super::super::pending::later;
use super::target::Socket;
use crate::config::UpstreamConfig;
use crate::telemetry::UpstreamMetrics;

/// Messages that are taken at once.
const BATCH: usize = 64;
/// Messages that are given away before others have their turn.
const AT_ONCE: u64 = 64;
/// Bytes that are handed over before they are flushed.
const MOST_UNFLUSHED: usize = 64 * 1024;
/// How long the end of a connection may take.
const CLOSING: Duration = Duration::from_millis(250);

/// One message to write.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) text: Bytes,
    /// The id of a request.
    pub(super) id: Option<u64>,
}

/// What is to be written, one message after another.
pub(super) trait Source: Send {
    /// Waits for messages; with 0 there will be none any more. Cancel safe.
    fn take(
        &mut self,
        batch: &mut Vec<Outgoing>,
        most: usize,
    ) -> impl Future<Output = usize> + Send;
    /// Takes no more, and gives away what waits.
    fn rest(&mut self) -> Vec<Outgoing>;
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// We ended it.
    Finished,
    /// A message was over the limit; what follows it cannot be read.
    TooLarge,
    /// The other end closed it or is gone; how.
    Lost(String),
}

impl End {
    /// For the log and for calls in flight.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Finished => "the connection was closed",
            Self::TooLarge => "it sent a message over max_message",
            Self::Lost(why) => why,
        }
    }
}

/// A connection that ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    /// Requests that were never handed to the connection.
    pub(super) unsent: Vec<u64>,
}

/// When the other end is asked whether it lives, and given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Silence before a ping.
    ping_after: Duration,
    /// Silence after a ping.
    give_up_after: Duration,
}

impl Patience {
    pub(super) fn of(config: &UpstreamConfig) -> Self {
        Self { ping_after: config.ping_interval, give_up_after: config.ping_timeout }
    }
}

/// Serves a connection until it ends, `source` has nothing more, or `stop`.
pub(super) async fn run(
    socket: Socket,
    source: &mut impl Source,
    take: impl FnMut(Bytes) + Send,
    (patience, metrics): (Patience, &UpstreamMetrics),
    stop: &CancellationToken,
) -> Ended {
    let (mut sink, mut stream) = socket.split();
    let life = Life::new(patience);
    let mut waiting = VecDeque::new();
    let end = {
        let read = read(&mut stream, take, &life, metrics);
        let write = write(&mut sink, source, &mut waiting, (&life, metrics));
        tokio::select! {
            end = read => end,
            end = write => end,
            () = life.silence() => End::Lost("it does not answer pings".to_owned()),
            () = stop.cancelled() => End::Finished,
        }
    };
    let _ = timeout(CLOSING, close(sink, stream, &end)).await;
    waiting.extend(source.rest());
    Ended { end, unsent: waiting.into_iter().filter_map(|unsent| unsent.id).collect() }
}

/// Says why we end it, as far as the other end still listens.
async fn close(mut sink: SplitSink<Socket, Message>, mut stream: SplitStream<Socket>, end: &End) {
    let code = match end {
        End::Finished => CloseCode::Normal,
        End::TooLarge => CloseCode::Size,
        End::Lost(_) => {
            // It may have said goodbye, which is to be answered.
            let _ = sink.flush().await;
            return;
        }
    };
    let frame = CloseFrame { code, reason: String::new().into() };
    if sink.send(Message::Close(Some(frame))).await.is_ok() {
        while stream.next().await.is_some_and(|next| next.is_ok()) {}
    }
}

async fn read(
    stream: &mut SplitStream<Socket>,
    mut take: impl FnMut(Bytes) + Send,
    life: &Life,
    metrics: &UpstreamMetrics,
) -> End {
    let mut taken = 0_u64;
    while let Some(next) = stream.next().await {
        life.heard();
        let text = match next {
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Binary(data)) => data,
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(frame)) => return End::Lost(goodbye(frame.as_ref())),
            Err(Error::Capacity(CapacityError::MessageTooLong { .. })) => return End::TooLarge,
            Err(error) => return End::Lost(describe(&error)),
        };
        metrics.bytes_in.inc_by(text.len() as u64);
        take(text);
        taken += 1;
        if taken.is_multiple_of(AT_ONCE) {
            // Those for whom it was are to get along with it.
            yield_now().await;
        }
    }
    End::Lost("it closed the connection".to_owned())
}

async fn write(
    sink: &mut SplitSink<Socket, Message>,
    source: &mut impl Source,
    waiting: &mut VecDeque<Outgoing>,
    (life, metrics): (&Life, &UpstreamMetrics),
) -> End {
    let mut batch = Vec::new();
    loop {
        let written = tokio::select! {
            count = source.take(&mut batch, BATCH) => {
                if count == 0 {
                    return End::Finished;
                }
                waiting.extend(batch.drain(..));
                write_all(sink, waiting, metrics).await
            }
            () = life.ping_due() => {
                life.pinged();
                sink.send(Message::Ping(Bytes::new())).await
            }
        };
        if let Err(error) = written {
            return End::Lost(describe(&error));
        }
    }
}

/// Hands over what waits, and flushes once for many.
async fn write_all(
    sink: &mut SplitSink<Socket, Message>,
    waiting: &mut VecDeque<Outgoing>,
    metrics: &UpstreamMetrics,
) -> Result<(), Error> {
    let mut unflushed = 0;
    while !waiting.is_empty() {
        poll_fn(|cx| sink.poll_ready_unpin(cx)).await?;
        let Some(Outgoing { text, .. }) = waiting.pop_front() else { break };
        unflushed += text.len();
        metrics.bytes_out.inc_by(text.len() as u64);
        // As a frame: that it is UTF-8 was checked when it came in.
        let frame = Frame::message(text, OpCode::Data(Data::Text), true);
        sink.start_send_unpin(Message::Frame(frame))?;
        if unflushed >= MOST_UNFLUSHED {
            sink.flush().await?;
            unflushed = 0;
        }
    }
    sink.flush().await
}

/// How a close frame is told.
fn goodbye(frame: Option<&CloseFrame>) -> String {
    match frame {
        Some(frame) => format!("it closed the connection with code {}", u16::from(frame.code)),
        None => "it closed the connection".to_owned(),
    }
}

/// What went wrong, without addresses.
fn describe(error: &Error) -> String {
    match error {
        Error::Io(error) => format!("the connection broke: {}", error.kind()),
        Error::Utf8(_) => "it sent text that is not UTF-8".to_owned(),
        Error::ConnectionClosed | Error::AlreadyClosed => "it closed the connection".to_owned(),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            "the connection was cut".to_owned()
        }
        error => error.to_string(),
    }
}

/// Signs of life of the other end, in milliseconds since the beginning.
#[derive(Debug)]
struct Life {
    patience: Patience,
    began: Instant,
    heard: AtomicU64,
    pinged: AtomicU64,
}

impl Life {
    fn new(patience: Patience) -> Self {
        let (heard, pinged) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { patience, began: Instant::now(), heard, pinged }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn heard(&self) {
        self.heard.store(self.millis(), Ordering::Relaxed);
    }

    fn pinged(&self) {
        self.pinged.store(self.millis(), Ordering::Relaxed);
    }

    fn last_heard(&self) -> Instant {
        self.began + Duration::from_millis(self.heard.load(Ordering::Relaxed))
    }

    /// Resolves when nothing was heard, and no ping sent, for a while. Cancel safe.
    async fn ping_due(&self) {
        loop {
            let pinged = self.began + Duration::from_millis(self.pinged.load(Ordering::Relaxed));
            let due = later(self.last_heard().max(pinged), self.patience.ping_after);
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Resolves when nothing was heard for so long that the other end is gone.
    async fn silence(&self) {
        loop {
            let Patience { ping_after, give_up_after } = self.patience;
            let due = later(self.last_heard(), ping_after.saturating_add(give_up_after));
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }
}
