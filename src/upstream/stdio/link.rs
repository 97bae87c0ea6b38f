//! An MCP link to a child: one after another, as they die and are started again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::backoff::Backoff;
use super::super::duplex::{Channel, Tail, Watched};
use super::super::link::{Hello, LinkContext, NoticeKind};
use super::super::{CallError, OutCall};
use super::child::Pipes;
use super::supervisor::{Supervisor, Tenant};
use crate::jsonrpc::Message;

/// How long the end of a dead child's group may wait for room among the notices.
const LOST: Duration = Duration::from_secs(1);

/// A link whose other end is a child on standard input and output.
///
/// It outlives its children: when one dies, calls in flight fail, further ones fail at once, and after the back-off
/// another is started and greeted. Dropping the link ends the child as [`StdioLink::close`] does.
#[derive(Debug)]
pub(in crate::upstream) struct StdioLink {
    seat: Arc<Seat>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// What the supervisor keeps a child for.
#[derive(Debug)]
struct Seat {
    ctx: LinkContext,
    /// The channel of the child that runs, also before it serves.
    channel: ArcSwapOption<Channel>,
    hello: ArcSwapOption<Hello>,
    state: watch::Sender<State>,
    tail: Arc<Tail>,
    /// Resources whose updates are wanted of a modern child.
    watched: Arc<Watched>,
    /// The last child ended over `server/discover`: that one is greeted otherwise.
    wary: AtomicBool,
}

/// Whether calls can be made.
#[derive(Clone, Debug)]
enum State {
    /// The first child is being started.
    Starting,
    /// On this channel.
    Up(Arc<Channel>),
    /// No, and why; another child will be started.
    Down(Arc<str>),
    /// No, and nothing will change that.
    Ended,
}

impl StdioLink {
    /// Starts a child and greets it. On error nothing is left running; during the back-off after failed starts the last
    /// failure is returned at once.
    ///
    /// # Errors
    /// [`CallError::Connect`] with the reason: `start timeout`, `exit status 1`, `cannot start: …`.
    pub(in crate::upstream) async fn open(mut ctx: LinkContext) -> Result<Arc<Self>, CallError> {
        let command = ctx.config.command.clone().unwrap_or_default();
        if let Some(why) = ctx.backoff.refusal(Instant::now()) {
            return Err(ctx.connect(why, None));
        }
        let stop = ctx.stop.child_token();
        ctx.stop = stop.clone();
        let tail = Arc::new(Tail::default());
        let seat = Arc::new(Seat {
            ctx: ctx.clone(),
            channel: ArcSwapOption::empty(),
            hello: ArcSwapOption::empty(),
            state: watch::Sender::new(State::Starting),
            tail: Arc::clone(&tail),
            watched: Arc::new(Watched::new()),
            wary: AtomicBool::new(false),
        });
        let stop_on_drop = stop.clone().drop_guard();
        let link = Arc::new(Self { seat: Arc::clone(&seat), stop, _stop_on_drop: stop_on_drop });
        let tenant = Arc::clone(&seat);
        let supervisor =
            Supervisor { ctx: ctx.clone(), command, tenant, tail, backoff: Backoff::default() };
        ctx.tasks.spawn(supervisor.run());
        // When this future or its result is dropped, so is the link, which stops the supervisor.
        let mut state = seat.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match known.as_deref() {
            Ok(State::Up(_)) => {}
            Ok(State::Down(why)) => return Err(ctx.connect(&**why, None)),
            Ok(State::Starting | State::Ended) | Err(_) => {
                return Err(ctx.connect("the link was closed", None));
            }
        }
        drop(known);
        Ok(link)
    }

    /// One request to its answer, as received: its id is ours. Dropping the future cancels the call upstream.
    ///
    /// # Errors
    /// Every [`CallError`] but [`CallError::Status`].
    pub(in crate::upstream) async fn call(&self, call: OutCall) -> Result<Message, CallError> {
        self.seat.current()?.call(call).await
    }

    /// Queues a notification. A modern child is told nothing of the client's: it has no session that it could belong to.
    ///
    /// # Errors
    /// [`CallError::Connect`] while no child serves, [`CallError::Busy`] when the child does not read.
    pub(in crate::upstream) async fn notify(&self, message: &Message) -> Result<(), CallError> {
        let channel = self.seat.current()?;
        if channel.is_modern() { Ok(()) } else { channel.notify(message) }
    }

    /// Wants to hear of updates of a resource of a modern child, also after it was started again. Resolves when the child
    /// has agreed.
    ///
    /// # Errors
    /// [`CallError::Connect`] while no child serves, [`CallError::Protocol`] when it does not tell of that resource, and
    /// whatever may happen to a call.
    pub(in crate::upstream) async fn watch(&self, uri: &str) -> Result<(), CallError> {
        self.seat.current()?.watch(&self.seat.watched, uri).await
    }

