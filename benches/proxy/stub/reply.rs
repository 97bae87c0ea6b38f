//! Answers of the stub.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use futures_util::{Stream, stream};
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::watch;

/// Answers up to this size are written in one piece with their id.
const COPY_UP_TO: usize = 8 * 1024;

/// Where the run says that the list of tools has changed.
pub(super) const CHANGE_PATH: &str = "/change";

/// Counts changes of the list of tools.
static CHANGES: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// The list of tools has changed: every open stream tells of it.
pub(super) fn change() {
    CHANGES.send_modify(|changes| *changes += 1);
}

pub(super) fn status(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::Parts([None, None], true));
    *response.status_mut() = status;
    response
}

pub(super) fn text(text: String) -> Response<Reply> {
    Response::new(Reply::Parts([Some(text.into()), None], true))
}

/// A JSON text that is complete.
pub(super) fn whole(text: Vec<u8>) -> Response<Reply> {
    let reply = Reply::Parts([Some(text.into()), None], true);
    of_type(reply, HeaderValue::from_static("application/json"))
}

pub(super) fn json(id: &[u8], rest: &Bytes) -> Response<Reply> {
    let mut text = Vec::with_capacity(64 + rest.len().min(COPY_UP_TO));
    text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    text.extend_from_slice(id);
    let second = if rest.len() > COPY_UP_TO {
        Some(rest.clone())
    } else {
        text.extend_from_slice(rest);
        None
    };
    let reply = Reply::Parts([Some(text.into()), second], true);
    of_type(reply, HeaderValue::from_static("application/json"))
}

pub(super) fn sse(id: &[u8], rest: &Bytes) -> Response<Reply> {
    let mut text = Vec::with_capacity(128 + rest.len());
    text.extend_from_slice(b"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":");
    text.extend_from_slice(id);
    text.extend_from_slice(rest);
    text.extend_from_slice(b"\n\n");
    events(Reply::Parts([Some(text.into()), None], false))
}

/// A stream that stays open: `first`, if any, then `changed` at each change of the list of tools.
pub(super) fn changes(first: Option<Bytes>, changed: Bytes) -> Response<Reply> {
    let event = |data: Bytes| Bytes::from([b"data: ", &data[..], b"\n\n"].concat());
    let first = stream::iter(first.map(event));
    let told = stream::unfold(CHANGES.subscribe(), move |mut changes| {
        let changed = event(changed.clone());
        async move { Some((changes.changed().await.map(|()| changed).ok()?, changes)) }
    });
    let all = futures_util::StreamExt::chain(first, told);
    events(Reply::Stream(Box::pin(all)))
}

fn events(reply: Reply) -> Response<Reply> {
    of_type(reply, HeaderValue::from_static("text/event-stream"))
}

fn of_type(reply: Reply, media: HeaderValue) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// A body.
pub(super) enum Reply {
    /// Up to two pieces; with `false` it does not know its length and goes out in chunks.
    Parts([Option<Bytes>; 2], bool),
    /// Whatever comes.
    Stream(Pin<Box<dyn Stream<Item = Bytes>>>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let part = match &mut *self {
            Self::Parts(parts, _) => parts.iter_mut().find_map(Option::take),
            Self::Stream(stream) => std::task::ready!(stream.as_mut().poll_next(cx)),
        };
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Parts(parts, _) if parts.iter().all(Option::is_none))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Parts(parts, true) => {
                SizeHint::with_exact(parts.iter().flatten().map(|part| part.len() as u64).sum())
            }
            Self::Parts(_, false) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
