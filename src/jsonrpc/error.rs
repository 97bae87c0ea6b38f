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

/// `{"jsonrpc":"2.0","id":ID,"result":RESULT}`.
pub fn result_response(id: &Id, result: &[u8]) -> Bytes {
    let _ = (id, result);
    todo!()
}

/// `{"jsonrpc":"2.0","id":ID,"error":{…}}`; without an id as `null_id` says.
pub fn error_response(id: Option<&Id>, error: &ErrorObject, null_id: NullId) -> Bytes {
    let _ = (id, error, null_id);
    todo!()
}
