//! What an upstream sends: answers, notifications, questions, noise.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::call::{
    Ask, AskReply, DUPLICATE, METHOD_NOT_FOUND, OVERLOADED, refused, restore_token,
};
use super::super::link::{MAX_DEPTH, NoticeKind};
use super::super::pending::{OpenAsk, Pick};
use super::channel::{Channel, Sort};
use super::noise::printable;
use super::salvage::salvage_id;
use crate::jsonrpc::{
    Answer, Body, Chunks, ErrorObject, Id, Kind, Limits, Member, Message, parse_answers,
    result_response,
};
use crate::wire::Line;

/// Most messages in one batch of an upstream (2025-03-26 allows batches).
const MAX_BATCH: usize = 1000;
/// Questions of one upstream that may be open at once.
const MAX_ASKS: usize = 64;
/// How much of a line without meaning is logged.
const NOISE: usize = 160;

impl Channel {
    /// One line of the upstream's output, or any other text that holds one message. Never waits.
    pub(in crate::upstream) fn take_line(self: &Arc<Self>, line: Line) {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong { bytes } => return self.take_too_long(bytes),
        };
        let start = without_lead(&text);
        if !matches!(text.get(start), Some(b'{' | b'[')) {
            return self.skip(&text);
        }
        let limits = Limits { max_depth: MAX_DEPTH, max_batch: MAX_BATCH };
        match parse_answers(text.slice(start..), &limits) {
            Ok(Body::One(message)) => self.take(message),
            Ok(Body::Batch(elements)) => {
                for element in elements {
                    match element {
                        Ok(message) => self.take(message),
                        Err(_) => self.ctx.metrics.stray.inc(),
                    }
                }
            }
            Err(rejected) => {
                let failed = salvage_id(&text[start..]).is_some_and(|id| {
                    self.pending.settle(id, Err(self.ctx.protocol(rejected.to_string())))
                });
                if failed {
                    self.ctx.metrics.stray.inc();
                } else {
                    self.skip(&text);
                }
            }
        }
    }

    /// The line is lost, and with it the id. If one call waits it must be that one's answer; if several wait, any guess
    /// may be wrong, and the one that was meant runs into its limit.
    fn take_too_long(&self, bytes: u64) {
        self.ctx.metrics.stray.inc();
        let limit = self.ctx.config.max_message;
        tracing::warn!(upstream = %self.ctx.name, bytes, "a line over max_message was dropped");
        if let Some(id) = self.pending.only() {
            let what = format!("a line over max_message = {limit}");
            self.pending.settle(id, Err(self.ctx.protocol(what)));
        }
    }

    /// Not a message: counted, and logged within limits.
    fn skip(&self, text: &[u8]) {
        self.ctx.metrics.noise.inc();
        let text = printable(&text[..text.len().min(NOISE)]);
        if text.is_empty() {
            return;
        }
        if let Some(suppressed) = self.noise.lock().admit(Instant::now()) {
            tracing::info!(upstream = %self.ctx.name, stream = "stdout", suppressed, "{text}");
        }
        self.tail.push(text);
    }

    fn take(self: &Arc<Self>, message: Message) {
        match message.kind() {
            Kind::Response => self.take_answer(message),
            Kind::Notification => self.take_notification(message),
            Kind::Request => self.take_request(message),
        }
    }

    fn take_answer(&self, message: Message) {
        let id = message.id();
        if id.is_none() && message.answer() == Answer::Neither {
            // An object that is no message: some servers log in JSON.
            return self.skip(message.text());
        }
        let settled =
            id.and_then(|id| id.as_number()).is_some_and(|id| self.pending.settle(id, Ok(message)));
        if !settled {
            self.ctx.metrics.stray.inc();
        }
    }

    fn take_notification(self: &Arc<Self>, message: Message) {
        match message.method() {
            "notifications/progress" => self.take_progress(&message),
            "notifications/cancelled" => self.take_cancelled(&message),
            "notifications/subscriptions/acknowledged" if self.is_modern() => {
                if !self.feed.acknowledged(message) {
                    self.ctx.metrics.stray.inc();
                }
            }
            method => {
                let changed = method.ends_with("/list_changed")
                    || method == "notifications/resources/updated";
                if changed {
                    let ours = !self.is_modern() || self.feed.covers(&message);
                    return match NoticeKind::of(&message).filter(|_| ours) {
                        Some(notice) => self.tell(notice),
                        None => self.ctx.metrics.stray.inc(),
                    };
                }
                // Only calls that asked for log messages get any (MCP 2026-07-28, logging).
                let logs = self.is_modern() && method == "notifications/message";
                let pick = if logs { Pick::Logging } else { Pick::Oldest };
                if let Some(inbox) = self.pending.associate(pick, Instant::now()) {
                    if !inbox.notify(message) {
                        self.ctx.metrics.stray.inc();
                    }
                } else if let Some(notice) = NoticeKind::of(&message).filter(|_| !logs) {
                    self.tell(notice);
                } else {
                    self.ctx.metrics.stray.inc();
                }
            }
        }
    }

    /// The server withdraws a question, or ends a subscription.
    fn take_cancelled(&self, message: &Message) {
        let Some(id) = message.member(Member::RequestId) else { return };
        if !self.is_modern() {
            self.asks.lock().remove(&id);
        } else if let Some(id) = Id::from_text(id).as_number().filter(|id| self.feed.has(*id)) {
            self.pending.settle(id, Err(self.ctx.closed(true, "it ended the subscription")));
        }
    }

    /// Progress of a call that has ended, or that did not ask for any, is dropped.
    fn take_progress(&self, message: &Message) {
        let call = message.member(Member::ProgressToken).and_then(|token| {
            let inbox = self.pending.inbox(Id::from_text(token).as_number()?)?;
            let token = inbox.token()?.clone();
            Some((inbox, restore_token(message, token)))
        });
        match call {
            Some((inbox, progress)) => inbox.progress(progress, Instant::now()),
            None => self.ctx.metrics.stray.inc(),
        }
    }

    /// Reports what belongs to no call. While the queue is full, list changes of one kind merge into one notice
    /// that waits; anything else is dropped and counted.
    pub(super) fn tell(self: &Arc<Self>, notice: NoticeKind) {
        let list = if let NoticeKind::ListChanged(list) = notice { Some(list) } else { None };
        if list.is_some_and(|list| self.late_lists.lock().contains(&list)) {
            return;
        }
        if self.ctx.inlet.try_send(notice) {
            return;
        }
        let Some(list) = list else { return self.ctx.metrics.stray.inc() };
        if self.late_lists.lock().insert(list) {
            let channel = Arc::clone(self);
            self.ctx.tasks.spawn(async move {
                tokio::select! {
                    room = channel.ctx.inlet.notices.reserve() => {
                        // From here on a change is a new one.
                        channel.late_lists.lock().remove(&list);
                        if let Ok(room) = room {
                            room.send(channel.ctx.inlet.notice(NoticeKind::ListChanged(list)));
                        }
                    }
                    () = channel.closed() => {}
                }
            });
        }
    }

    fn take_request(self: &Arc<Self>, message: Message) {
        let Some(id) = message.id() else { return };
        match message.method() {
            "ping" => self.answer(&Chunks::from(result_response(&id, b"{}"))),
            // There it asks by the result of a call (MCP 2026-07-28, multi round-trip requests).
            _ if self.is_modern() => {
                self.ctx.metrics.stray.inc();
                self.refuse(&id, METHOD_NOT_FOUND);
            }
            "sampling/createMessage" | "elicitation/create" | "roots/list" => {
                self.take_ask(id, message)
            }
            _ => self.refuse(&id, METHOD_NOT_FOUND),
        }
    }

    /// A question to the client, if it is certain whose call it belongs to (MCP digest §19.8). With several calls of one
    /// caller in flight the newest stands for them: they are all of the same client.
    fn take_ask(self: &Arc<Self>, id: Id, message: Message) {
        if !self.ctx.caps.allows(message.method()) {
            return self.refuse(&id, METHOD_NOT_FOUND);
        }
        let Some(inbox) = self.pending.associate(Pick::Newest, Instant::now()) else {
            return self.answer(&refused().response(&id));
        };
        let (ask, replied) = Ask::new(message);
        let (withdraw, withdrawn) = oneshot::channel();
        {
            let mut asks = self.asks.lock();
            let full = asks.len() >= MAX_ASKS;
            match asks.entry(id.text().clone()) {
                Entry::Vacant(entry) if !full => entry.insert(withdraw),
                Entry::Vacant(_) => return self.refuse(&id, OVERLOADED),
                Entry::Occupied(_) => return self.refuse(&id, DUPLICATE),
            };
        }
        match inbox.ask(ask) {
            Ok(open) => {
                let relay = Arc::clone(self).relay(id, replied, withdrawn, open);
                self.ctx.tasks.spawn(relay);
            }
            Err(error) => {
                self.asks.lock().remove(id.text());
                match error {
                    TrySendError::Full(()) => self.refuse(&id, OVERLOADED),
                    TrySendError::Closed(()) => self.answer(&refused().response(&id)),
                }
            }
        }
    }

    /// Waits for the client's reply and passes it on, unless the upstream waits no more.
    async fn relay(
        self: Arc<Self>,
        id: Id,
        replied: oneshot::Receiver<AskReply>,
        withdrawn: oneshot::Receiver<()>,
        open: OpenAsk,
    ) {
        let reply = tokio::select! {
            biased;
            _ = withdrawn => return,
            () = self.closed() => return,
            reply = replied => reply,
        };
        self.asks.lock().remove(id.text());
        self.answer(&reply.unwrap_or_else(|_| refused()).response(&id));
        drop(open);
    }

    fn refuse(&self, id: &Id, error: ErrorObject) {
        self.answer(&AskReply::Refuse(error).response(id));
    }

    fn answer(&self, response: &Chunks) {
        if let Err(error) = self.post(response, Sort::Answer) {
            tracing::debug!("a request of an upstream stays without answer: {error}");
            self.ctx.metrics.stray.inc();
        }
    }
}

/// How many bytes of a line stand before its text: byte order mark and white space.
fn without_lead(text: &[u8]) -> usize {
    let text_start = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    text.len() - text_start.len()
}
