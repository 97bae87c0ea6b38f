//! One scanned message.

use std::borrow::Cow;

use bytes::Bytes;

use super::{Chunks, Edit, Rejected, Span};

/// An id as the sender spelt it: JSON text that is echoed byte for byte and never parsed to a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// From JSON text that is known to be a legal id.
    pub fn from_text(text: Bytes) -> Self {
        Self(text)
    }
    /// An id of ours.
    pub fn from_number(number: u64) -> Self {
        Self(Bytes::copy_from_slice(itoa::Buffer::new().format(number).as_bytes()))
    }
    /// The JSON text.
    pub fn text(&self) -> &Bytes {
        &self.0
    }
    /// The number, when the text is a plain non-negative integer that fits: for ids that we minted.
    pub fn as_number(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
    /// Which kind of id it is.
    pub fn kind(&self) -> IdKind {
        todo!()
    }
}

/// The JSON type of an id, as far as rules differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// A string.
    String,
    /// A number without fraction or exponent.
    Integer,
    /// Any other number: legal in JSON-RPC, not in MCP.
    Fraction,
    /// `null`: legal in JSON-RPC (it is a request), not in MCP.
    Null,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `method` and `id`.
    Request,
    /// `method` without `id`.
    Notification,
    /// No `method`; `result` or `error` (see [`Answer`]).
    Response,
}

/// The JSON type of `params`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamsKind {
    /// No member `params`.
    Absent,
    /// `null`, taken as absent.
    Null,
    /// By name.
    Object,
    /// By position.
    Array,
}

/// What a response carries (JSONRPC rows 24 and 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `result`, and no `error` or `"error":null`.
    Result,
    /// An `error` object, and no `result` or `"result":null`.
    Error,
    /// Both, neither of them null.
    Both,
    /// Neither.
    Neither,
}

/// Members below the envelope whose place the scanner remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Member {
    /// `params.name`
    Name,
    /// `params.uri`
    Uri,
    /// `params.cursor`
    Cursor,
    /// `params.arguments`
    Arguments,
    /// `params._meta`
    Meta,
    /// `params.progressToken` (of `notifications/progress`)
    ProgressToken,
    /// `params.requestId` (of `notifications/cancelled`)
    RequestId,
    /// `params.level`
    Level,
    /// `params.taskId`
    TaskId,
    /// `params.requestState`
    RequestState,
    /// `params.inputResponses`
    InputResponses,
    /// `params.protocolVersion` (of `initialize`)
    ProtocolVersion,
    /// `params.capabilities` (of `initialize`)
    Capabilities,
    /// `params.clientInfo` (of `initialize`)
    ClientInfo,
    /// `params.ref`
    Ref,
    /// `params.ref.name`
    RefName,
    /// `params.ref.uri`
    RefUri,
    /// `params._meta.progressToken`
    MetaProgressToken,
    /// `params._meta["io.modelcontextprotocol/protocolVersion"]`
    MetaProtocolVersion,
    /// `params._meta["io.modelcontextprotocol/clientCapabilities"]`
    MetaClientCapabilities,
    /// `params._meta["io.modelcontextprotocol/clientInfo"]`
    MetaClientInfo,
    /// `params._meta["io.modelcontextprotocol/logLevel"]`
    MetaLogLevel,
    /// `params._meta.traceparent`
    MetaTraceparent,
    /// `result.isError`
    IsError,
    /// `result.nextCursor`
    NextCursor,
    /// `result.resultType`
    ResultType,
    /// `error.code`
    ErrorCode,
}

impl Member {
    /// How many there are.
    pub const COUNT: usize = Self::ErrorCode as usize + 1;
}

/// One message: its text and where its parts stand.
#[derive(Clone, Debug)]
pub struct Message {
    text: Bytes,
    // H1: fields as needed.
}

impl Message {
    /// Scans one message. `max_depth` as in [`super::Limits`].
    pub fn parse(text: Bytes, max_depth: u16) -> Result<Self, Rejected> {
        let _ = (text, max_depth);
        todo!()
    }
    /// A request of ours: id `0` (replaced when it is sent), `params` as JSON text of an object.
    pub fn request(method: &str, params: Option<&[u8]>) -> Self {
        let _ = (method, params);
        todo!()
    }
    /// A notification of ours.
    pub fn notification(method: &str, params: Option<&[u8]>) -> Self {
        let _ = (method, params);
        todo!()
    }
    /// The text, without surrounding white space.
    pub fn text(&self) -> &Bytes {
        &self.text
    }
    /// What it is.
    pub fn kind(&self) -> Kind {
        todo!()
    }
    /// The id, when the message has one (`null` included).
    pub fn id(&self) -> Option<Id> {
        todo!()
    }
    /// Where the id stands.
    pub fn id_span(&self) -> Option<Span> {
        todo!()
    }
    /// The decoded method; empty for responses.
    pub fn method(&self) -> &str {
        todo!()
    }
    /// The JSON type of `params`.
    pub fn params_kind(&self) -> ParamsKind {
        todo!()
    }
    /// `params` as JSON text.
    pub fn params(&self) -> Option<Bytes> {
        todo!()
    }
    /// Where `params` stands.
    pub fn params_span(&self) -> Option<Span> {
        todo!()
    }
    /// What a response carries.
    pub fn answer(&self) -> Answer {
        todo!()
    }
    /// `result` as JSON text.
    pub fn result(&self) -> Option<Bytes> {
        todo!()
    }
    /// `error` as JSON text.
    pub fn error(&self) -> Option<Bytes> {
        todo!()
    }
    /// A remembered member as JSON text.
    pub fn member(&self, member: Member) -> Option<Bytes> {
        let _ = member;
        todo!()
    }
    /// Where a remembered member's value stands.
    pub fn member_span(&self, member: Member) -> Option<Span> {
        let _ = member;
        todo!()
    }
    /// A remembered member decoded, when it is a string without lone surrogates.
    pub fn member_str(&self, member: Member) -> Option<Cow<'_, str>> {
        let _ = member;
        todo!()
    }
    /// A routed member of `params` (name, uri, _meta, arguments, cursor, taskId, requestState,
    /// inputResponses) that stands there twice, or `name`/`uri` beside an alias that differs only in case: two
    /// readers may choose differently. MCP refuses such messages, plain JSON-RPC does not look.
    pub fn ambiguous_member(&self) -> Option<&'static str> {
        todo!()
    }
    /// The text with `edits` made.
    pub fn edited(&self, edits: &[Edit]) -> Chunks {
        Chunks::splice(&self.text, edits)
    }
    /// The text with another id.
    pub fn with_id(&self, id: &Id) -> Chunks {
        match self.id_span() {
            Some(span) => self.edited(&[(span, id.text().clone())]),
            None => Chunks::from(self.text.clone()),
        }
    }
}
