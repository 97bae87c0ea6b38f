//! One client's connection to the server, without transport: what was agreed, what runs, what was
//! asked of the client. A transport hands messages in with [`Session::take`] and carries out what
//! comes back, and what is put into the [`Outbox`] meanwhile.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::message::{
    INTERNAL_ERROR, INVALID_REQUEST, Id, Incoming, NoId, Piece, Request, RpcError, print_error,
    print_result,
};
use super::outbox::{Outbox, Outgoing, Standing};
use super::question::Question;
use super::resume::Broken;
use super::revision::Revision;
use super::service::{self, Change, Server};

/// Calls of one session that may run at once.
const MAX_RUNNING: usize = 4096;
/// Resources that one session may subscribe to.
const MAX_SUBSCRIPTIONS: usize = 1000;

/// What to do about an incoming message.
pub(super) enum Reply {
    /// It needs no answer.
    Nothing,
    /// The answer.
    Now(String),
    /// The answer comes when this is run to its end; `None` if the call was cancelled.
    Later(Pin<Box<dyn Future<Output = Option<String>> + Send>>),
}

impl Reply {
    /// Puts the answer into the client's queue; one that takes long is a task of its own.
    pub(super) async fn deliver(self, queue: &mpsc::Sender<Outgoing>, calls: &mut JoinSet<()>) {
        match self {
            Self::Nothing => {}
            Self::Now(text) => {
                let _ = queue.send(Outgoing::Answer(text)).await;
            }
            Self::Later(answer) => {
                let queue = queue.clone();
                calls.spawn(async move {
                    if let Some(text) = answer.await {
                        let _ = queue.send(Outgoing::Answer(text)).await;
                    }
                });
            }
        }
    }
}

/// What `initialize` settled.
#[derive(Clone)]
pub(super) struct Agreed {
    pub(super) revision: Revision,
    /// The client's capabilities.
    pub(super) capabilities: Value,
}

struct State {
    agreed: Option<Agreed>,
    /// Index of the lowest level of log messages to send.
    log_level: usize,
    subscriptions: HashSet<String>,
}

/// One client's connection.
pub(super) struct Session {
    pub(super) server: Arc<Server>,
    /// Where messages go that belong to no call.
    pub(super) standing: Standing,
    /// Streams that clients may come back to.
    pub(super) broken: Broken,
    closing: CancellationToken,
    state: Mutex<State>,
    running: Mutex<HashMap<u64, (Value, CancellationToken)>>,
    asks: Mutex<HashMap<u64, oneshot::Sender<Result<Value, Value>>>>,
    serial: u64,
    counter: AtomicU64,
}

impl Session {
    /// A session that waits for `initialize`, or one that `agreed` beforehand. `serial` tells it
    /// from the server's others.
    pub(super) fn new(
        server: Arc<Server>,
        serial: u64,
        standing: Standing,
        agreed: Option<Agreed>,
    ) -> Self {
        let state =
            State { agreed, log_level: service::DEFAULT_LOG_LEVEL, subscriptions: HashSet::new() };
        Self {
            closing: server.stop.child_token(),
            server,
            standing,
            broken: Broken::default(),
            state: Mutex::new(state),
            running: Mutex::default(),
            asks: Mutex::default(),
            serial,
            counter: AtomicU64::new(1),
        }
    }

    /// Which of the server's sessions this is.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Fires when the session ends; what runs in it then stops.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// The agreed revision, or what HTTP assumes without one.
    pub(super) fn revision(&self) -> Revision {
        let agreed = self.state.lock().agreed.as_ref().map(|agreed| agreed.revision);
        agreed.unwrap_or(Revision::ASSUMED.min(self.server.newest()))
    }

    /// How errors without an id are spelled in this session.
    pub(super) fn no_id(&self) -> NoId {
        if self.revision() >= Revision::V2025_11_25 { NoId::Absent } else { NoId::Null }
    }

    /// Whether the client declared what this question needs.
    pub(super) fn may_be_asked(&self, question: &Question) -> bool {
        let state = self.state.lock();
        state.agreed.as_ref().is_some_and(|agreed| question.suits(&agreed.capabilities))
    }

