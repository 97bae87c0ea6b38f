//! The JSON grammar as a machine that can be stopped between any two bytes, for texts that are read while they come.
//!
//! It knows as much as [`super::scan`] does (grammar, UTF-8, depth), but tells only where the members of the outermost
//! object stand. What it lacks is speed with small tokens; long strings are walked as fast as there.

use super::scan::{BOM, Open};
use super::tokens::plain_run;

/// Why a text is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not JSON, or no object.
    Syntax,
    /// Nested too deep.
    Depth,
}

/// Something about the outermost object; places are those that [`Steps::next`] gives with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The place is behind the opening brace.
    Opened,
    /// The place is behind a key; its text is [`Steps::key`].
    Key,
    /// A member's value begins at the place.
    Value,
    /// A member's value ends at the place.
    End,
    /// The place is behind a comma.
    Comma,
    /// The place is behind the closing brace. Only white space may follow.
    Closed,
    /// All of the bytes were read.
    More,
}

/// Where in an escape a string stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// So many hexadecimal digits are still to come.
    Hex(u8),
}

/// The last that was read of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the object; so many bytes of a byte order mark were read.
    Start(usize),
    /// Behind `{`.
    KeyOrClose,
    /// Behind a comma in an object.
    Key,
    InKey(Escape),
    Colon,
    /// Behind `[`.
    ValueOrClose,
    Value,
    InString(Escape),
    InNumber(Number),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
    /// Behind a value.
    Behind,
    /// Behind the whole object.
    Over,
}

/// Keys of the outermost object that are longer than this are not kept: they equal no known one.
pub(super) const LONGEST_KEY: usize = 512;

/// The machine.
#[derive(Debug)]
pub(super) struct Steps {
    state: State,
    open: Open,
    max_depth: usize,
    characters: Characters,
    /// The key of the outermost object that was read last, with its quotes.
    key: Vec<u8>,
    /// The beginning of a value was told, its first byte not taken yet.
    told: bool,
}

impl Steps {
    pub(super) fn new(max_depth: u16) -> Self {
        Self {
            state: State::Start(0),
            open: Open::default(),
            max_depth: usize::from(max_depth),
            characters: Characters::default(),
            key: Vec::new(),
            told: false,
        }
    }

    /// The key that was read last, with its quotes; `None` when it is longer than any known one.
    pub(super) fn key(&self) -> Option<&[u8]> {
        (self.key.len() <= LONGEST_KEY).then_some(&self.key)
    }

