//! The older binding to HTTP (2024-11-05): what the upstream says comes on one event stream, what it is told is POSTed to
//! the address that the stream names first (MCP digest §7.2).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::{Method, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::DropGuard;

use super::body::Unread;
use super::channel::Channel as Post;
use super::discover::tells_of_the_era;
use super::endpoint::{Endpoint, Outgoing, Via};
use super::link::{Failed, Unopened};
use super::reply::{Media, Reply};
use super::timer::Timer;
use crate::jsonrpc::{Chunks, Message};
use crate::upstream::CallError;
use crate::upstream::call::OutCall;
use crate::upstream::duplex::{Channel, Out, Outlet, Sort};
use crate::upstream::link::{Hello, LinkContext, NoticeKind};
use crate::wire::{Line, SseDecoder, SseEvent};

/// Most messages that are POSTed at once.
const MOST_POSTS: usize = 64;
/// How long a notification waits for what was POSTed before it, and what comes behind it for the notification: some
/// upstreams answer a POST only when its request is done.
const IN_ORDER: Duration = Duration::from_secs(1);
/// How many times `probe_timeout` a doubted stream may take to bring the answer to a `ping`.
const PROBES: u32 = 5;
/// How long the end of the stream may wait for room among the notices.
const LOST: Duration = Duration::from_secs(1);

/// A session over one event stream: it ends with the stream, and nothing of it can be resumed.
#[derive(Debug)]
pub(in crate::upstream) struct SseLink {
    channel: Arc<Channel>,
    context: LinkContext,
    hello: Arc<Hello>,
    opened: Instant,
    /// Whether it is being found out whether the stream still brings anything.
    doubted: Arc<AtomicBool>,
    _stop_on_drop: DropGuard,
}

impl SseLink {
    /// Opens the stream, and the session on it.
    ///
    /// # Errors
    /// [`Unopened::Refused`] when there is no such stream.
    pub(in crate::upstream) async fn open(
        mut context: LinkContext,
        endpoint: Arc<Endpoint>,
    ) -> Result<Arc<Self>, Unopened> {
        endpoint.forget_redirects();
        let stop = context.stop.child_token();
        context.stop = stop.clone();
        // When this future is dropped, so is the stream.
        let stop_on_drop = stop.clone().drop_guard();
        let (channel, outlet) = Channel::new(&context, Arc::default());
        let stream = Stream {
            context: context.clone(),
            endpoint: Arc::clone(&endpoint),
            channel: Arc::clone(&channel),
        };
        let (named, address) = oneshot::channel();
        context.tasks.spawn(stream.run(named));
        let address = address.await.unwrap_or_else(|_| {
            Err(Unopened::Failed(context.closed(false, "the link was closed")))
        })?;
        let carrier = Carrier {
            post: Post::new(context.clone(), Arc::new(address), None, None),
            channel: Arc::clone(&channel),
        };
        context.tasks.spawn(carrier.run(outlet));
        let hello = channel.greet_legacy(context.config.timeout).await.map_err(Unopened::Failed)?;
        Ok(Arc::new(Self {
            channel,
            context,
            hello: Arc::new(hello),
            opened: Instant::now(),
            doubted: Arc::default(),
            _stop_on_drop: stop_on_drop,
        }))
    }

    /// One request. Dropping the future, or a timeout, cancels it upstream.
    pub(in crate::upstream) async fn call(&self, call: &OutCall) -> Result<Message, Failed> {
        self.channel.call_by(call).await.map_err(|error| match error {
            // It was not taken: another session may.
            CallError::Status { status: 404, .. } | CallError::Closed { written: false, .. } => {
                Failed::SessionLost(error)
            }
            CallError::Timeout { .. } => {
                self.doubt();
                Failed::Call(error)
            }
            _ => Failed::Call(error),
        })
    }

