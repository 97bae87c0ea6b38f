//! Keeps one child running: starts it, watches it, ends it, starts it again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::ChildStderr;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::backoff::Backoff;
use super::super::duplex::Tail;
use super::super::link::LinkContext;
use super::child::{Child, Pipes};
use super::output::Drain;

/// How long to wait for the exit status of a child that closed its pipes, and for the last output of one that
/// exited.
const AFTERMATH: Duration = Duration::from_millis(250);

/// What a child is kept for. All is called from the one supervising task, in the order of this list.
pub(super) trait Tenant: Send + Sync + 'static {
    /// Takes the pipes of a child that was just started (its standard error is read by the supervisor).
    /// Resolves once the child serves, or says why it will not.
    fn begin(&self, pipes: Pipes) -> impl Future<Output = Result<(), String>> + Send;
    /// The child serves from now on.
    fn up(&self) -> impl Future<Output = ()> + Send;
    /// Resolves when the child can be used no more, though it may live.
    fn broken(&self) -> impl Future<Output = ()> + Send;
    /// Resolves when everything was read that the child wrote.
    fn drained(&self) -> impl Future<Output = ()> + Send;
    /// Whether a child that never served ended over a question that will not be put again first: another one is started at
    /// once, this end counts for nothing, and the child's standard input is closed. Asked in place of `down`.
    fn ended_on_probe(&self) -> bool {
        false
    }
    /// The child serves no more, if it ever did: whoever waits is told why, and its standard input is closed.
    fn down(&self, why: &str) -> impl Future<Output = ()> + Send;
    /// The child is gone: what still reads its pipes ends soon.
    fn gone(&self);
    /// No child will be started any more.
    fn ended(&self);
}

/// The supervisor of one child; its task is [`Supervisor::run`].
#[derive(Debug)]
pub(super) struct Supervisor<T> {
    /// `stop` ends child and supervisor.
    pub(super) ctx: LinkContext,
    /// Program and arguments.
    pub(super) command: Vec<String>,
    /// What for.
    pub(super) tenant: Arc<T>,
    /// The last lines that it printed for people.
    pub(super) tail: Arc<Tail>,
    /// The pauses of this child; those of failed starts are kept in the context as well.
    pub(super) backoff: Backoff,
}

/// Where a child is in its life.
#[derive(Debug)]
enum Phase {
    /// Leads to `Ready`, to `Stopping` when it will not serve, or to `Backoff` when there is no process.
    Starting,
    /// It serves. Leads to `Stopping`.
    Ready(Running),
    /// It is being ended. Leads to `Backoff`, or to `Ended` when we were told to stop.
    Stopping(Running, Why),
    /// No child until then. Leads to `Starting`, or to `Ended`.
    Backoff(Instant),
    /// For good.
    Ended,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// When it began to serve.
    since: Option<Instant>,
    /// Ends the task that reads standard error.
    _drain: DropGuard,
}

