//! A large answer on its way: checked while it comes, and forwarded before its end is known.
//!
//! What goes out is what came in, but for the id, which becomes the client's, and for what is mended in small answers
//! too: a missing or wrong `jsonrpc`, an `"error":null` beside the result. Nothing may go out before
//! [`Relay::is_ready`]: until then it is not known whose answer it is. The last brace goes out only when everything was found
//! right ([`Relay::finish`]), so that what is cut off or malformed can never be taken as whole.

use bytes::Bytes;

use super::Id;
use super::Span;
use super::envelope::{Envelope, Field, Role, Slot};
use super::steps::{Fault, Mark, Steps};

/// Most bytes of a member that is held back until its end: id, version and a null are short.
const MOST_HELD: usize = 16 << 10;

/// Why an answer cannot be relayed. Before anything went out it can still be read whole and judged as a small one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The text is not valid JSON, or ends too early.
    #[error("its text is not valid JSON")]
    Syntax,
    /// It is nested deeper than allowed.
    #[error("its message is nested too deep")]
    Depth,
    /// A member of the envelope stands there twice, or beside one that differs only in case.
    #[error("its text is no JSON-RPC response: a member stands there twice")]
    Clash,
    /// The id is another one.
    #[error("its answer has another id")]
    Foreign,
    /// It has an error, with or without a result.
    #[error("its answer has both result and error")]
    Error,
    /// It has a method, as requests have.
    #[error("it answered with a request")]
    Request,
    /// It has no result.
    #[error("its answer has neither result nor error")]
    NoResult,
    /// A small member of the envelope is large.
    #[error("a member of its envelope is too long")]
    Held,
}

impl From<Fault> for Flaw {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Syntax => Self::Syntax,
            Fault::Depth => Self::Depth,
        }
    }
}

/// What becomes of the bytes that are read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Outside of the object: nothing.
    Skipped,
    /// They are held until it is known.
    Held,
    /// They go out.
    Out,
}

/// One answer.
#[derive(Debug)]
pub struct Relay {
    steps: Steps,
    envelope: Envelope,
    /// The id that the upstream was given.
    ours: u64,
    /// The id that the client gave.
    theirs: Id,
    course: Course,
    held: Vec<u8>,
    slot: Slot,
    /// Where the value of the member in `held` begins.
    value: usize,
    members: usize,
    has_id: bool,
    has_version: bool,
    has_result: bool,
    out: Vec<Bytes>,
}

impl Relay {
    /// For the answer to request `ours`, which is the client's request `theirs`. `max_depth` as in [`super::Limits`].
    pub fn new(ours: u64, theirs: Id, max_depth: u16) -> Self {
        Self {
            steps: Steps::new(max_depth),
            envelope: Envelope::default(),
            ours,
            theirs,
            course: Course::Skipped,
            held: Vec::new(),
            slot: Slot::Other,
            value: 0,
            members: 0,
            has_id: false,
            has_version: false,
            has_result: false,
            out: Vec::new(),
        }
    }

    /// Whether it is known to be the result of this request: it may begin to go out.
    pub fn is_ready(&self) -> bool {
        self.has_id && self.has_result
    }

