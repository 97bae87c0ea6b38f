//! An answer that comes as an event stream: what precedes it, and going on after the stream broke.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::body::Unread;
use super::channel::{Channel, LAST_EVENT_ID};
use super::endpoint::{Outgoing, Via};
use super::judge::{Dialect, Judged, judge, rejected};
use super::reply::{Media, Reply};
use super::timer::Timer;
use crate::jsonrpc::{Body, Chunks, Id, Kind, Limits, Member, Message, parse_answers};
use crate::mcp::Era;
use crate::upstream::CallError;
use crate::upstream::call::{Ask, AskReply, CallEvent, OutCall, refused, restore_token};
use crate::upstream::link::{MAX_DEPTH, NoticeKind};
use crate::wire::{SseDecoder, SseEvent};

/// Most questions open at once on one call; more are refused.
const MAX_ASKS: usize = 16;
/// Most messages in one event.
const MAX_BATCH: usize = 1000;
/// Attempts to go on with a stream that brought nothing new.
const MAX_RESUMES: u32 = 3;
/// How long to wait before one, when the upstream does not say.
const RESUME_AFTER: Duration = Duration::from_millis(500);
/// The longest pause that the upstream may ask for.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The pause before a stream is opened again.
pub(super) fn pause_of(retry: Option<u64>, default: Duration) -> Duration {
    retry.map_or(default, |millis| Duration::from_millis(millis).min(LONGEST_RETRY))
}

/// The wait for the answer to one call.
pub(super) struct Answers<'a> {
    channel: &'a Arc<Channel>,
    call: &'a OutCall,
    id: u64,
    decoder: SseDecoder,
    last_id: Option<Bytes>,
    retry: Option<u64>,
    resumes: u32,
    asks: Vec<OpenAsk>,
}

/// A question that was put to the caller.
struct OpenAsk {
    /// The upstream's id.
    id: Id,
    reply: oneshot::Receiver<AskReply>,
}

/// What was waited for.
enum Next {
    Data(Result<Option<Bytes>, Unread>),
    Reply(Id, AskReply),
}

impl<'a> Answers<'a> {
    pub(super) fn new(channel: &'a Arc<Channel>, call: &'a OutCall, id: u64) -> Self {
        Self {
            channel,
            call,
            id,
            decoder: SseDecoder::new(call_limit(channel)),
            last_id: None,
            retry: None,
            resumes: 0,
            asks: Vec::new(),
        }
    }

    /// Reads until the answer is there.
    pub(super) async fn read(
        mut self,
        first: Reply<'a>,
        timer: &mut Timer<'_>,
    ) -> Result<Message, CallError> {
        let mut source = first;
        loop {
            if let Some(message) = self.decoded(timer).await? {
                self.count_rest();
                source.release_early();
                return Ok(message);
            }
            match self.next(&mut source, timer).await? {
                Next::Data(Ok(Some(data))) => self.decoder.push(data),
                Next::Data(end) => source = self.resume(end, timer).await?,
                Next::Reply(id, reply) => {
                    timer.resume();
                    self.channel.deliver_later(reply.response(&id));
                }
            }
        }
    }

    /// What follows the answer is dropped.
    fn count_rest(&mut self) {
        while let Some(Ok(event)) = self.decoder.next_event() {
            if !event.data.is_empty() {
                self.channel.endpoint.metrics.stray.inc();
            }
        }
    }

    /// Waits for bytes, or for the reply to an open question.
    async fn next(
        &mut self,
        source: &mut Reply<'_>,
        timer: &mut Timer<'_>,
    ) -> Result<Next, CallError> {
        let endpoint = &self.channel.endpoint;
        if self.asks.is_empty() {
            let data = timer.within(source.next()).await.map_err(|late| endpoint.late(late))?;
            return Ok(Next::Data(data));
        }
        let mut data = pin!(source.next());
        let asks = &mut self.asks;
        let next = poll_fn(|context| {
            if let Poll::Ready(data) = data.as_mut().poll(context) {
                return Poll::Ready(Next::Data(data));
            }
            for index in 0..asks.len() {
                if let Poll::Ready(reply) = Pin::new(&mut asks[index].reply).poll(context) {
                    let reply = reply.unwrap_or_else(|_| refused());
                    return Poll::Ready(Next::Reply(asks.swap_remove(index).id, reply));
                }
            }
            Poll::Pending
        });
        timer.within(next).await.map_err(|late| endpoint.late(late))
    }