impl Running {
    fn uptime(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Why a child is ended.
#[derive(Debug)]
enum Why {
    /// We were told to.
    Stop,
    /// It exited by itself; how.
    Exited(String),
    /// It is of no use, and may have died: its exit status says more, if there is one.
    Broken(String),
    /// It did not serve within `start_timeout`.
    StartTimeout,
}

impl<T: Tenant> Supervisor<T> {
    /// Runs until the context's `stop`.
    pub(super) async fn run(self) {
        let mut phase = Phase::Starting;
        loop {
            phase = match phase {
                Phase::Starting => self.start().await,
                Phase::Ready(running) => self.watch(running).await,
                Phase::Stopping(running, why) => self.end(running, why).await,
                Phase::Backoff(until) => self.pause(until).await,
                Phase::Ended => break,
            };
        }
        self.tenant.ended();
    }

    async fn start(&self) -> Phase {
        if self.backoff.is_down() || self.ctx.backoff.is_down() {
            self.ctx.metrics.restarts.inc();
        }
        let (mut child, pipes, stderr) = match Child::spawn(&self.ctx, &self.command) {
            Ok(started) => started,
            Err(error) => {
                let why = format!("cannot start: {error}");
                self.tenant.down(&why).await;
                return self.failed(&why, None);
            }
        };
        tracing::info!(upstream = %self.ctx.name, pid = child.id(), "child started");
        let drain = self.drain(stderr);
        let begun = timeout(self.ctx.config.start_timeout, self.tenant.begin(pipes));
        let why = tokio::select! {
            biased;
            () = self.ctx.stop.cancelled() => Some(Why::Stop),
            begun = begun => match begun {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(Why::Broken(why)),
                Err(_) => Some(Why::StartTimeout),
            },
            how = child.wait() => Some(Why::Exited(how)),
        };
        let running = Running { child, since: None, _drain: drain };
        match why {
            Some(why) => Phase::Stopping(running, why),
            None => self.serve(running).await,
        }
    }

    async fn serve(&self, mut running: Running) -> Phase {
        running.since = Some(Instant::now());
        self.backoff.serves();
        self.ctx.backoff.serves();
        tracing::info!(upstream = %self.ctx.name, pid = running.child.id(), "child ready");
        self.tenant.up().await;
        Phase::Ready(running)
    }

    /// Reads standard error from now on; dropping the guard says that the child is gone.
    fn drain(&self, stderr: ChildStderr) -> DropGuard {
        let gone = CancellationToken::new();
        let guard = gone.clone().drop_guard();
        let (upstream, tail) = (self.ctx.name.clone(), Arc::clone(&self.tail));
        self.ctx.tasks.spawn(async move {
            Drain { upstream: &upstream, stream: "stderr", tail: &tail }.run(stderr, gone).await;
        });
        guard
    }

    async fn watch(&self, mut running: Running) -> Phase {
        let why = tokio::select! {
            biased;
            () = self.ctx.stop.cancelled() => Why::Stop,
            how = running.child.wait() => Why::Exited(how),
            () = self.tenant.broken() => Why::Broken("it closed its pipes".to_owned()),
        };
        Phase::Stopping(running, why)
    }

    async fn end(&self, mut running: Running, why: Why) -> Phase {
        let asked = matches!(why, Why::Stop);
        let ended = matches!(why, Why::Exited(_) | Why::Broken(_));
        let why = self.explain(&mut running, why).await;
        if running.since.is_none() && ended && self.tenant.ended_on_probe() {
            let upstream = &self.ctx.name;
            tracing::info!(%upstream, "the child does not know server/discover: {why}");
            running.child.end().await;
            self.tenant.gone();
            return Phase::Starting;
        }
        self.tenant.down(&why).await;
        let uptime = running.uptime();
        let next = if asked {
            self.backoff.ended(uptime);
            self.ctx.backoff.ended(uptime);
            Phase::Ended
        } else {
            self.failed(&why, running.since)
        };
        let ending = running.since.is_none().then(|| self.ctx.backoff.ending());
        let Running { child, _drain, .. } = running;
        let pid = child.id();
        child.end().await;
        drop((ending, _drain));
        tracing::info!(upstream = %self.ctx.name, pid, "child ended");
        self.tenant.gone();
        next
    }

    /// Waits a moment for what makes the reason complete, and says it.
    async fn explain(&self, running: &mut Running, why: Why) -> String {
        let how = match why {
            Why::Stop => return "the child is being stopped".to_owned(),
            Why::StartTimeout => return "start timeout".to_owned(),
            Why::Exited(how) => how,
            Why::Broken(what) => match timeout(AFTERMATH, running.child.wait()).await {
                Ok(how) => how,
                Err(_) => return what,
            },
        };
        // It may have answered before it exited.
        let _ = timeout(AFTERMATH, self.tenant.drained()).await;
        how
    }

    fn failed(&self, why: &str, since: Option<Instant>) -> Phase {
        let now = Instant::now();
        let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
        let uptime = since.map_or(Duration::ZERO, |since| now - since);
        let pause = self.backoff.failed(why, uptime, now, chance);
        if since.is_none() {
            self.ctx.backoff.failed(why, uptime, now, chance);
        } else {
            self.ctx.backoff.ended(uptime);
        }
        let (upstream, what) = (&self.ctx.name, if since.is_none() { "start" } else { "child" });
        let said = self.tail.last_words();
        tracing::warn!(%upstream, ?pause, said, "{what} failed: {why}");
        Phase::Backoff(now + pause)
    }

    async fn pause(&self, until: Instant) -> Phase {
        tokio::select! {
            biased;
            () = self.ctx.stop.cancelled() => Phase::Ended,
            () = sleep_until(until) => Phase::Starting,
        }
    }
}
