//! What a client of the legacy era says that is answered on its channel: a POST of HTTP+SSE, or a message on a WebSocket.

use std::sync::Arc;

use http::StatusCode;

use super::initialize::initialize;
use super::session::passing;
use super::{LEGACY, context, notified};
use crate::config::Sessions as Need;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Chunks, Element, Id, IdKind, Kind, Member, Message, NullId, result_response};
use crate::mcp::{Era, ProtocolVersion};
use crate::pipeline::entry::{is_modern, spelled, turned_away};
use crate::pipeline::ledger::Caller;
use crate::pipeline::reply::{Done, Reply};
use crate::pipeline::work::{Work, busy_fault, ids, refuse_used, work};
use crate::pipeline::{Inbound, McpRoute, Outlet, Pipeline, batch, mcp};
use crate::session::{Channel, Entered, Session};

/// What is left to be done for what came in.
pub(in crate::pipeline) enum Taken {
    /// Nothing.
    Nothing,
    /// It is refused, and was no request that could be answered under its id.
    Refused(Reply),
    /// This.
    Work(Work),
}

/// What came in, and the channel of who sent it.
pub(in crate::pipeline) struct Arrival<'a> {
    pub(in crate::pipeline) pipeline: &'a Arc<Pipeline>,
    pub(in crate::pipeline) route: &'a Arc<McpRoute>,
    pub(in crate::pipeline) inbound: &'a Inbound,
    pub(in crate::pipeline) channel: &'a Arc<Channel>,
}

