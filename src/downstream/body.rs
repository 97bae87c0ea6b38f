//! Bodies of answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body::{Body, Frame, SizeHint};
use prometheus::{IntCounter, IntGauge};
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

use crate::jsonrpc::Chunks;
use crate::pipeline::{Done, Listening, OnHangup, Outlet, Receipt, Recorder, Run, Standing};
use crate::wire::{KEEP_ALIVE, encode_endpoint, encode_event, encode_priming};

/// An answer that cannot be completed: its connection or stream ends in a way that shows it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer was cut short")]
pub(super) struct CutShort;

/// The body of any answer.
pub(super) enum OutBody {
    /// A message known as a whole, slice by slice.
    Message(Chunks, usize),
    /// The same, of which something is undone when nobody takes it.
    Owed(Box<Owed>),
    /// An exchange that goes on.
    Exchange(Box<ExchangeBody>),
    /// A standing stream.
    Stream(Box<StreamBody>),
    /// A large answer that still comes.
    Pieces(Box<PieceBody>),
}

/// A message on whose delivery something hangs.
pub(super) struct Owed {
    chunks: Chunks,
    next: usize,
    receipt: Option<Receipt>,
}

impl Owed {
    fn poll(&mut self) -> Option<Bytes> {
        let slice = self.chunks.slices().get(self.next).cloned();
        self.next += 1;
        if self.next >= self.chunks.slices().len()
            && let Some(receipt) = self.receipt.take()
        {
            receipt.delivered();
        }
        slice
    }
}

impl OutBody {
    /// A message on whose delivery something hangs.
    pub(super) fn owed(chunks: Chunks, receipt: Receipt) -> Self {
        Self::Owed(Box::new(Owed { chunks, next: 0, receipt: Some(receipt) }))
    }

    /// Nothing.
    pub(super) fn empty() -> Self {
        Self::Message(Chunks::default(), 0)
    }
}

impl Body for OutBody {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        let data = match self.get_mut() {
            Self::Message(chunks, next) => {
                let slice = chunks.slices().get(*next).cloned();
                *next += 1;
                slice
            }
            Self::Owed(owed) => owed.poll(),
            Self::Exchange(body) => ready!(body.poll(cx)),
            Self::Stream(body) => ready!(body.poll(cx)),
            Self::Pieces(body) => {
                let piece = ready!(body.poll(cx));
                return Poll::Ready(piece.map(|piece| piece.map(Frame::data)));
            }
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(chunks, next) => *next >= chunks.slices().len(),
            Self::Owed(owed) => owed.next >= owed.chunks.slices().len(),
            Self::Exchange(_) | Self::Stream(_) | Self::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let (chunks, next) = match self {
            Self::Message(chunks, next) => (chunks, *next),
            Self::Owed(owed) => (&owed.chunks, owed.next),
            Self::Exchange(_) | Self::Stream(_) | Self::Pieces(_) => return SizeHint::default(),
        };
        let left = chunks.slices().iter().skip(next).map(Bytes::len).sum::<usize>();
        SizeHint::with_exact(left as u64)
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
pub(super) struct Counted(IntGauge);

impl Counted {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// How long a client is asked to wait before it resumes a stream, in milliseconds.
const RETRY: u64 = 1000;

/// An exchange while somebody waits for it. Dropped too early, it is cancelled, or goes on without its client,
/// as [`OnHangup`] says.
pub(super) struct Running {
    run: Option<Run>,
    recorder: Option<Recorder>,
    tasks: TaskTracker,
}

impl Running {
    pub(super) fn new(run: Run, tasks: &TaskTracker) -> Self {
        Self { run: Some(run), recorder: None, tasks: tasks.clone() }
    }

    /// It is answered with a stream from now on, which its client can resume.
    fn record(&mut self) {
        self.recorder = self.run.as_ref().and_then(Run::record);
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
            let recorder = self.recorder.take();
            if let Some(recorder) = &recorder {
                recorder.left_alone();
            }
            self.tasks.spawn(finish_alone(run, recorder));
        }
    }
}

/// Sees an exchange through whose client has gone; what it sends waits for the client to come back, if it can.
async fn finish_alone(mut run: Run, recorder: Option<Recorder>) {
    let keep = |message: &Chunks| {
        if let Some(recorder) = &recorder {
            recorder.kept(message);
        }
    };
    let done = std::future::poll_fn(|cx| {
        loop {
            let done = run.future.as_mut().poll(cx);
            let mut went = false;
            while let Some(message) = run.outlet.try_next() {
                keep(&message);
                went = true;
            }
            if done.is_ready() || !went {
                return done;
            }
        }
    })
    .await;
    if let Some(answer) = done.body {
        keep(&answer);
    }
}

/// An exchange as a stream of events: whatever precedes the answer, then the answer.
pub(super) struct ExchangeBody {
    running: Running,
    outlet: Arc<Outlet>,
    priming: Option<Bytes>,
    last: Option<Chunks>,
    pulse: Pulse,
    bytes: IntCounter,
    _counted: Counted,
}

impl ExchangeBody {
    /// `done`: the exchange has ended already. `gauge` counts open streams.
    pub(super) fn new(
        mut running: Running,
        outlet: Arc<Outlet>,
        done: Option<Done>,
        interval: Duration,
        (gauge, bytes): (&IntGauge, &IntCounter),
    ) -> Self {
        running.record();
        let priming = running.recorder.as_ref().and_then(Recorder::priming);
        Self {
            running,
            outlet,
            priming: priming.map(|id| encode_priming(&id, RETRY)),
            last: done.and_then(|done| done.body),
            pulse: Pulse::new(interval),
            bytes: bytes.clone(),
            _counted: Counted::new(gauge),
        }
    }

