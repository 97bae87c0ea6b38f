//! One scanned message.

use std::borrow::Cow;

use bytes::Bytes;
use bytestring::ByteString;

use super::body::parse_single;
use super::classify::Sender;
use super::envelope::{Envelope, Field, Members};
use super::error::push_string;
use super::{Chunks, Edit, Id, Member, Rejected, Span};

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

/// One message: its text and where its parts stand.
///
/// Cloning shares the text. Every part is a slice of it; so a part that is kept for long keeps the
/// whole text.
#[derive(Clone, Debug)]
pub struct Message {
    text: ByteString,
    id: Span,
    method: Span,
    params: Span,
    result: Span,
    error: Span,
    members: Members,
    decoded_method: Option<Box<str>>,
    kind: Kind,
    params_kind: ParamsKind,
    version_ok: bool,
    ambiguous: Option<Member>,
}

/// What `classify` found out about a message.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) kind: Kind,
    /// The method, when it differs from its text.
    pub(super) decoded_method: Option<Box<str>>,
    pub(super) params_kind: ParamsKind,
    pub(super) version_ok: bool,
    /// `false` when the id is to be taken as absent.
    pub(super) id_legal: bool,
}

impl Message {
    pub(super) fn from_parts(text: ByteString, envelope: Envelope, verdict: Verdict) -> Self {
        let id = envelope.field(Field::Id);
        Self {
            text,
            id: if verdict.id_legal { id } else { Span::default() },
            method: envelope.field(Field::Method),
            params: envelope.field(Field::Params),
            result: envelope.field(Field::Result),
            error: envelope.field(Field::Error),
            members: envelope.members,
            decoded_method: verdict.decoded_method,
            kind: verdict.kind,
            params_kind: verdict.params_kind,
            version_ok: verdict.version_ok,
            ambiguous: envelope.ambiguous,
        }
    }

    /// Scans one message. `max_depth` as in [`super::Limits`]. Judged as JSON-RPC 2.0 has it: ids
    /// may be `null` or fractions, `params` may be an array; MCP refuses those elsewhere.
    ///
    /// An object with `result` or `error` and no `method` is a response, however odd: what is wrong
    /// with it is told by [`Self::answer`], [`Self::version_ok`] and [`Self::error_is_object`].
    ///
    /// A batch is no message ([`Rejected::Invalid`]); see [`super::parse_body`].
    pub fn parse(text: Bytes, max_depth: u16) -> Result<Self, Rejected> {
        parse_single(text, max_depth, Sender::Downstream)
    }

    /// Scans one text from an upstream. Requests and notifications are judged as in
    /// [`Self::parse`]; every other object is a response, also one without `result` and `error`
    /// ([`Answer::Neither`]) or with an id that is not legal (then it has none). Only members that
    /// stand there twice, or differ only in case, still refuse the text.
    pub fn parse_answer(text: Bytes, max_depth: u16) -> Result<Self, Rejected> {
        parse_single(text, max_depth, Sender::Upstream)
    }

    /// A request of ours: id `0` (replaced when it is sent), `params` as JSON text of an object.
    /// Params that are no JSON are left out.
    pub fn request(method: &str, params: Option<&[u8]>) -> Self {
        Self::build(b"\"id\":0,", method, params)
    }

    /// A notification of ours. Params that are no JSON are left out.
    pub fn notification(method: &str, params: Option<&[u8]>) -> Self {
        Self::build(b"", method, params)
    }

    fn build(id: &[u8], method: &str, params: Option<&[u8]>) -> Self {
        let mut text = Vec::with_capacity(64 + method.len() + params.map_or(0, <[u8]>::len));
        text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
        text.extend_from_slice(id);
        text.extend_from_slice(b"\"method\":");
        push_string(&mut text, method);
        let bare = text.len();
        if let Some(params) = params {
            text.extend_from_slice(b",\"params\":");
            text.extend_from_slice(params);
        }
        text.push(b'}');
        let text = Bytes::from(text);
        match Self::parse(text.clone(), u16::MAX) {
            Ok(message) => message,
            Err(rejected) => {
                debug_assert!(false, "a message of ours is {rejected}");
                Self::bare(&text[..bare])
            }
        }
    }

    /// A message without params, for want of usable ones. `head` is all but the closing brace.
    #[cold]
    fn bare(head: &[u8]) -> Self {
        let text = Bytes::from([head, b"}"].concat());
        let fallback = br#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
        Self::parse(text, u16::MAX)
            .or_else(|_| Self::parse(Bytes::from_static(fallback), u16::MAX))
            .expect("the constant is a message")
    }

