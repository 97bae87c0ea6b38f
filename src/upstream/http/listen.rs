//! The stream of an upstream session that belongs to no call (GET).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use super::channel::{Channel, LAST_EVENT_ID};
use super::endpoint::{Outgoing, Via};
use super::questions::Questions;
use super::reply::{Media, Reply};
use super::stream::pause_of;
use super::timer::Timer;
use crate::jsonrpc::{Body, Chunks, Kind, Limits, Member, Message, parse_answers};
use crate::upstream::CallError;
use crate::upstream::call::refused;
use crate::upstream::link::{MAX_DEPTH, NoticeKind};
use crate::wire::{SseDecoder, SseEvent};

/// The pause before a stream is opened again, when the upstream does not say.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Streams in a row that brought nothing and ended at once, until no more are opened.
const MAX_FAILURES: u32 = 4;
/// A stream that lasted this long was no failure.
const STEADY: Duration = Duration::from_secs(5);
/// How soon after giving up the next call may try again.
const REST: Duration = Duration::from_secs(30);
/// Most messages in one event.
const MAX_BATCH: usize = 1000;

/// Sees to it that there is a stream.
#[derive(Debug)]
pub(super) struct Listener {
    listening: Mutex<Listening>,
    /// Who is asked what the upstream asks there; without it nobody is.
    questions: Option<Arc<Questions>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    /// A task sees to it.
    On,
    /// It failed too often, at that time.
    GivenUp(Instant),
    /// The upstream offers none.
    Never,
}

/// How one stream ended.
enum End {
    /// The upstream offers none.
    Refused,
    /// It ended, or could not be opened.
    Broken,
}

/// What goes on from one stream to the next.
#[derive(Default)]
struct Place {
    last_id: Option<Bytes>,
    retry: Option<u64>,
    /// Whether the last stream brought anything.
    heard: bool,
}

impl Listener {
    pub(super) fn new(questions: Option<Arc<Questions>>) -> Arc<Self> {
        Arc::new(Self { listening: Mutex::new(Listening::On), questions })
    }

    /// Opens the stream again if it was given up a while ago. Called for each call.
    pub(super) fn revive(self: &Arc<Self>, channel: &Arc<Channel>) {
        let mut listening = self.listening.lock();
        if matches!(*listening, Listening::GivenUp(at) if at.elapsed() > REST) {
            *listening = Listening::On;
            drop(listening);
            Arc::clone(self).listen(channel);
        }
    }

    /// Listens in the background until the channel is stopped or the upstream offers no stream.
    pub(super) fn listen(self: Arc<Self>, channel: &Arc<Channel>) {
        let channel = Arc::clone(channel);
        channel.clone().context.tasks.spawn(async move {
            let stop = channel.context.stop.clone();
            let state = tokio::select! {
                () = stop.cancelled() => Listening::Never,
                state = self.keep_listening(&channel) => state,
            };
            self.heard();
            *self.listening.lock() = state;
        });
    }

    /// Calls need not wait for the stream any more.
    fn heard(&self) {
        if let Some(questions) = &self.questions {
            questions.heard();
        }
    }

    /// Opens one stream after the other.
    async fn keep_listening(&self, channel: &Arc<Channel>) -> Listening {
        let mut place = Place::default();
        let mut failures = 0;
        loop {
            let began = Instant::now();
            place.heard = false;
            match self.listen_once(channel, &mut place).await {
                Ok(End::Refused) => return Listening::Never,
                Ok(End::Broken) => {}
                Err(error) => {
                    tracing::debug!(%error, "a stream of an upstream could not be opened")
                }
            }
            let good = place.heard || began.elapsed() >= STEADY;
            failures = if good { 0 } else { failures + 1 };
            if failures >= MAX_FAILURES {
                return Listening::GivenUp(Instant::now());
            }
            let pause = pause_of(place.retry, AGAIN_AFTER);
            sleep(pause.saturating_mul(1 << failures)).await;
        }
    }

    /// Opens one stream and reads it to its end.
    async fn listen_once(
        &self,
        channel: &Arc<Channel>,
        place: &mut Place,
    ) -> Result<End, CallError> {
        // Boxed: what is needed for opening is not kept for as long as the stream lasts.
        let opened = Box::pin(open(channel, place)).await;
        self.heard();
        match opened? {
            Some(mut reply) => self.read(channel, &mut reply, place).await,
            None => return Ok(End::Refused),
        }
        Ok(End::Broken)
    }

    async fn read(&self, channel: &Arc<Channel>, reply: &mut Reply<'_>, place: &mut Place) {
        let mut decoder = SseDecoder::new(channel.context.config.max_message);
        while let Ok(Some(data)) = reply.next().await {
            decoder.push(data);
            while let Some(event) = decoder.next_event() {
                let Ok(event) = event else { return };
                Box::pin(self.take(channel, event, place)).await;
            }
        }
    }

    async fn take(&self, channel: &Arc<Channel>, event: SseEvent, place: &mut Place) {
        if event.retry.is_some() {
            place.retry = event.retry;
        }
        if event.id.is_some() {
            place.last_id = event.id;
        }
        if event.data.is_empty() || event.event.is_some() {
            return;
        }
        place.heard = true;
        let limits = Limits { max_depth: MAX_DEPTH, max_batch: MAX_BATCH };
        match parse_answers(event.data, &limits) {
            Ok(Body::One(message)) => self.message_came(channel, message).await,
            Ok(Body::Batch(elements)) => {
                for message in elements.into_iter().flatten() {
                    self.message_came(channel, message).await;
                }
            }
            Err(_) => channel.context.metrics.stray.inc(),
        }
    }

    /// Nothing here says to which call it belongs: changes are told, questions are put where it is certain who is meant.
    async fn message_came(&self, channel: &Arc<Channel>, message: Message) {
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) if message.method() == "ping" => channel.pong(&id),
            (Kind::Request, Some(id)) => match &self.questions {
                Some(questions) => questions.take(channel, &id, message),
                None => channel.deliver_later(refused().response(&id)),
            },
            (Kind::Notification, _) if message.method() == "notifications/cancelled" => {
                let named = message.member(Member::RequestId);
                if let Some((questions, id)) = self.questions.as_ref().zip(named) {
                    questions.withdraw(&id);
                }
            }
            (Kind::Notification, _) => match NoticeKind::of(&message) {
                Some(kind) => channel.context.inlet.send(kind).await,
                None => channel.context.metrics.stray.inc(),
            },
            (Kind::Response | Kind::Request, _) => channel.context.metrics.stray.inc(),
        }
    }
}

/// Opens one stream; `None` when the upstream offers none.
async fn open<'a>(
    channel: &'a Arc<Channel>,
    place: &Place,
) -> Result<Option<Reply<'a>>, CallError> {
    let limit = channel.context.config.timeout;
    let pinned: Pin<&mut Sleep> = pin!(Timer::sleep(limit, limit));
    let mut timer = Timer::new(pinned, limit, limit);
    let mut headers = channel.get.clone();
    if let Some(id) = place.last_id.as_ref().and_then(|id| HeaderValue::from_bytes(id).ok()) {
        headers.insert(LAST_EVENT_ID, id);
    }
    let out =
        Outgoing { method: Method::GET, headers: &headers, extra: &[], body: &Chunks::default };
    let reply = channel.endpoint.send(&out, Via::Own, &mut timer, &mut false).await?;
    let status = reply.status();
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(reply.refusal());
    }
    let streams = status == StatusCode::OK
        && reply.media() == Media::EventStream
        && reply.check_encoding().is_ok();
    Ok(streams.then_some(reply))
}