    fn event(&mut self, message: &Chunks) -> Bytes {
        self.pulse.restart();
        let id = self.running.recorder.as_ref().map(|recorder| recorder.sent(message));
        let event = encode_event(id.as_deref(), message);
        self.bytes.inc_by(event.len() as u64);
        event
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(priming) = self.priming.take() {
            return Poll::Ready(Some(priming));
        }
        // A client that reads the rest elsewhere has given this connection up.
        if self.running.recorder.as_ref().is_some_and(Recorder::is_taken_over) {
            return Poll::Ready(None);
        }
        loop {
            if let Some(message) = self.outlet.try_next() {
                return Poll::Ready(Some(self.event(&message)));
            }
            match self.running.poll(cx) {
                Poll::Ready(Some(done)) => self.last = done.body,
                Poll::Ready(None) => {
                    let last = self.last.take();
                    if let (Some(_), Some(receipt)) = (&last, self.outlet.receipt()) {
                        receipt.delivered();
                    }
                    return Poll::Ready(last.map(|message| self.event(&message)));
                }
                Poll::Pending if self.outlet.is_empty() => return self.pulse.poll(cx).map(Some),
                Poll::Pending => {}
            }
        }
    }
}

/// A large answer, piece by piece as its exchange sends them.
pub(super) struct PieceBody {
    running: Running,
    outlet: Arc<Outlet>,
    bytes: IntCounter,
}

impl PieceBody {
    pub(super) fn new(running: Running, outlet: Arc<Outlet>, bytes: &IntCounter) -> Self {
        Self { running, outlet, bytes: bytes.clone() }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CutShort>>> {
        loop {
            if let Some(piece) = self.outlet.try_next() {
                self.bytes.inc_by(piece.len() as u64);
                return Poll::Ready(Some(Ok(piece.into_bytes())));
            }
            match self.running.poll(cx) {
                // What it sent last goes out first.
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) if self.outlet.is_whole() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(Err(CutShort))),
                Poll::Pending if self.outlet.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

/// A standing stream.
pub(super) struct StreamBody {
    events: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    pulse: Pulse,
    bytes: IntCounter,
    _counted: Counted,
}

impl StreamBody {
    /// From a session's stream.
    pub(super) fn new(
        stream: Standing,
        interval: Duration,
        counts: (&IntGauge, &IntCounter),
    ) -> Self {
        let priming = stream.priming().map(|id| encode_priming(&id, RETRY));
        let events = futures_util::stream::unfold(stream, |mut stream| async move {
            let (id, message) = stream.next().await?;
            Some((encode_event(Some(&id), &message), stream))
        });
        Self::of(futures_util::stream::iter(priming).chain(events), interval, counts)
    }

    /// From the stream of a client of HTTP+SSE, which is told first where to POST.
    pub(super) fn channel(
        stream: Listening,
        endpoint: &str,
        interval: Duration,
        counts: (&IntGauge, &IntCounter),
    ) -> Self {
        let first = futures_util::stream::iter([encode_endpoint(endpoint)]);
        let events = futures_util::stream::unfold(stream, |mut stream| async move {
            let message = stream.next().await?;
            Some((encode_event(None, &message), stream))
        });
        Self::of(first.chain(events), interval, counts)
    }

    fn of(
        events: impl Stream<Item = Bytes> + Send + 'static,
        interval: Duration,
        (gauge, bytes): (&IntGauge, &IntCounter),
    ) -> Self {
        Self {
            events: Box::pin(events),
            pulse: Pulse::new(interval),
            bytes: bytes.clone(),
            _counted: Counted::new(gauge),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.events.as_mut().poll_next(cx) {
            Poll::Ready(Some(event)) => {
                self.pulse.restart();
                self.bytes.inc_by(event.len() as u64);
                Poll::Ready(Some(event))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self.pulse.poll(cx).map(Some),
        }
    }
}
