//! One connection of plain JSON-RPC that all callers share: ids of its own, answers in any order.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::duplex::salvage_id;
use super::super::judge::{Dialect, judge};
use super::super::link::{LinkContext, MAX_DEPTH};
use super::super::pending::{Pending, Reply, Slot};
use super::super::{CallError, CallerId, Events, OutCall};
use super::feeds::{FeedLeft, Feeds};
use super::socket::{Outgoing, Source};
use crate::jsonrpc::{
    Body, Chunks, ErrorObject, Id, Kind, Limits, Message, NullId, error_response, parse_answers,
};

/// Messages that may wait to be written.
const QUEUE: usize = 1024;
/// Most messages in one array of an upstream.
const MAX_BATCH: usize = 1000;

/// How a request of an upstream is answered: plain JSON-RPC knows none.
const NO_METHOD: ErrorObject = ErrorObject {
    code: -32601,
    message: std::borrow::Cow::Borrowed("Method not found"),
    data: None,
};

/// A connection, as long as it lasts. Ids are never used twice on it.
#[derive(Debug)]
pub(super) struct Wire {
    ctx: LinkContext,
    pending: Arc<Pending>,
    /// Whom notifications concern.
    feeds: Arc<Feeds>,
    /// Subscriptions that are ended by the call of that id.
    leaving: Mutex<HashMap<u64, FeedLeft>>,
    outgoing: mpsc::Sender<Outgoing>,
    ended: CancellationToken,
}

impl Wire {
    /// A connection to be, and what it wants written.
    pub(super) fn new(ctx: &LinkContext, feeds: &Arc<Feeds>) -> (Arc<Self>, Queue) {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let (pending, ended) = (Arc::default(), CancellationToken::new());
        let feeds = Arc::clone(feeds);
        let (ctx, leaving) = (ctx.clone(), Mutex::default());
        (Arc::new(Self { ctx, pending, feeds, leaving, outgoing, ended }), Queue(queue))
    }

    /// Whether calls can be made.
    pub(super) fn is_open(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// One request or notification, which is waited for until `due`. Nothing can be cancelled in plain JSON-RPC: the answer to a call that nobody waits
    /// for any more is dropped when it comes.
    pub(super) async fn call(
        &self,
        call: &OutCall,
        due: Instant,
    ) -> Result<Option<Message>, CallError> {
        if call.message.kind() != Kind::Request {
            self.post(call.plain_text(0).into_bytes(), None)?;
            return Ok(None);
        }
        let slot = self.begin(|id| call.plain_text(id))?;
        match timeout_at(due, self.finish(slot)).await {
            Ok(answer) => answer.map(Some),
            Err(_) => Err(self.ctx.timeout(call.timeout.min(call.max_timeout))),
        }
    }

    /// A request of ours, which is waited for as long as the connection lasts.
    pub(super) async fn ask(&self, request: &Message) -> Result<Message, CallError> {
        let slot = self.begin(|id| numbered(request, id))?;
        self.finish(slot).await
    }

    /// A request that ends a subscription, which is waited for as long as the connection lasts. With its answer the
    /// subscription's id is free: the reader says so before it reads on.
    pub(super) async fn leave(
        &self,
        left: &FeedLeft,
        text: impl FnOnce(u64) -> Chunks,
    ) -> Result<Message, CallError> {
        let slot = self.begin(text)?;
        self.leaving.lock().insert(slot.id, left.clone());
        self.finish(slot).await
    }

    /// Sends a request.
    fn begin(&self, text: impl FnOnce(u64) -> Chunks) -> Result<Slot, CallError> {
        let slot = self
            .pending
            .open(CallerId::GATEWAY, None, Events::closed(), Instant::now())
            .map_err(|why| self.ctx.closed(false, &*why))?;
        self.post(text(slot.id).into_bytes(), Some(slot.id))?;
        Ok(slot)
    }

    /// Waits for its answer.
    async fn finish(&self, mut slot: Slot) -> Result<Message, CallError> {
        let answer = (&mut slot.answer).await;
        let answer = answer.unwrap_or_else(|_| Err(self.ctx.closed(true, "it was forgotten")))?;
        self.ctx.settled(judge(answer, slot.id, Dialect::Plain))
    }

    /// Calls in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn post(&self, text: Bytes, id: Option<u64>) -> Result<(), CallError> {
        self.outgoing.try_send(Outgoing { text, id }).map_err(|error| match error {
            TrySendError::Full(_) => CallError::Busy { upstream: self.ctx.name.clone() },
            TrySendError::Closed(_) => self.ctx.closed(false, "the connection is closed"),
        })
    }

