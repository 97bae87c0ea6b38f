//! Masking of secrets in texts that are about to be logged.
//!
//! A text is mostly a JSON message, but may be cut, broken, or hold JSON and header lines inside of its strings; none
//! of that may let a secret through. So this reads tolerantly and masks too much rather than too little:
//!
//! * the value of a member with a secret-looking name, whatever it is, at any depth, also in JSON inside of strings;
//! * `name=value` and `name: value` in plain text;
//! * what follows `Bearer` or `Basic`, JSON web tokens, well-known token prefixes, passwords in URLs.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// What stands in place of a secret.
const MASK: &str = "***";
/// How deep JSON inside of strings is followed; deeper strings are masked whole.
const MAX_NESTED: u8 = 4;

/// The text with its secrets masked.
pub(super) fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    mask_json(text, 0, &mut out);
    let whole = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    if whole {
        return out;
    }
    // Quotes may be out of step in what is not JSON, so it is also read as plain text.
    let mut plain = String::with_capacity(out.len());
    mask_words(&out, &mut plain);
    plain
}

/// Whether a member of that name holds a secret. Case, `-`, `_` and the like do not matter.
pub(super) fn is_secret(name: &str) -> bool {
    const ANYWHERE: [&str; 14] = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "apikey",
        "authorization",
        "cookie",
        "credential",
        "privatekey",
        "accesskey",
        "signingkey",
        "accesstoken",
        "refreshtoken",
        "sessionid",
    ];
    const WHOLE: [&str; 7] = ["pwd", "pass", "auth", "otp", "jwt", "bearer", "tokens"];
    // Longer names are no names.
    let folded: String = name
        .chars()
        .filter(|c| c.is_alphanumeric())
        .take(200)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    // A progress token is a handle that a message is tied to its call by.
    (folded.ends_with("token") && folded != "progresstoken")
        || WHOLE.contains(&folded.as_str())
        || ANYWHERE.iter().any(|part| folded.contains(part))
}

/// Reads `text` as JSON, as far as it is any.
fn mask_json(text: &str, nested: u8, out: &mut String) {
    let mut rest = text;
    while let Some(quote) = rest.find('"') {
        mask_words(&rest[..quote], out);
        rest = &rest[quote + 1..];
        let end = string_end(rest);
        let raw = &rest[..end];
        rest = &rest[end..];
        out.push('"');
        mask_string(raw, nested, out);
        let Some(after) = rest.strip_prefix('"') else { return };
        out.push('"');
        rest = after;
        let spaced = rest.trim_start();
        if let Some(value) = spaced.strip_prefix(':')
            && is_secret(&unescape(raw))
        {
            let value = value.trim_start();
            let gap = rest.len() - value.len();
            out.push_str(&rest[..gap]);
            rest = &value[value_end(value)..];
            if rest.len() < value.len() {
                out.push('"');
                out.push_str(MASK);
                out.push('"');
            }
        }
    }
    mask_words(rest, out);
}

/// The content of one JSON string, which may itself be JSON or plain text.
fn mask_string(raw: &str, nested: u8, out: &mut String) {
    let decoded = unescape(raw);
    let mut masked = String::with_capacity(decoded.len());
    if !decoded.contains('"') {
        mask_words(&decoded, &mut masked);
    } else if nested < MAX_NESTED {
        mask_json(&decoded, nested + 1, &mut masked);
    } else {
        masked.push_str(MASK);
    }
    if masked == decoded {
        out.push_str(raw);
        return;
    }
    // A string always prints; without its quotes, since the caller has them.
    let printed = serde_json::Value::from(masked).to_string();
    out.push_str(&printed[1..printed.len() - 1]);
}

/// Where a JSON string ends: its closing quote, or the end of the text.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, b) in text.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// The end of a value at the beginning of `text`: a string in any quotes, an object or array, or a word.
fn value_end(text: &str) -> usize {
    match text.bytes().next() {
        Some(b'"') => quoted_end(text, '"'),
        Some(b'\'') => quoted_end(text, '\''),
        Some(b'{' | b'[') => nest_end(text),
        _ => {
            text.find(|c: char| c.is_whitespace() || ",}];&)\"'".contains(c)).unwrap_or(text.len())
        }
    }
}

