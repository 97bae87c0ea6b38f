//! From what was noted to what a message is.

use bytes::Bytes;
use bytestring::ByteString;

use super::envelope::{Clash, Envelope, Field};
use super::message::Verdict;
use super::{Id, Kind, Message, ParamsKind, Rejected, Span};

/// Who sent a text, as far as judging it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Strict: what is none of the three kinds is refused.
    Downstream,
    /// Lenient towards answers: every object that is no request or notification is a response.
    Upstream,
}

/// Judges one noted object. `text` is the object alone.
pub(super) fn classify(
    text: ByteString,
    envelope: Envelope,
    sender: Sender,
) -> Result<Message, Rejected> {
    let verdict = Judge { text: text.as_bytes(), envelope: &envelope }.judge(sender);
    match verdict {
        Ok(verdict) => Ok(Message::from_parts(text, envelope, verdict)),
        Err(reason) => Err(Rejected::Invalid { id: legal_id(text.as_bytes(), &envelope), reason }),
    }
}

/// The id to answer a refused message with.
fn legal_id(text: &Bytes, envelope: &Envelope) -> Option<Id> {
    let span = envelope.field(Field::Id);
    let legal = id_is_legal(first(text, span)?) && !envelope.id_clash;
    legal.then(|| Id::from_text(text.slice(span.range())))
}

/// JSON-RPC 2.0 §4: a string, a number or null. `first` is the value's first byte.
fn id_is_legal(first: u8) -> bool {
    matches!(first, b'"' | b'n' | b'-' | b'0'..=b'9')
}

/// The first byte of a value, which tells its type.
fn first(text: &[u8], span: Span) -> Option<u8> {
    text.get(span.range())?.first().copied()
}

struct Judge<'a> {
    text: &'a [u8],
    envelope: &'a Envelope,
}

type Judgement<T = Verdict> = Result<T, &'static str>;

impl Judge<'_> {
    fn judge(&self, sender: Sender) -> Judgement {
        if let Some(clash) = self.envelope.clash {
            return Err(clash_reason(clash));
        }
        let method = self.first(Field::Method);
        let called = method == Some(b'"');
        let id_legal = self.first(Field::Id).is_none_or(id_is_legal);
        if !id_legal && (called || sender == Sender::Downstream) {
            return Err("id is not a string, a number or null");
        }
        if called {
            return self.call();
        }
        let answers = self.present(Field::Result) || self.present(Field::Error);
        match (sender, method) {
            (Sender::Downstream, Some(_)) => Err("method is not a string"),
            (Sender::Downstream, None) if !answers => Err("method is missing"),
            (Sender::Downstream | Sender::Upstream, _) => Ok(self.response(id_legal)),
        }
    }

    /// A request or a notification.
    fn call(&self) -> Judgement {
        if !self.version_ok() {
            return Err(match self.present(Field::Jsonrpc) {
                true => "jsonrpc is not the string \"2.0\"",
                false => "jsonrpc is missing",
            });
        }
        Ok(Verdict {
            kind: if self.present(Field::Id) { Kind::Request } else { Kind::Notification },
            decoded_method: self.method()?,
            params_kind: self.params_kind()?,
            version_ok: true,
            id_legal: true,
        })
    }

    fn response(&self, id_legal: bool) -> Verdict {
        Verdict {
            kind: Kind::Response,
            decoded_method: None,
            params_kind: ParamsKind::Absent,
            version_ok: self.version_ok(),
            id_legal,
        }
    }

    /// Checks the method, and decodes it when it has escapes.
    fn method(&self) -> Judgement<Option<Box<str>>> {
        let quoted = self.value(Field::Method);
        if quoted.len() <= 2 {
            return Err("method is empty");
        }
        if !quoted.contains(&b'\\') {
            return Ok(None);
        }
        // Escapes are checked by the scanner, so only a lone surrogate fails here.
        serde_json::from_slice(quoted).map(Some).map_err(|_| "method is not valid Unicode")
    }

    fn params_kind(&self) -> Judgement<ParamsKind> {
        match self.first(Field::Params) {
            None => Ok(ParamsKind::Absent),
            Some(b'n') => Ok(ParamsKind::Null),
            Some(b'{') => Ok(ParamsKind::Object),
            Some(b'[') => Ok(ParamsKind::Array),
            Some(_) => Err("params is not an object or an array"),
        }
    }

    fn version_ok(&self) -> bool {
        let quoted = self.value(Field::Jsonrpc);
        quoted == br#""2.0""#
            || (quoted.contains(&b'\\')
                && serde_json::from_slice::<String>(quoted).is_ok_and(|version| version == "2.0"))
    }

    fn present(&self, field: Field) -> bool {
        self.first(field).is_some()
    }

    fn first(&self, field: Field) -> Option<u8> {
        first(self.text, self.envelope.field(field))
    }

    fn value(&self, field: Field) -> &[u8] {
        self.text.get(self.envelope.field(field).range()).unwrap_or_default()
    }
}

/// Names the member of a clash.
fn clash_reason(clash: Clash) -> &'static str {
    match clash {
        Clash::Duplicate(Field::Jsonrpc) => "jsonrpc stands there twice",
        Clash::Duplicate(Field::Id) => "id stands there twice",
        Clash::Duplicate(Field::Method) => "method stands there twice",
        Clash::Duplicate(Field::Params) => "params stands there twice",
        Clash::Duplicate(Field::Result) => "result stands there twice",
        Clash::Duplicate(Field::Error) => "error stands there twice",
        Clash::Alias(Field::Jsonrpc) => "a member differs from jsonrpc only in case",
        Clash::Alias(Field::Id) => "a member differs from id only in case",
        Clash::Alias(Field::Method) => "a member differs from method only in case",
        Clash::Alias(Field::Params) => "a member differs from params only in case",
        Clash::Alias(Field::Result) => "a member differs from result only in case",
        Clash::Alias(Field::Error) => "a member differs from error only in case",
    }
}
