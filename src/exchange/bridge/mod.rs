//! The bridge between revisions: what one side wrote, as the other side has it (MCP digest §20).
//!
//! The only place that knows both eras. Where both sides have the same revision nothing is touched; else the text is
//! taken apart one level deep and spliced, so that every value that is not itself translated keeps its bytes.

mod answer;
mod ask;
mod content;
mod error;
mod input;
mod park;
mod place;
#[cfg(test)]
mod properties;
mod schema;
#[cfg(test)]
mod tests;

pub use answer::{Bridged, Recipient, answer};
pub use ask::{Unaskable, question};
pub use input::{
    Abandon, InputRequest, InputRequired, Malformed, input_required, input_response, retry,
    with_state,
};
pub use park::{ask_modern, asked, input_responses, reply, url_elicitations};
pub use schema::{Shown, tool};

use memchr::memmem;

use crate::jsonrpc::{Chunks, Member, Message};
use crate::mcp::ProtocolVersion;
use place::{Edits, Object};

/// The codes that differ between the eras, or by which the status of an answer goes (MCP digest §6.2).
mod code {
    pub(super) const PARSE_ERROR: i64 = -32700;
    pub(super) const INVALID_REQUEST: i64 = -32600;
    pub(super) const METHOD_NOT_FOUND: i64 = -32601;
    pub(super) const INVALID_PARAMS: i64 = -32602;
    pub(super) const INTERNAL: i64 = -32603;
    /// Legacy.
    pub(super) const NOT_FOUND: i64 = -32002;
    pub(super) const HEADER_MISMATCH: i64 = -32020;
    pub(super) const MISSING_CAPABILITY: i64 = -32021;
    pub(super) const UNSUPPORTED_VERSION: i64 = -32022;
    /// 2025-11-25 only.
    pub(super) const URL_ELICITATION: i64 = -32042;
}

/// The HTTP status of an answer to a modern client, by the code of its error (MCP digest §6.2).
pub fn modern_status(code: Option<i64>) -> u16 {
    match code {
        Some(code::METHOD_NOT_FOUND) => 404,
        Some(
            code::HEADER_MISMATCH
            | code::MISSING_CAPABILITY
            | code::UNSUPPORTED_VERSION
            | code::PARSE_ERROR
            | code::INVALID_REQUEST,
        ) => 400,
        _ => 200,
    }
}

/// `notifications/progress` as a client of that revision has it: the first one knows no `message`.
pub fn progress(to: ProtocolVersion, text: Chunks) -> Chunks {
    if to > ProtocolVersion::V2024_11_05 {
        return text;
    }
    let text = text.into_bytes();
    if memmem::find(&text, b"\"message\"").is_none() {
        return text.into();
    }
    let mut edits = Edits::new();
    if let Some(params) = Object::at(&text, 0).and_then(|message| message.object("params")) {
        params.change(|name| name == "message", Vec::new(), &mut edits);
    }
    Chunks::splice(&text, &edits)
}

/// The code of an error.
fn code_of(answer: &Message) -> Option<i64> {
    std::str::from_utf8(&answer.member(Member::ErrorCode)?).ok()?.parse().ok()
}
