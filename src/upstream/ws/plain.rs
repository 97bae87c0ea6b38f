//! Plain JSON-RPC over WebSocket: a few connections that all calls share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::super::http::worker;
use super::super::link::LinkContext;
use super::super::pending::later;
use super::super::{CallError, OutCall, State};
use super::feeds::{FeedKind, Listener};
use super::seat::{self, Seat};
use super::subscribing::Feed;
use super::target::Target;
use crate::jsonrpc::Message;

/// What one call came to.
type Outcome = Result<Option<Message>, CallError>;

/// Plain JSON-RPC towards one upstream. Connections are dialled when they are first needed and then kept.
#[derive(Debug)]
pub(in crate::upstream) struct Plain {
    seats: Box<[Arc<Seat>]>,
    turn: AtomicUsize,
}

impl Plain {
    /// Dials nothing yet.
    pub(in crate::upstream) fn new(ctx: &LinkContext, target: &Arc<Target>) -> Self {
        let up = Arc::default();
        let seats = (0..ctx.config.connections).map(|_| Seat::new(ctx, target, &up)).collect();
        Self { seats, turn: AtomicUsize::new(0) }
    }

    /// One request or notification. One that was not sent since its connection ended goes over another one.
    pub(in crate::upstream) async fn call(&self, call: &OutCall) -> Outcome {
        let limit = call.timeout.min(call.max_timeout);
        let due = later(Instant::now(), limit);
        let mut again = true;
        loop {
            let wire = self.seat().wire(due.saturating_duration_since(Instant::now())).await?;
            match wire.call(call, due).await {
                Err(CallError::Closed { written: false, .. }) if again => again = false,
                outcome => return outcome,
            }
        }
    }

    /// Several at once, outcomes in their order: each is a call of its own.
    pub(in crate::upstream) async fn call_batch(&self, calls: &[OutCall]) -> Vec<Outcome> {
        join_all(calls.iter().map(|call| self.call(call))).await
    }

    /// Subscribes: the upstream's answer, and what keeps it up. Those that may be shared are all over one connection.
    pub(in crate::upstream) async fn subscribe(
        &self,
        call: &OutCall,
        kind: &Arc<FeedKind>,
        listener: Arc<dyn Listener>,
    ) -> Result<(Message, Feed), CallError> {
        let seat = if kind.share { &self.seats[0] } else { self.seat() };
        seat.subscribe(call, kind, listener).await
    }

    /// A worker stays with its own connection where there are enough of them.
    fn seat(&self) -> &Arc<Seat> {
        let number = worker().unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed));
        &self.seats[number % self.seats.len()]
    }

    /// How it is: as good as its best connection.
    pub(in crate::upstream) fn state(&self) -> State {
        let mut worst = State::Idle;
        for seat in &self.seats {
            match (seat.state(), &worst) {
                (seat::State::Up(_), _) => return State::Up,
                (seat::State::Opening, _) => worst = State::Starting,
                (seat::State::Down(failure), State::Idle) => {
                    worst = State::Down(failure.why.reason());
                }
                (seat::State::Down(..) | seat::State::Idle | seat::State::Ended, _) => {}
            }
        }
        worst
    }
}