    /// A stream may end without a sign, while POSTs are still taken: then nothing is ever answered again.
    fn doubt(&self) {
        if self.doubted.swap(true, Ordering::AcqRel) {
            return;
        }
        let limit = self.context.config.probe_timeout.saturating_mul(PROBES);
        let ping = self.context.own_call(Message::request("ping", None), limit);
        let (channel, stop) = (Arc::clone(&self.channel), self.context.stop.clone());
        let doubted = Arc::clone(&self.doubted);
        self.context.tasks.spawn(async move {
            let answer = stop.run_until_cancelled(channel.call(ping)).await;
            if let Some(Err(CallError::Timeout { .. })) = answer {
                channel.ended();
                channel.close("its event stream brings nothing");
            }
            doubted.store(false, Ordering::Release);
        });
    }

    /// Queues a notification.
    pub(in crate::upstream) fn notify(&self, message: &Message) -> Result<(), CallError> {
        self.channel.notify(message)
    }

    /// What the upstream said at `initialize`.
    pub(in crate::upstream) fn hello(&self) -> Arc<Hello> {
        Arc::clone(&self.hello)
    }

    /// For how long it has been open.
    pub(in crate::upstream) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Whether the stream is there.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        self.channel.is_whole() && !self.context.stop.is_cancelled()
    }

    /// Ends the stream, and with it the session; what is in flight fails.
    pub(in crate::upstream) fn close(&self) {
        self.context.stop.cancel();
    }
}

/// The stream of one session.
struct Stream {
    context: LinkContext,
    endpoint: Arc<Endpoint>,
    channel: Arc<Channel>,
}

/// Whoever waits for the address to POST to.
type Named = oneshot::Sender<Result<Endpoint, Unopened>>;

impl Stream {
    /// Reads until the stream ends, or is to end.
    async fn run(self, named: Named) {
        let stop = self.context.stop.clone();
        let why = tokio::select! {
            biased;
            () = stop.cancelled() => "the link was closed".to_owned(),
            // The upstream does not know the session any more, or the stream brings nothing.
            () = self.channel.closed() => "it was given up".to_owned(),
            why = self.read(named) => why,
        };
        self.channel.ended();
        self.channel.close(&why);
        self.channel.gone();
        if self.channel.is_greeted() && !stop.is_cancelled() {
            tracing::info!(upstream = %self.context.name, "session lost: {why}");
            let _ = timeout(LOST, self.context.inlet.send(NoticeKind::Lost)).await;
        }
    }

    /// Says why it ended.
    async fn read(&self, named: Named) -> String {
        let limit = self.context.config.timeout;
        let mut named = Some(named);
        // Boxed: what is needed for opening is not kept for as long as the stream lasts.
        let mut reply = match Box::pin(self.open()).await {
            Ok(reply) => reply,
            Err(unopened) => return refuse(&mut named, unopened),
        };
        let mut decoder = SseDecoder::new(self.context.config.max_message);
        let mut first = pin!(tokio::time::sleep(limit));
        loop {
            let data = tokio::select! {
                biased;
                data = reply.next() => data,
                () = &mut first, if named.is_some() => {
                    return refuse(&mut named, Unopened::Failed(self.context.timeout(limit)));
                }
            };
            match data {
                Ok(Some(data)) => decoder.push(data),
                Ok(None) => return self.ended(&mut named, "its event stream ended".to_owned()),
                Err(Unread::TooLarge | Unread::Full(_)) => {
                    return self.ended(&mut named, too_large());
                }
                Err(Unread::Broken(error)) => {
                    return self.ended(&mut named, format!("its event stream broke off: {error}"));
                }
            }
            while let Some(event) = decoder.next_event() {
                let taken = event.map_err(|_| too_large()).and_then(|e| self.take(e, &mut named));
                if let Err(why) = taken {
                    return self.ended(&mut named, why);
                }
            }
        }
    }

    fn ended(&self, named: &mut Option<Named>, why: String) -> String {
        if named.is_some() {
            let what = format!("{why}, before it named an endpoint");
            refuse(named, Unopened::Failed(self.context.protocol(what)));
        }
        why
    }

