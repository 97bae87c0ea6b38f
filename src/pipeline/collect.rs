//! What precedes the answer of one call, on its way to the client: progress, log messages, questions.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Outlet;
use super::call::{Context, Ended};
use crate::exchange::bridge::Unaskable;
use crate::exchange::{Action, Event, Exchange, bridge};
use crate::jsonrpc::{ErrorObject, Id, Message, RawObject};
use crate::mcp::{ClientCaps, ProtocolVersion};
use crate::session::Session;
use crate::upstream::{Ask, AskReply, CallError, CallEvent};

/// How a question to the client ended.
pub(super) enum AskEnd {
    /// The client answered.
    Answered(Message),
    /// The upstream does not want to know any more.
    Withdrawn,
    /// The session ended.
    Gone,
}

type Asked = Pin<Box<dyn Future<Output = (Ask, Id, AskEnd)> + Send>>;

/// The next question that ended.
pub(super) async fn next(asked: &mut Option<FuturesUnordered<Asked>>) -> Option<(Ask, Id, AskEnd)> {
    asked.as_mut()?.next().await
}

/// The exchange and what it holds while its call runs.
pub(super) struct Collect<'a> {
    cx: &'a Context,
    outlet: &'a Outlet,
    exchange: Exchange,
    /// The questions that are open; none until the first is put, since even an empty set is allocated.
    pub(super) asked: Option<FuturesUnordered<Asked>>,
    /// The ids under which the client has been asked and has not answered.
    pub(super) open: Vec<Id>,
}

impl<'a> Collect<'a> {
    pub(super) fn new(cx: &'a Context, outlet: &'a Outlet) -> Self {
        let exchange = Exchange::new(cx.log_floor());
        Self { cx, outlet, exchange, asked: None, open: Vec::new() }
    }

    pub(super) async fn take(&mut self, event: CallEvent) {
        match event {
            CallEvent::Progress(text) => {
                let text = bridge::progress(self.cx.session.version(), text);
                self.forward(Event::Progress(text)).await;
            }
            CallEvent::Notification(message) => self.forward(Event::Notified(message)).await,
            CallEvent::Ask(ask) => self.ask(ask).await,
            // Older clients do not know events without data.
            CallEvent::Streaming => {
                if self.cx.standing && self.cx.session.version() >= ProtocolVersion::V2025_11_25 {
                    self.outlet.begin_stream();
                }
            }
        }
    }

    async fn forward(&mut self, event: Event) {
        if let Action::Forward(text) = self.exchange.on(event) {
            self.outlet.send(text).await;
        }
    }

    async fn ask(&mut self, mut ask: Ask) {
        let session = &self.cx.session;
        let unasked =
            if self.cx.standing { unaskable(session.caps(), &ask.message) } else { NOBODY };
        if let Some((code, text)) = unasked {
            self.exchange.on(Event::Asked { allowed: false });
            return ask.reply(refused(code, text));
        }
        let question = match as_asked(session, &ask.message) {
            Ok(question) => question,
            Err(unaskable) => {
                self.exchange.on(Event::Asked { allowed: false });
                return ask.reply(not_put(unaskable));
            }
        };
        let action = self.exchange.on(Event::Asked { allowed: true });
        let open = match action {
            Action::AskClient => self.cx.session.open_ask(),
            _ => None,
        };
        let Some(mut open) = open else {
            return ask.reply(refused(-32603, "too many questions are open"));
        };
        let id = open.id();
        self.open.push(id.clone());
        self.outlet.send(question.with_id(&id)).await;
        self.asked.get_or_insert_default().push(Box::pin(async move {
            let end = tokio::select! {
                answer = open.answer() => answer.map_or(AskEnd::Gone, AskEnd::Answered),
                () = ask.withdrawn() => AskEnd::Withdrawn,
            };
            (ask, id, end)
        }));
    }

    pub(super) async fn asked_ended(&mut self, ask: Ask, id: Id, end: AskEnd) {
        self.open.retain(|open| *open != id);
        match (self.exchange.on(Event::ClientAnswered), end) {
            (Action::Resume, AskEnd::Answered(answer)) => ask.reply(AskReply::Answer(answer)),
            (Action::Resume, AskEnd::Withdrawn) => withdraw(self.outlet, &id).await,
            _ => {}
        }
    }

    /// The call failed.
    pub(super) fn failed(&mut self, error: &CallError) -> Result<Message, Ended> {
        match Ended::from(error) {
            Ended::Fault(fault) => self.end(Event::Failed(fault)),
            ended => Err(ended),
        }
    }

    pub(super) fn end(&mut self, event: Event) -> Result<Message, Ended> {
        match self.exchange.on(event) {
            Action::Reply(answer) => Ok(answer),
            Action::Fail(fault) => Err(Ended::Fault(fault)),
            _ => Err(Ended::Cancelled),
        }
    }
}

/// How a question is refused that no client can be asked.
const NOBODY: Option<(i64, &str)> = Some((-32601, "the client does not support this request"));

/// How a question is refused to a client with these capabilities; `None`: it may be put.
pub(super) fn unaskable(caps: ClientCaps, question: &Message) -> Option<(i64, &'static str)> {
    if !caps.allows(question.method()) {
        return NOBODY;
    }
    if question.method() != "elicitation/create" {
        return None;
    }
    let params = question.params().and_then(|params| RawObject::parse(&params)).unwrap_or_default();
    let url = params.get_str("mode").as_deref() == Some("url");
    let elicits = if url { caps.elicits_urls() } else { caps.elicits_forms() };
    (!elicits).then_some((-32602, "the client does not elicit in this mode"))
}

/// A refusal of the gateway.
pub(super) fn refused(code: i64, text: &'static str) -> AskReply {
    AskReply::Refuse(ErrorObject { code, message: text.into(), data: None })
}

/// A legacy upstream's question in the words of its client.
fn as_asked(session: &Session, ask: &Message) -> Result<Message, Unaskable> {
    if session.version() >= ProtocolVersion::NEWEST_LEGACY {
        return Ok(ask.clone());
    }
    bridge::question(session.version(), session.caps(), &bridge::asked(String::new(), ask))
}

/// What an upstream is told whose question cannot be put.
fn not_put(unaskable: Unaskable) -> AskReply {
    match unaskable {
        Unaskable::Decline => {
            AskReply::Answer(bridge::reply(&Bytes::from_static(br#"{"action":"decline"}"#)))
        }
        Unaskable::Refuse(text) => refused(-32602, text),
    }
}

/// Tells a client that nobody waits for its answer any more.
pub(super) async fn withdraw(outlet: &Outlet, id: &Id) {
    let params = [b"{\"requestId\":", &id.text()[..], b"}"].concat();
    let cancelled = Message::notification("notifications/cancelled", Some(&params));
    outlet.send(cancelled.text().clone().into()).await;
}
