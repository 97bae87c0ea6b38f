//! Requests of 2026-07-28 on a line that they share with each other, and with a session of the older
//! revisions if the client opened one: stdio.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::super::message::{
    INTERNAL_ERROR, Id, Incoming, NoId, Piece, Request, RpcError, print_error,
};
use super::super::outbox::Outbox;
use super::super::service::Server;
use super::super::session::Reply;
use super::{Served, check, print, serve};

/// Requests that may run at once.
const MAX_RUNNING: usize = 4096;

/// One client's line.
pub(in super::super) struct Line {
    server: Arc<Server>,
    running: Arc<Running>,
}

/// Requests that run, so that they can be cancelled.
#[derive(Default)]
struct Running {
    all: Mutex<HashMap<u64, (Value, CancellationToken)>>,
    serials: AtomicU64,
}

/// A running request's entry; dropping it takes the entry out.
struct Slot {
    running: Arc<Running>,
    key: u64,
    cancelled: CancellationToken,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.running.all.lock().remove(&self.key);
    }
}

impl Line {
    /// A line on which nothing runs.
    pub(in super::super) fn new(server: &Arc<Server>) -> Self {
        Self { server: Arc::clone(server), running: Arc::default() }
    }

    /// Takes what came in one piece; what precedes the answer goes into `outbox`.
    pub(in super::super) fn take(&self, piece: Piece, outbox: &Outbox) -> Reply {
        let (id, why) = match piece {
            Piece::One(Incoming::Request(request)) => {
                let id = request.id.clone();
                match self.take_request(request, outbox) {
                    Ok(reply) => return reply,
                    Err(why) => (Some(id), why),
                }
            }
            Piece::One(Incoming::Notification { .. } | Incoming::Response { .. }) => {
                return Reply::Nothing;
            }
            Piece::One(Incoming::Invalid { id, why }) => (id, why),
            Piece::Many(_) => (None, RpcError::no_batches()),
        };
        Reply::Now(print_error(id.as_deref(), NoId::Absent, &why))
    }

    fn take_request(&self, request: Request, outbox: &Outbox) -> Result<Reply, RpcError> {
        let claims = check(&self.server, &request)?;
        let slot = self.enter(&request.id)?;
        let (id, listens) = (request.id.clone(), request.method == "subscriptions/listen");
        let work = match serve(&self.server, request, claims, outbox) {
            Served::Now(answer) => return Ok(Reply::Now(print(&id, &answer))),
            Served::Later(work) => work,
        };
        let outbox = outbox.clone();
        Ok(Reply::Later(Box::pin(async move {
            let answer = tokio::select! {
                biased;
                () = slot.cancelled.cancelled() => None,
                answer = work => answer,
            }?;
            let text = print(&id, &answer);
            if !listens || answer.is_err() {
                return Some(text);
            }
            // On a line, both say that this has ended (MCP digest §24, row 1).
            outbox.send(text).await;
            Some(ended(&id))
        })))
    }

    /// Cancels what runs under this id.
    pub(in super::super) fn cancel(&self, id: &Value) {
        for (running, cancelled) in self.running.all.lock().values() {
            if running == id {
                cancelled.cancel();
            }
        }
    }

    fn enter(&self, id: &Id) -> Result<Slot, RpcError> {
        let cancelled = self.server.stop.child_token();
        let key = self.running.serials.fetch_add(1, Ordering::Relaxed);
        let id = serde_json::from_str(id.get()).unwrap_or(Value::Null);
        let mut all = self.running.all.lock();
        if all.len() >= MAX_RUNNING {
            let why = format!("a client may have {MAX_RUNNING} requests running at once");
            return Err(RpcError::new(INTERNAL_ERROR, why));
        }
        all.insert(key, (id, cancelled.clone()));
        Ok(Slot { running: Arc::clone(&self.running), key, cancelled })
    }
}

/// Tells that a listening request has ended.
fn ended(id: &Id) -> String {
    let id = id.get();
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}
