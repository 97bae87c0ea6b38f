//! An MCP link over a WebSocket of its own: it ends with the connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::DropGuard;

use super::super::duplex::{Channel, Out, Outlet, Sort, Watched};
use super::super::http::Failed;
use super::super::link::{Hello, LinkContext, NoticeKind};
use super::super::{CallError, OutCall};
use super::socket::{self, End, Ended, Outgoing, Patience, Source};
use super::target::{Socket, Target};
use crate::jsonrpc::Message;
use crate::wire::Line;

/// How long the end of the connection may wait for room among the notices.
const LOST: Duration = Duration::from_secs(1);

/// A connection that was greeted. When it is lost, another link takes its place.
#[derive(Debug)]
pub(in crate::upstream) struct WsLink {
    channel: Arc<Channel>,
    context: LinkContext,
    hello: Arc<Hello>,
    /// Resources whose updates are wanted of a server without sessions; the same for all links of the upstream.
    watched: Arc<Watched>,
    opened: Instant,
    _stop_on_drop: DropGuard,
}

impl WsLink {
    /// Dials, and greets whoever answers in the era of the client, or in the other one.
    ///
    /// # Errors
    /// As for dialling and for calls; [`CallError::Protocol`] when every greeting was refused.
    pub(in crate::upstream) async fn open(
        mut context: LinkContext,
        target: &Target,
        watched: Arc<Watched>,
    ) -> Result<Arc<Self>, CallError> {
        let stop = context.stop.child_token();
        context.stop = stop.clone();
        // When this future is dropped, so is the connection.
        let stop_on_drop = stop.drop_guard();
        let (channel, hello) = match greeted(&context, target, false).await {
            Ok(greeted) => greeted,
            // It hung up on a question that it does not know.
            Err((error, true)) => {
                tracing::debug!(upstream = %context.name, %error, "it does not know server/discover");
                greeted(&context, target, true).await.map_err(|(error, _)| error)?
            }
            Err((error, false)) => return Err(error),
        };
        context.tasks.spawn(Arc::clone(&channel).listen(Arc::clone(&watched)));
        Ok(Arc::new(Self {
            channel,
            context,
            hello: Arc::new(hello),
            watched,
            opened: Instant::now(),
            _stop_on_drop: stop_on_drop,
        }))
    }

    /// One request. Dropping the future, or a timeout, cancels it upstream.
    pub(in crate::upstream) async fn call(&self, call: &OutCall) -> Result<Message, Failed> {
        self.channel.call_by(call).await.map_err(|error| match error {
            // It was never sent: another connection may take it.
            CallError::Closed { written: false, .. } => Failed::SessionLost(error),
            error => Failed::Call(error),
        })
    }

    /// Queues a notification. A server without sessions is told nothing of the client's: there is nothing that it could
    /// belong to.
    pub(in crate::upstream) fn notify(&self, message: &Message) -> Result<(), CallError> {
        if self.channel.is_modern() { Ok(()) } else { self.channel.notify(message) }
    }

    /// Wants to hear of updates of a resource of a server without sessions, also on later connections.
    ///
    /// # Errors
    /// The server does not tell of that resource, or whatever may happen to a call.
    pub(in crate::upstream) async fn watch(&self, uri: &str) -> Result<(), CallError> {
        if self.channel.is_modern() { self.channel.watch(&self.watched, uri).await } else { Ok(()) }
    }

    /// Whether somebody wants to hear of updates that nobody calls for.
    pub(in crate::upstream) fn is_watched(&self) -> bool {
        self.channel.is_modern() && !self.watched.is_empty()
    }

    /// What the upstream said when it was greeted.
    pub(in crate::upstream) fn hello(&self) -> Arc<Hello> {
        Arc::clone(&self.hello)
    }

    /// For how long it has been open.
    pub(in crate::upstream) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Whether the connection is there.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        self.channel.is_whole() && !self.context.stop.is_cancelled()
    }

    /// Closes the connection; what is in flight fails.
    pub(in crate::upstream) fn close(&self) {
        self.context.stop.cancel();
    }
}

/// A connection whose server was greeted; on error also whether it ended over `server/discover`.
async fn greeted(
    context: &LinkContext,
    target: &Target,
    wary: bool,
) -> Result<(Arc<Channel>, Hello), (CallError, bool)> {
    let dialled = tokio::select! {
        dialled = target.dial() => dialled,
        () = context.stop.cancelled() => Err(context.connect("the link was closed", None)),
    };
    let socket = dialled.map_err(|error| (error, false))?;
    let (channel, outlet) = Channel::new(context, Arc::default());
    context.tasks.spawn(carry(context.clone(), socket, Arc::clone(&channel), outlet));
    match channel.greet(context.config.timeout, wary).await {
        Ok(hello) => Ok((channel, hello)),
        Err(error) => {
            let over_probe = channel.is_probing() && !channel.is_whole();
            channel.close("it was not greeted");
            Err((error, over_probe && !wary))
        }
    }
}

/// Moves the messages of a channel until the connection ends, or the channel is closed.
async fn carry(context: LinkContext, socket: Socket, channel: Arc<Channel>, outlet: Outlet) {
    let metrics = &context.metrics;
    let mut source = Lines { outlet, taken: Vec::new() };
    metrics.connections_active.inc();
    let take = |text| channel.take_line(Line::Text(text));
    let outside = (Patience::of(&context.config), &**metrics);
    let Ended { end, unsent } =
        socket::run(socket, &mut source, take, outside, &context.stop).await;
    metrics.connections_active.dec();
    if matches!(end, End::TooLarge) {
        let bytes = u64::try_from(context.config.max_message).unwrap_or(u64::MAX);
        channel.take_line(Line::TooLong { bytes: bytes.saturating_add(1) });
    }
    channel.ended();
    for id in unsent {
        channel.fail(id, context.closed(false, end.why()));
    }
    channel.close(end.why());
    channel.gone();
    if channel.is_greeted() && !context.stop.is_cancelled() && !matches!(end, End::Finished) {
        tracing::info!(upstream = %context.name, "connection lost: {}", end.why());
        let _ = timeout(LOST, context.inlet.send(NoticeKind::Lost)).await;
    }
}

/// The messages of a channel: lines, without their ends.
struct Lines {
    outlet: Outlet,
    taken: Vec<Out>,
}

impl Source for Lines {
    async fn take(&mut self, batch: &mut Vec<Outgoing>, most: usize) -> usize {
        let count = self.outlet.take(&mut self.taken, most).await;
        batch.extend(self.taken.drain(..).map(without_end));
        count
    }

    fn rest(&mut self) -> Vec<Outgoing> {
        self.outlet.rest().into_iter().map(without_end).collect()
    }
}

fn without_end(Out { line, sort }: Out) -> Outgoing {
    let text = line.slice(..line.len().saturating_sub(1));
    let id = if let Sort::Request(id) = sort { Some(id) } else { None };
    Outgoing { text, id }
}
