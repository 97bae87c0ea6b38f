//! One POST of a client of HTTP+SSE: acknowledged at once, worked on beside it, answered on its stream.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{begin, relay};
use crate::exchange::Assembly;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{
    Element, Id, IdKind, Kind, Member, Message, NullId, Rejected, error_response, result_response,
};
use crate::mcp::Era;
use crate::pipeline::entry::{is_modern, spelled, turned_away};
use crate::pipeline::ledger::Caller;
use crate::pipeline::legacy::initialize::initialize;
use crate::pipeline::legacy::{LEGACY, context, notified};
use crate::pipeline::reply::{Done, Reply};
use crate::pipeline::{Inbound, McpRoute, Outlet, Pipeline, batch, mcp};
use crate::session::{Busy, Channel, Entered, Session};

/// An exchange that has not begun.
pub(super) type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

/// One POST and the stream it belongs to.
pub(super) struct Post<'a> {
    pub(super) pipeline: &'a Arc<Pipeline>,
    pub(super) route: &'a Arc<McpRoute>,
    pub(super) inbound: Inbound,
    pub(super) channel: Arc<Channel>,
}

impl Post<'_> {
    /// One message.
    pub(super) fn one(self, message: Message) -> Reply {
        if message.kind() == Kind::Response {
            if let Some(session) = self.channel.session() {
                session.settle(message);
            }
            return Reply::empty(StatusCode::ACCEPTED);
        }
        let checked = check(&message);
        let id = message.id().filter(|id| !matches!(id.kind(), IdKind::Null | IdKind::Fraction));
        match (checked, id) {
            // Nobody waits for an answer on the stream.
            (Err(fault), None) => {
                turned_away(self.pipeline, &self.inbound, &message, &fault, Era::Legacy)
            }
            (Err(fault), Some(id)) => self.answer(&message, &id, Err(&fault)),
            (Ok(()), Some(id)) => self.request(message, id),
            (Ok(()), None) => self.notification(message),
        }
    }

    fn notification(self, message: Message) -> Reply {
        let Some(session) = self.channel.session() else {
            return Reply::empty(StatusCode::ACCEPTED);
        };
        if message.method() == "notifications/cancelled"
            && let Some(id) = message.member(Member::RequestId)
        {
            // Whatever became of the request so far, nothing of it is wanted any more.
            let id = Id::from_text(id);
            self.channel.cancel(&id);
            session.cancel(&id);
        }
        // One too many is dropped, as any notification may be.
        if let Ok((entered, _)) = self.channel.enter_batch(Vec::new()) {
            let cx = context(self.pipeline, Arc::clone(self.route), &self.inbound, (session, true));
            let told = async move {
                notified(&cx, &message, None).await;
                Done { status: StatusCode::ACCEPTED, body: None, retry_after: None }
            };
            self.work(entered, Arc::default(), Box::pin(told));
        }
        Reply::empty(StatusCode::ACCEPTED)
    }

    fn request(self, message: Message, id: Id) -> Reply {
        let opens = message.method() == "initialize";
        let session = self.channel.session();
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
                let cx =
                    context(self.pipeline, Arc::clone(self.route), &self.inbound, (session, true));
                let outlet = Arc::new(Outlet::default());
                let own = Arc::clone(&outlet);
                let work = async move { mcp::request(&cx, &message, &own, None).await };
                self.work(entered, outlet, Box::pin(work));
                Reply::empty(StatusCode::ACCEPTED)
            }
            None => Reply::empty(StatusCode::ACCEPTED),
        }
    }

    /// `initialize`.
    fn open(self, entered: Entered, message: Message, id: &Id) -> Reply {
        if !self.channel.start() {
            let text = "Invalid Request: this session is initialized already";
            let fault = Fault::new(Reason::InvalidRequest, text);
            return self.answer(&message, id, Err(&fault));
        }
        let Self { pipeline, route, inbound, channel } = self;
        let (pipeline, route) = (Arc::clone(pipeline), Arc::clone(route));
        let tasks = pipeline.tasks.clone();
        tasks.spawn(async move {
            let reply = initialize(&pipeline, &route, &inbound, message).await;
            if let Reply::One { body, session, .. } = reply {
                begin(&pipeline, &channel, session.as_ref().map(|id| id.as_str()), body);
            }
            drop(entered);
        });
        Reply::empty(StatusCode::ACCEPTED)
    }

    /// A batch: of requests, or of answers; notifications may be in either.
    pub(super) fn many(self, elements: Vec<Element>) -> Reply {
        let invalid = |text| {
            let fault = Fault::new(Reason::InvalidRequest, text);
            Caller::of(&self.inbound).refused(self.pipeline.metrics(), &fault);
            Reply::fault(None, &fault, LEGACY, spelled(&self.inbound))
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
        let session = self.channel.session();
        if let Some(session) = &session {
            for answer in answers.into_iter().flatten() {
                session.settle(answer);
            }
        }
        if !elements.is_empty() {
            self.batch(session, elements);
        }
        Reply::empty(StatusCode::ACCEPTED)
    }

    fn batch(self, session: Option<Arc<Session>>, mut elements: Vec<Element>) {
        self.route.metrics.batch_elements.observe(elements.len() as f64);
        let Some(session) = session else { return self.refuse_all(elements, &uninitialized()) };
        let ids = elements.iter().flatten().filter_map(Message::id).collect();
        let (entered, used) = match self.channel.enter_batch(ids) {
            Ok(entered) => entered,
            Err(busy) => return self.refuse_all(elements, &busy_fault(busy)),
        };
        if !used.is_empty() {
            for element in &mut elements {
                let id = element.as_ref().ok().and_then(Message::id);
                if let Some(id) = id.filter(|id| used.contains(id)) {
                    *element = Err(Rejected::Invalid { id: Some(id), reason: DUPLICATE });
                }
            }
        }
        let cx = context(self.pipeline, Arc::clone(self.route), &self.inbound, (session, true));
        let outlet = Arc::new(Outlet::default());
        let work = Box::pin(batch::run_mcp(Arc::new(cx), elements, Arc::clone(&outlet)));
        self.work(entered, outlet, work);
    }

    /// Answers each request of a batch with this fault.
    fn refuse_all(&self, elements: Vec<Element>, fault: &Fault) {
        Caller::of(&self.inbound).refused(self.pipeline.metrics(), fault);
        let server = &self.inbound.snapshot.server;
        let mut assembly = Assembly::new(server.max_batch_answer, NullId::Omit);
        for element in elements {
            match element {
                Ok(message) if message.kind() == Kind::Notification => {
                    assembly.silent();
                }
                Ok(message) => {
                    assembly.expect(message.id());
                }
                Err(rejected) => {
                    let id = match &rejected {
                        Rejected::Invalid { id, .. } => id.clone(),
                        _ => None,
                    };
                    let error = Fault::from(&rejected).to_error();
                    let answer = error_response(id.as_ref(), &error, NullId::Omit);
                    let place = assembly.expect(id);
                    assembly.fill(place, answer.into());
                }
            }
        }
        assembly.fill_rest(fault);
        if let Some(answer) = assembly.finish() {
            self.channel.put(answer.into());
        }
    }

    /// Answers a request at once, with a result or a fault.
    fn answer(&self, message: &Message, id: &Id, result: Result<&[u8], &Fault>) -> Reply {
        let caller = Caller::of(&self.inbound);
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
        Reply::empty(StatusCode::ACCEPTED)
    }

    /// Sees an exchange through, beside the POST that began it. It ends with the stream.
    fn work(&self, mut entered: Entered, outlet: Arc<Outlet>, work: Work) {
        let (channel, cutting) = (Arc::clone(&self.channel), self.pipeline.cutting.clone());
        self.pipeline.tasks.spawn(async move {
            tokio::select! {
                // Polled first, so that it has begun, and is counted, whatever ends it.
                biased;
                () = relay(work, &outlet, &channel, cutting) => {}
                () = entered.cancelled() => {}
                () = channel.closed() => {}
            }
        });
    }
}

/// What a request is told whose answer nobody could tell from another's.
const DUPLICATE: &str = "the id is that of another request in flight";

fn busy_fault(busy: Busy) -> Fault {
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

fn uninitialized() -> Fault {
    Fault::new(Reason::InvalidRequest, "Invalid Request: begin with initialize")
}

/// What holds for every request and notification here.
fn check(message: &Message) -> Result<(), Fault> {
    if is_modern(message) {
        let text = "Invalid Request: HTTP+SSE is served up to revision 2025-11-25; POST to the route itself";
        return Err(Fault::new(Reason::InvalidRequest, text));
    }
    mcp::check(message)
}
