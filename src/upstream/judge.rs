//! Whether a text is a valid answer to one request (JSONRPC rows 24 to 29 and 47).

use bytes::Bytes;

use crate::jsonrpc::{Answer, Id, Kind, Member, Message, Rejected};
use crate::upstream::link::MAX_DEPTH;

/// Longest piece of an upstream's text that is told.
const SNIPPET: usize = 200;

/// Which rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `result` is an object, `jsonrpc` must stand there.
    Mcp,
    /// Any result; a missing `jsonrpc` is put in.
    Plain,
}

/// What a response is to the request that waits.
#[derive(Debug)]
pub(super) enum Judged {
    /// Its answer. The id is ours, or null.
    Answer(Message),
    /// Its answer, with something in it that was dropped: to be counted.
    Mended(Message),
    /// The answer to something else.
    Foreign,
}

/// Why a text is no valid answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invalid {
    /// What is wrong.
    pub(super) what: String,
    /// A non-standard error of the upstream, bounded.
    pub(super) upstream_error: Option<String>,
}

impl Invalid {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), upstream_error: None }
    }
}

/// What is wrong with a text that is no message.
pub(super) fn rejected(rejected: &Rejected) -> Invalid {
    Invalid::new(match rejected {
        Rejected::Syntax { .. } => "its text is not valid JSON".to_owned(),
        Rejected::Invalid { reason, .. } => format!("its text is no JSON-RPC response: {reason}"),
        Rejected::TooDeep { limit } => format!("its message is nested deeper than {limit} levels"),
        Rejected::EmptyBatch => "it answered with an empty array".to_owned(),
        Rejected::BatchTooLarge { .. } => {
            "it answered with more elements than were sent".to_owned()
        }
    })
}

/// Scans a text that must be the answer to request `id`.
pub(super) fn judge_text(text: Bytes, id: u64, dialect: Dialect) -> Result<Judged, Invalid> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(Invalid::new("its answer is empty"));
    }
    let message = Message::parse_answer(text, MAX_DEPTH).map_err(|error| rejected(&error))?;
    if message.kind() != Kind::Response {
        return Err(Invalid::new("it answered with a request"));
    }
    judge(message, id, dialect)
}

/// Judges a response. An error without an id counts as the answer: it came on the exchange of this request.
pub(super) fn judge(message: Message, id: u64, dialect: Dialect) -> Result<Judged, Invalid> {
    let answer = message.answer();
    let named = match id_of(&message) {
        IdOf::Number(number) if number == id => true,
        IdOf::None if matches!(answer, Answer::Error | Answer::Both) => false,
        IdOf::Number(_) | IdOf::Other | IdOf::None => return Ok(Judged::Foreign),
    };
    if dialect == Dialect::Mcp && !message.version_ok() {
        return Err(Invalid::new("its answer does not say jsonrpc 2.0"));
    }
    match answer {
        Answer::Neither => Err(Invalid::new("its answer has neither result nor error")),
        Answer::Both | Answer::Error => {
            check_error(&message)?;
            let clean = named && message.version_ok() && message.result().is_none();
            let mended = if clean { message } else { rebuilt(&message, id)? };
            Ok(if answer == Answer::Both { Judged::Mended(mended) } else { Judged::Answer(mended) })
        }
        Answer::Result => {
            let object = message.result().is_some_and(|result| result.first() == Some(&b'{'));
            if dialect == Dialect::Mcp && !object {
                return Err(Invalid::new("the result of its answer is no object"));
            }
            let clean = message.version_ok() && message.error().is_none();
            Ok(Judged::Answer(if clean { message } else { rebuilt(&message, id)? }))
        }
    }
}

/// Whose answer a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdOf {
    /// A plain number, perhaps ours.
    Number(u64),
    /// Anything else: never ours.
    Other,
    /// No id, or null.
    None,
}

/// Reads the id of a response.
pub(super) fn id_of(message: &Message) -> IdOf {
    let text = message.id_span().and_then(|span| message.text().get(span.range()));
    let Some(text) = text else { return IdOf::None };
    if text == b"null" {
        return IdOf::None;
    }
    let digits = text.iter().all(u8::is_ascii_digit);
    let number =
        std::str::from_utf8(text).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.map_or(IdOf::Other, IdOf::Number)
}

/// An error must be an object with a code (JSON-RPC 2.0 §5.1).
fn check_error(message: &Message) -> Result<(), Invalid> {
    let what = if !message.error_is_object() {
        "the error of its answer is no object"
    } else if message.member_span(Member::ErrorCode).is_none() {
        "the error of its answer has no code"
    } else {
        return Ok(());
    };
    let text = message.error().unwrap_or_default();
    let text = serde_json::from_slice::<String>(&text)
        .unwrap_or_else(|_| String::from_utf8_lossy(&text).into_owned());
    let upstream_error = Some(text.chars().take(SNIPPET).collect());
    Err(Invalid { what: what.to_owned(), upstream_error })
}