    /// GET with the wish for a stream.
    async fn open(&self) -> Result<Reply<'_>, Unopened> {
        let limit = self.context.config.timeout;
        let mut timer_sleep = pin!(Timer::sleep(limit, limit));
        let mut timer = Timer::new(timer_sleep.as_mut(), limit, limit);
        let get = Post::new(self.context.clone(), Arc::clone(&self.endpoint), None, None);
        let out =
            Outgoing { method: Method::GET, headers: &get.get, extra: &[], body: &Chunks::default };
        let sent = self.endpoint.send(&out, Via::Own, &mut timer, &mut false).await;
        let reply = sent.map_err(Unopened::Failed)?;
        let status = reply.status();
        if status != StatusCode::OK {
            let error = reply.refusal();
            let none = tells_of_the_era(status) || status.is_success();
            return Err(if none { Unopened::Refused(error) } else { Unopened::Failed(error) });
        }
        if reply.media() != Media::EventStream {
            let what = "it has no event stream at its url";
            return Err(Unopened::Refused(self.context.protocol(what)));
        }
        reply.check_encoding().map_err(Unopened::Failed)?;
        Ok(reply)
    }

    /// One event: the address comes first, messages follow.
    fn take(&self, event: SseEvent, named: &mut Option<Named>) -> Result<(), String> {
        match event.event.as_deref() {
            None if event.data.is_empty() => {}
            None => self.channel.take_line(Line::Text(event.data)),
            Some(b"endpoint") => {
                // It is for the whole session: a second one means nothing.
                let Some(waiting) = named.take() else { return Ok(()) };
                let address = String::from_utf8_lossy(&event.data);
                let found = self.endpoint.at(&address);
                let refusal = found.as_ref().err().map(|what| (*what).to_owned());
                let _ = waiting
                    .send(found.map_err(|what| Unopened::Failed(self.context.protocol(what))));
                if let Some(what) = refusal {
                    return Err(what);
                }
            }
            Some(_) => {}
        }
        Ok(())
    }
}

fn too_large() -> String {
    "its message is larger than max_message".to_owned()
}

/// Tells whoever waits for the address, if somebody still does.
fn refuse(named: &mut Option<Named>, unopened: Unopened) -> String {
    if let Some(named) = named.take() {
        let _ = named.send(Err(unopened));
    }
    "it was not opened".to_owned()
}

/// What carries messages to the upstream.
struct Carrier {
    post: Arc<Post>,
    channel: Arc<Channel>,
}

impl Carrier {
    /// POSTs until the channel is closed. Requests travel side by side; a notification is about what came before it, or
    /// about what comes behind it, so its order is kept.
    async fn run(self, mut outlet: Outlet) {
        let stop = self.post.context.stop.clone();
        let mut posts = FuturesUnordered::new();
        let mut batch = Vec::new();
        let carry = async {
            loop {
                tokio::select! {
                    biased;
                    Some(()) = posts.next(), if !posts.is_empty() => {}
                    count = outlet.take(&mut batch, 1), if posts.len() < MOST_POSTS => {
                        let Some(out) = batch.pop().filter(|_| count > 0) else { return };
                        let in_order = out.sort == Sort::Notification;
                        if in_order {
                            let _ = timeout(IN_ORDER, posts.by_ref().collect::<()>()).await;
                        }
                        posts.push(self.deliver(out));
                        if in_order {
                            let _ = timeout(IN_ORDER, posts.by_ref().collect::<()>()).await;
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = carry => {}
        }
    }

    /// POSTs one message. The answer to a request comes on the stream; a refusal is the answer here.
    async fn deliver(&self, out: Out) {
        let text = out.line.slice(..out.line.len().saturating_sub(1));
        let limit = self.post.context.config.timeout;
        let Err(error) = self.post.deliver(&Chunks::from(text), &[], limit).await else { return };
        let lost = matches!(error, CallError::Status { status: 404, .. });
        match (out.sort, &error) {
            // It may have been taken, and the call has limits of its own.
            (_, CallError::Timeout { .. }) => {}
            (Sort::Request(id), _) => self.channel.fail(id, error),
            (Sort::Answer | Sort::Notification, _) => {
                let upstream = &self.post.context.name;
                tracing::debug!(%upstream, %error, "a message was not taken");
            }
        }
        if lost {
            self.channel.ended();
            self.channel.close("its session is not known any more");
        }
    }
}
