//! Where the parts of a text stand, one level deep, so that the rest is not touched.
//!
//! For texts that were scanned before. Of others it tells where something seems to stand, or nothing; it never panics.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use memchr::memchr2;
use smallvec::SmallVec;

use crate::jsonrpc::{Edit, Span};

/// Edits of one text, in any order.
pub(super) type Edits = SmallVec<[Edit; 6]>;

/// One edit.
pub(super) fn edit(range: Range<usize>, new: impl Into<Bytes>) -> Edit {
    let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    (Span { start: place(range.start), end: place(range.end) }, new.into())
}

/// Walks over the tokens of a text.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// Begins at `at`.
    pub(super) fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    /// Behind the opening brace of an object that comes next.
    pub(super) fn behind_brace(mut self) -> usize {
        self.take(b'{');
        self.at
    }

    /// The next byte that is no white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Steps over that byte when it comes next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Steps over a string; its range with the quotes.
    pub(super) fn string(&mut self) -> Option<Range<usize>> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let start = self.at;
        let mut at = start + 1;
        loop {
            at += memchr2(b'"', b'\\', self.text.get(at..)?)?;
            if self.text[at] == b'"' {
                self.at = at + 1;
                return Some(start..at + 1);
            }
            at += 2;
        }
    }

    /// Steps over a name and its colon; the range of the name with the quotes.
    pub(super) fn name(&mut self) -> Option<Range<usize>> {
        let name = self.string()?;
        self.take(b':').then_some(name)
    }

    /// Steps over a value; its range.
    pub(super) fn skip(&mut self) -> Option<Range<usize>> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => {
                let start = self.at;
                let ends = |b: &u8| matches!(b, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
                let rest = &self.text[start..];
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
                (self.at > start).then_some(start..self.at)
            }
        }
    }

    fn nested(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.text.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }
}

/// Where one member stands.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The name, with its quotes.
    pub(super) name: Range<usize>,
    /// The value.
    pub(super) value: Range<usize>,
}

/// Where the members of one object stand in the text around it.
#[derive(Debug)]
pub(super) struct Object<'a> {
    text: &'a Bytes,
    /// Behind the opening brace.
    open: usize,
    /// The members, in order.
    pub(super) places: SmallVec<[Place; 12]>,
}

impl<'a> Object<'a> {
    /// The object that begins at `at`; `None` when another value does.
    pub(super) fn at(text: &'a Bytes, at: usize) -> Option<Self> {
        let mut walk = Walk::new(text, at);
        if !walk.take(b'{') {
            return None;
        }
        let open = walk.at;
        let mut places = SmallVec::new();
        if !walk.take(b'}') {
            loop {
                let name = walk.name()?;
                let value = walk.skip()?;
                places.push(Place { name, value });
                if !walk.take(b',') {
                    break;
                }
            }
            if !walk.take(b'}') {
                return None;
            }
        }
        Some(Self { text, open, places })
    }

    /// The object that is the value of a member.
    pub(super) fn object(&self, name: &str) -> Option<Self> {
        Self::at(self.text, self.find(name)?.start)
    }

    /// The array that is the value of a member.
    pub(super) fn array(&self, name: &str) -> Option<Array> {
        Array::at(self.text, self.find(name)?.start)
    }

    /// Where the value of a member stands. Of a name that stands there twice, the last.
    pub(super) fn find(&self, name: &str) -> Option<Range<usize>> {
        let named = |place: &&Place| self.name(place) == name;
        self.places.iter().rev().find(named).map(|place| place.value.clone())
    }

    /// The value of a member.
    pub(super) fn value(&self, name: &str) -> Option<Bytes> {
        self.find(name).map(|range| self.text.slice(range))
    }

    /// The value of a member that is a string.
    pub(super) fn string(&self, name: &str) -> Option<String> {
        serde_json::from_slice(&self.text[self.find(name)?]).ok()
    }

    /// The name of a member; empty when it is no Unicode.
    pub(super) fn name(&self, place: &Place) -> Cow<'a, str> {
        decoded(&self.text[place.name.clone()])
    }

    /// Takes out the members that are `gone`, and puts `new` (`"name":value`, joined by commas) before those that stay.
    pub(super) fn change(&self, gone: impl Fn(&str) -> bool, new: Vec<u8>, edits: &mut Edits) {
        let mut kept = false;
        for (at, place) in self.places.iter().enumerate() {
            if !gone(&self.name(place)) {
                kept = true;
                continue;
            }
            let range = if kept {
                self.places[at - 1].value.end..place.value.end
            } else {
                let next = self.places.get(at + 1).map_or(place.value.end, |next| next.name.start);
                place.name.start..next
            };
            edits.push(edit(range, Bytes::new()));
        }
        if !new.is_empty() {
            let mut new = new;
            if kept {
                new.push(b',');
            }
            edits.push(edit(self.open..self.open, new));
        }
    }
}

