//! Values of `Mcp-Name` and `Mcp-Param-*` (MCP digest §8.3): literal where a header can carry them, else Base64 of
//! the UTF-8 text between two marks.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const OPEN: &str = "=?base64?";
const CLOSE: &str = "?=";

/// A header value that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value between the Base64 marks is no Base64 of UTF-8 text")]
pub struct Undecodable;

/// The text as a header value.
pub fn encode(text: &str) -> Cow<'_, str> {
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let trimmed = !text.starts_with(' ') && !text.ends_with(' ');
    let marked = text.starts_with(OPEN) && text.ends_with(CLOSE);
    if printable && trimmed && !marked && !text.is_empty() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{OPEN}{}{CLOSE}", STANDARD.encode(text)))
}

/// The text that a header value stands for; white space around it does not count.
///
/// # Errors
/// The value has both marks and something else than Base64 of UTF-8 text between them.
pub fn decode(value: &str) -> Result<Cow<'_, str>, Undecodable> {
    let value = value.trim_matches([' ', '\t']);
    let inner = value.strip_prefix(OPEN).and_then(|rest| rest.strip_suffix(CLOSE));
    let Some(inner) = inner else { return Ok(Cow::Borrowed(value)) };
    let bytes = STANDARD.decode(inner).map_err(|_| Undecodable)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Undecodable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_literal_where_a_header_can_carry_them() {
        for (text, value) in [
            ("eu-north-2", "eu-north-2"),
            ("Zürich", "=?base64?WsO8cmljaA==?="),
            (" x", "=?base64?IHg=?="),
            ("=?base64?abc?=", "=?base64?PT9iYXNlNjQ/YWJjPz0=?="),
            ("", "=?base64??="),
            ("a\tb", "=?base64?YQli?="),
            ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        ] {
            assert_eq!(encode(text), value);
            assert_eq!(decode(value).as_deref(), Ok(text));
        }
    }

    #[test]
    fn sloppy_base64_is_refused_and_half_a_mark_is_literal() {
        for value in ["=?base64?YQ?=", "=?base64?Y Q==?=", "=?base64?_-8=?=", "=?base64?/w==?="] {
            assert_eq!(decode(value), Err(Undecodable), "{value}");
        }
        assert_eq!(decode("=?base64?YQ==").as_deref(), Ok("=?base64?YQ=="));
        assert_eq!(decode(" \ta b ").as_deref(), Ok("a b"));
        assert_eq!(decode("").as_deref(), Ok(""));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            let value = encode(&text).into_owned();
            prop_assert!(value.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            prop_assert_eq!(decode(&value).unwrap(), text);
        }
    }
}
