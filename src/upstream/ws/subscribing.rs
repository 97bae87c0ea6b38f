//! Subscriptions over one place: made, joined, ended, and made again on the next connection.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::{CallError, OutCall};
use super::feeds::{Ending, FeedKind, Full, Joined, Listener, Order, Ticket, Wish};
use super::seat::Seat;
use super::wire::{Wire, numbered};
use crate::jsonrpc::{Message, Span};

/// Orders of subscriptions of either sort that are carried out at once.
const MOST_ORDERS: usize = 256;
/// Orders that are not answered in time, but may be yet. A connection with more of them is of no use for subscriptions.
const MOST_LATE: usize = 1024;
/// How long one waits where there is no room in the queue.
const NO_ROOM: Duration = Duration::from_millis(50);

/// What is left of an order that is not answered in time: its answer.
type Rest<'s> = Pin<Box<dyn Future<Output = ()> + Send + 's>>;

impl Seat {
    /// Does at the upstream what subscriptions come to, as long as the connection lasts; `end` ends it.
    pub(super) async fn tend(&self, wire: &Wire, end: &CancellationToken) -> Infallible {
        let (mut asks, mut ends) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut late = FuturesUnordered::new();
        while late.len() <= MOST_LATE {
            let room = [asks.len(), ends.len()].map(|running| MOST_ORDERS.saturating_sub(running));
            tokio::select! {
                Some(rest) = asks.next(), if !asks.is_empty() => late.extend(rest),
                Some(rest) = ends.next(), if !ends.is_empty() => late.extend(rest),
                Some(()) = late.next(), if !late.is_empty() => {}
                orders = self.feeds.orders(room[0], room[1]) => {
                    for order in orders {
                        let running = if order.is_ask() { &asks } else { &ends };
                        running.push(self.carry_out(wire, order));
                    }
                }
            }
        }
        let upstream = &self.ctx.name;
        tracing::warn!(%upstream, "it leaves {MOST_LATE} subscriptions unanswered; its connection is ended");
        end.cancel();
        pending().await
    }

    /// Carries one out. What is left of it when it is not answered in time.
    async fn carry_out<'s>(&'s self, wire: &'s Wire, order: Order) -> Option<Rest<'s>> {
        let limit = self.ctx.config.timeout;
        match order {
            Order::Ask(feed, request) => {
                let mut asked: Rest<'s> = Box::pin(async move {
                    let answer = patiently(|| wire.ask(&request)).await;
                    self.feeds.answered(feed, answer);
                });
                timeout(limit, &mut asked).await.err()?;
                self.feeds.late(feed, &self.ctx.timeout(limit));
                Some(asked)
            }
            Order::End(ending) => {
                let mut ended: Rest<'s> = Box::pin(self.end(wire, ending));
                timeout(limit, &mut ended).await.err()?;
                Some(ended)
            }
        }
    }

    /// Has the upstream end a subscription. Its answer is waited for as long as the connection lasts.
    async fn end(&self, wire: &Wire, ending: Ending) {
        let Ending { left, wish } = ending;
        let (call, client) = wish.map(|Wish { call, answer }| (call, answer)).unzip();
        let params = [b"[", &left.id[..], b"]"].concat();
        let request = Message::request(&left.kind.unsubscribe, Some(&params));
        let text = |number| match &call {
            Some(call) => call.plain_text(number),
            None => numbered(&request, number),
        };
        let answer = patiently(|| wire.leave(&left, &text)).await;
        match (client, answer) {
            // It may have gone.
            (Some(client), answer) => drop(client.send(answer)),
            (None, Err(error)) => {
                let upstream = &self.ctx.name;
                tracing::debug!(%upstream, %error, "a subscription was not ended");
            }
            (None, Ok(_)) => {}
        }
    }

    /// Subscribes, or joins those who have: the answer, and what keeps it up.
    ///
    /// # Errors
    /// As for a call.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        call: &OutCall,
        kind: &Arc<FeedKind>,
        listener: Arc<dyn Listener>,
    ) -> Result<(Message, Feed), CallError> {
        let limit = call.timeout.min(call.max_timeout);
        let began = Instant::now();
        self.wire(limit).await?;
        let subscribed = self.feeds.subscribe(kind, &call.message, listener);
        let (ticket, joined) =
            subscribed.map_err(|Full| CallError::Busy { upstream: self.ctx.name.clone() })?;
        let feed = Feed { seat: Arc::clone(self), ticket: Some(ticket) };
        let answer = match joined {
            Joined::Open(answer) => answer,
            Joined::Waits(first) => {
                let left = limit.saturating_sub(began.elapsed());
                match timeout(left, first).await {
                    Ok(Ok(first)) => first?,
                    Ok(Err(_)) => return Err(self.ctx.closed(true, "it was forgotten")),
                    Err(_) => return Err(self.ctx.timeout(limit)),
                }
            }
        };
        Ok((answer, feed))
    }
}

/// A request that nobody may lose for want of room in the queue.
async fn patiently<F>(ask: impl Fn() -> F) -> Result<Message, CallError>
where
    F: Future<Output = Result<Message, CallError>>,
{
    loop {
        match ask().await {
            Err(CallError::Busy { .. }) => sleep(NO_ROOM).await,
            answer => return answer,
        }
    }
}

/// Keeps a subscription up for one listener. Dropping it takes the listener out; the upstream's subscription ends with
/// its last one.
#[derive(Debug)]
pub struct Feed {
    seat: Arc<Seat>,
    /// None once it has left.
    ticket: Option<Ticket>,
}

impl Feed {
    /// Ends it at its client's wish: `call` is the client's request, `id` where in it the upstream's id is to stand. `None`
    /// when there is nothing to ask the upstream, since others listen or its connection was lost.
    ///
    /// # Errors
    /// As for a call.
    pub async fn end(mut self, call: OutCall, id: Span) -> Result<Option<Message>, CallError> {
        let Some(ticket) = self.ticket.take() else { return Ok(None) };
        let limit = call.timeout.min(call.max_timeout);
        let Some(answer) = self.seat.feeds.end(ticket, call, id) else { return Ok(None) };
        match timeout(limit, answer).await {
            // It ended with its connection.
            Ok(Ok(Err(CallError::Closed { .. })) | Err(_)) => Ok(None),
            Ok(Ok(answer)) => answer.map(Some),
            Err(_) => Err(self.seat.ctx.timeout(limit)),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.seat.feeds.give_up(ticket);
        }
    }
}