    /// Takes [`StdioLink::watch`] back.
    pub(in crate::upstream) fn unwatch(&self, uri: &str) {
        self.seat.watched.remove(uri);
    }

    /// What the child said when it was last greeted.
    pub(in crate::upstream) fn hello(&self) -> Arc<Hello> {
        self.seat.hello.load_full().expect("a link is open only once it was greeted")
    }

    /// Whether a child serves; false while one is being started again, and after [`StdioLink::close`].
    pub(in crate::upstream) fn is_open(&self) -> bool {
        matches!(*self.seat.state.borrow(), State::Up(_))
    }

    /// The last lines it printed for people, oldest first.
    #[cfg(test)]
    pub(in crate::upstream) fn stderr_tail(&self) -> Vec<String> {
        self.seat.tail.lines()
    }

    /// Fails what is in flight and ends the child: its input is closed, then SIGTERM, then SIGKILL to its group.
    /// Resolves when it is gone, within a few seconds.
    pub(in crate::upstream) async fn close(&self) {
        self.stop.cancel();
        let mut state = self.seat.state.subscribe();
        let _ = state.wait_for(|state| matches!(state, State::Ended)).await;
    }
}

impl Seat {
    fn current(&self) -> Result<Arc<Channel>, CallError> {
        match &*self.state.borrow() {
            State::Up(channel) => Ok(Arc::clone(channel)),
            State::Starting => Err(self.ctx.connect("the child is being started", None)),
            State::Down(why) => {
                Err(self.ctx.connect(format!("the child is being restarted: {why}"), None))
            }
            State::Ended => Err(self.ctx.connect("the link was closed", None)),
        }
    }
}

impl Tenant for Seat {
    async fn begin(&self, pipes: Pipes) -> Result<(), String> {
        let channel = Channel::open(&self.ctx, Arc::clone(&self.tail), pipes.stdout, pipes.stdin);
        self.channel.store(Some(Arc::clone(&channel)));
        let wary = self.wary.load(Ordering::Acquire);
        let greeting = channel.greet(self.ctx.config.start_timeout, wary);
        let hello = tokio::select! {
            biased;
            hello = greeting => hello.map_err(|error| reason(&error))?,
            () = channel.drained() => return Err("it closed its output".to_owned()),
        };
        self.wary.store(false, Ordering::Release);
        self.hello.store(Some(Arc::new(hello)));
        self.ctx.tasks.spawn(channel.listen(Arc::clone(&self.watched)));
        Ok(())
    }

    async fn up(&self) {
        let Some(channel) = self.channel.load_full() else { return };
        self.state.send_replace(State::Up(Arc::clone(&channel)));
        // What listens sets log level and subscriptions again, so this one is not dropped for want of room.
        tokio::select! {
            biased;
            () = self.ctx.inlet.send(NoticeKind::Opened) => {}
            () = channel.broken() => {}
            () = self.ctx.stop.cancelled() => {}
        }
    }

    async fn broken(&self) {
        if let Some(channel) = self.channel.load_full() {
            channel.broken().await;
        }
    }

    async fn drained(&self) {
        if let Some(channel) = self.channel.load_full() {
            channel.drained().await;
        }
    }

    async fn down(&self, why: &str) {
        let before = self.state.send_replace(State::Down(why.into()));
        if let Some(channel) = self.channel.load_full() {
            channel.close(why);
        }
        // Nothing is lost that we end ourselves.
        if matches!(before, State::Up(_)) && !self.ctx.stop.is_cancelled() {
            let _ = timeout(LOST, self.ctx.inlet.send(NoticeKind::Lost)).await;
        }
    }

    fn ended_on_probe(&self) -> bool {
        let Some(channel) = self.channel.load_full() else { return false };
        let probing = channel.is_probing() && !self.wary.swap(true, Ordering::AcqRel);
        if probing {
            channel.close("it ended over server/discover");
        }
        probing
    }

    fn gone(&self) {
        if let Some(channel) = self.channel.swap(None) {
            channel.gone();
        }
    }

    fn ended(&self) {
        self.state.send_replace(State::Ended);
    }
}

/// What a failed greeting says, without the name of the upstream.
fn reason(error: &CallError) -> String {
    match error {
        CallError::Connect { what, .. }
        | CallError::Closed { what, .. }
        | CallError::Protocol { what, .. } => what.clone(),
        CallError::Timeout { .. } => "start timeout".to_owned(),
        CallError::Status { .. }
        | CallError::Busy { .. }
        | CallError::NoRoom { .. }
        | CallError::HeaderMismatch { .. } => error.to_string(),
    }
}