    /// Takes what came in one piece. An array is answered by an array.
    pub(super) fn take_piece(self: &Arc<Self>, piece: Piece, outbox: &Outbox) -> Reply {
        match piece {
            Piece::One(incoming) => self.take(incoming, outbox),
            Piece::Many(_) if !self.revision().has_batches() => {
                Reply::Now(print_error(None, self.no_id(), &RpcError::no_batches()))
            }
            Piece::Many(many) => {
                join(many.into_iter().map(|one| self.take_in_batch(one, outbox)).collect())
            }
        }
    }

    fn take_in_batch(self: &Arc<Self>, incoming: Incoming, outbox: &Outbox) -> Reply {
        match incoming {
            Incoming::Request(request) if request.method == "initialize" => {
                let why = RpcError::new(INVALID_REQUEST, "initialize must stand alone");
                Reply::Now(print_error(Some(&request.id), self.no_id(), &why))
            }
            incoming => self.take(incoming, outbox),
        }
    }

    /// Takes one message; what the call sends on its way goes into `outbox`.
    pub(super) fn take(self: &Arc<Self>, incoming: Incoming, outbox: &Outbox) -> Reply {
        match incoming {
            Incoming::Request(request)
                if ["tools/call", "prompts/get"].contains(&request.method.as_str()) =>
            {
                self.take_call(request, outbox)
            }
            Incoming::Request(request) => {
                let outcome = service::answer(self, &request.method, &request.params);
                Reply::Now(self.print(&request.id, outcome))
            }
            Incoming::Notification { method, params } => {
                if method == "notifications/cancelled" {
                    self.cancel(&params["requestId"]);
                }
                Reply::Nothing
            }
            Incoming::Response { id, outcome } => {
                self.settle(&id, outcome);
                Reply::Nothing
            }
            Incoming::Invalid { id, why } => {
                Reply::Now(print_error(id.as_deref(), self.no_id(), &why))
            }
        }
    }

    fn take_call(self: &Arc<Self>, request: Request, outbox: &Outbox) -> Reply {
        let opened = self.check_open().and_then(|()| self.enter(&request.id));
        match opened {
            Ok(slot) => {
                let Request { id, method, params } = request;
                let session = Arc::clone(self);
                let call = Call::in_session(Arc::clone(self), slot, outbox.clone(), &params);
                Reply::Later(Box::pin(async move {
                    let outcome = call.run(&method, &params).await?;
                    Some(session.print(&id, outcome))
                }))
            }
            Err(why) => Reply::Now(self.print(&request.id, Err(why))),
        }
    }

    /// Prints the answer to a request.
    fn print(&self, id: &Id, outcome: Result<Value, RpcError>) -> String {
        match outcome {
            Ok(result) => print_result(id, &result.to_string()),
            Err(why) => print_error(Some(id), self.no_id(), &why),
        }
    }

    /// Enters what `initialize` settled; only the first one counts.
    pub(super) fn agree(&self, agreed: Agreed) -> Result<(), RpcError> {
        let mut state = self.state.lock();
        if state.agreed.is_some() {
            return Err(RpcError::new(INVALID_REQUEST, "the session is initialized already"));
        }
        state.agreed = Some(agreed);
        Ok(())
    }

    /// Whether `initialize` has been there.
    pub(super) fn check_open(&self) -> Result<(), RpcError> {
        match self.state.lock().agreed {
            Some(_) => Ok(()),
            None => Err(RpcError::new(INVALID_REQUEST, "the first request must be initialize")),
        }
    }

    /// Sets the lowest level of log messages to send.
    pub(super) fn set_log_level(&self, level: usize) {
        self.state.lock().log_level = level;
    }

    /// Whether the client wants log messages of this level.
    pub(super) fn wants_log(&self, level: usize) -> bool {
        level >= self.state.lock().log_level
    }