    /// What may go out, in order, since this was last asked.
    pub fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.out)
    }

    /// Reads the next bytes.
    pub fn push(&mut self, data: &Bytes) -> Result<(), Flaw> {
        self.steps.check(data)?;
        let mut at = 0;
        loop {
            let (next, mark) = self.steps.next(data, at)?;
            self.read(data, at, next, mark)?;
            if mark == Mark::More {
                return Ok(());
            }
            at = next;
        }
    }

    /// The text has ended: what is still to go out. Until this has gone out the client has no whole answer.
    pub fn finish(self) -> Result<Bytes, Flaw> {
        if !self.steps.is_over() {
            return Err(Flaw::Syntax);
        }
        if !self.has_id {
            return Err(Flaw::Foreign);
        }
        if !self.has_result {
            return Err(Flaw::NoResult);
        }
        Ok(Bytes::from_static(match self.has_version {
            true => b"}",
            false => br#","jsonrpc":"2.0"}"#,
        }))
    }

    /// Bytes up to a mark.
    fn read(&mut self, data: &Bytes, from: usize, to: usize, mark: Mark) -> Result<(), Flaw> {
        match mark {
            Mark::Opened => {
                self.out.push(Bytes::from_static(b"{"));
                self.course = Course::Held;
            }
            Mark::Key => {
                self.pass(data, from, to)?;
                self.named()?;
            }
            Mark::Value => {
                self.pass(data, from, to)?;
                self.value = self.held.len();
                self.has_result |= self.slot == Slot::Field(Field::Result);
            }
            Mark::End => {
                self.pass(data, from, to)?;
                self.ended()?;
            }
            // The comma is written when it is known that something follows.
            Mark::Comma => {
                self.pass(data, from, to - 1)?;
                self.course = Course::Held;
            }
            Mark::Closed => {
                self.pass(data, from, to - 1)?;
                self.course = Course::Skipped;
            }
            Mark::More => self.pass(data, from, to)?,
        }
        Ok(())
    }

    fn pass(&mut self, data: &Bytes, from: usize, to: usize) -> Result<(), Flaw> {
        if from == to {
            return Ok(());
        }
        match self.course {
            Course::Skipped => {}
            Course::Out => self.out.push(data.slice(from..to)),
            Course::Held if self.held.len() + to - from > MOST_HELD => return Err(Flaw::Held),
            Course::Held => self.held.extend_from_slice(&data[from..to]),
        }
        Ok(())
    }

    /// A key was read: says what its member is, and whether that goes out at once.
    fn named(&mut self) -> Result<(), Flaw> {
        self.slot = match self.steps.key() {
            Some(key) => self.envelope.open(Role::Message, key),
            None => Slot::Other,
        };
        if self.envelope.clash.is_some() {
            return Err(Flaw::Clash);
        }
        match self.slot {
            Slot::Field(Field::Method) => Err(Flaw::Request),
            Slot::Field(Field::Id | Field::Jsonrpc | Field::Error) => Ok(()),
            Slot::Field(Field::Params | Field::Result) | Slot::Member(_) | Slot::Other => {
                self.release();
                self.course = Course::Out;
                Ok(())
            }
        }
    }

    /// A member was read to its end.
    fn ended(&mut self) -> Result<(), Flaw> {
        // Where it stands is of no interest, that it was there is.
        self.envelope.close(self.slot, Span { start: 1, end: 2 });
        let value = self.held.get(self.value..).unwrap_or_default();
        match self.slot {
            Slot::Field(Field::Id) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let digits = value.iter().all(u8::is_ascii_digit);
                if !digits || number != Some(self.ours) {
                    return Err(Flaw::Foreign);
                }
                self.has_id = true;
                let id = self.theirs.text().clone();
                self.replace(&id);
            }
            Slot::Field(Field::Jsonrpc) => {
                self.has_version = true;
                let right = serde_json::from_slice::<String>(value).is_ok_and(|text| text == "2.0");
                if right { self.release() } else { self.replace(br#""2.0""#) }
            }
            Slot::Field(Field::Error) if value == b"null" => self.held.clear(),
            Slot::Field(Field::Error) => return Err(Flaw::Error),
            Slot::Field(Field::Method | Field::Params | Field::Result)
            | Slot::Member(_)
            | Slot::Other => {}
        }
        self.course = Course::Out;
        Ok(())
    }

    /// The held member goes out with another value.
    fn replace(&mut self, value: &[u8]) {
        self.held.truncate(self.value);
        self.held.extend_from_slice(value);
        self.release();
    }

    /// What is held goes out.
    fn release(&mut self) {
        if self.members > 0 {
            self.out.push(Bytes::from_static(b","));
        }
        self.members += 1;
        self.out.push(Bytes::from(std::mem::take(&mut self.held)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that goes out, when the answer is cut in pieces of that length, and how much of it had come when it was ready.
    fn relayed(text: &[u8], length: usize) -> Result<(String, Option<usize>), Flaw> {
        let mut relay = Relay::new(7, Id::from_text(Bytes::from_static(b"\"mine\"")), 64);
        let (mut out, mut read, mut ready) = (Vec::new(), 0, None);
        for piece in text.chunks(length) {
            relay.push(&Bytes::copy_from_slice(piece))?;
            read += piece.len();
            if relay.is_ready() && ready.is_none() {
                ready = Some(read);
            }
            relay.take().iter().for_each(|piece| out.extend_from_slice(piece));
        }
        out.extend_from_slice(&relay.finish()?);
        Ok((String::from_utf8(out).expect("UTF-8"), ready))
    }

    fn check(text: &str, right: Result<&str, Flaw>) {
        for length in [1, 2, 3, 7, text.len().max(1)] {
            let got = relayed(text.as_bytes(), length).map(|(out, _)| out);
            assert_eq!(got.as_deref(), right.as_ref().map(|text| *text), "{text} by {length}");
        }
    }

    #[test]
    fn everything_but_the_id_goes_out_as_it_came() {
        check(
            r#"{"jsonrpc":"2.0","id":7,"result":{"id":8,"n":1.10,"s":"\u00e4ä","error":{}}}"#,
            Ok(
                r#"{"jsonrpc":"2.0","id":"mine","result":{"id":8,"n":1.10,"s":"\u00e4ä","error":{}}}"#,
            ),
        );
        check(
            " \n{ \"x\" : [1 ,2] , \"id\"\t: 7 ,\"result\" : null , \"jsonrpc\":\"2.\\u0030\" } \r\n",
            Ok(
                "{ \"x\" : [1 ,2] , \"id\"\t: \"mine\" ,\"result\" : null , \"jsonrpc\":\"2.\\u0030\" }",
            ),
        );
        check(
            "\u{feff}{\"\\u0069d\":7,\"resul\\u0074\":-1e5,\"jsonrpc\":\"2.0\",\"\":[]}",
            Ok("{\"\\u0069d\":\"mine\",\"resul\\u0074\":-1e5,\"jsonrpc\":\"2.0\",\"\":[]}"),
        );
        let long = format!(r#"{{"{}":1,"id":7,"jsonrpc":"2.0","result":[]}}"#, "k".repeat(2000));
        check(&long, Ok(&long.replace(":7", ":\"mine\"")));
    }

    #[test]
    fn what_is_mended_in_small_answers_is_mended_here() {
        check(r#"{"id":7,"result":[1]}"#, Ok(r#"{"id":"mine","result":[1],"jsonrpc":"2.0"}"#));
        check(
            r#"{"error":null,"id":7,"result":[1],"jsonrpc":"1.0"}"#,
            Ok(r#"{"id":"mine","result":[1],"jsonrpc":"2.0"}"#),
        );
        check(
            r#"{"id":7,"result":[1],"error" : null ,"jsonrpc":2}"#,
            Ok(r#"{"id":"mine","result":[1] ,"jsonrpc":"2.0"}"#),
        );
        check(
            r#"{"id":7,"result":1,"error":null}"#,
            Ok(r#"{"id":"mine","result":1,"jsonrpc":"2.0"}"#),
        );
    }

    #[test]
    fn what_is_no_result_of_this_request_is_never_finished() {
        for (text, flaw) in [
            (r#"{"jsonrpc":"2.0","id":8,"result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","id":"7","result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","id":7.0,"result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","id":{},"result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","result":1}"#, Flaw::Foreign),
            (r#"{"jsonrpc":"2.0","id":7}"#, Flaw::NoResult),
            (r#"{"jsonrpc":"2.0","id":7,"error":null}"#, Flaw::NoResult),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":1}}"#, Flaw::Error),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1}}"#, Flaw::Error),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"method":"x"}"#, Flaw::Request),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"result":2}"#, Flaw::Clash),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"resul\u0074":2}"#, Flaw::Clash),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"id":7}"#, Flaw::Clash),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"Result":2}"#, Flaw::Clash),
            (r#"{"jsonrpc":"2.0","id":7,"result":[1}"#, Flaw::Syntax),
            (r#"{"jsonrpc":"2.0","id":7,"result":[1]"#, Flaw::Syntax),
            (r#"{"jsonrpc":"2.0","id":7,"result":[1]} {}"#, Flaw::Syntax),
            (r#"[{"jsonrpc":"2.0","id":7,"result":[1]}]"#, Flaw::Syntax),
            ("", Flaw::Syntax),
        ] {
            check(text, Err(flaw));
        }
        let deep = format!(r#"{{"id":7,"result":{}{}}}"#, "[".repeat(64), "]".repeat(64));
        check(&deep, Err(Flaw::Depth));
        let held = format!(r#"{{"id":7,"result":1,"error":"{}"}}"#, "x".repeat(MOST_HELD));
        check(&held, Err(Flaw::Held));
        let broken = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}";
        assert_eq!(relayed(broken, 5), Err(Flaw::Syntax));
    }

    #[test]
    fn it_is_ready_once_id_and_result_are_there_and_not_before() {
        let ready = |text: &str| relayed(text.as_bytes(), 1).ok().and_then(|(_, ready)| ready);
        assert_eq!(ready(r#"{"id":7,"result":"xxxx"}"#), Some(18));
        assert_eq!(ready(r#"{"result":"xxxx","id":7}"#), Some(24), "the id comes last");
        assert_eq!(ready(r#"{"result":"xxxx","id":8}"#), None);
    }
}
