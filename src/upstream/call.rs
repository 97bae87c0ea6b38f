//! One call, and what may come before its answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Events;
use crate::jsonrpc::{Chunks, Edit, ErrorObject, Id, Member, Message, NullId, error_response};
use crate::mcp::{ClientCaps, ParamHeader, ProtocolVersion};

/// Who makes a call (a session, or one sessionless exchange). An upstream's question on a channel without
/// association is put only to the one caller that has calls in flight there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallerId {
    number: u64,
    /// Tells principals apart; none: nobody else is of the same.
    principal: Option<u64>,
}

impl CallerId {
    /// The gateway itself (its list requests). No question of an upstream is ever put to it.
    pub const GATEWAY: Self = Self::of(0);

    /// A caller that has nothing in common with others.
    pub const fn of(number: u64) -> Self {
        Self { number, principal: None }
    }

    /// One of the callers of a principal.
    pub const fn of_principal(number: u64, principal: u64) -> Self {
        Self { number, principal: Some(principal) }
    }

    /// Whether both are of one principal.
    pub(super) fn is_kin(self, other: Self) -> bool {
        self == other || (self.principal.is_some() && self.principal == other.principal)
    }
}

/// What a modern upstream is told of the client with each request (MCP digest §5.2).
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// What the client can do and the gateway relays.
    pub caps: ClientCaps,
    /// `clientInfo` as JSON text.
    pub info: Option<Bytes>,
    /// The lowest rank of log messages that are wanted; without it none are.
    pub log_rank: Option<u8>,
}

/// The answer to a call, and the revision of the hop that it came over.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The response as the upstream wrote it: its id is ours.
    pub message: Message,
    /// What it is written in.
    pub version: ProtocolVersion,
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
    /// What a modern upstream is told of the client.
    pub client: Client,
    /// Arguments that a modern upstream over HTTP wants repeated as headers.
    pub params: Option<Arc<[ParamHeader]>>,
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

/// The refusal of a method that clients do not know, or did not declare.
pub(super) const METHOD_NOT_FOUND: ErrorObject = refusal(-32601, "Method not found");
/// The refusal of a second question under an id that is open.
pub(super) const DUPLICATE: ErrorObject = refusal(-32600, "a request with this id is open");
/// The refusal of one question too many.
pub(super) const OVERLOADED: ErrorObject =
    refusal(-31002, "too many requests to the client are open");

const fn refusal(code: i64, message: &'static str) -> ErrorObject {
    ErrorObject { code, message: Cow::Borrowed(message), data: None }
}
