//! One call, and what may come before its answer.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Events;
use crate::jsonrpc::{
    Chunks, Edit, ErrorObject, Id, Member, Message, NullId, Span, error_response,
};

/// Who makes a call (a session, or one sessionless exchange). An upstream's question on a channel without
/// association is put only to the one caller that has calls in flight there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallerId(pub u64);

impl CallerId {
    /// The gateway itself (its list requests). No question of an upstream is ever put to it.
    pub const GATEWAY: Self = Self(0);
}

/// A request on its way to one upstream.
#[derive(Debug)]
pub struct OutCall {
    /// The client's request as received, or one of ours ([`Message::request`]).
    pub message: Message,
    /// Replacements besides id and progress token, which the link mints: the tool's own name.
    pub edits: SmallVec<[Edit; 2]>,
    /// Who makes it.
    pub caller: CallerId,
    /// Longest silence: from sending to the answer, begun anew by each progress notification, and not running
    /// while the client answers a question.
    pub timeout: Duration,
    /// Longest duration altogether.
    pub max_timeout: Duration,
    /// Where everything that precedes the answer goes. When full, an upstream that has a stream for the call waits
    /// (back-pressure); on a channel that calls share, progress gives way to newer progress and the rest is dropped or
    /// refused. When closed, events are dropped and questions refused.
    pub events: Events,
}

impl OutCall {
    /// The text to send: `id` as the id and, where the client gave a progress token, as the token; and the
    /// edits. An id is unique on its link, so a token is as well.
    pub(super) fn text(&self, id: u64) -> Chunks {
        self.spliced(id, self.message.member_span(Member::MetaProgressToken))
    }

    /// The text to send to a plain JSON-RPC upstream: `id` as the id, and the edits. Params are nobody's but the
    /// client's.
    pub(super) fn plain_text(&self, id: u64) -> Chunks {
        self.spliced(id, None)
    }

    /// The text with `id` as the id and at `token`, and the edits.
    fn spliced(&self, id: u64, token: Option<Span>) -> Chunks {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(id).as_bytes();
        let mut edits: SmallVec<[Edit; 4]> = SmallVec::new();
        for span in [self.message.id_span(), token].into_iter().flatten() {
            edits.push((span, Bytes::copy_from_slice(digits)));
        }
        edits.extend(self.edits.iter().cloned());
        self.message.edited(&edits)
    }

    /// The client's own progress token as JSON text.
    pub(super) fn token(&self) -> Option<Bytes> {
        self.message.member(Member::MetaProgressToken)
    }
}

/// Puts the client's token into a `notifications/progress`.
pub(super) fn restore_token(progress: &Message, token: Bytes) -> Chunks {
    match progress.member_span(Member::ProgressToken) {
        Some(span) => progress.edited(&[(span, token)]),
        None => Chunks::from(progress.text().clone()),
    }
}

/// What an upstream sends before its answer, tied to this call.
#[derive(Debug)]
pub enum CallEvent {
    /// `notifications/progress` with the client's own token put back.
    Progress(Chunks),
    /// Another notification that came on the call's own stream or is otherwise certain to belong to it
    /// (`notifications/message`, unknown ones).
    Notification(Message),
    /// The upstream asks: sampling, elicitation, roots. (`ping` is answered by the link itself.)
    Ask(Ask),
    /// The upstream has opened a stream that can be resumed, though nothing was sent on it yet: it may take long.
    Streaming,
}

/// A question of an upstream. Dropping it refuses it.
#[derive(Debug)]
pub struct Ask {
    /// The upstream's request; its id is the upstream's and must not reach the client.
    pub message: Message,
    /// Where the reply goes.
    pub(super) reply: oneshot::Sender<AskReply>,
}

/// A reply to an [`Ask`].
#[derive(Debug)]
pub enum AskReply {
    /// The client's response message; its id is replaced by the upstream's.
    Answer(Message),
    /// The gateway's refusal.
    Refuse(ErrorObject),
}

impl AskReply {
    /// The response to send to the upstream, with the id that it gave.
    pub(super) fn response(self, id: &Id) -> Chunks {
        match self {
            Self::Answer(message) => message.with_id(id),
            Self::Refuse(error) => error_response(Some(id), &error, NullId::Null).into(),
        }
    }
}

impl Ask {
    /// A question and where its reply arrives; the receiver fails when the question was dropped
    /// ([`refused`] says so to the upstream).
    pub(super) fn new(message: Message) -> (Self, oneshot::Receiver<AskReply>) {
        let (reply, receiver) = oneshot::channel();
        (Self { message, reply }, receiver)
    }

    /// Resolves when the upstream waits no more: it withdrew the question, or is gone.
    pub async fn withdrawn(&mut self) {
        self.reply.closed().await;
    }

    /// Replies. Nothing happens when the upstream is gone.
    pub fn reply(self, reply: AskReply) {
        let _ = self.reply.send(reply);
    }
}

/// The refusal of a question that nobody took up.
pub(super) fn refused() -> AskReply {
    AskReply::Refuse(ErrorObject {
        code: -32602,
        message: "not associated with a client request".into(),
        data: None,
    })
}
