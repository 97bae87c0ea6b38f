//! The life of one request as a state machine: no clock, no I/O.
//!
//! One downstream request in, a stream of events out, whatever the revision or transport on either side.
//! Exactly one terminal action comes out of an exchange; whatever arrives afterwards falls away.

mod batch;
pub mod bridge;

pub use batch::Assembly;

use crate::fault::{Fault, Outcome};
use crate::jsonrpc::{Answer, Chunks, Member, Message};

/// What happens to an exchange.
#[derive(Debug)]
pub enum Event {
    /// The upstream reported progress; the text is ready for the client.
    Progress(Chunks),
    /// The upstream logged something or sent another notification that belongs to this exchange.
    Notified(Message),
    /// The upstream asks; `allowed` says whether this client can be asked that.
    Asked {
        /// The client declared the capability and can be reached.
        allowed: bool,
    },
    /// The client answered a question.
    ClientAnswered,
    /// The client cancelled.
    Cancelled,
    /// The upstream answered.
    Answered(Message),
    /// The call failed.
    Failed(Fault),
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Send this to the client before the answer.
    Forward(Chunks),
    /// Put the question to the client.
    AskClient,
    /// Refuse the question.
    RefuseAsk,
    /// Hand the client's answer to the upstream.
    Resume,
    /// Terminal: answer with the upstream's message.
    Reply(Message),
    /// Terminal: answer with an error of the gateway.
    Fail(Fault),
    /// Terminal: no answer is owed; the call is cancelled by dropping it.
    End,
    /// Nothing.
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open { asked: u32 },
    Done(Outcome),
}

/// Most questions that one call may have open at once.
const MAX_ASKS: u32 = 16;

/// One request from its arrival to its terminal message.
#[derive(Debug)]
pub struct Exchange {
    phase: Phase,
    /// Lowest rank of log messages the client wants; `None`: the upstream decides.
    log_rank: Option<u8>,
}

impl Exchange {
    /// A new one. `log_rank` as [`crate::mcp::log_rank`] gives it.
    pub fn new(log_rank: Option<u8>) -> Self {
        Self { phase: Phase::Open { asked: 0 }, log_rank }
    }

    /// Takes one event and says what to do.
    pub fn on(&mut self, event: Event) -> Action {
        let Phase::Open { asked } = self.phase else { return Action::Ignore };
        let (next, action) = match event {
            Event::Cancelled => (Phase::Done(Outcome::Cancelled), Action::End),
            Event::Answered(message) => (Phase::Done(outcome_of(&message)), Action::Reply(message)),
            Event::Failed(fault) => (Phase::Done(fault.reason.outcome()), Action::Fail(fault)),
            Event::Progress(text) => return Action::Forward(text),
            Event::Notified(message) => return self.notified(message),
            Event::Asked { allowed } if allowed && asked < MAX_ASKS => {
                (Phase::Open { asked: asked + 1 }, Action::AskClient)
            }
            Event::Asked { .. } => return Action::RefuseAsk,
            Event::ClientAnswered if asked == 0 => return Action::Ignore,
            Event::ClientAnswered => (Phase::Open { asked: asked - 1 }, Action::Resume),
        };
        self.phase = next;
        action
    }

    /// How it ended; `None` while it is open.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Open { .. } => None,
            Phase::Done(outcome) => Some(outcome),
        }
    }

    fn notified(&self, message: Message) -> Action {
        if message.method() == "notifications/message" {
            let rank = message.member_str(Member::Level).and_then(|l| crate::mcp::log_rank(&l));
            if rank < self.log_rank {
                return Action::Ignore;
            }
        }
        Action::Forward(Chunks::from(message.text().clone()))
    }
}

/// How an answer of an upstream counts.
pub fn outcome_of(message: &Message) -> Outcome {
    match message.answer() {
        Answer::Result => {
            let is = |member, text: &[u8]| message.member(member).is_some_and(|m| &m[..] == text);
            if is(Member::IsError, b"true") {
                Outcome::ToolError
            } else if is(Member::ResultType, b"\"input_required\"") {
                Outcome::InputRequired
            } else {
                Outcome::Ok
            }
        }
        Answer::Error => Outcome::RpcError,
        Answer::Both | Answer::Neither => Outcome::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::fault::Reason;

    fn message(text: &'static str) -> Message {
        Message::parse(Bytes::from_static(text.as_bytes()), 64).unwrap()
    }

    fn answer() -> Message {
        message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
    }

    fn timeout() -> Fault {
        Fault::new(Reason::UpstreamTimeout, "late")
    }

    #[test]
    fn an_answer_after_the_deadline_is_ignored() {
        let mut exchange = Exchange::new(None);
        assert!(matches!(exchange.on(Event::Failed(timeout())), Action::Fail(_)));
        assert!(matches!(exchange.on(Event::Answered(answer())), Action::Ignore));
        assert_eq!(exchange.outcome(), Some(Outcome::Timeout));
    }

    #[test]
    fn progress_after_the_answer_is_ignored() {
        let mut exchange = Exchange::new(None);
        assert!(matches!(exchange.on(Event::Answered(answer())), Action::Reply(_)));
        let progress = Chunks::from(Bytes::from_static(b"{}"));
        assert!(matches!(exchange.on(Event::Progress(progress)), Action::Ignore));
    }

    #[test]
    fn a_question_is_put_only_where_it_is_allowed_and_answers_match_questions() {
        let mut exchange = Exchange::new(None);
        assert!(matches!(exchange.on(Event::ClientAnswered), Action::Ignore));
        assert!(matches!(exchange.on(Event::Asked { allowed: false }), Action::RefuseAsk));
        assert!(matches!(exchange.on(Event::Asked { allowed: true }), Action::AskClient));
        assert!(matches!(exchange.on(Event::ClientAnswered), Action::Resume));
        assert!(matches!(exchange.on(Event::ClientAnswered), Action::Ignore));
    }

    #[test]
    fn questions_are_bounded() {
        let mut exchange = Exchange::new(None);
        for _ in 0..MAX_ASKS {
            assert!(matches!(exchange.on(Event::Asked { allowed: true }), Action::AskClient));
        }
        assert!(matches!(exchange.on(Event::Asked { allowed: true }), Action::RefuseAsk));
    }

    #[test]
    fn log_messages_below_the_level_are_dropped() {
        let debug = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"debug","data":1}}"#;
        let error = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}"#;
        let mut exchange = Exchange::new(crate::mcp::log_rank("warning"));
        assert!(matches!(exchange.on(Event::Notified(message(debug))), Action::Ignore));
        assert!(matches!(exchange.on(Event::Notified(message(error))), Action::Forward(_)));
        let mut open = Exchange::new(None);
        assert!(matches!(open.on(Event::Notified(message(debug))), Action::Forward(_)));
    }

    #[test]
    fn a_tool_error_is_neither_ok_nor_an_rpc_error() {
        let failed = message(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#);
        assert_eq!(outcome_of(&failed), Outcome::ToolError);
        assert_eq!(outcome_of(&answer()), Outcome::Ok);
        let error = message(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}"#);
        assert_eq!(outcome_of(&error), Outcome::RpcError);
    }
}
