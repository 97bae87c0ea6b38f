//! The strict one-pass scanner.
//!
//! It walks a text once, checks UTF-8, the whole JSON grammar and the depth, and notes where the
//! envelope members and every `Member` stand. What a message means is decided by `classify`.
//! There is no recursion over the input: open arrays and objects are bits in [`Open`]; only the
//! objects whose members are noted (message, `params`, `_meta`) nest as calls, three at most.

use super::envelope::{Envelope, Role};
use super::tokens::{Step, colon, expect, peek, scalar, space, string};
use super::{Rejected, Span};

/// A byte order mark: senders must not, receivers may skip it (RFC 8259 §8.1).
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Why the walk stopped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// Not JSON, at this place.
    Syntax(usize),
    /// Too deep.
    Depth,
}

impl From<usize> for Stop {
    fn from(at: usize) -> Self {
        Self::Syntax(at)
    }
}

type Walk<T = ()> = Result<T, Stop>;

/// Open arrays and objects, one bit each, innermost in the lowest bit (set: object).
#[derive(Debug, Default)]
pub(super) struct Open {
    bits: u64,
    depth: usize,
    full: Vec<u64>,
}

impl Open {
    /// How many are open.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// One more, inside of the others.
    #[inline]
    pub(super) fn push(&mut self, object: bool) {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.full.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(object);
        self.depth += 1;
    }

    /// The innermost ends.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.depth -= 1;
        self.bits >>= 1;
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.bits = self.full.pop().unwrap_or_default();
        }
    }

    /// Whether the innermost is an object.
    #[inline]
    pub(super) fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }

    /// The bracket that closes the innermost.
    #[inline]
    pub(super) fn closing(&self) -> u8 {
        if self.in_object() { b'}' } else { b']' }
    }

    /// In an object, steps over the key that must stand here.
    #[inline]
    fn key(&self, text: &[u8], at: usize) -> Step {
        if self.in_object() { colon(text, string(text, at)?) } else { Ok(at) }
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
    /// Stands at the first byte of the value, behind BOM and white space.
    pub(super) fn new(text: &'a str, max_depth: u16) -> Result<Self, Rejected> {
        if u32::try_from(text.len()).is_err() {
            // Spans could not name its bytes.
            return Err(Rejected::Syntax { offset: u32::MAX as usize });
        }
        let text = text.as_bytes();
        let position = space(text, if text.starts_with(BOM) { BOM.len() } else { 0 });
        Ok(Self { text, position, base: 0, max_depth: usize::from(max_depth) })
    }

    /// Where the walk stands.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The byte that stands here; NUL at the end.
    pub(super) fn peek(&self) -> u8 {
        peek(self.text, self.position)
    }

    /// Steps over `byte` and the white space around it, if it stands here.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = expect(self.text, space(self.text, self.position), byte);
        if let Ok(behind) = found {
            self.position = space(self.text, behind);
        }
        found.is_ok()
    }

    /// Only white space may follow.
    pub(super) fn end(&mut self) -> Result<(), Rejected> {
        self.position = space(self.text, self.position);
        if self.position == self.text.len() { Ok(()) } else { Err(self.unexpected()) }
    }

    /// The refusal of what stands here.
    #[cold]
    pub(super) fn unexpected(&self) -> Rejected {
        self.rejected(Stop::Syntax(self.position))
    }

    #[cold]
    fn rejected(&self, stop: Stop) -> Rejected {
        match stop {
            Stop::Syntax(offset) => Rejected::Syntax { offset: offset.min(self.text.len()) },
            Stop::Depth => {
                Rejected::TooDeep { limit: u16::try_from(self.max_depth).unwrap_or(u16::MAX) }
            }
        }
    }

    /// Walks over the object that begins here, as one message.
    pub(super) fn envelope(&mut self) -> Result<Envelope, Rejected> {
        let mut envelope = Envelope::default();
        self.base = self.position;
        match self.object(self.base, Role::Message, 0, &mut envelope) {
            Ok(end) => self.position = end,
            Err(stop) => return Err(self.rejected(stop)),
        }
        envelope.finish();
        Ok(envelope)
    }

    /// Walks over the value that begins here without noting anything.
    pub(super) fn skip(&mut self) -> Result<(), Rejected> {
        self.position = self.value(self.position, 0).map_err(|stop| self.rejected(stop))?;
        Ok(())
    }

    /// Walks over an object and notes its members. `outer` containers are open around it.
    fn object(&self, at: usize, role: Role, outer: usize, envelope: &mut Envelope) -> Walk<usize> {
        if outer >= self.max_depth {
            return Err(Stop::Depth);
        }
        let text = self.text;
        let mut at = space(text, at + 1);
        if peek(text, at) == b'}' {
            return Ok(at + 1);
        }
        loop {
            let key = at;
            at = string(text, key)?;
            let slot = envelope.open(role, &text[key..at]);
            let start = colon(text, at)?;
            at = match slot.inner() {
                Some(inner) if peek(text, start) == b'{' => {
                    self.object(start, inner, outer + 1, envelope)?
                }
                _ => self.value(start, outer + 1)?,
            };
            // The text was checked to be short enough.
            let span = Span { start: (start - self.base) as u32, end: (at - self.base) as u32 };
            envelope.close(slot, span);
            at = space(text, at);
            if peek(text, at) == b'}' {
                return Ok(at + 1);
            }
            at = space(text, expect(text, at, b',')?);
        }
    }

    /// Walks over any value. `outer` containers are open around it.
    #[inline]
    fn value(&self, at: usize, outer: usize) -> Walk<usize> {
        match peek(self.text, at) {
            b'"' => Ok(string(self.text, at)?),
            b'{' | b'[' => self.nested(at, outer),
            _ => Ok(scalar(self.text, at)?),
        }
    }

    /// Walks over an array or object without noting anything.
    fn nested(&self, mut at: usize, outer: usize) -> Walk<usize> {
        let text = self.text;
        let mut open = Open::default();
        loop {
            match peek(text, at) {
                b'"' => at = string(text, at)?,
                first @ (b'{' | b'[') => {
                    if outer + open.depth >= self.max_depth {
                        return Err(Stop::Depth);
                    }
                    open.push(first == b'{');
                    at = space(text, at + 1);
                    if peek(text, at) != open.closing() {
                        at = open.key(text, at)?;
                        continue;
                    }
                }
                _ => at = scalar(text, at)?,
            }
            // Behind a value or at a closing bracket: closes what ends here.
            loop {
                at = space(text, at);
                if peek(text, at) != open.closing() {
                    break;
                }
                at += 1;
                open.pop();
                if open.depth == 0 {
                    return Ok(at);
                }
            }
            at = space(text, expect(text, at, b',')?);
            at = open.key(text, at)?;
        }
    }
}
