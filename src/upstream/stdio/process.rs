//! A supervised child that is dialled at an address: no protocol on its pipes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::process::ChildStdin;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::CallError;
use super::super::backoff::Backoff;
use super::super::duplex::Tail;
use super::super::link::LinkContext;
use super::child::Pipes;
use super::output::Drain;
use super::supervisor::{Supervisor, Tenant};
use crate::net::Site;

/// How long to wait between two attempts to connect.
const PROBE: Duration = Duration::from_millis(25);

/// The child of an upstream that has `command` and `url`: started, started again after a back-off when it dies, and
/// stopped. It is ready once it accepts connections at `url`. Dropping it stops it.
#[derive(Debug)]
pub(in crate::upstream) struct Process {
    seat: Arc<Seat>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

#[derive(Debug)]
struct Seat {
    ctx: LinkContext,
    state: watch::Sender<State>,
    /// Held open: many servers end when their standard input does.
    stdin: Mutex<Option<ChildStdin>>,
    /// Ends the task that reads standard output.
    gone: Mutex<CancellationToken>,
    tail: Arc<Tail>,
}

#[derive(Clone, Debug)]
enum State {
    Starting,
    Up,
    Down(Arc<str>),
    Ended,
}

impl Process {
    /// Starts the child and its supervisor.
    pub(in crate::upstream) fn start(mut ctx: LinkContext, command: Vec<String>) -> Arc<Self> {
        let stop = ctx.stop.child_token();
        ctx.stop = stop.clone();
        let tail = Arc::new(Tail::default());
        let seat = Arc::new(Seat {
            ctx: ctx.clone(),
            state: watch::Sender::new(State::Starting),
            stdin: Mutex::default(),
            gone: Mutex::default(),
            tail: Arc::clone(&tail),
        });
        let tenant = Arc::clone(&seat);
        let tasks = ctx.tasks.clone();
        tasks.spawn(Supervisor { ctx, command, tenant, tail, backoff: Backoff::default() }.run());
        Arc::new(Self { seat, _stop_on_drop: stop.clone().drop_guard(), stop })
    }

    /// Waits while the child is being started, which `start_timeout` bounds.
    ///
    /// # Errors
    /// [`CallError::Connect`] with the reason, when it failed to start or died and will be started again later.
    pub(in crate::upstream) async fn ready(&self) -> Result<(), CallError> {
        let mut state = self.seat.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match known.as_deref() {
            Ok(State::Up) => Ok(()),
            Ok(State::Down(why)) => {
                let what = format!("the child is being restarted: {why}");
                Err(self.seat.ctx.connect(what, None))
            }
            Ok(State::Starting | State::Ended) | Err(_) => {
                Err(self.seat.ctx.connect("the child was stopped", None))
            }
        }
    }

    /// Ends the child and its group. Resolves when it is gone, within a few seconds.
    pub(in crate::upstream) async fn stop(&self) {
        self.stop.cancel();
        let mut state = self.seat.state.subscribe();
        let _ = state.wait_for(|state| matches!(state, State::Ended)).await;
    }

    /// The last lines of its output, oldest first.
    #[cfg(test)]
    pub(in crate::upstream) fn output_tail(&self) -> Vec<String> {
        self.seat.tail.lines()
    }
}

impl Seat {
    /// Connects until it works. Without limit: the supervisor has one.
    async fn probe(&self) -> Result<(), String> {
        let url = self.ctx.config.url.as_ref().ok_or("it has no url")?;
        let target = Site::of(url).map_err(|what| format!("its url {what}"))?.target;
        loop {
            let connected = target.connect().await;
            if connected.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(PROBE).await;
        }
    }
}

impl Tenant for Seat {
    async fn begin(&self, pipes: Pipes) -> Result<(), String> {
        self.state.send_replace(State::Starting);
        *self.stdin.lock() = Some(pipes.stdin);
        let gone = CancellationToken::new();
        *self.gone.lock() = gone.clone();
        let (upstream, tail) = (self.ctx.name.clone(), Arc::clone(&self.tail));
        self.ctx.tasks.spawn(async move {
            let drain = Drain { upstream: &upstream, stream: "stdout", tail: &tail };
            drain.run(pipes.stdout, gone).await;
        });
        self.probe().await
    }

    async fn up(&self) {
        self.state.send_replace(State::Up);
    }

    async fn broken(&self) {
        std::future::pending().await
    }

    async fn drained(&self) {}

    async fn down(&self, why: &str) {
        self.state.send_replace(State::Down(why.into()));
        *self.stdin.lock() = None;
    }

    fn gone(&self) {
        self.gone.lock().cancel();
    }

    fn ended(&self) {
        self.state.send_replace(State::Ended);
    }
}
