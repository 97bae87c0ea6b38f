//! What hears for one client: notifications under its own id, none before the answer that tells the id.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::Kind;
use crate::jsonrpc::{Message, Span};
use crate::session::Channel;
use crate::upstream::Listener;

/// Most notifications that wait for the answer, and their bytes.
const MAX_HELD: (usize, usize) = (1024, 1 << 20);

/// One subscription of one client.
#[derive(Debug)]
pub(super) struct Ear {
    channel: Arc<Channel>,
    kind: Arc<Kind>,
    gate: Mutex<Gate>,
}

#[derive(Debug)]
enum Gate {
    /// The client does not know the id yet. Leads to `Open`.
    Closed { held: Vec<(Message, Span)>, bytes: usize },
    /// Under that id.
    Open(Bytes),
}

impl Ear {
    /// One whose client waits for the answer.
    pub(super) fn new(channel: &Arc<Channel>, kind: &Arc<Kind>) -> Arc<Self> {
        let gate = Mutex::new(Gate::Closed { held: Vec::new(), bytes: 0 });
        Arc::new(Self { channel: Arc::clone(channel), kind: Arc::clone(kind), gate })
    }

    /// The answer is on its way: what was held back follows it, and then whatever comes.
    pub(super) fn open(&self, id: Bytes) {
        let mut gate = self.gate.lock();
        let before = std::mem::replace(&mut *gate, Gate::Open(id.clone()));
        if let Gate::Closed { held, .. } = before {
            for (notification, span) in held {
                self.channel.put(notification.edited(&[(span, id.clone())]));
            }
        }
    }
}

impl Listener for Ear {
    fn notified(&self, notification: &Message, span: Span) {
        let mut gate = self.gate.lock();
        match &mut *gate {
            Gate::Open(id) => self.channel.put(notification.edited(&[(span, id.clone())])),
            Gate::Closed { held, bytes } => {
                *bytes += notification.text().len();
                if held.len() >= MAX_HELD.0 || *bytes > MAX_HELD.1 {
                    // Nobody would know of what is left out.
                    return self.channel.cut();
                }
                held.push((notification.clone(), span));
            }
        }
    }

    fn resumed(&self) {
        let Some(method) = &self.kind.gap else { return };
        if let Gate::Open(id) = &*self.gate.lock() {
            let params = self.kind.feed.id.enclosing(id);
            let gap = Message::notification(method, Some(&params));
            self.channel.put(gap.text().clone().into());
        }
    }

    fn ended(&self, why: &str) {
        tracing::info!("a subscription of a client was lost, and its connection is closed: {why}");
        self.channel.cut();
    }
}
