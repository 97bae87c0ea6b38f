//! What an upstream is subscribed to over one place, and who hears of it: ids that it gave, notifications that come before
//! their id is known, what is to be asked again on the next connection.

mod table;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use table::Table;
pub(super) use table::{Full, Joined, Left, Order, Ticket};

use super::super::CallError;
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

    /// Takes a listener out; what is left to be done at the upstream is for the caller.
    pub(super) fn leave(&self, ticket: Ticket) -> Left {
        self.table.lock().leave(ticket)
    }

    /// Takes a listener out. When it was the last one, the upstream is told in time.
    pub(super) fn give_up(&self, ticket: Ticket) {
        let mut table = self.table.lock();
        if let Left::Last(kind, id) = table.leave(ticket) {
            table.order(Order::End(kind, id));
            drop(table);
            self.ordered.notify_one();
        }
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

    /// What is to be done at the upstream, at most so much. Resolves when there is something. Cancel safe.
    pub(super) async fn orders(&self, most: usize) -> Vec<Order> {
        loop {
            let orders = self.table.lock().take_orders(most);
            if !orders.is_empty() {
                return orders;
            }
            self.ordered.notified().await;
        }
    }
}
