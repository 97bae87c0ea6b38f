//! Answers as a stream of events.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::http::Body;
use super::outbox::Outgoing;

/// After this long a silence, a comment is sent, so that nothing between here and the client
/// believes the connection dead.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long a client is to wait before it comes back to a broken stream.
const RETRY_MS: u64 = 100;

/// Where events come from. Implemented by queues, and by what owns one for a while.
pub(super) trait Events: Send + 'static {
    /// The next message; `None` at the end. Nothing is lost when this is dropped half-way.
    fn next(&mut self) -> impl Future<Output = Option<Outgoing>> + Send;
}

impl Events for mpsc::Receiver<Outgoing> {
    async fn next(&mut self) -> Option<Outgoing> {
        self.recv().await
    }
}

/// A body that carries `first` and then what comes, until the queue ends or `closing` fires.
pub(super) fn body<E: Events>(
    first: Option<Outgoing>,
    events: E,
    closing: CancellationToken,
) -> Body {
    let start = (first, events, closing);
    let frames = stream::unfold(start, |(mut first, mut events, closing)| async move {
        let frame = match first.take() {
            Some(message) => event(message),
            None => next(&mut events, &closing).await?,
        };
        Some((Ok::<_, Infallible>(Frame::data(frame)), (first, events, closing)))
    });
    Body::new(StreamBody::new(frames))
}

async fn next<E: Events>(events: &mut E, closing: &CancellationToken) -> Option<Bytes> {
    // All branches are cancel-safe. What waits in the queue goes out before the end does.
    tokio::select! {
        biased;
        message = events.next() => message.map(event),
        () = closing.cancelled() => None,
        () = tokio::time::sleep(KEEP_ALIVE) => Some(Bytes::from_static(b": keep-alive\n\n")),
    }
}

/// Messages are printed without line ends, so one `data` line is enough.
fn event(message: Outgoing) -> Bytes {
    Bytes::from(match message {
        Outgoing::Interim(text) | Outgoing::Answer(text) => {
            format!("event: message\ndata: {text}\n\n")
        }
        Outgoing::Break => ": unbroken\n\n".to_owned(),
        Outgoing::Broken(id) => format!("id: {id}\nretry: {RETRY_MS}\ndata:\n\n"),
    })
}

/// A whole stream of one event, for an answer that is there already.
pub(super) fn one(text: &str) -> Bytes {
    event(Outgoing::Answer(text.to_owned()))
}
