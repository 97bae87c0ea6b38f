//! A WebSocket of a client: every message takes the path of a POST; answers go out as they are ready, on the one way
//! there is to this client.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::entry::{self, is_modern, spelled, turned_away};
use super::ledger::Caller;
use super::legacy::arrival::{Arrival, Taken};
use super::plain::{self, PlainContext};
use super::reply::Reply;
use super::snapshot::{McpRoute, PlainRoute};
use super::subscriptions::{self, Subscriptions};
use super::work::{Work, answer, busy_fault, ids, refuse_used, work};
use super::{Inbound, Outlet, Pipeline, Route, batch, mcp, modern};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Body, Chunks, Element, Kind, Message, NullId, parse_body};
use crate::mcp::Era;
use crate::session::{Channel, Listening};

/// One socket, from its upgrade to its end.
#[derive(Debug)]
pub struct Socket {
    pipeline: Arc<Pipeline>,
    /// What all its messages have in common; without headers: those of the upgrade say nothing of a message.
    inbound: Inbound,
    channel: Arc<Channel>,
    /// Of a plain route: what the client has subscribed to.
    subscriptions: Arc<Subscriptions>,
    out: Listening,
}

impl Socket {
    /// Of a connection that was upgraded.
    pub fn new(pipeline: &Arc<Pipeline>, inbound: Inbound) -> Self {
        let most = inbound.snapshot.server.ws_max_in_flight;
        let channel = Channel::of_socket(inbound.route.name().clone(), None, most);
        let out = channel.read();
        let subscriptions = Subscriptions::new(inbound.route.metrics().streams("subscription"));
        Self { pipeline: Arc::clone(pipeline), inbound, channel, subscriptions, out }
    }

    /// Takes one message; what is left to be done is for the caller to poll.
    pub fn take(&self, payload: Bytes) -> Option<Work> {
        let payload = self.inbound.snapshot.budget.admit(payload.len()).keep(payload);
        let inbound = Inbound { payload, ..self.inbound.clone() };
        match &*self.inbound.route {
            Route::Plain(route) => self.plain(route, inbound),
            Route::Mcp(route) => self.mcp(route, &inbound),
        }
    }

    /// A message over the limit came, which is the last that is read.
    pub fn too_large(&self) {
        let limit = self.inbound.snapshot.server.max_body;
        let text = format!("the message is larger than max_body = {limit} bytes");
        let fault = Fault::new(Reason::MessageTooLarge, text);
        Caller::of(&self.inbound).refused(self.pipeline.metrics(), &fault);
        self.put(Reply::fault(None, &fault, None, NullId::Null));
    }

