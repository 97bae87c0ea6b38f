//! What is worked on for a client that there is one way to: it sends all it has to say to the channel, in the end its answer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Outlet;
use super::reply::Done;
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Element, Id, Kind, Message, Rejected};
use crate::session::{Busy, Channel, Entered};

/// An exchange, or what else a message leaves to be done. It is for its transport to poll; dropped, it is cancelled.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a request is told whose answer nobody could tell from another's.
const DUPLICATE: &str = "the id is that of another request in flight";

/// Works on what was entered, until it has ended or its client cancels it.
pub(super) fn work(
    channel: &Arc<Channel>,
    mut entered: Entered,
    outlet: Arc<Outlet>,
    exchange: impl Future<Output = Done> + Send + 'static,
) -> Work {
    let channel = Arc::clone(channel);
    Box::pin(async move {
        tokio::select! {
            // Polled first, so that it has begun, and is counted, whatever ends it.
            biased;
            () = relay(exchange, &outlet, &channel) => {}
            () = entered.cancelled() => {}
        }
    })
}

/// Sends whatever precedes the answer, then the answer.
async fn relay(exchange: impl Future<Output = Done>, outlet: &Outlet, channel: &Channel) {
    let mut exchange = pin!(exchange);
    loop {
        let done = std::future::poll_fn(|cx| match exchange.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if outlet.is_empty() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        while let Some(message) = outlet.try_next() {
            if !channel.send(message).await {
                return;
            }
        }
        if let Some(done) = done {
            let is_sent = answer(channel, done).await;
            if let Some(receipt) = outlet.receipt().filter(|_| is_sent) {
                receipt.delivered();
            }
            return;
        }
    }
}

/// Sends what an exchange has to say in the end; whether there was something, and the channel took it.
pub(super) async fn answer(channel: &Channel, done: Done) -> bool {
    match done.body {
        Some(answer) => channel.send(answer).await,
        None => false,
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
