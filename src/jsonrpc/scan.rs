//! The strict one-pass scanner.
//!
//! It walks a text once, checks UTF-8, the whole JSON grammar and the depth, and notes where the
//! envelope members and every `Member` stand. What a message means is decided by `classify`.
//! There is no recursion over the input: open arrays and objects are bits in [`Open`]; only the
//! objects whose members are noted (message, `params`, `_meta`) nest as calls, three at most.

use memchr::memchr2;

use super::envelope::{Envelope, Role};
use super::{Rejected, Span};

/// A byte order mark: senders must not, receivers may skip it (RFC 8259 §8.1).
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Strings up to this length are walked byte by byte before `memchr` is asked.
const SHORT: usize = 32;

/// Bytes that end the plain run of a string: quote, backslash, control characters.
static SPECIAL: [bool; 256] = special();

const fn special() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
}

/// Why the walk stopped; the place is the scanner's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// Not JSON.
    Syntax,
    /// Too deep.
    Depth,
}

type Walk<T = ()> = Result<T, Stop>;

/// Open arrays and objects, one bit each, innermost in the lowest bit (set: object).
#[derive(Debug, Default)]
struct Open {
    bits: u64,
    depth: usize,
    full: Vec<u64>,
}

impl Open {
    #[inline]
    fn push(&mut self, object: bool) {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.full.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(object);
        self.depth += 1;
    }

    #[inline]
    fn pop(&mut self) {
        self.depth -= 1;
        self.bits >>= 1;
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.bits = self.full.pop().unwrap_or_default();
        }
    }

    #[inline]
    fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }
}

/// One walk over one text.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
    /// Where the message begins that spans count from.
    base: usize,
    max_depth: usize,
}

impl<'a> Scanner<'a> {
    /// Checks UTF-8 and stands at the first byte of the value, behind BOM and white space.
    pub(super) fn new(text: &'a [u8], max_depth: u16) -> Result<Self, Rejected> {
        if u32::try_from(text.len()).is_err() {
            // Spans could not name its bytes.
            return Err(Rejected::Syntax { offset: u32::MAX as usize });
        }
        if let Err(error) = std::str::from_utf8(text) {
            return Err(Rejected::Syntax { offset: error.valid_up_to() });
        }
        let position = if text.starts_with(BOM) { BOM.len() } else { 0 };
        let mut scanner = Self { text, position, base: 0, max_depth: usize::from(max_depth) };
        scanner.white_space();
        Ok(scanner)
    }

    /// Where the walk stands.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The refusal for a stop at this place.
    #[cold]
    pub(super) fn rejected(&self, stop: Stop) -> Rejected {
        match stop {
            Stop::Syntax => Rejected::Syntax { offset: self.position.min(self.text.len()) },
            Stop::Depth => {
                Rejected::TooDeep { limit: u16::try_from(self.max_depth).unwrap_or(u16::MAX) }
            }
        }
    }