    /// Takes every event that is complete; the answer ends it.
    async fn decoded(&mut self, timer: &mut Timer<'_>) -> Result<Option<Message>, CallError> {
        while let Some(event) = self.decoder.next_event() {
            let event = event.map_err(|_| {
                self.channel.endpoint.protocol("its message is larger than max_message")
            })?;
            if let Some(message) = self.event(event, timer).await? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    async fn event(
        &mut self,
        event: SseEvent,
        timer: &mut Timer<'_>,
    ) -> Result<Option<Message>, CallError> {
        if event.retry.is_some() {
            self.retry = event.retry;
        }
        // Without sessions, ids mean nothing: there is no going on.
        if event.id.is_some() && self.channel.era == Era::Legacy {
            if self.last_id.is_none() && event.data.is_empty() {
                let _ = self.call.events.try_send(CallEvent::Streaming);
            }
            self.last_id = event.id;
            self.resumes = 0;
        }
        // An event without data only carries an id (C012).
        if event.data.is_empty() || event.event.is_some() {
            return Ok(None);
        }
        let limits = Limits { max_depth: MAX_DEPTH, max_batch: MAX_BATCH };
        let elements = match parse_answers(event.data, &limits) {
            Ok(Body::One(message)) => return self.message(message, timer).await,
            Ok(Body::Batch(elements)) => elements,
            Err(error) => return self.channel.settle(Err(rejected(&error))).map(Some),
        };
        // 2025-03-26 lets an upstream send several messages in one event.
        for element in elements {
            let Ok(message) = element else { return Err(self.invalid_element()) };
            if let Some(answer) = self.message(message, timer).await? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn invalid_element(&self) -> CallError {
        self.channel.endpoint.protocol("its event holds something that is no message")
    }

    async fn message(
        &mut self,
        message: Message,
        timer: &mut Timer<'_>,
    ) -> Result<Option<Message>, CallError> {
        match message.kind() {
            Kind::Response => self.response(message),
            Kind::Request => self.asked(message, timer).await.map(|()| None),
            Kind::Notification => self.notified(message, timer).await.map(|()| None),
        }
    }

    /// The answer, or that of somebody else, which is dropped.
    fn response(&mut self, message: Message) -> Result<Option<Message>, CallError> {
        match judge(message, self.id, Dialect::Mcp) {
            Ok(Judged::Foreign) => {
                self.channel.endpoint.metrics.stray.inc();
                Ok(None)
            }
            judged => self.channel.settle(judged).map(Some),
        }
    }

    async fn notified(&mut self, message: Message, timer: &mut Timer<'_>) -> Result<(), CallError> {
        match message.method() {
            "notifications/progress" => {
                let Some(token) = self.token_of(&message) else {
                    self.channel.endpoint.metrics.stray.inc();
                    return Ok(());
                };
                timer.restart();
                let progress = CallEvent::Progress(restore_token(&message, token));
                self.tell(progress, timer).await
            }
            "notifications/message" => self.tell(CallEvent::Notification(message), timer).await,
            "notifications/cancelled" => {
                self.withdrawn(&message, timer);
                Ok(())
            }
            _ => match NoticeKind::of(&message) {
                Some(kind) => {
                    let sent = timer.within(self.channel.context.inlet.send(kind)).await;
                    sent.map_err(|late| self.channel.endpoint.late(late))
                }
                None => self.tell(CallEvent::Notification(message), timer).await,
            },
        }
    }

    /// The upstream no longer wants the reply to a question. Its id means nothing to anybody else.
    fn withdrawn(&mut self, message: &Message, timer: &mut Timer<'_>) {
        let named = message.member(Member::RequestId);
        let open = self.asks.iter().position(|ask| Some(ask.id.text()) == named.as_ref());
        if let Some(index) = open {
            self.asks.swap_remove(index);
            timer.resume();
        }
    }

    /// The client's token, when a progress notification names ours.
    fn token_of(&self, progress: &Message) -> Option<Bytes> {
        let named = progress.member(Member::ProgressToken)?;
        let ours = Id::from_text(named).as_number() == Some(self.id);
        if ours { self.call.token() } else { None }
    }

    /// Hands an event on; while the queue is full the upstream waits, and silence does not count.
    async fn tell(&self, event: CallEvent, timer: &mut Timer<'_>) -> Result<(), CallError> {
        use tokio::sync::mpsc::error::TrySendError;
        let event = match self.call.events.try_send(event) {
            Ok(()) | Err(TrySendError::Closed(_)) => return Ok(()),
            Err(TrySendError::Full(event)) => event,
        };
        timer.pause();
        let sent = timer.within(self.call.events.send(event)).await;
        timer.resume();
        sent.map(drop).map_err(|late| self.channel.endpoint.late(late))
    }

    /// A question: a ping is answered here, anything else is put to the caller.
    async fn asked(&mut self, message: Message, timer: &mut Timer<'_>) -> Result<(), CallError> {
        let Some(id) = message.id().filter(|_| self.channel.era == Era::Legacy) else {
            self.channel.endpoint.metrics.stray.inc();
            return Ok(());
        };
        if message.method() == "ping" {
            self.channel.pong(&id);
            return Ok(());
        }
        if self.asks.len() >= MAX_ASKS {
            self.channel.deliver_later(refused().response(&id));
            return Ok(());
        }
        let (ask, reply) = Ask::new(message);
        timer.pause();
        self.asks.push(OpenAsk { id, reply });
        self.tell(CallEvent::Ask(ask), timer).await
    }

    /// The stream ended without the answer: goes on behind the last event, if the upstream can.
    async fn resume(
        &mut self,
        end: Result<Option<Bytes>, Unread>,
        timer: &mut Timer<'_>,
    ) -> Result<Reply<'a>, CallError> {
        loop {
            self.resumes += 1;
            let last_id = self.last_id.as_ref().and_then(|id| HeaderValue::from_bytes(id).ok());
            let (Some(last_id), true) = (last_id, self.resumes <= MAX_RESUMES) else {
                return Err(self.ended(&end));
            };
            let pause = pause_of(self.retry, RESUME_AFTER);
            let late = |late| self.channel.endpoint.late(late);
            timer.within(sleep(pause)).await.map_err(late)?;
            match self.reopen(last_id, timer).await {
                Ok(Some(reply)) => {
                    self.decoder = SseDecoder::new(call_limit(self.channel));
                    return Ok(reply);
                }
                Ok(None) => return Err(self.ended(&end)),
                Err(error @ CallError::Timeout { .. }) => return Err(error),
                Err(error) => tracing::debug!(%error, "a stream was not resumed"),
            }
        }
    }

    /// GET with the last event id; `None` when the upstream does not do that.
    async fn reopen(
        &self,
        last_id: HeaderValue,
        timer: &mut Timer<'_>,
    ) -> Result<Option<Reply<'a>>, CallError> {
        let mut headers: HeaderMap = self.channel.get.clone();
        headers.insert(LAST_EVENT_ID, last_id);
        let out =
            Outgoing { method: Method::GET, headers: &headers, extra: &[], body: &Chunks::default };
        let reply = self.channel.endpoint.send(&out, Via::Own, timer, &mut true).await?;
        let streams = reply.status() == StatusCode::OK && reply.media() == Media::EventStream;
        if streams && reply.check_encoding().is_ok() {
            return Ok(Some(reply));
        }
        if reply.status().is_server_error() {
            return Err(reply.refusal());
        }
        Ok(None)
    }

    fn ended(&self, end: &Result<Option<Bytes>, Unread>) -> CallError {
        let what = match end {
            Err(Unread::Broken(error)) => format!("its event stream broke off: {error}"),
            Err(Unread::TooLarge | Unread::Full(_)) | Ok(_) => {
                "its event stream ended without the answer".to_owned()
            }
        };
        self.channel.context.closed(true, what)
    }
}

/// Most bytes of one event.
fn call_limit(channel: &Channel) -> usize {
    channel.endpoint.config.max_message
}