    /// Notes that the client wants to hear of changes to a resource.
    pub(super) fn subscribe(&self, uri: &str) -> Result<(), RpcError> {
        let mut state = self.state.lock();
        if state.subscriptions.len() >= MAX_SUBSCRIPTIONS && !state.subscriptions.contains(uri) {
            let why = format!("a session may subscribe to {MAX_SUBSCRIPTIONS} resources");
            return Err(RpcError::params(why));
        }
        state.subscriptions.insert(uri.to_owned());
        Ok(())
    }

    /// Takes a subscription back.
    pub(super) fn unsubscribe(&self, uri: &str) {
        self.state.lock().subscriptions.remove(uri);
    }

    /// Whether the client is to hear of this.
    pub(super) fn wants(&self, change: &Change) -> bool {
        let state = self.state.lock();
        match change {
            Change::Updated(uri) => state.subscriptions.contains(uri),
            _ => state.agreed.is_some(),
        }
    }

    /// Whether calls run.
    pub(super) fn is_busy(&self) -> bool {
        !self.running.lock().is_empty()
    }

    /// Enters a call under the client's id, so that it can be cancelled.
    fn enter(self: &Arc<Self>, id: &Id) -> Result<Slot, RpcError> {
        let cancelled = self.closing.child_token();
        let key = self.mint();
        let id = serde_json::from_str(id.get()).unwrap_or(Value::Null);
        let mut running = self.running.lock();
        if running.len() >= MAX_RUNNING {
            let why = format!("a session may run {MAX_RUNNING} calls at once");
            return Err(RpcError::new(INTERNAL_ERROR, why));
        }
        running.insert(key, (id, cancelled.clone()));
        Ok(Slot { session: Arc::clone(self), key, cancelled })
    }

    fn cancel(&self, id: &Value) {
        for (running, cancelled) in self.running.lock().values() {
            if running == id {
                cancelled.cancel();
            }
        }
    }

    fn mint(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a question to the client: its id, and where the answer arrives.
    pub(super) fn open_ask(self: &Arc<Self>) -> Ask {
        let (tx, answer) = oneshot::channel();
        let id = self.mint();
        self.asks.lock().insert(id, tx);
        Ask { session: Arc::clone(self), id, answer }
    }

    fn settle(&self, id: &Value, outcome: Result<Value, Value>) {
        let waiter = id.as_u64().and_then(|id| self.asks.lock().remove(&id));
        if let Some(waiter) = waiter {
            let _ = waiter.send(outcome);
        }
    }

    /// Fails all open questions: the client can no longer answer.
    pub(super) fn hang_up(&self) {
        self.asks.lock().clear();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closing.cancel();
        self.server.forget(self.serial);
    }
}

/// A running call's entry; dropping it takes the entry out.
pub(super) struct Slot {
    session: Arc<Session>,
    key: u64,
    /// Fires when the client cancels the call or the session ends.
    pub(super) cancelled: CancellationToken,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.session.running.lock().remove(&self.key);
    }
}

/// An open question to the client; dropping it forgets it.
pub(super) struct Ask {
    session: Arc<Session>,
    pub(super) id: u64,
    pub(super) answer: oneshot::Receiver<Result<Value, Value>>,
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.session.asks.lock().remove(&self.id);
    }
}

/// Joins the replies to an array's messages into one.
fn join(replies: Vec<Reply>) -> Reply {
    let futures: Vec<_> = replies
        .into_iter()
        .filter_map(|reply| -> Option<Pin<Box<dyn Future<Output = Option<String>> + Send>>> {
            match reply {
                Reply::Nothing => None,
                Reply::Now(text) => Some(Box::pin(std::future::ready(Some(text)))),
                Reply::Later(later) => Some(later),
            }
        })
        .collect();
    if futures.is_empty() {
        return Reply::Nothing;
    }
    Reply::Later(Box::pin(async move {
        let answers = futures_util::future::join_all(futures).await;
        let answers: Vec<String> = answers.into_iter().flatten().collect();
        (!answers.is_empty()).then(|| format!("[{}]", answers.join(",")))
    }))
}