    /// The byte at this place; NUL, which is legal nowhere, at the end.
    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.text.get(self.position).copied().unwrap_or(0)
    }

    /// Steps over `byte` if it stands here.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let here = self.peek() == byte;
        self.position += usize::from(here);
        here
    }

    /// Skips white space.
    #[inline]
    pub(super) fn white_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.position += 1;
        }
    }

    /// Only white space may follow.
    pub(super) fn end(&mut self) -> Walk {
        self.white_space();
        if self.position == self.text.len() { Ok(()) } else { Err(Stop::Syntax) }
    }

    /// Walks over the object that begins here, as one message.
    pub(super) fn envelope(&mut self) -> Walk<Envelope> {
        let mut envelope = Envelope::default();
        self.base = self.position;
        self.object(Role::Message, 0, &mut envelope)?;
        envelope.finish();
        Ok(envelope)
    }

    fn span_from(&self, start: usize) -> Span {
        // The length was checked to fit.
        Span { start: (start - self.base) as u32, end: (self.position - self.base) as u32 }
    }

    /// Walks over an object and notes its members. `outer` containers are open around it.
    fn object(&mut self, role: Role, outer: usize, envelope: &mut Envelope) -> Walk {
        if outer >= self.max_depth {
            return Err(Stop::Depth);
        }
        self.position += 1;
        self.white_space();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.position;
            let escaped = self.string()?;
            let slot = envelope.open(role, &self.text[key..self.position], escaped);
            self.colon()?;
            let start = self.position;
            match slot.inner() {
                Some(inner) if self.peek() == b'{' => self.object(inner, outer + 1, envelope)?,
                _ => self.value(outer + 1)?,
            }
            envelope.close(slot, self.span_from(start));
            self.white_space();
            if self.take(b'}') {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(Stop::Syntax);
            }
            self.white_space();
        }
    }

    #[inline]
    fn colon(&mut self) -> Walk {
        self.white_space();
        if !self.take(b':') {
            return Err(Stop::Syntax);
        }
        self.white_space();
        Ok(())
    }

    /// Walks over any value. `outer` containers are open around it.
    #[inline]
    pub(super) fn value(&mut self, outer: usize) -> Walk {
        match self.peek() {
            b'"' => self.string().map(drop),
            b'{' | b'[' => self.nested(outer),
            _ => self.scalar(),
        }
    }

    /// Walks over an array or object without noting anything.
    fn nested(&mut self, outer: usize) -> Walk {
        let mut open = Open::default();
        loop {
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                first @ (b'{' | b'[') => {
                    if outer + open.depth >= self.max_depth {
                        return Err(Stop::Depth);
                    }
                    self.position += 1;
                    self.white_space();
                    let object = first == b'{';
                    if !self.take(if object { b'}' } else { b']' }) {
                        open.push(object);
                        if object {
                            self.string()?;
                            self.colon()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            if self.after_value(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Behind a value: closes what ends here and stands at the next value; `true` when all is closed.
    #[inline]
    fn after_value(&mut self, open: &mut Open) -> Walk<bool> {
        while open.depth > 0 {
            self.white_space();
            let object = open.in_object();
            if self.take(b',') {
                self.white_space();
                if object {
                    self.string()?;
                    self.colon()?;
                }
                return Ok(false);
            }
            if !self.take(if object { b'}' } else { b']' }) {
                return Err(Stop::Syntax);
            }
            open.pop();
        }
        Ok(true)
    }

    /// Walks over a string; says whether it has escapes.
    #[inline]
    fn string(&mut self) -> Walk<bool> {
        if !self.take(b'"') {
            return Err(Stop::Syntax);
        }
        let mut escaped = false;
        loop {
            self.plain_run();
            match self.peek() {
                b'"' => {
                    self.position += 1;
                    return Ok(escaped);
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(Stop::Syntax),
            }
        }
    }

    /// Steps to the next quote, backslash, control character or the end.
    #[inline]
    fn plain_run(&mut self) {
        let rest = &self.text[self.position..];
        let short = &rest[..rest.len().min(SHORT)];
        match short.iter().position(|&byte| SPECIAL[usize::from(byte)]) {
            Some(at) => self.position += at,
            None => self.long_run(),
        }
    }

    fn long_run(&mut self) {
        let rest = &self.text[self.position..];
        let run = &rest[..memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
        // Looked at in blocks without early exit, so that the compiler makes vector code of it.
        for (index, block) in run.chunks(256).enumerate() {
            if block.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
                let at = block.iter().position(|&byte| byte < 0x20).unwrap_or(0);
                self.position += index * 256 + at;
                return;
            }
        }
        self.position += run.len();
    }

    /// Walks over one escape.
    #[inline]
    fn escape(&mut self) -> Walk {
        self.position += 1;
        match self.peek() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.position += 1,
            b'u' => {
                self.position += 1;
                for _ in 0..4 {
                    if !self.peek().is_ascii_hexdigit() {
                        return Err(Stop::Syntax);
                    }
                    self.position += 1;
                }
            }
            _ => return Err(Stop::Syntax),
        }
        Ok(())
    }

    /// Walks over a number, `true`, `false` or `null`.
    #[inline]
    fn scalar(&mut self) -> Walk {
        match self.peek() {
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => Err(Stop::Syntax),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Walk {
        if !self.text[self.position..].starts_with(word) {
            return Err(Stop::Syntax);
        }
        self.position += word.len();
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Walk {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.position += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.position += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One digit or more.
    #[inline]
    fn digits(&mut self) -> Walk {
        let start = self.position;
        while self.peek().is_ascii_digit() {
            self.position += 1;
        }
        if self.position > start { Ok(()) } else { Err(Stop::Syntax) }
    }
}