    /// The next message for the client; none when the socket is to end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Chunks>> {
        self.out.poll_next(cx)
    }

    /// The socket is polled now, and asks for messages at the end of that.
    pub fn awake(&mut self) {
        self.out.awake();
    }

    /// What runs is answered, what comes is refused; then the socket ends.
    pub fn finish(&self) {
        self.channel.finish();
    }

    /// Whether it ended since its client read too slowly.
    pub fn was_too_slow(&self) -> bool {
        self.channel.was_too_slow()
    }

    /// Whether it ended since something was lost that its client relies on.
    pub fn was_cut(&self) -> bool {
        self.channel.was_cut()
    }

    fn plain(&self, route: &Arc<PlainRoute>, inbound: Inbound) -> Option<Work> {
        let socket = Some(subscriptions::Socket::new(&self.channel, &self.subscriptions));
        let (cx, body) = match plain::open(&self.pipeline, Arc::clone(route), inbound, socket) {
            Ok(opened) => opened,
            Err(rejected) => {
                self.put(plain::refused(&rejected));
                return None;
            }
        };
        match body {
            Body::One(message) => self.plain_one(cx, message),
            Body::Batch(elements) => self.plain_batch(cx, elements),
        }
    }

    fn plain_one(&self, cx: PlainContext, message: Message) -> Option<Work> {
        let entered = match self.channel.hold(message.id()) {
            Ok(entered) => entered,
            Err(busy) => {
                let done = plain::refuse(&cx, &message, &busy_fault(busy), None);
                self.put(Reply::done(done));
                return None;
            }
        };
        let channel = Arc::clone(&self.channel);
        Some(Box::pin(async move {
            let done = plain::request(&cx, &message, None).await;
            answer(&channel, done).await;
            answered(&cx);
            drop(entered);
        }))
    }

    fn plain_batch(&self, cx: PlainContext, mut elements: Vec<Element>) -> Option<Work> {
        cx.route.metrics.batch_elements.observe(elements.len() as f64);
        let entered = match self.channel.enter_batch(ids(&elements)) {
            Ok((entered, used)) => {
                refuse_used(&mut elements, &used);
                entered
            }
            Err(busy) => {
                let fault = busy_fault(busy);
                cx.caller.refused(cx.pipeline.metrics(), &fault);
                let max = cx.snapshot.server.max_batch_answer;
                if let Some(answer) = batch::refuse_all(elements, &fault, max, NullId::Null) {
                    self.channel.put(answer);
                }
                return None;
            }
        };
        let channel = Arc::clone(&self.channel);
        Some(Box::pin(async move {
            let cx = Arc::new(cx);
            let done = batch::run_plain(Arc::clone(&cx), elements).await;
            answer(&channel, done).await;
            answered(&cx);
            drop(entered);
        }))
    }

    /// A session begins with `initialize` and ends with the socket; requests of the modern era stand alone beside it.
    fn mcp(&self, route: &Arc<McpRoute>, inbound: &Inbound) -> Option<Work> {
        let body = match parse_body(inbound.payload.clone(), &inbound.snapshot.limits) {
            Ok(body) => body,
            Err(rejected) => {
                let fault = Fault::from(&rejected);
                Caller::of(inbound).refused(self.pipeline.metrics(), &fault);
                self.put(entry::refused(&rejected, spelled(inbound)));
                return None;
            }
        };
        let arrival = Arrival { pipeline: &self.pipeline, route, inbound, channel: &self.channel };
        let (taken, is_notice) = match body {
            Body::One(message) if message.kind() == Kind::Request && is_modern(&message) => {
                return self.modern(route, inbound, message);
            }
            Body::One(message) => {
                let is_notice = message.kind() == Kind::Notification;
                (arrival.one(message), is_notice)
            }
            Body::Batch(elements) => (arrival.many(elements), false),
        };
        match taken {
            Taken::Work(work) => return Some(work),
            Taken::Refused(reply) if !is_notice => self.put(reply),
            Taken::Refused(_) | Taken::Nothing => {}
        }
        None
    }

    fn modern(&self, route: &Arc<McpRoute>, inbound: &Inbound, message: Message) -> Option<Work> {
        let refuse = |fault: &Fault| {
            self.put(turned_away(&self.pipeline, inbound, &message, fault, Era::Modern));
            None
        };
        let cx = modern::without_headers(&self.pipeline, Arc::clone(route), inbound, &message);
        let cx = match cx {
            Ok(cx) => cx,
            Err(fault) => return refuse(&fault),
        };
        let entered = match self.channel.enter(message.id()?) {
            Ok(entered) => entered,
            Err(busy) => return refuse(&busy_fault(busy)),
        };
        let outlet = Arc::new(Outlet::default());
        let own = Arc::clone(&outlet);
        let exchange = async move { mcp::request(&cx, &message, &own, None).await };
        Some(work(&self.channel, entered, outlet, exchange))
    }

    /// Sends an answer that nobody waits for.
    fn put(&self, reply: Reply) {
        if let Reply::One { body, .. } = reply {
            self.channel.put(body);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // What is kept for a session is let go of by tasks, which only a runtime has.
        if let Some(session) = self.channel.session()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.pipeline.end_session(&session);
        }
    }
}

/// What a message subscribed to is heard from now on.
fn answered(cx: &PlainContext) {
    if let Some(socket) = &cx.socket {
        socket.answered();
    }
}