impl Arrival<'_> {
    /// One message.
    pub(in crate::pipeline) fn one(self, message: Message) -> Taken {
        if message.kind() == Kind::Response {
            if let Some(session) = self.channel.session() {
                session.settle(message);
            }
            return Taken::Nothing;
        }
        if let Err(fault) = mcp::check(&message) {
            return self.refuse(&message, &fault);
        }
        match message.id() {
            Some(id) => self.request(message, id),
            None => self.notification(message),
        }
    }

    /// Refuses a request or notification.
    pub(in crate::pipeline) fn refuse(&self, message: &Message, fault: &Fault) -> Taken {
        match message.id().filter(|id| !matches!(id.kind(), IdKind::Null | IdKind::Fraction)) {
            Some(id) => self.answer(message, &id, Err(fault)),
            // Nobody waits for an answer on the channel.
            None => Taken::Refused(turned_away(
                self.pipeline,
                self.inbound,
                message,
                fault,
                Era::Legacy,
            )),
        }
    }

    fn notification(self, message: Message) -> Taken {
        let session = self.channel.session();
        if message.method() == "notifications/cancelled"
            && let Some(id) = message.member(Member::RequestId)
        {
            // Whatever became of the request so far, nothing of it is wanted any more.
            let id = Id::from_text(id);
            self.channel.cancel(&id);
            if let Some(session) = &session {
                session.cancel(&id);
            }
        }
        // One too many is dropped, as any notification may be.
        let (Some(session), Ok(entered)) = (session, self.channel.hold(None)) else {
            return Taken::Nothing;
        };
        let cx = context(self.pipeline, Arc::clone(self.route), self.inbound, (session, true));
        let told = async move {
            notified(&cx, &message, None).await;
            Done { status: StatusCode::ACCEPTED, body: None, retry_after: None }
        };
        Taken::Work(work(self.channel, entered, Arc::default(), told))
    }

    fn request(self, message: Message, id: Id) -> Taken {
        let opens = message.method() == "initialize";
        let session = self.session();
        if session.is_none() && !opens {
            return match message.method() {
                "ping" => self.answer(&message, &id, Ok(b"{}")),
                _ => self.answer(&message, &id, Err(&uninitialized())),
            };
        }
        let entered = match self.channel.enter(id.clone()) {
            Ok(entered) => entered,
            Err(busy) => return self.answer(&message, &id, Err(&busy_fault(busy))),
        };
        match session {
            _ if opens => self.open(entered, message, &id),
            Some(session) => {
                let cx = context(self.pipeline, Arc::clone(self.route), self.inbound, session);
                let outlet = Arc::new(Outlet::default());
                let own = Arc::clone(&outlet);
                let exchange = async move { mcp::request(&cx, &message, &own, None).await };
                Taken::Work(work(self.channel, entered, outlet, exchange))
            }
            None => Taken::Nothing,
        }
    }

    /// The session of this client, and whether it outlives one request: without `initialize` each has one of its own,
    /// where none is required.
    fn session(&self) -> Option<(Arc<Session>, bool)> {
        match self.channel.session() {
            Some(session) => Some((session, true)),
            None if self.route.sessions == Need::Required => None,
            None => passing(self.pipeline, self.route, ProtocolVersion::V2025_03_26)
                .ok()
                .map(|session| (session, false)),
        }
    }

    /// `initialize`.
    fn open(self, entered: Entered, message: Message, id: &Id) -> Taken {
        if !self.channel.start() {
            let text = "Invalid Request: this session is initialized already";
            let fault = Fault::new(Reason::InvalidRequest, text);
            return self.answer(&message, id, Err(&fault));
        }
        let (pipeline, route) = (Arc::clone(self.pipeline), Arc::clone(self.route));
        let (inbound, channel) = (self.inbound.clone(), Arc::clone(self.channel));
        Taken::Work(Box::pin(async move {
            let reply = initialize(&pipeline, &route, &inbound, message).await;
            if let Reply::One { body, session, .. } = reply {
                begin(&pipeline, &channel, session.as_ref().map(|id| id.as_str()), body);
            }
            drop(entered);
        }))
    }

    /// A batch: of requests, or of answers; notifications may be in either.
    pub(in crate::pipeline) fn many(self, elements: Vec<Element>) -> Taken {
        let invalid = |text| {
            let fault = Fault::new(Reason::InvalidRequest, text);
            Caller::of(self.inbound).refused(self.pipeline.metrics(), &fault);
            Taken::Refused(Reply::fault(None, &fault, LEGACY, spelled(self.inbound)))
        };
        if !self.route.batches {
            return invalid("Invalid Request: batches are not served on this route");
        }
        if elements.iter().flatten().any(is_modern) {
            return invalid("Invalid Request: revision 2026-07-28 has no batches");
        }
        let (answers, elements): (Vec<Element>, Vec<Element>) = elements
            .into_iter()
            .partition(|element| matches!(element, Ok(m) if m.kind() == Kind::Response));
        let is_notice =
            |element: &Element| matches!(element, Ok(m) if m.kind() == Kind::Notification);
        if !answers.is_empty() && !elements.iter().all(is_notice) {
            return invalid("Invalid Request: a batch holds requests or answers, not both");
        }
        if let Some(session) = self.channel.session() {
            for answer in answers.into_iter().flatten() {
                session.settle(answer);
            }
        }
        if elements.is_empty() { Taken::Nothing } else { self.batch(elements) }
    }

    fn batch(self, mut elements: Vec<Element>) -> Taken {
        self.route.metrics.batch_elements.observe(elements.len() as f64);
        let Some(session) = self.session() else {
            return self.refuse_all(elements, &uninitialized());
        };
        let entered = match self.channel.enter_batch(ids(&elements)) {
            Ok((entered, used)) => {
                refuse_used(&mut elements, &used);
                entered
            }
            Err(busy) => return self.refuse_all(elements, &busy_fault(busy)),
        };
        let cx = context(self.pipeline, Arc::clone(self.route), self.inbound, session);
        let outlet = Arc::new(Outlet::default());
        let exchange = batch::run_mcp(Arc::new(cx), elements, Arc::clone(&outlet));
        Taken::Work(work(self.channel, entered, outlet, exchange))
    }

    /// Answers each request of a batch with this fault.
    fn refuse_all(&self, elements: Vec<Element>, fault: &Fault) -> Taken {
        Caller::of(self.inbound).refused(self.pipeline.metrics(), fault);
        let max = self.inbound.snapshot.server.max_batch_answer;
        if let Some(answer) = batch::refuse_all(elements, fault, max, NullId::Omit) {
            self.channel.put(answer);
        }
        Taken::Nothing
    }

    /// Answers a request at once, with a result or a fault.
    fn answer(&self, message: &Message, id: &Id, result: Result<&[u8], &Fault>) -> Taken {
        let caller = Caller::of(self.inbound);
        let session = self.channel.session();
        let label = self.pipeline.metrics().label(message.method());
        let mut ledger = caller.open(label, message, session.as_deref());
        let (done, outcome) = match result {
            Ok(result) => (Done::ok(result_response(id, result)), Outcome::Ok),
            Err(fault) => {
                ledger.failed(fault);
                (Done::fault(Some(id), fault, LEGACY, NullId::Omit), fault.reason.outcome())
            }
        };
        ledger.replied(&done);
        ledger.end(outcome);
        if let Some(answer) = done.body {
            self.channel.put(answer);
        }
        Taken::Nothing
    }
}

/// `initialize` was answered; with a session, that begins.
fn begin(pipeline: &Arc<Pipeline>, channel: &Arc<Channel>, session: Option<&str>, answer: Chunks) {
    let Some(session) = session.and_then(|id| pipeline.sessions.find(id)) else {
        channel.refused();
        return channel.put(answer);
    };
    if !channel.begin(&session, answer) {
        channel.close();
        pipeline.end_session(&session);
    }
}

fn uninitialized() -> Fault {
    Fault::new(Reason::InvalidRequest, "Invalid Request: begin with initialize")
}
