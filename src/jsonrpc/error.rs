//! Error objects, refusals of the scanner, and the texts of answers that the gateway writes itself.

use std::borrow::Cow;

use bytes::Bytes;

use super::Id;

/// A JSON-RPC error object (JSON-RPC 2.0 §5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorObject {
    /// The code.
    pub code: i64,
    /// One sentence.
    pub message: Cow<'static, str>,
    /// `data` as JSON text.
    pub data: Option<Bytes>,
}

impl ErrorObject {
    /// The JSON text of the object.
    pub fn to_text(&self) -> Bytes {
        let mut text = Vec::with_capacity(64 + self.message.len());
        self.write(&mut text);
        text.into()
    }

    fn write(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(br#"{"code":"#);
        text.extend_from_slice(itoa::Buffer::new().format(self.code).as_bytes());
        text.extend_from_slice(br#","message":"#);
        push_string(text, &self.message);
        if let Some(data) = &self.data {
            text.extend_from_slice(br#","data":"#);
            text.extend_from_slice(data);
        }
        text.push(b'}');
    }
}

/// How an error without a usable id spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullId {
    /// `"id":null`, JSON-RPC 2.0 §5.
    Null,
    /// No `id` member, MCP 2025-11-25 and later.
    Omit,
}

/// Why a text is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Not JSON, or not UTF-8: -32700. `offset` is the byte where it went wrong.
    #[error("not valid JSON at byte {offset}")]
    Syntax {
        /// Byte offset in the text.
        offset: usize,
    },
    /// JSON, but not a message: -32600. The id, where it could be read and is of a legal type.
    #[error("{reason}")]
    Invalid {
        /// The id to answer with.
        id: Option<Id>,
        /// What is wrong, for the client: names the member.
        reason: &'static str,
    },
    /// Nested deeper than the limit: -31010 `too_deep`.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit that was passed.
        limit: u16,
    },
    /// `[]`: -32600.
    #[error("the batch is empty")]
    EmptyBatch,
    /// More elements than the limit: -31007.
    #[error("the batch has more than {limit} elements")]
    BatchTooLarge {
        /// The limit that was passed.
        limit: usize,
    },
}

/// `{"jsonrpc":"2.0","id":ID,"result":RESULT}`. `result` is JSON text.
pub fn result_response(id: &Id, result: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(40 + id.text().len() + result.len());
    text.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    text.extend_from_slice(id.text());
    text.extend_from_slice(br#","result":"#);
    text.extend_from_slice(result);
    text.push(b'}');
    text.into()
}

/// `{"jsonrpc":"2.0","id":ID,"error":{…}}`; without an id as `null_id` says.
pub fn error_response(id: Option<&Id>, error: &ErrorObject, null_id: NullId) -> Bytes {
    let data = error.data.as_ref().map_or(0, Bytes::len);
    let mut text =
        Vec::with_capacity(96 + id.map_or(4, |id| id.text().len()) + error.message.len() + data);
    text.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    match (id, null_id) {
        (Some(id), _) => {
            text.extend_from_slice(br#""id":"#);
            text.extend_from_slice(id.text());
            text.push(b',');
        }
        (None, NullId::Null) => text.extend_from_slice(br#""id":null,"#),
        (None, NullId::Omit) => {}
    }
    text.extend_from_slice(br#""error":"#);
    error.write(&mut text);
    text.push(b'}');
    text.into()
}

/// Writes a JSON string with its quotes.
pub(super) fn push_string(text: &mut Vec<u8>, string: &str) {
    serde_json::to_writer(text, string).expect("strings have a JSON form, vectors take every byte");
}
