//! Bodies of answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use prometheus::{IntCounter, IntGauge};
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

use crate::jsonrpc::Chunks;
use crate::pipeline::{Done, OnHangup, Outlet, Run};
use crate::wire::{KEEP_ALIVE, encode_event};

/// The body of any answer.
pub(super) enum OutBody {
    /// A message known as a whole, slice by slice.
    Message(Chunks, usize),
    /// An exchange that goes on.
    Exchange(Box<ExchangeBody>),
    /// A standing stream.
    Stream(Box<StreamBody>),
}

impl OutBody {
    /// Nothing.
    pub(super) fn empty() -> Self {
        Self::Message(Chunks::default(), 0)
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Message(chunks, next) => {
                let slice = chunks.slices().get(*next).cloned();
                *next += 1;
                slice
            }
            Self::Exchange(body) => ready!(body.poll(cx)),
            Self::Stream(body) => ready!(body.poll(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(chunks, next) => *next >= chunks.slices().len(),
            Self::Exchange(_) | Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Message(chunks, next) => {
                let left = chunks.slices().iter().skip(*next).map(Bytes::len).sum::<usize>();
                SizeHint::with_exact(left as u64)
            }
            Self::Exchange(_) | Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Keep-alive comments of one stream.
struct Pulse {
    sleep: Pin<Box<Sleep>>,
    interval: Duration,
}

impl Pulse {
    fn new(interval: Duration) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(interval)), interval }
    }

    fn restart(&mut self) {
        self.sleep.as_mut().reset(Instant::now() + self.interval);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        ready!(self.sleep.as_mut().poll(cx));
        self.restart();
        Poll::Ready(Bytes::from_static(KEEP_ALIVE))
    }
}

/// One more in a gauge while it lives.
struct Counted(IntGauge);

impl Counted {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// An exchange while somebody waits for it. Dropped too early, it is cancelled, or goes on without its client,
/// as [`OnHangup`] says.
pub(super) struct Running {
    run: Option<Run>,
    tasks: TaskTracker,
}

impl Running {
    pub(super) fn new(run: Run, tasks: &TaskTracker) -> Self {
        Self { run: Some(run), tasks: tasks.clone() }
    }

    /// Its end; `None` once that was given out.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Done>> {
        let Some(run) = &mut self.run else { return Poll::Ready(None) };
        let done = ready!(run.future.as_mut().poll(cx));
        self.run = None;
        Poll::Ready(Some(done))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        if run.on_hangup == OnHangup::Continue && tokio::runtime::Handle::try_current().is_ok() {
            self.tasks.spawn(finish_alone(run));
        }
    }
}

/// Sees an exchange through whose client has gone; what it sends goes nowhere.
async fn finish_alone(mut run: Run) {
    std::future::poll_fn(|cx| {
        loop {
            if run.future.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if run.outlet.try_next().is_none() {
                return Poll::Pending;
            }
            while run.outlet.try_next().is_some() {}
        }
    })
    .await;
}

/// An exchange as a stream of events: whatever precedes the answer, then the answer.
pub(super) struct ExchangeBody {
    running: Running,
    outlet: Arc<Outlet>,
    last: Option<Chunks>,
    pulse: Pulse,
    bytes: IntCounter,
    _counted: Counted,
}

impl ExchangeBody {
    /// `done`: the exchange has ended already. `gauge` counts open streams.
    pub(super) fn new(
        running: Running,
        outlet: Arc<Outlet>,
        done: Option<Done>,
        interval: Duration,
        (gauge, bytes): (&IntGauge, &IntCounter),
    ) -> Self {
        Self {
            running,
            outlet,
            last: done.and_then(|done| done.body),
            pulse: Pulse::new(interval),
            bytes: bytes.clone(),
            _counted: Counted::new(gauge),
        }
    }

    fn event(&mut self, message: &Chunks) -> Bytes {
        self.pulse.restart();
        let event = encode_event(None, message);
        self.bytes.inc_by(event.len() as u64);
        event
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(message) = self.outlet.try_next() {
                return Poll::Ready(Some(self.event(&message)));
            }
            match self.running.poll(cx) {
                Poll::Ready(Some(done)) => self.last = done.body,
                Poll::Ready(None) => {
                    let last = self.last.take();
                    return Poll::Ready(last.map(|message| self.event(&message)));
                }
                Poll::Pending if self.outlet.is_empty() => return self.pulse.poll(cx).map(Some),
                Poll::Pending => {}
            }
        }
    }
}

/// A standing stream.
pub(super) struct StreamBody {
    messages: Pin<Box<dyn Stream<Item = Chunks> + Send>>,
    pulse: Pulse,
    bytes: IntCounter,
    _counted: Counted,
}

impl StreamBody {
    /// From a session's stream.
    pub(super) fn new(
        stream: crate::pipeline::Standing,
        interval: Duration,
        (gauge, bytes): (&IntGauge, &IntCounter),
    ) -> Self {
        let messages = futures_util::stream::unfold(stream, |stream| async move {
            stream.next().await.map(|message| (message, stream))
        });
        Self {
            messages: Box::pin(messages),
            pulse: Pulse::new(interval),
            bytes: bytes.clone(),
            _counted: Counted::new(gauge),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.messages.as_mut().poll_next(cx) {
            Poll::Ready(Some(message)) => {
                self.pulse.restart();
                let event = encode_event(None, &message);
                self.bytes.inc_by(event.len() as u64);
                Poll::Ready(Some(event))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self.pulse.poll(cx).map(Some),
        }
    }
}
