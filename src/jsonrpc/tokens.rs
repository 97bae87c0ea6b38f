//! The tokens of JSON (RFC 8259), as steps over a text: each takes the place where the token begins.
//!
//! Places are passed by value, so that they stay in registers. What stands in every second token is
//! always inlined into the walk and what is rare never is: together a quarter of the time of a
//! small message.

use memchr::memchr2;

/// `Ok`: the place behind the token. `Err`: the place where it is not JSON.
pub(super) type Step = Result<usize, usize>;

/// Strings up to this length are walked by words before `memchr` is asked.
const SHORT: usize = 32;

/// Bytes that are looked at together.
const WORD: usize = size_of::<u64>();

/// Finds what ends the plain run of a string: quote, backslash, control characters. The lowest bit
/// that is set is the highest of the first such byte; above it there may be false ones.
#[inline]
fn specials(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGHS: u64 = ONES << 7;
    // With bit 1 flipped the quote joins the control characters below 0x21, and nothing else does.
    let flipped = word ^ (ONES * 2);
    let control_or_quote = flipped.wrapping_sub(ONES * 0x21) & !flipped;
    let other = word ^ (ONES * b'\\' as u64);
    let backslash = other.wrapping_sub(ONES) & !other;
    (control_or_quote | backslash) & HIGHS
}

/// The byte at a place; NUL, which no token begins with, at the end.
#[inline]
pub(super) fn peek(text: &[u8], at: usize) -> u8 {
    text.get(at).copied().unwrap_or(0)
}

/// Steps over one byte, which must stand here.
#[inline]
pub(super) fn expect(text: &[u8], at: usize, byte: u8) -> Step {
    if peek(text, at) == byte { Ok(at + 1) } else { Err(at) }
}

/// The place behind white space.
#[inline]
pub(super) fn space(text: &[u8], mut at: usize) -> usize {
    while matches!(peek(text, at), b' ' | b'\n' | b'\r' | b'\t') {
        at += 1;
    }
    at
}

/// The colon between key and value, with the white space around it.
#[inline]
pub(super) fn colon(text: &[u8], at: usize) -> Step {
    let at = expect(text, space(text, at), b':')?;
    Ok(space(text, at))
}

/// A string with its quotes.
#[inline(always)]
pub(super) fn string(text: &[u8], at: usize) -> Step {
    let mut at = expect(text, at, b'"')?;
    loop {
        at = plain_run(text, at);
        match peek(text, at) {
            b'"' => return Ok(at + 1),
            b'\\' => at = escape(text, at)?,
            _ => return Err(at),
        }
    }
}

/// The next quote, backslash or control character, or the end.
#[inline(always)]
pub(super) fn plain_run(text: &[u8], start: usize) -> usize {
    let mut at = start;
    while let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let specials = specials(u64::from_le_bytes(*word));
        if specials != 0 {
            return at + specials.trailing_zeros() as usize / 8;
        }
        at += WORD;
        if at - start >= SHORT {
            return at + long_run(text.get(at..).unwrap_or_default());
        }
    }
    // Fewer bytes than a word are left.
    while !matches!(peek(text, at), b'"' | b'\\' | ..0x20) {
        at += 1;
    }
    at
}

#[inline(never)]
fn long_run(rest: &[u8]) -> usize {
    const BLOCK: usize = 256;
    let run = &rest[..memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
    // Looked at in blocks without early exit, so that the compiler makes vector code of it.
    for (index, block) in run.chunks(BLOCK).enumerate() {
        if block.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
            let place = block.iter().position(|&byte| byte < 0x20).unwrap_or(0);
            return index * BLOCK + place;
        }
    }
    run.len()
}

/// An escape, from its backslash.
#[inline(never)]
fn escape(text: &[u8], at: usize) -> Step {
    match peek(text, at + 1) {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(at + 2),
        b'u' => {
            let digits = text.get(at + 2..).unwrap_or_default().iter().take(4);
            let hex = digits.take_while(|digit| digit.is_ascii_hexdigit()).count();
            if hex == 4 { Ok(at + 6) } else { Err(at + 2 + hex) }
        }
        _ => Err(at + 1),
    }
}

/// A number, `true`, `false` or `null`.
#[inline(always)]
pub(super) fn scalar(text: &[u8], at: usize) -> Step {
    match peek(text, at) {
        b'-' | b'0'..=b'9' => number(text, at),
        b't' => literal(text, at, b"true"),
        b'f' => literal(text, at, b"false"),
        b'n' => literal(text, at, b"null"),
        _ => Err(at),
    }
}

#[inline]
fn literal(text: &[u8], at: usize, word: &[u8]) -> Step {
    let here = text.get(at..).unwrap_or_default();
    if here.starts_with(word) { Ok(at + word.len()) } else { Err(at) }
}

#[inline]
fn number(text: &[u8], mut at: usize) -> Step {
    at += usize::from(peek(text, at) == b'-');
    at = if peek(text, at) == b'0' { at + 1 } else { digits(text, at)? };
    if peek(text, at) == b'.' {
        at = digits(text, at + 1)?;
    }
    if matches!(peek(text, at), b'e' | b'E') {
        at += 1;
        at += usize::from(matches!(peek(text, at), b'+' | b'-'));
        at = digits(text, at)?;
    }
    Ok(at)
}

/// One digit or more.
#[inline]
fn digits(text: &[u8], start: usize) -> Step {
    let mut at = start;
    while peek(text, at).is_ascii_digit() {
        at += 1;
    }
    if at > start { Ok(at) } else { Err(at) }
}
