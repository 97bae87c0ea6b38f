//! What an upstream is subscribed to over one place, and who hears of it: ids that it gave, notifications that come before
//! their id is known, what is to be asked again on the next connection.

mod order;
mod table;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

pub(super) use order::{Ending, FeedLeft, Order, Wish};
use table::{First, Left, Table};
pub(super) use table::{Full, Joined, Ticket};

use super::super::{CallError, OutCall};
use crate::config::UpstreamName;
use crate::jsonrpc::{Message, ParamsPath, Span};

/// One kind of subscriptions, as its upstream has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FeedKind {
    /// The method of its notifications.
    pub notification: String,
    /// The method that ends one; it takes the id.
    pub unsubscribe: String,
    /// Where the id stands in a notification.
    pub id: ParamsPath,
    /// Whether equal ones may be one at the upstream.
    pub share: bool,
}

/// Who hears of a subscription. Called by the reader of a connection: nothing here waits.
pub trait Listener: Debug + Send + Sync {
    /// A notification, and where in it the upstream's id stands.
    fn notified(&self, notification: &Message, id: Span);
    /// The connection was lost, and the upstream is subscribed to again: something may have been missed.
    fn resumed(&self);
    /// Nothing more will come; why.
    fn ended(&self, why: &str);
}

/// The subscriptions over one place. They outlive its connections.
#[derive(Debug)]
pub(super) struct Feeds {
    table: Mutex<Table>,
    ordered: Notify,
}

impl Feeds {
    /// Those of an upstream: none yet.
    pub(super) fn new(upstream: UpstreamName) -> Self {
        Self { table: Mutex::new(Table::new(upstream)), ordered: Notify::new() }
    }

    /// Adds a listener: to a subscription that is there, or to a new one.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn subscribe(
        &self,
        kind: &Arc<FeedKind>,
        request: &Message,
        listener: Arc<dyn Listener>,
    ) -> Result<(Ticket, Joined), Full> {
        let subscribed = self.table.lock().subscribe(kind, request, listener);
        self.ordered.notify_one();
        subscribed
    }

    /// Takes a listener out at its client's wish: `call`, in which the upstream's id is to stand at `id`. Where the upstream's
    /// answer is told, if it was the last one; it is not told when the connection is lost.
    pub(super) fn end(
        &self,
        ticket: Ticket,
        mut call: OutCall,
        id: Span,
    ) -> Option<oneshot::Receiver<First>> {
        let (answer, answered) = oneshot::channel();
        self.leave(ticket, |ending| {
            call.edits.push((id, ending.left.id.clone()));
            ending.wish = Some(Wish { call: Box::new(call), answer });
        })
        .then_some(answered)
    }

    /// Takes a listener out. When it was the last one, the upstream is told in time.
    pub(super) fn give_up(&self, ticket: Ticket) {
        self.leave(ticket, |_| {});
    }

    /// Takes a listener out; whether there is something to be done at the upstream, which is ordered.
    fn leave(&self, ticket: Ticket, wish: impl FnOnce(&mut Ending)) -> bool {
        let mut table = self.table.lock();
        let Left::Last(mut ending) = table.leave(ticket) else { return false };
        wish(&mut ending);
        table.order(ending);
        drop(table);
        self.ordered.notify_one();
        true
    }

    /// The upstream has answered that a subscription ended. Told before anything that comes after that answer.
    pub(super) fn over(&self, left: &FeedLeft) {
        self.table.lock().over(left);
    }

    /// Gives a notification to whom it concerns; `false` when that is nobody.
    pub(super) fn notified(&self, notification: &Message) -> bool {
        self.table.lock().notified(notification)
    }

    /// What became of an [`Order::Ask`].
    pub(super) fn answered(&self, feed: u64, answer: Result<Message, CallError>) {
        self.table.lock().answered(feed, answer);
        self.ordered.notify_one();
    }

    /// An [`Order::Ask`] takes too long: nobody waits for it any more. Its answer is still to be told.
    pub(super) fn late(&self, feed: u64, error: &CallError) {
        self.table.lock().late(feed, error);
    }

    /// The connection is gone.
    pub(super) fn lost(&self) {
        self.table.lock().lost();
    }

    /// There is a connection: everything is ordered anew.
    pub(super) fn found(&self) {
        self.table.lock().found();
        self.ordered.notify_one();
    }

    /// There is no connection for now: who waits for a first answer is told. `gone`: and who listens as well.
    pub(super) fn failed(&self, error: &CallError, gone: bool) {
        self.table.lock().failed(error, gone);
    }

    /// What is to be done at the upstream, at most so many asks and so many ends. Resolves when there is something. Cancel
    /// safe.
    pub(super) async fn orders(&self, asks: usize, ends: usize) -> Vec<Order> {
        loop {
            let orders = self.table.lock().take_orders(asks, ends);
            if !orders.is_empty() {
                return orders;
            }
            self.ordered.notified().await;
        }
    }
}
