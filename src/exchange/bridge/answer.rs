//! Answers of upstreams as clients get them.

use bytes::Bytes;
use memchr::memmem;

use super::content::{self, Lacks};
use super::place::{Edits, Object, push_member};
use super::{code_of, error};
use crate::exchange::outcome_of;
use crate::fault::Outcome;
use crate::jsonrpc::{Answer, Chunks, ErrorObject, Id, Member, Message, NullId, error_response};
use crate::mcp::{ClientCaps, Era, ProtocolVersion, meta};

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

/// The answer of an upstream that speaks `from`, under the id of the request that it answers (MCP digest §20.4–20.6).
///
/// A result whose type the recipient cannot know becomes -32603: `input_required` of a request that must not be answered
/// so, or on its way to a legacy client; `task` unless the client declared the extension; anything else.
pub fn answer(to: &Recipient<'_>, from: ProtocolVersion, answer: &Message, id: &Id) -> Bridged {
    match (answer.answer(), to.version.era(), from.era()) {
        (Answer::Result, Era::Modern, Era::Modern) => between_modern(to, answer, id),
        (Answer::Result, Era::Modern, Era::Legacy) => to_modern(to, answer, id),
        (Answer::Result, Era::Legacy, from_era) => {
            let aged = from_era == Era::Modern;
            if aged && !matches!(result_type(answer), ResultType::Absent | ResultType::Complete) {
                return unknown_type(id);
            }
            to_legacy(to, from, answer, id)
        }
        (Answer::Error, ..) => error::bridged(to, answer, id),
        (Answer::Both | Answer::Neither, ..) => unchanged(answer, id),
    }
}

/// The answer with nothing but its id replaced.
pub(super) fn unchanged(answer: &Message, id: &Id) -> Bridged {
    let outcome = outcome_of(answer);
    Bridged { text: answer.with_id(id), outcome, code: code_of(answer) }
}

/// The answer with its id replaced and `edits` made.
pub(super) fn edited(answer: &Message, id: &Id, mut edits: Edits) -> Chunks {
    if let Some(span) = answer.id_span() {
        edits.push((span, id.text().clone()));
    }
    answer.edited(&edits)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultType {
    Absent,
    Complete,
    InputRequired,
    Task,
    Other,
}

fn result_type(answer: &Message) -> ResultType {
    if answer.member_span(Member::ResultType).is_none() {
        return ResultType::Absent;
    }
    match answer.member_str(Member::ResultType).as_deref() {
        Some("complete") => ResultType::Complete,
        Some("input_required") => ResultType::InputRequired,
        Some("task") => ResultType::Task,
        _ => ResultType::Other,
    }
}

/// The upstream's result is of a type that the client did not ask for (MCP digest §13.4).
#[cold]
fn unknown_type(id: &Id) -> Bridged {
    let message =
        "Internal error: the upstream answered with a result type that this client does not know";
    let error = ErrorObject { code: super::code::INTERNAL, message: message.into(), data: None };
    Bridged {
        text: error_response(Some(id), &error, NullId::Omit).into(),
        outcome: Outcome::Protocol,
        code: Some(error.code),
    }
}

fn between_modern(to: &Recipient<'_>, answer: &Message, id: &Id) -> Bridged {
    match result_type(answer) {
        ResultType::Absent | ResultType::Complete => unchanged(answer, id),
        ResultType::InputRequired if may_require_input(to.method) => unchanged(answer, id),
        // MCP digest §24, row 9: examples show it, the rule says `complete`.
        ResultType::Task if to.caps.tasks() && to.method.starts_with("tasks/") => {
            let span = answer.member_span(Member::ResultType);
            let edits = span.map(|span| (span, Bytes::from_static(b"\"complete\"")));
            let text = edited(answer, id, edits.into_iter().collect());
            Bridged { text, outcome: outcome_of(answer), code: None }
        }
        ResultType::Task if to.caps.tasks() => unchanged(answer, id),
        ResultType::InputRequired | ResultType::Task | ResultType::Other => unknown_type(id),
    }
}

/// Which requests may be answered with `input_required` (MCP digest §13.1).
fn may_require_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Whether results of the method carry hints for caches (MCP digest §15.1).
fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    )
}

fn to_modern(to: &Recipient<'_>, answer: &Message, id: &Id) -> Bridged {
    let result =
        answer.result_span().and_then(|span| Object::at(answer.text(), span.range().start));
    let Some(result) = result else { return unchanged(answer, id) };
    let mut new = br#""resultType":"complete""#.to_vec();
    if is_cacheable(to.method) {
        push_member(&mut new, "ttlMs", b"0");
        push_member(&mut new, "cacheScope", b"\"private\"");
    }
    if to.method == "tools/call" && result.find("content").is_none() {
        push_member(&mut new, "content", b"[]");
    }
    let hints = is_cacheable(to.method);
    let gone =
        |name: &str| name == "resultType" || (hints && matches!(name, "ttlMs" | "cacheScope"));
    let mut edits = Edits::new();
    result.change(gone, new, &mut edits);
    // Whatever a legacy result calls its type, it is complete.
    let outcome = match outcome_of(answer) {
        Outcome::InputRequired => Outcome::Ok,
        outcome => outcome,
    };
    Bridged { text: edited(answer, id, edits), outcome, code: None }
}

/// From any revision to a legacy one.
fn to_legacy(to: &Recipient<'_>, from: ProtocolVersion, answer: &Message, id: &Id) -> Bridged {
    let Some(span) = answer.result_span() else { return unchanged(answer, id) };
    let text = answer.text();
    let modern = from.era() == Era::Modern;
    let lacks = Lacks::of(to.version, from);
    let wrapped = to.method == "tools/call" && to.wrapped == Some(true);
    let holds_blocks = matches!(to.method, "tools/call" | "prompts/get");
    let suspicious = || holds_blocks && content::is_suspicious(&text[span.range()], lacks, wrapped);
    if !modern && !suspicious() {
        return unchanged(answer, id);
    }
    let Some(result) = Object::at(text, span.range().start) else { return unchanged(answer, id) };
    let mut edits = Edits::new();
    let mut new = Vec::new();
    match to.method {
        "tools/call" => {
            let wrap = content::Wrap { always: wrapped, non_objects: modern };
            content::tool_result(text, &result, lacks, wrap, &mut new, &mut edits);
        }
        "prompts/get" => content::prompt(text, &result, lacks, &mut edits),
        _ => {}
    }
    let meta_goes = modern && strip_meta(text, &result, &mut edits);
    let gone = |name: &str| match name {
        "resultType" | "ttlMs" | "cacheScope" => modern,
        "_meta" => meta_goes,
        _ => false,
    };
    result.change(gone, new, &mut edits);
    Bridged { text: edited(answer, id, edits), outcome: outcome_of(answer), code: None }
}

/// Takes out of `_meta` what only the modern era has; `true` when nothing stays of it.
fn strip_meta(text: &Bytes, result: &Object<'_>, edits: &mut Edits) -> bool {
    let Some(range) = result.find("_meta") else { return false };
    if memmem::find(&text[range.clone()], meta::SERVER_INFO.as_bytes()).is_none() {
        return false;
    }
    let Some(object) = Object::at(text, range.start) else { return false };
    let goes = |name: &str| name == meta::SERVER_INFO;
    if object.places.iter().all(|place| goes(&object.name(place))) {
        return true;
    }
    object.change(goes, Vec::new(), edits);
    false
}