    /// The text, without surrounding white space.
    pub fn text(&self) -> &Bytes {
        self.text.as_bytes()
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether `jsonrpc` is `"2.0"`. Always so for requests and notifications.
    pub fn version_ok(&self) -> bool {
        self.version_ok
    }

    /// The id, when the message has one (`null` included).
    pub fn id(&self) -> Option<Id> {
        self.slice(self.id).map(Id::from_text)
    }

    /// Where the id stands.
    pub fn id_span(&self) -> Option<Span> {
        self.id.present()
    }

    /// The decoded method; empty for responses.
    pub fn method(&self) -> &str {
        if self.kind == Kind::Response {
            return "";
        }
        if let Some(method) = &self.decoded_method {
            return method;
        }
        unquoted(self.str(self.method)).unwrap_or_default()
    }

    /// The JSON type of `params`.
    pub fn params_kind(&self) -> ParamsKind {
        self.params_kind
    }

    /// `params` as JSON text.
    pub fn params(&self) -> Option<Bytes> {
        self.slice(self.params)
    }

    /// Where `params` stands.
    pub fn params_span(&self) -> Option<Span> {
        self.params.present()
    }

    /// What a response carries.
    pub fn answer(&self) -> Answer {
        let is_null = |span| self.bytes(span).first() == Some(&b'n');
        let result = self.result.present().is_some();
        match self.error.present() {
            Some(error) if !is_null(error) => {
                if result && !is_null(self.result) {
                    Answer::Both
                } else {
                    Answer::Error
                }
            }
            Some(_) | None if result => Answer::Result,
            Some(_) | None => Answer::Neither,
        }
    }

    /// `result` as JSON text.
    pub fn result(&self) -> Option<Bytes> {
        self.slice(self.result)
    }

    /// Where `result` stands.
    pub fn result_span(&self) -> Option<Span> {
        self.result.present()
    }

    /// `error` as JSON text.
    pub fn error(&self) -> Option<Bytes> {
        self.slice(self.error)
    }

    /// Where `error` stands.
    pub fn error_span(&self) -> Option<Span> {
        self.error.present()
    }

    /// Whether `error` is an object, as it must be; some servers send a string.
    pub fn error_is_object(&self) -> bool {
        self.bytes(self.error).first() == Some(&b'{')
    }

    /// A remembered member as JSON text.
    pub fn member(&self, member: Member) -> Option<Bytes> {
        self.member_span(member).and_then(|span| self.slice(span))
    }

    /// Where a remembered member's value stands.
    pub fn member_span(&self, member: Member) -> Option<Span> {
        self.members.iter().find(|noted| noted.member == member).map(|noted| noted.span)
    }

    /// A remembered member decoded, when it is a string without lone surrogates.
    pub fn member_str(&self, member: Member) -> Option<Cow<'_, str>> {
        let quoted = self.str(self.member_span(member)?);
        let inner = unquoted(quoted)?;
        if inner.as_bytes().contains(&b'\\') {
            return serde_json::from_str(quoted).ok().map(Cow::Owned);
        }
        Some(Cow::Borrowed(inner))
    }

    /// A remembered member of `params`, `params._meta` or `params.ref` (those above all by which a
    /// message is routed: name, uri, _meta, arguments, cursor, taskId, requestState,
    /// inputResponses) that stands there twice, or `name`/`uri` beside an alias that differs only
    /// in case: two readers may choose differently. MCP refuses such messages, plain JSON-RPC does
    /// not look. Where a member stands twice, the last one is the remembered one.
    pub fn ambiguous_member(&self) -> Option<&'static str> {
        self.ambiguous.map(Member::key)
    }

    /// The text with `edits` made.
    pub fn edited(&self, edits: &[Edit]) -> Chunks {
        Chunks::splice(self.text(), edits)
    }

    /// The text with another id.
    pub fn with_id(&self, id: &Id) -> Chunks {
        match self.id_span() {
            Some(span) => self.edited(&[(span, id.text().clone())]),
            None => Chunks::from(self.text().clone()),
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        self.text().get(span.range()).unwrap_or_default()
    }

    fn str(&self, span: Span) -> &str {
        self.text.get(span.range()).unwrap_or_default()
    }

    fn slice(&self, span: Span) -> Option<Bytes> {
        span.present().map(|span| self.text().slice(span.range()))
    }
}

/// What stands between the quotes of a string, escapes and all; `None` for any other value.
fn unquoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.strip_suffix('"')
}
