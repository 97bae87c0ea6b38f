//! Whose answer a line is that cannot be read as JSON.

use memchr::memchr2;

/// The number in the member `id` of the outermost object, if there is exactly one and no `method`: the id of a
/// response whose text is broken somewhere else (invalid UTF-8, `NaN`, nested too deep). Names with escapes are not
/// decoded; nothing is checked besides strings and brackets.
pub(in crate::upstream) fn salvage_id(text: &[u8]) -> Option<u64> {
    let mut depth = 0_usize;
    let mut at = 0;
    let mut id = None;
    while at < text.len() {
        match text[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'"' => {
                let end = string_end(text, at + 1)?;
                let value = if depth == 1 { member_value(text, end + 1) } else { None };
                match (&text[at + 1..end], value) {
                    (b"method", Some(_)) => return None,
                    (b"id", Some(_)) if id.is_some() => return None,
                    (b"id", Some(value)) => id = Some(number(value)?),
                    _ => {}
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    id
}

/// Where the string that begins at `start` has its closing quote.
fn string_end(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// What follows a colon, if one stands there: then the string before was a member's name.
fn member_value(text: &[u8], at: usize) -> Option<&[u8]> {
    let rest = text.get(at..)?.trim_ascii_start();
    Some(rest.strip_prefix(b":")?.trim_ascii_start())
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let behind = value.get(digits)?;
    if !matches!(behind, b',' | b'}' | b' ' | b'\t') {
        return None;
    }
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_broken_answer_is_found_wherever_it_stands() {
        for text in [
            &b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"x\":NaN}}"[..],
            b"{\"result\":{\"id\":8,\"text\":\"\xff\\\"id\\\":9\"}, \"id\" : 7 }",
            b"{\"id\":7,\"result\":[[[[[[[{\"id\":1}",
        ] {
            assert_eq!(salvage_id(text), Some(7), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn what_may_be_something_else_is_left_alone() {
        for text in [
            &b"{\"id\":7,\"method\":\"ping\",\"params\":NaN}"[..],
            b"{\"id\":\"7\",\"result\":NaN}",
            b"{\"id\":7.5,\"result\":NaN}",
            b"{\"id\":7,\"id\":8,\"result\":NaN}",
            b"{\"note\":\"id\",\"result\":7}",
            b"[{\"id\":7}]",
            b"[INFO] ready",
            b"{",
            b"{\"id\":7",
            b"}\"id\":7,",
            b"{\"id\\",
        ] {
            assert_eq!(salvage_id(text), None, "{}", String::from_utf8_lossy(text));
        }
    }
}
