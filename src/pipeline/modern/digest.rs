//! What makes two JSON texts the same value, however they are written: the order of members, white space and escapes say
//! nothing. Everything else counts, also what no type of a program could hold: every digit, and a member that stands twice.

use sha2::{Digest, Sha256};

/// Deeper values are the same only when they are written alike.
const MAX_DEPTH: usize = 128;

/// Adds a value to `hash`. `text` is JSON that was scanned before.
pub(super) fn add_value(text: &[u8], hash: &mut Sha256) {
    Walk { text, at: 0 }.value(hash, 0);
}

/// Adds a text that no other texts run into.
pub(super) fn add_part(part: &[u8], hash: &mut Sha256) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

struct Walk<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// The next byte that is no white space.
    fn peek(&mut self) -> u8 {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += blank;
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn value(&mut self, hash: &mut Sha256, depth: usize) {
        match self.peek() {
            b'"' => self.string(hash),
            b'{' | b'[' if depth >= MAX_DEPTH => {
                hash.update(b"r");
                add_part(self.nested(), hash);
            }
            b'{' => self.object(hash, depth),
            b'[' => {
                self.at += 1;
                hash.update(b"[");
                while self.goes_on(b']') {
                    self.value(hash, depth + 1);
                }
                hash.update(b"]");
            }
            _ => self.scalar(hash),
        }
    }

    /// Steps over what ends a list, or what parts its entries; whether there is another one. White space behind a key or a
    /// value is none of it.
    fn goes_on(&mut self, end: u8) -> bool {
        loop {
            match self.peek() {
                b',' => self.at += 1,
                0 => return false,
                byte if byte == end => {
                    self.at += 1;
                    return false;
                }
                _ => return true,
            }
        }
    }

    fn object(&mut self, hash: &mut Sha256, depth: usize) {
        self.at += 1;
        let mut members: Vec<([u8; 32], [u8; 32])> = Vec::new();
        while self.goes_on(b'}') {
            let (mut name, mut value) = (Sha256::new(), Sha256::new());
            self.string(&mut name);
            if self.peek() == b':' {
                self.at += 1;
            }
            self.value(&mut value, depth + 1);
            members.push((name.finalize().into(), value.finalize().into()));
        }
        // Stable: which of two comes last may be what counts for somebody.
        members.sort_by_key(|(name, _)| *name);
        hash.update(b"{");
        hash.update((members.len() as u64).to_be_bytes());
        for (name, value) in members {
            hash.update(name);
            hash.update(value);
        }
    }

    /// A string: what it says, or how it is written when it says what is no text.
    fn string(&mut self, hash: &mut Sha256) {
        let written = self.token();
        match serde_json::from_slice::<String>(written) {
            Ok(text) => {
                hash.update(b"s");
                add_part(text.as_bytes(), hash);
            }
            Err(_) => {
                hash.update(b"r");
                add_part(written, hash);
            }
        }
    }

    /// The text of a string, with its quotes. Always one byte at least.
    fn token(&mut self) -> &'a [u8] {
        let start = self.at;
        let mut end = start + 1;
        while let Some(byte) = self.text.get(end) {
            end += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if *byte == b'"' {
                break;
            }
        }
        self.at = end.min(self.text.len());
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// The text of an array or object.
    fn nested(&mut self) -> &'a [u8] {
        let start = self.at;
        let mut open = 0_usize;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => {
                    self.token();
                    continue;
                }
                b'{' | b'[' => open += 1,
                b'}' | b']' => open = open.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                break;
            }
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// A number, or a word.
    fn scalar(&mut self, hash: &mut Sha256) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
        let length = rest.iter().position(ends).unwrap_or(rest.len()).max(1);
        self.at += length;
        hash.update(b"n");
        add_part(rest.get(..length).unwrap_or_default(), hash);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        add_value(text.as_bytes(), &mut hash);
        hash.finalize().into()
    }

    #[test]
    fn how_a_value_is_written_says_nothing() {
        let one = of(r#"{"x":1,"y":[{"b":2,"a":"ü\n"},null]}"#);
        assert_eq!(
            one,
            of("\n{ \"y\" : [ {\"\\u0061\":\"\\u00fc\\u000a\" , \"b\":2},\tnull ], \"x\":1 } ")
        );
    }

    #[test]
    fn whatever_differs_in_a_value_counts() {
        let deep =
            |depth, inner: &str| format!("{}{inner}{}", "[".repeat(depth), "]".repeat(depth));
        let pairs = [
            (r#"{"x":1e400,"n":5}"#.to_owned(), r#"{"x":1e400,"n":500}"#.to_owned()),
            ("100000000000000000001".into(), "100000000000000000002".into()),
            ("0.1".into(), "0.10000000000000000001".into()),
            (r#"{"n":5,"n":6}"#.into(), r#"{"n":7,"n":6}"#.into()),
            (r#"{"n":5,"n":6}"#.into(), r#"{"n":6,"n":5}"#.into()),
            (r#"{"n":5,"s":"\ud800"}"#.into(), r#"{"n":6,"s":"\ud800"}"#.into()),
            (r#""\ud800""#.into(), r#""\ud801""#.into()),
            (deep(500, "1"), deep(500, "2")),
            (deep(500, r#""]""#), deep(500, r#""[""#)),
            (deep(3, ""), deep(4, "")),
            (r#"["1","2"]"#.into(), r#"["1,2"]"#.into()),
            (r#"["1"]"#.into(), "[1]".into()),
            ("[[],1]".into(), "[[1]]".into()),
            (r#"{"a":{"b":1}}"#.into(), r#"{"a":{},"b":1}"#.into()),
            (r#"{"a":"b"}"#.into(), r#"["a","b"]"#.into()),
            ("{}".into(), "null".into()),
            ("{}".into(), "[]".into()),
        ];
        for (one, other) in pairs {
            assert_ne!(of(&one), of(&other), "{one} {other}");
        }
    }

    #[test]
    fn the_deepest_and_the_longest_texts_are_walked_through() {
        for text in
            ["[".repeat(65_000) + &"]".repeat(65_000), format!("[{}1]", "1,".repeat(100_000))]
        {
            assert_eq!(of(&text), of(&format!(" {text} ")));
        }
    }

    proptest! {
        /// It is only given what was scanned; it ends with anything.
        #[test]
        fn no_text_stops_it(text in "[\\[\\]{}\",:\\\\ a1\\u{e9}]{0,40}") {
            of(&text);
        }
    }
}