/// The response as it should have been written: with the version, our id, and one of result and error.
fn rebuilt(message: &Message, id: u64) -> Result<Message, Invalid> {
    let (key, value) = match message.answer() {
        Answer::Result => ("result", message.result()),
        Answer::Error | Answer::Both | Answer::Neither => ("error", message.error()),
    };
    with_id(key, &value.unwrap_or_default(), id)
}

/// `error` as the answer to request `id`: for the one object that answers a whole batch (row 27).
pub(super) fn error_for(message: &Message, id: u64) -> Result<Message, Invalid> {
    check_error(message)?;
    with_id("error", &message.error().unwrap_or_default(), id)
}

fn with_id(key: &str, value: &[u8], id: u64) -> Result<Message, Invalid> {
    let id = Id::from_number(id);
    let parts: [&[u8]; 7] =
        [br#"{"jsonrpc":"2.0","id":"#, id.text(), b",\"", key.as_bytes(), b"\":", value, b"}"];
    // One level more than what was scanned already.
    Message::parse_answer(parts.concat().into(), u16::MAX).map_err(|error| rejected(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &'static str, dialect: Dialect) -> Result<String, String> {
        match judge_text(Bytes::from_static(text.as_bytes()), 7, dialect) {
            Ok(Judged::Answer(message) | Judged::Mended(message)) => {
                Ok(String::from_utf8_lossy(message.text()).into_owned())
            }
            Ok(Judged::Foreign) => Err("foreign".to_owned()),
            Err(invalid) => Err(invalid.what),
        }
    }

    #[test]
    fn a_valid_answer_is_passed_as_it_came() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890,"f":1.10}}"#,
            r#"{"result":{},"id":7,"jsonrpc":"2.0","more":[1]}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no","data":{"a":1.0}}}"#,
        ] {
            assert_eq!(answer(text, Dialect::Mcp).as_deref(), Ok(text));
            assert_eq!(answer(text, Dialect::Plain).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_is_no_answer_to_this_request_is_refused() {
        for text in [
            r#"{"Output":1}"#,
            "[]",
            r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#,
            r#""ok""#,
            "",
            " \n",
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":7.0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":8,"error":{"code":1,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":7,"id":7,"result":{}}"#,
        ] {
            assert!(answer(text, Dialect::Mcp).is_err(), "{text}");
            assert!(answer(text, Dialect::Plain).is_err(), "{text}");
        }
    }

    #[test]
    fn a_null_error_beside_a_result_is_dropped() {
        let text = r#"{"id":7,"jsonrpc":"2.0","result":{"a":1.0},"error":null}"#;
        let right = r#"{"jsonrpc":"2.0","id":7,"result":{"a":1.0}}"#;
        assert_eq!(answer(text, Dialect::Mcp).as_deref(), Ok(right));
        let text = r#"{"id":7,"jsonrpc":"2.0","result":null,"error":{"code":1,"message":"x"}}"#;
        let right = r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}"#;
        assert_eq!(answer(text, Dialect::Plain).as_deref(), Ok(right));
    }

    #[test]
    fn of_result_and_error_the_error_wins_and_is_counted() {
        let text = r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"x"}}"#;
        let judged = judge_text(Bytes::from_static(text.as_bytes()), 7, Dialect::Mcp);
        let Ok(Judged::Mended(message)) = judged else { panic!("{judged:?}") };
        assert_eq!(
            message.text().as_ref(),
            br#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}"#
        );
    }

    #[test]
    fn an_error_without_an_id_answers_the_exchange_it_came_on() {
        let right = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"x"}}"#;
        for text in [
            r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}"#,
        ] {
            assert_eq!(answer(text, Dialect::Mcp).as_deref(), Ok(right));
        }
    }

    #[test]
    fn plain_upstreams_may_leave_out_the_version_and_answer_with_any_value() {
        let right = r#"{"jsonrpc":"2.0","id":7,"result":null}"#;
        assert_eq!(answer(r#"{"id":7,"result":null}"#, Dialect::Plain).as_deref(), Ok(right));
        assert!(answer(r#"{"id":7,"result":{}}"#, Dialect::Mcp).is_err());
        assert!(answer(r#"{"jsonrpc":"2.0","id":7,"result":3}"#, Dialect::Mcp).is_err());
    }

    #[test]
    fn an_error_that_is_a_string_is_told_bounded() {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"error":"{}"}}"#, "é".repeat(500));
        let Err(invalid) = judge_text(text.into(), 7, Dialect::Plain) else { panic!("accepted") };
        assert_eq!(invalid.upstream_error, Some("é".repeat(200)));
        assert!(
            answer(r#"{"jsonrpc":"2.0","id":7,"error":{"message":"x"}}"#, Dialect::Mcp).is_err()
        );
    }
}
