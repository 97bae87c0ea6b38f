//! The place of one shared connection: dialled when it is first needed, and again each time that it was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::super::CallError;
use super::super::backoff::Backoff;
use super::super::link::LinkContext;
use super::super::pending::later;
use super::feeds::Feeds;
use super::socket::{self, End, Ended, Patience};
use super::target::{Socket, Target};
use super::wire::Wire;

/// For how long a failure to connect is the answer to all calls; then a call is reason enough to try again.
const FRESH: Duration = Duration::from_secs(1);

/// One place. Its task connects, serves the connection, and connects again after a pause.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) ctx: LinkContext,
    target: Arc<Target>,
    state: watch::Sender<State>,
    /// Somebody waits for a connection.
    wanted: Notify,
    begun: AtomicBool,
    backoff: Backoff,
    /// What the upstream is subscribed to, whatever the connection.
    pub(super) feeds: Arc<Feeds>,
    /// How many places of the upstream have a connection.
    up: Arc<AtomicUsize>,
}

/// Whether there is a connection.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Not yet, or not any more.
    Idle,
    /// It is being dialled.
    Opening,
    /// There is one.
    Up(Arc<Wire>),
    /// There is none.
    Down(Failure),
    /// There will be none any more.
    Ended,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) why: Arc<CallError>,
    /// Since when that is known.
    at: Instant,
    /// Until when it is the answer to all calls.
    until: Instant,
}

impl Seat {
    /// Dials nothing yet.
    pub(super) fn new(ctx: &LinkContext, target: &Arc<Target>, up: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            ctx: ctx.clone(),
            target: Arc::clone(target),
            state: watch::Sender::new(State::Idle),
            wanted: Notify::new(),
            begun: AtomicBool::new(false),
            backoff: Backoff::default(),
            feeds: Arc::new(Feeds::new(ctx.name.clone())),
            up: Arc::clone(up),
        })
    }

    /// How it is.
    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// The connection, dialled if there is none; waits no longer than `limit`.
    ///
    /// # Errors
    /// As for dialling; [`CallError::Timeout`] when that takes too long.
    pub(super) async fn wire(self: &Arc<Self>, limit: Duration) -> Result<Arc<Wire>, CallError> {
        if let State::Up(wire) = &*self.state.borrow()
            && wire.is_open()
        {
            return Ok(Arc::clone(wire));
        }
        Box::pin(self.come_by(limit)).await
    }

    async fn come_by(self: &Arc<Self>, limit: Duration) -> Result<Arc<Wire>, CallError> {
        self.begin();
        let asked = Instant::now();
        let mut state = self.state.subscribe();
        if let State::Down(failure) = &*state.borrow()
            && asked < failure.until
        {
            return Err(failure.why.again());
        }
        if !matches!(&*state.borrow(), State::Opening) {
            self.wanted.notify_one();
        }
        let known = state.wait_for(|state| match state {
            State::Idle | State::Opening => false,
            State::Up(wire) => wire.is_open(),
            State::Down(failure) => failure.at >= asked,
            State::Ended => true,
        });
        match timeout(limit, known).await.map(|known| known.map(|state| state.clone())) {
            Ok(Ok(State::Up(wire))) => Ok(wire),
            Ok(Ok(State::Down(failure))) => Err(failure.why.again()),
            Ok(Ok(State::Idle | State::Opening | State::Ended) | Err(_)) => {
                Err(self.ctx.connect("it is being stopped", None))
            }
            Err(_) => Err(self.ctx.timeout(limit)),
        }
    }

    /// Starts the task, once.
    fn begin(self: &Arc<Self>) {
        if !self.begun.load(Ordering::Relaxed) && !self.begun.swap(true, Ordering::AcqRel) {
            self.ctx.tasks.spawn(Arc::clone(self).run());
        }
    }

    async fn run(self: Arc<Self>) {
        let stop = self.ctx.stop.clone();
        stop.run_until_cancelled(self.wanted.notified()).await;
        // Since when there is no connection.
        let mut alone = Instant::now();
        while !stop.is_cancelled() {
            self.state.send_replace(State::Opening);
            let Some(dialled) = stop.run_until_cancelled(self.target.dial()).await else { break };
            let again = match dialled {
                Ok(socket) => {
                    let again = self.serve(socket).await;
                    alone = Instant::now();
                    again
                }
                Err(error) => self.failed(error, alone),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.wanted.notified() => {}
                () = sleep_until(again) => {}
            }
        }
        self.state.send_replace(State::Ended);
    }

    /// Serves a connection to its end. Returns when to connect again.
    async fn serve(&self, socket: Socket) -> Instant {
        let since = Instant::now();
        let (wire, mut queue) = Wire::new(&self.ctx, &self.feeds);
        self.feeds.found();
        self.is_up();
        tracing::debug!(upstream = %self.ctx.name, "connected");
        self.state.send_replace(State::Up(Arc::clone(&wire)));
        let outside = (Patience::of(&self.ctx.config), &*self.ctx.metrics);
        let stop = self.ctx.stop.child_token();
        let take = |text| wire.take(text);
        let Ended { end, unsent } = tokio::select! {
            ended = socket::run(socket, &mut queue, take, outside, &stop) => ended,
            never = self.tend(&wire, &stop) => match never {},
        };
        self.feeds.lost();
        if matches!(end, End::TooLarge) {
            wire.take_too_large();
        }
        self.state.send_replace(State::Idle);
        wire.end(&unsent, end.why());
        self.is_down();
        if self.ctx.stop.is_cancelled() {
            return Instant::now();
        }
        tracing::info!(upstream = %self.ctx.name, "connection lost: {}", end.why());
        Instant::now() + self.pause(end.why(), since.elapsed())
    }

    /// Notes that it cannot be reached. Returns when to try again.
    fn failed(&self, error: CallError, alone: Instant) -> Instant {
        let (now, why) = (Instant::now(), error.to_string());
        self.feeds.failed(&error, alone.elapsed() >= self.ctx.config.max_timeout);
        let pause = self.pause(&why, Duration::ZERO);
        tracing::warn!(upstream = %self.ctx.name, ?pause, "not connected: {why}");
        let asked = match &error {
            CallError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let until = later(now, FRESH.max(asked));
        self.state.send_replace(State::Down(Failure { why: Arc::new(error), at: now, until }));
        later(now, pause.max(asked))
    }

    fn pause(&self, why: &str, uptime: Duration) -> Duration {
        let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
        self.backoff.failed(why, uptime, Instant::now(), chance)
    }

    fn is_up(&self) {
        self.up.fetch_add(1, Ordering::AcqRel);
        self.ctx.metrics.connections_active.inc();
        self.ctx.metrics.up.set(1);
    }

    fn is_down(&self) {
        self.ctx.metrics.connections_active.dec();
        if self.up.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ctx.metrics.up.set(0);
        }
    }
}
