//! A WebSocket of a client: every message takes the path of a POST; answers go out as they are ready, on the one way
//! there is to this client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::batch;
use super::ledger::Caller;
use super::plain::{self, PlainContext};
use super::reply::{Done, Reply};
use super::snapshot::PlainRoute;
use super::{Inbound, Pipeline, Route};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Body, Chunks, Element, Id, Kind, Message, NullId, Rejected};
use crate::session::{Busy, Channel, Listening};

/// What is worked on, polled by its socket. It sends its answer itself; dropped, it is cancelled.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a request is told whose answer nobody could tell from another's.
const DUPLICATE: &str = "the id is that of another request in flight";

/// One socket, from its upgrade to its end.
#[derive(Debug)]
pub struct Socket {
    pipeline: Arc<Pipeline>,
    /// What all its messages have in common; without headers: those of the upgrade say nothing of a message.
    inbound: Inbound,
    channel: Arc<Channel>,
    out: Listening,
}

impl Socket {
    /// Of a connection that was upgraded.
    pub fn new(pipeline: &Arc<Pipeline>, inbound: Inbound) -> Self {
        let most = inbound.snapshot.server.ws_max_in_flight;
        let channel = Channel::of_socket(inbound.route.name().clone(), None, most);
        let out = channel.read();
        Self { pipeline: Arc::clone(pipeline), inbound, channel, out }
    }

    /// Takes one message; what is left to be done is for the caller to poll.
    pub fn take(&self, payload: bytes::Bytes) -> Option<Work> {
        let inbound = Inbound { payload, ..self.inbound.clone() };
        match &*self.inbound.route {
            Route::Plain(route) => self.plain(route, inbound),
            Route::Mcp(_) => None,
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

    fn plain(&self, route: &Arc<PlainRoute>, inbound: Inbound) -> Option<Work> {
        let socket = Some(Arc::clone(&self.channel));
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
            let done = batch::run_plain(Arc::new(cx), elements).await;
            answer(&channel, done).await;
            drop(entered);
        }))
    }

    /// Sends an answer that nobody waits for.
    fn put(&self, reply: Reply) {
        if let Reply::One { body, .. } = reply {
            self.channel.put(body);
        }
    }
}

/// Sends what an exchange has to say in the end.
async fn answer(channel: &Channel, done: Done) {
    if let Some(answer) = done.body {
        channel.send(answer).await;
    }
}

/// The ids of the requests of a batch.
pub(super) fn ids(elements: &[Element]) -> Vec<Id> {
    let messages = elements.iter().flatten().filter(|message| message.kind() != Kind::Response);
    messages.filter_map(Message::id).collect()
}

/// Elements of a batch under ids that are in use are refused each.
pub(super) fn refuse_used(elements: &mut [Element], used: &[Id]) {
    if used.is_empty() {
        return;
    }
    for element in elements {
        let id = element.as_ref().ok().and_then(Message::id);
        if let Some(id) = id.filter(|id| used.contains(id)) {
            *element = Err(Rejected::Invalid { id: Some(id), reason: DUPLICATE });
        }
    }
}

/// What a client is told whose message is not worked on.
pub(super) fn busy_fault(busy: Busy) -> Fault {
    let text = match busy {
        Busy::Duplicate => {
            return Fault::new(Reason::InvalidRequest, format!("Invalid Request: {DUPLICATE}"));
        }
        Busy::Full => "too many requests of this client are in flight",
        Busy::Ending => "the gateway is shutting down",
    };
    let mut fault = Fault::new(Reason::Overloaded, text);
    fault.retry_after = Some(Duration::from_secs(1));
    fault
}
