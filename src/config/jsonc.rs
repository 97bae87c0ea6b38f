//! JSON as people write it into editors' settings: with comments and trailing commas.

/// Replaces comments and trailing commas by spaces, so that places in the text stay where they are.
pub(super) fn strip(text: &str) -> String {
    let mut out: Vec<u8> = text.as_bytes().to_vec();
    let mut at = 0;
    // The last comma after which only space and comments came.
    let mut comma = None;
    while at < out.len() {
        match out[at] {
            b'"' => {
                comma = None;
                at = end_of_string(&out, at);
                continue;
            }
            b'/' if out.get(at + 1) == Some(&b'/') => {
                let end = find(&out, at, b"\n").unwrap_or(out.len());
                blank(&mut out[at..end]);
                at = end;
                continue;
            }
            b'/' if out.get(at + 1) == Some(&b'*') => {
                let end = find(&out, at + 2, b"*/").map_or(out.len(), |end| end + 2);
                blank(&mut out[at..end]);
                at = end;
                continue;
            }
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += 1;
    }
    // Only ASCII was written, and only over whole characters.
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// The index after the quote that ends the string which begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn find(text: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let rest = text.get(from..)?;
    rest.windows(what.len()).position(|window| window == what).map(|index| from + index)
}

fn blank(range: &mut [u8]) {
    range.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_str(&strip(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn comments_and_trailing_commas_are_taken_out() {
        let text =
            "// a\n{ /* b, } */ \"x\": [1, 2 /* c */, // d\n ], \"y\": {\"z\": 1,},\n}\n/* open";
        assert_eq!(read(text), json!({ "x": [1, 2], "y": { "z": 1 } }));
    }

    #[test]
    fn strings_are_left_alone() {
        let value = json!({ "u": "http://x/*y*/", "q": "a\",} // b", "b": "\\", "ü": ",]" });
        assert_eq!(read(&value.to_string()), value);
    }

    #[test]
    fn places_stay() {
        let text = "{ /* ü\n */ \"a\": ,}";
        assert_eq!(strip(text).len(), text.len());
        assert_eq!(strip(text).find("\"a\""), text.find("\"a\""));
        assert_eq!(strip(text).matches('\n').count(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_and_keeps_its_length(text in "[\"\\\\/*,\\]}\\[{: ü\na-c]{0,40}") {
            prop_assert_eq!(strip(&text).len(), text.len());
        }
    }
}