    /// Whether the whole object was read, and nothing is left open.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over && self.characters.is_whole()
    }

    /// The next bytes are these: checks that they are UTF-8, together with those before them.
    pub(super) fn check(&mut self, data: &[u8]) -> Result<(), Fault> {
        if self.characters.push(data) { Ok(()) } else { Err(Fault::Syntax) }
    }

    /// Walks on from `at` to the next mark. The bytes must have passed [`Steps::check`].
    pub(super) fn next(&mut self, data: &[u8], mut at: usize) -> Result<(usize, Mark), Fault> {
        while let Some(&byte) = data.get(at) {
            let outermost = self.open.depth() == 1;
            let blank = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
            match self.state {
                State::InString(escape) => {
                    let (next, state) = string(data, at, escape)?;
                    at = next;
                    match state {
                        Some(escape) => self.state = State::InString(escape),
                        None => {
                            self.state = State::Behind;
                            if outermost {
                                return Ok((at, Mark::End));
                            }
                        }
                    }
                }
                State::InKey(escape) => {
                    let (next, state) = string(data, at, escape)?;
                    if outermost {
                        self.keep(&data[at..next]);
                    }
                    at = next;
                    match state {
                        Some(escape) => self.state = State::InKey(escape),
                        None => {
                            self.state = State::Colon;
                            if outermost {
                                return Ok((at, Mark::Key));
                            }
                        }
                    }
                }
                State::InNumber(number) => match follow(number, byte) {
                    Some(next) => {
                        self.state = State::InNumber(next);
                        at += 1;
                    }
                    None if ends(number) => {
                        self.state = State::Behind;
                        if outermost {
                            return Ok((at, Mark::End));
                        }
                    }
                    None => return Err(Fault::Syntax),
                },
                State::Literal(rest) => {
                    let Some((first, rest)) = rest.split_first() else { return Err(Fault::Syntax) };
                    if *first != byte {
                        return Err(Fault::Syntax);
                    }
                    at += 1;
                    self.state = State::Literal(rest);
                    if rest.is_empty() {
                        self.state = State::Behind;
                        if outermost {
                            return Ok((at, Mark::End));
                        }
                    }
                }
                State::Start(read) => {
                    if BOM.get(read) == Some(&byte) {
                        self.state = State::Start(read + 1);
                    } else if blank && (read == 0 || read == BOM.len()) {
                        self.state = State::Start(BOM.len());
                    } else if byte == b'{' && (read == 0 || read == BOM.len()) {
                        self.enter(byte)?;
                        return Ok((at + 1, Mark::Opened));
                    } else {
                        return Err(Fault::Syntax);
                    }
                    at += 1;
                }
                _ if blank => at += 1,
                State::Over => return Err(Fault::Syntax),
                State::KeyOrClose | State::Key => {
                    if byte == b'}' && self.state == State::KeyOrClose {
                        at += 1;
                        if let Some(mark) = self.leave() {
                            return Ok((at, mark));
                        }
                        continue;
                    }
                    if byte != b'"' {
                        return Err(Fault::Syntax);
                    }
                    if outermost {
                        self.key.clear();
                        self.key.push(byte);
                    }
                    self.state = State::InKey(Escape::None);
                    at += 1;
                }
                State::Colon => {
                    if byte != b':' {
                        return Err(Fault::Syntax);
                    }
                    self.state = State::Value;
                    at += 1;
                }
                State::Value | State::ValueOrClose => {
                    if byte == b']' && self.state == State::ValueOrClose {
                        at += 1;
                        if let Some(mark) = self.leave() {
                            return Ok((at, mark));
                        }
                        continue;
                    }
                    if outermost && !std::mem::replace(&mut self.told, true) {
                        return Ok((at, Mark::Value));
                    }
                    self.told = false;
                    at += 1;
                    match byte {
                        b'{' | b'[' => self.enter(byte)?,
                        b'"' => self.state = State::InString(Escape::None),
                        b'-' => self.state = State::InNumber(Number::Minus),
                        b'0' => self.state = State::InNumber(Number::Zero),
                        b'1'..=b'9' => self.state = State::InNumber(Number::Integer),
                        b't' => self.state = State::Literal(b"rue"),
                        b'f' => self.state = State::Literal(b"alse"),
                        b'n' => self.state = State::Literal(b"ull"),
                        _ => return Err(Fault::Syntax),
                    }
                }
                State::Behind => {
                    at += 1;
                    if byte == b',' {
                        self.state = if self.open.in_object() { State::Key } else { State::Value };
                        if outermost {
                            return Ok((at, Mark::Comma));
                        }
                    } else if byte == self.open.closing() {
                        if let Some(mark) = self.leave() {
                            return Ok((at, mark));
                        }
                    } else {
                        return Err(Fault::Syntax);
                    }
                }
            }
        }
        Ok((at, Mark::More))
    }

    /// An array or object begins.
    fn enter(&mut self, bracket: u8) -> Result<(), Fault> {
        if self.open.depth() >= self.max_depth {
            return Err(Fault::Depth);
        }
        self.open.push(bracket == b'{');
        self.state = if bracket == b'{' { State::KeyOrClose } else { State::ValueOrClose };
        Ok(())
    }

    /// The innermost array or object ends.
    fn leave(&mut self) -> Option<Mark> {
        self.open.pop();
        self.state = State::Behind;
        match self.open.depth() {
            0 => {
                self.state = State::Over;
                Some(Mark::Closed)
            }
            1 => Some(Mark::End),
            _ => None,
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = (LONGEST_KEY + 1).saturating_sub(self.key.len());
        self.key.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// Walks on in a string; no escape state: it ended.
fn string(
    data: &[u8],
    mut at: usize,
    mut escape: Escape,
) -> Result<(usize, Option<Escape>), Fault> {
    loop {
        if escape == Escape::None {
            at = plain_run(data, at);
        }
        let Some(&byte) = data.get(at) else { return Ok((at, Some(escape))) };
        at += 1;
        escape = match (escape, byte) {
            (Escape::None, b'"') => return Ok((at, None)),
            (Escape::None, b'\\') => Escape::Begun,
            (Escape::Begun, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::None,
            (Escape::Begun, b'u') => Escape::Hex(4),
            (Escape::Hex(1), digit) if digit.is_ascii_hexdigit() => Escape::None,
            (Escape::Hex(left), digit) if digit.is_ascii_hexdigit() => Escape::Hex(left - 1),
            (Escape::None | Escape::Begun | Escape::Hex(_), _) => return Err(Fault::Syntax),
        };
    }
}

/// What a number becomes with one more byte; `None`: the byte is no part of it.
fn follow(number: Number, byte: u8) -> Option<Number> {
    Some(match (number, byte) {
        (Number::Minus, b'0') => Number::Zero,
        (Number::Minus, b'1'..=b'9') | (Number::Integer, b'0'..=b'9') => Number::Integer,
        (Number::Zero | Number::Integer, b'.') => Number::Point,
        (Number::Point | Number::Fraction, b'0'..=b'9') => Number::Fraction,
        (Number::Zero | Number::Integer | Number::Fraction, b'e' | b'E') => Number::Exponent,
        (Number::Exponent, b'+' | b'-') => Number::Sign,
        (Number::Exponent | Number::Sign | Number::Power, b'0'..=b'9') => Number::Power,
        _ => return None,
    })
}

/// Whether a number may end here.
fn ends(number: Number) -> bool {
    matches!(number, Number::Zero | Number::Integer | Number::Fraction | Number::Power)
}

/// Checks that bytes are UTF-8, also where a character is cut.
#[derive(Debug, Default)]
struct Characters {
    /// The beginning of a character that was cut.
    begun: [u8; 4],
    length: usize,
}

impl Characters {
    fn is_whole(&self) -> bool {
        self.length == 0
    }

    /// Whether the bytes are right, as far as they go.
    fn push(&mut self, mut data: &[u8]) -> bool {
        while self.length > 0 {
            let Some((first, rest)) = data.split_first() else { return true };
            self.begun[self.length] = *first;
            self.length += 1;
            data = rest;
            match std::str::from_utf8(&self.begun[..self.length]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() || self.length == 4 => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(data) else { return true };
        let rest = &data[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.begun[..rest.len()].copy_from_slice(rest);
        self.length = rest.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Message;

    /// Reads a text cut at these places; whether it is one whole object.
    fn accepts(pieces: &[&[u8]]) -> bool {
        let mut steps = Steps::new(8);
        for piece in pieces {
            if steps.check(piece).is_err() {
                return false;
            }
            let mut at = 0;
            loop {
                match steps.next(piece, at) {
                    Ok((_, Mark::More)) => break,
                    Ok((next, _)) => at = next,
                    Err(_) => return false,
                }
            }
        }
        steps.is_over()
    }

    /// Whether the strict scanner takes a text as far as grammar and depth go.
    fn scans(text: &[u8]) -> bool {
        use crate::jsonrpc::Rejected;
        match Message::parse_answer(text.to_vec().into(), 8) {
            Ok(_) => true,
            Err(Rejected::Invalid { reason, .. }) => reason != "not an object",
            Err(_) => false,
        }
    }

    const TEXTS: &[&[u8]] = &[
        b"{}",
        b" \r\n\t{ } \n",
        b"\xEF\xBB\xBF{}",
        b"\xEF\xBB\xBF {}",
        b"\xEF\xBB{}",
        b" \xEF\xBB\xBF{}",
        b"{\"a\":1}",
        b"{\"a\":-0.5e+10,\"b\":0,\"c\":1E2,\"d\":-0}",
        b"{\"a\":01}",
        b"{\"a\":1.}",
        b"{\"a\":.5}",
        b"{\"a\":1e}",
        b"{\"a\":+1}",
        b"{\"a\":-}",
        b"{\"a\":1e+}",
        b"{\"a\":12 3}",
        b"{\"a\":true,\"b\":false,\"c\":null}",
        b"{\"a\":tru}",
        b"{\"a\":truee}",
        b"{\"a\":nul,\"b\":1}",
        b"{\"a\":NaN}",
        b"{\"\\u0061\\n\\\\\":\"\\\"\\/\\b\\f\\n\\r\\t\\uD800\"}",
        b"{\"a\":\"\\x\"}",
        b"{\"a\":\"\\u12g4\"}",
        b"{\"a\":\"\\u123\"}",
        b"{\"a\":\"tab\tin\"}",
        b"{\"a\":\"\x7f\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"}",
        b"{\"a\":\"\xc3\x28\"}",
        b"{\"a\":\"\xed\xa0\x80\"}",
        b"{\"a\":\"\xf0\x9f\x98\"}",
        b"{\"a\":[],\"b\":[1,[2,{}],{\"c\":[{}]}]}",
        b"{\"a\":[1,]}",
        b"{\"a\":[,1]}",
        b"{\"a\":1,}",
        b"{,}",
        b"{\"a\"}",
        b"{\"a\":}",
        b"{\"a\" : [ 1 , 2 ] , \"b\" : { \"c\" : 3 } }",
        b"{\"a\":[1}",
        b"{\"a\":{]}",
        b"{\"a\":1",
        b"{\"a\":\"x",
        b"{} x",
        b"{}{}",
        b"[]",
        b"1",
        b"",
        b"{a:1}",
        b"{\"a\":[[[[[[[1]]]]]]]}",
        b"{\"a\":[[[[[[[[1]]]]]]]]}",
        b"{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}}}}",
        b"{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}",
    ];

    #[test]
    fn it_takes_what_the_scanner_takes_wherever_the_text_is_cut() {
        for text in TEXTS {
            let shown = String::from_utf8_lossy(text);
            let right = scans(text);
            assert_eq!(accepts(&[text]), right, "{shown}");
            for cut in 0..=text.len() {
                let (head, tail) = text.split_at(cut);
                assert_eq!(accepts(&[head, tail]), right, "{shown} cut at {cut}");
            }
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(accepts(&bytes), right, "{shown} byte by byte");
        }
    }

    #[test]
    fn it_tells_where_the_members_of_the_outermost_object_stand() {
        let text = br#" {"a" : [1,{"b":2}] , "c":"x","d":5 } "#;
        for cut in 0..=text.len() {
            let mut steps = Steps::new(8);
            let mut marks = Vec::new();
            let (head, tail) = text.split_at(cut);
            for (base, piece) in [(0, head), (cut, tail)] {
                let mut at = 0;
                loop {
                    let (next, mark) = steps.next(piece, at).expect("it is JSON");
                    at = next;
                    if mark == Mark::More {
                        break;
                    }
                    let key = String::from_utf8(steps.key().expect("it is short").to_vec());
                    marks.push((base + next, mark, key.expect("UTF-8")));
                }
            }
            let told: Vec<_> = marks.iter().map(|(at, mark, _)| (*at, *mark)).collect();
            let right = [
                (2, Mark::Opened),
                (5, Mark::Key),
                (8, Mark::Value),
                (19, Mark::End),
                (21, Mark::Comma),
                (25, Mark::Key),
                (26, Mark::Value),
                (29, Mark::End),
                (30, Mark::Comma),
                (33, Mark::Key),
                (34, Mark::Value),
                (35, Mark::End),
                (37, Mark::Closed),
            ];
            assert_eq!(told, right, "cut at {cut}");
            assert_eq!((marks[1].2.as_str(), marks[5].2.as_str()), ("\"a\"", "\"c\""));
        }
    }

    #[test]
    fn a_key_without_end_is_not_kept() {
        let mut steps = Steps::new(8);
        assert_eq!(steps.next(b"{\"", 0), Ok((1, Mark::Opened)));
        assert_eq!(steps.next(b"\"", 0), Ok((1, Mark::More)));
        for _ in 0..100 {
            assert_eq!(steps.next(&[b'x'; 100], 0), Ok((100, Mark::More)));
        }
        assert_eq!(steps.next(b"\"", 0), Ok((1, Mark::Key)));
        assert_eq!(steps.key(), None);
        assert!(steps.key.len() <= LONGEST_KEY + 1);
    }
}
