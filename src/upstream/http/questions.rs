//! What an upstream asks on the stream of its session, beside all calls (MCP digest §19.8): put to the one client that
//! has calls in flight there, else refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::channel::Channel;
use crate::jsonrpc::{Id, Message};
use crate::upstream::call::{
    Ask, AskReply, DUPLICATE, METHOD_NOT_FOUND, OVERLOADED, OutCall, refused,
};
use crate::upstream::pending::{OpenAsk, Pending, Pick, Slot};

/// Most questions of one session that are open at once.
const MAX_ASKS: usize = 64;
/// How long after the session began its first calls wait for the stream on which they may be asked something: some
/// upstreams say nothing on it, not even that it is open, until they have something to say.
const PATIENCE: Duration = Duration::from_secs(1);

/// The calls of one session, and what is asked beside them.
#[derive(Debug)]
pub(super) struct Questions {
    calls: Arc<Pending>,
    /// Open questions by the id that the upstream gave; what stands there is dropped to withdraw one.
    open: Mutex<HashMap<Bytes, oneshot::Sender<()>>>,
    /// The stream was opened, or will not be.
    heard: CancellationToken,
    began: Instant,
}

/// A question that is put to a client.
struct Put {
    reply: oneshot::Receiver<AskReply>,
    withdrawn: oneshot::Receiver<()>,
    open: OpenAsk,
}

impl Questions {
    /// Of a session that begins.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            calls: Arc::default(),
            open: Mutex::default(),
            heard: CancellationToken::new(),
            began: Instant::now(),
        })
    }

    /// The upstream can ask from now on, or never will.
    pub(super) fn heard(&self) {
        self.heard.cancel();
    }

    /// Returns once the upstream can ask, or had time enough; waits no longer than `most`. Costs nothing later.
    pub(super) async fn ready(&self, most: Duration) {
        if self.heard.is_cancelled() {
            return;
        }
        let left = PATIENCE.saturating_sub(self.began.elapsed());
        let _ = timeout(left.min(most), self.heard.cancelled()).await;
    }

    /// A call begins: as long as what is returned lives, its client may be asked.
    pub(super) fn call(&self, call: &OutCall) -> Option<Slot> {
        let events = call.events.clone();
        let mut slot = self.calls.open(call.caller, None, events, Instant::now()).ok()?;
        slot.sent(call.timeout);
        Some(slot)
    }

    /// A question came.
    pub(super) fn take(self: &Arc<Self>, channel: &Arc<Channel>, id: &Id, message: Message) {
        let put = match self.put(channel, id, message) {
            Ok(put) => put,
            Err(refusal) => return channel.deliver_later(refusal.response(id)),
        };
        let (questions, channel, id) = (Arc::clone(self), Arc::clone(channel), id.clone());
        channel.clone().context.tasks.spawn(async move {
            let Put { reply, withdrawn, open } = put;
            let reply = tokio::select! {
                biased;
                _ = withdrawn => return,
                () = channel.context.stop.cancelled() => return,
                reply = reply => reply,
            };
            questions.open.lock().remove(id.text());
            drop(open);
            channel.deliver_later(reply.unwrap_or_else(|_| refused()).response(&id));
        });
    }

    fn put(&self, channel: &Channel, id: &Id, message: Message) -> Result<Put, Box<AskReply>> {
        if !channel.context.caps.allows(message.method()) {
            return Err(Box::new(AskReply::Refuse(METHOD_NOT_FOUND)));
        }
        let nobody = || Box::new(refused());
        let inbox = self.calls.associate(Pick::Newest, Instant::now()).ok_or_else(nobody)?;
        let (ask, reply) = Ask::new(message);
        let (withdraw, withdrawn) = oneshot::channel();
        {
            let mut open = self.open.lock();
            let full = open.len() >= MAX_ASKS;
            match open.entry(id.text().clone()) {
                Entry::Vacant(entry) if !full => entry.insert(withdraw),
                Entry::Vacant(_) => return Err(Box::new(AskReply::Refuse(OVERLOADED))),
                Entry::Occupied(_) => return Err(Box::new(AskReply::Refuse(DUPLICATE))),
            };
        }
        inbox.ask(ask).map(|open| Put { reply, withdrawn, open }).map_err(|error| {
            self.open.lock().remove(id.text());
            Box::new(match error {
                TrySendError::Full(()) => AskReply::Refuse(OVERLOADED),
                TrySendError::Closed(()) => refused(),
            })
        })
    }

    /// The upstream does not want the answer to a question any more.
    pub(super) fn withdraw(&self, id: &Bytes) {
        self.open.lock().remove(id);
    }
}