/// Where the elements of one array stand in the text around it.
#[derive(Debug)]
pub(super) struct Array {
    /// The elements, in order.
    pub(super) elements: Vec<Range<usize>>,
    /// At the closing bracket.
    close: usize,
}

impl Array {
    /// The array that begins at `at`; `None` when another value does.
    pub(super) fn at(text: &[u8], at: usize) -> Option<Self> {
        let mut walk = Walk::new(text, at);
        if !walk.take(b'[') {
            return None;
        }
        let mut elements = Vec::new();
        if walk.peek()? != b']' {
            loop {
                elements.push(walk.skip()?);
                if !walk.take(b',') {
                    break;
                }
            }
        }
        (walk.peek()? == b']').then_some(Self { elements, close: walk.at })
    }

    /// Puts an element behind the last.
    pub(super) fn append(&self, element: &[u8], edits: &mut Edits) {
        let comma: &[u8] = if self.elements.is_empty() { b"" } else { b"," };
        edits.push(edit(self.close..self.close, [comma, element].concat()));
    }
}

/// A string without its quotes; empty when it is no Unicode.
pub(super) fn decoded(quoted: &[u8]) -> Cow<'_, str> {
    if quoted.contains(&b'\\') {
        return serde_json::from_slice::<String>(quoted).unwrap_or_default().into();
    }
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    std::str::from_utf8(inner).unwrap_or_default().into()
}

/// A string with its quotes.
pub(super) fn quoted(string: &str) -> Vec<u8> {
    serde_json::to_vec(string).expect("strings have a JSON form")
}

/// `"name":value`, behind a comma when something stands before it.
pub(super) fn push_member(new: &mut Vec<u8>, name: &str, value: &[u8]) {
    if !new.is_empty() {
        new.push(b',');
    }
    new.extend_from_slice(&quoted(name));
    new.push(b':');
    new.extend_from_slice(value);
}

/// Whether two texts are the same JSON, but for white space and spelling. Members count in their order.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    let (mut a, mut b) = (Walk::new(one, 0), Walk::new(other, 0));
    loop {
        let (next, facing) = match (a.peek(), b.peek()) {
            (Some(next), Some(facing)) => (next, facing),
            (None, None) => return true,
            _ => return false,
        };
        if matches!(next, b'{' | b'}' | b'[' | b']' | b',' | b':') {
            if next != facing {
                return false;
            }
            a.take(next);
            b.take(next);
            continue;
        }
        let (Some(left), Some(right)) = (a.skip(), b.skip()) else { return false };
        if !same_scalar(&one[left], &other[right]) {
            return false;
        }
    }
}

/// Longest number of which a double holds every digit.
const EXACT: usize = 15;

fn same_scalar(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    if one.first() == Some(&b'"') {
        let text = |quoted| serde_json::from_slice::<String>(quoted).ok();
        return other.first() == Some(&b'"')
            && text(one).is_some_and(|one| text(other) == Some(one));
    }
    let number = |text: &[u8]| {
        let number: f64 = serde_json::from_slice(text).ok()?;
        (text.len() <= EXACT).then_some(number)
    };
    number(one).is_some_and(|one| number(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_in_any_spelling() {
        for (one, other) in [
            ("{ \"a\" :\n[1.10,\"\u{e9}\"]}", "{\"\\u0061\":[1.1, \"\\u00e9\"]}"),
            ("1e2", "100"),
            ("12345678901234567890", "12345678901234567890"),
            ("\"\\ud800\"", "\"\\ud800\""),
        ] {
            assert!(same(one.as_bytes(), other.as_bytes()), "{one} {other}");
        }
        for (one, other) in [
            ("12345678901234567890", "12345678901234567891"),
            ("1e400", "1e500"),
            ("[1]", "[1"),
            ("[1]", "{1]"),
            ("1", "\"1\""),
            ("\"a\"", "\"b\""),
            ("\"a\"", "\"a"),
            ("\"\\ud800\"", "\"\\udfff\""),
            ("null", "nil"),
            ("null", ""),
            ("[]", "[[]"),
        ] {
            assert!(!same(one.as_bytes(), other.as_bytes()), "{one} {other}");
            assert!(!same(other.as_bytes(), one.as_bytes()), "{one} {other}");
        }
    }
}