fn quoted_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The end of an object or array; brackets in strings do not count.
fn nest_end(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at += string_end(&text[at + 1..]) + 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return at + 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// The text of a JSON string; escapes that are none are kept.
fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    if let Ok(text) = serde_json::from_str::<String>(&format!("\"{raw}\"")) {
        return Cow::Owned(text);
    }
    // Cut in an escape, control characters, or lone surrogates: only what matters for finding names.
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut chars = rest.chars();
        match chars.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some('u') => {
                let code = chars.as_str().get(..4).and_then(|d| u32::from_str_radix(d, 16).ok());
                text.push(code.and_then(char::from_u32).unwrap_or('\u{fffd}'));
                let digits = if code.is_some() { 4 } else { 0 };
                rest = &chars.as_str()[digits..];
                continue;
            }
            Some(c) => text.push(c),
            None => {}
        }
        rest = chars.as_str();
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Reads `text` as plain text: words, and what follows the secret-looking ones.
fn mask_words(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = if let Some(secret) = assigned(word, after).or_else(|| scheme(word, after)) {
            out.push_str(word);
            out.push_str(&after[..secret.start]);
            out.push_str(MASK);
            &after[secret.end..]
        } else if is_token(word) {
            out.push_str(MASK);
            after.trim_start_matches(|c| is_word(c) || c == '.')
        } else {
            out.push_str(word);
            after
        };
    }
    out.push_str(rest);
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_'
}

/// The value of `word=value`, `word: value`, `"word": value` and the like, as a range of `after`.
fn assigned(word: &str, after: &str) -> Option<std::ops::Range<usize>> {
    let quotes = |c: char| matches!(c, '"' | '\'' | '\\' | ']' | ')');
    let sign = after.trim_start_matches(quotes).trim_start();
    let value = sign.strip_prefix(['=', ':'])?.trim_start_matches(['=', '>', ' ', '\t']);
    if !is_secret(word) {
        return None;
    }
    // Escaped quotes: JSON inside of a string that cannot be read as such.
    let value = value.trim_start_matches('\\');
    let start = after.len() - value.len();
    let lower = word.to_ascii_lowercase();
    let line = lower.contains("authorization") || lower.contains("cookie");
    let length = if line && !value.starts_with(['"', '\'', '{', '[']) {
        value.find(['\r', '\n', '"']).unwrap_or(value.len())
    } else {
        let first = value_end(value);
        // A scheme before the secret itself.
        scheme(&value[..first], &value[first..]).map_or(first, |secret| first + secret.end)
    };
    (length > 0).then_some(start..start + length)
}

/// What follows `Bearer` or `Basic`; and the password of `scheme://user:password@host`.
fn scheme(word: &str, after: &str) -> Option<std::ops::Range<usize>> {
    if let Some(authority) = after.strip_prefix("://") {
        let end = authority.find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c));
        let authority = &authority[..end.unwrap_or(authority.len())];
        let user = authority.rfind('@')?;
        let colon = authority[..user].find(':')?;
        return Some(3 + colon + 1..3 + user);
    }
    let shortest = match word {
        _ if word.eq_ignore_ascii_case("bearer") => 1,
        _ if word.eq_ignore_ascii_case("basic") => 8,
        _ => return None,
    };
    let value = after.trim_start_matches([' ', '\t', '+']);
    let value = value.strip_prefix("%20").unwrap_or(value);
    let start = after.len() - value.len();
    let length = value
        .find(|c: char| !(c.is_ascii_alphanumeric() || "-._~+/=%".contains(c)))
        .unwrap_or(value.len());
    (start > 0 && length >= shortest).then_some(start..start + length)
}

/// JSON web tokens, and tokens that say by a prefix what they are.
fn is_token(word: &str) -> bool {
    const PREFIXES: [&str; 12] = [
        "eyJ",
        "sk-",
        "sk_live_",
        "sk_test_",
        "rk_live_",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xox",
        "AKIA",
    ];
    word.len() >= 16 && PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}