    /// One text of the upstream. Never waits.
    pub(super) fn take(&self, text: Bytes) {
        let limits = Limits { max_depth: MAX_DEPTH, max_batch: MAX_BATCH };
        match parse_answers(text.clone(), &limits) {
            Ok(Body::One(message)) => self.take_message(message),
            Ok(Body::Batch(elements)) => {
                for element in elements {
                    match element {
                        Ok(message) => self.take_message(message),
                        Err(_) => self.ctx.metrics.stray.inc(),
                    }
                }
            }
            Err(rejected) => {
                self.ctx.metrics.stray.inc();
                tracing::debug!(upstream = %self.ctx.name, %rejected, "a text is no message");
                if let Some(id) = salvage_id(&text) {
                    self.settle(id, Err(self.ctx.protocol(rejected.to_string())));
                }
            }
        }
    }

    /// Gives an answer to whom waits for it; `false` when that is nobody.
    fn settle(&self, id: u64, answer: Reply) -> bool {
        if let Some(left) = self.leaving.lock().remove(&id) {
            self.feeds.over(&left);
        }
        self.pending.settle(id, answer)
    }

    fn take_message(&self, message: Message) {
        match message.kind() {
            Kind::Response => {
                let id = message.id().and_then(|id| id.as_number());
                if !id.is_some_and(|id| self.settle(id, Ok(message))) {
                    self.ctx.metrics.stray.inc();
                }
            }
            Kind::Notification => {
                if !self.feeds.notified(&message) {
                    self.ctx.metrics.stray.inc();
                }
            }
            Kind::Request => {
                self.ctx.metrics.stray.inc();
                let refusal = error_response(message.id().as_ref(), &NO_METHOD, NullId::Null);
                // One that reads nothing would not read this either.
                let _ = self.post(refusal, None);
            }
        }
    }

    /// A message was over the limit, and its id is lost. If one call waits it must be that one's answer.
    pub(super) fn take_too_large(&self) {
        self.ctx.metrics.stray.inc();
        let limit = self.ctx.config.max_message;
        tracing::warn!(upstream = %self.ctx.name, "a message over max_message = {limit} ended a connection");
        if let Some(id) = self.pending.only() {
            let what = format!("its message is larger than max_message = {limit}");
            self.pending.settle(id, Err(self.ctx.protocol(what)));
        }
    }

    /// Fails every call, those that were never sent as such, and takes no more.
    pub(super) fn end(&self, unsent: &[u64], why: &str) {
        self.ended.cancel();
        for id in unsent {
            self.pending.settle(*id, Err(self.ctx.closed(false, why)));
        }
        self.pending.fail_all(why, || self.ctx.closed(true, why));
    }
}

/// A request of ours with that id.
pub(super) fn numbered(request: &Message, id: u64) -> Chunks {
    match request.id_span() {
        Some(span) => request.edited(&[(span, Id::from_number(id).text().clone())]),
        None => request.text().clone().into(),
    }
}

/// What a connection wants written.
#[derive(Debug)]
pub(super) struct Queue(mpsc::Receiver<Outgoing>);

impl Source for Queue {
    async fn take(&mut self, batch: &mut Vec<Outgoing>, most: usize) -> usize {
        self.0.recv_many(batch, most).await
    }

    fn rest(&mut self) -> Vec<Outgoing> {
        self.0.close();
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}
