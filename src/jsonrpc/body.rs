//! A whole body: one message or a batch.

use std::str::Utf8Error;

use bytes::Bytes;
use bytestring::ByteString;

use super::classify::{Sender, classify};
use super::scan::Scanner;
use super::{Limits, Message, Rejected};

/// One element of a batch: a message, or why it is none ([`Rejected::Invalid`] only).
pub type Element = Result<Message, Rejected>;

/// What a body holds.
#[derive(Debug)]
pub enum Body {
    /// One message.
    One(Message),
    /// A batch (JSON-RPC 2.0 §6), at least one element, in order.
    Batch(Vec<Element>),
}

/// Scans a whole body. Leading and trailing white space and one BOM are skipped.
///
/// A syntax error anywhere, also inside one element of a batch, voids the whole text. The depth of
/// a batch counts from each element: the array around them is no level. A batch over the limit is
/// refused where the first element over it begins; what stands behind is not looked at.
///
/// # Errors
/// Every kind of [`Rejected`]. JSON that is neither object nor array is [`Rejected::Invalid`].
pub fn parse_body(text: Bytes, limits: &Limits) -> Result<Body, Rejected> {
    parse(text, limits, Sender::Downstream)
}

/// Scans an upstream's answer, one or a batch, each judged as [`Message::parse_answer`] does;
/// otherwise as [`parse_body`].
pub fn parse_answers(text: Bytes, limits: &Limits) -> Result<Body, Rejected> {
    parse(text, limits, Sender::Upstream)
}

/// Scans a text that must be one message.
pub(super) fn parse_single(
    text: Bytes,
    max_depth: u16,
    sender: Sender,
) -> Result<Message, Rejected> {
    let text = checked(text)?;
    let mut scanner = Scanner::new(&text, max_depth)?;
    single(&text, &mut scanner, sender)
}

fn parse(text: Bytes, limits: &Limits, sender: Sender) -> Result<Body, Rejected> {
    let text = checked(text)?;
    let mut scanner = Scanner::new(&text, limits.max_depth)?;
    if scanner.take(b'[') {
        return batch(&text, &mut scanner, limits, sender).map(Body::Batch);
    }
    single(&text, &mut scanner, sender).map(Body::One)
}

/// The text, once it is known to be UTF-8: nobody needs to look again.
fn checked(text: Bytes) -> Result<ByteString, Rejected> {
    text.try_into().map_err(|error: Utf8Error| Rejected::Syntax { offset: error.valid_up_to() })
}

fn single(
    text: &ByteString,
    scanner: &mut Scanner<'_>,
    sender: Sender,
) -> Result<Message, Rejected> {
    let message = element(text, scanner, sender)?;
    scanner.end()?;
    message
}

fn batch(
    text: &ByteString,
    scanner: &mut Scanner<'_>,
    limits: &Limits,
    sender: Sender,
) -> Result<Vec<Element>, Rejected> {
    let mut elements = Vec::new();
    let mut open = !scanner.take(b']');
    while open {
        if elements.len() == limits.max_batch {
            return Err(Rejected::BatchTooLarge { limit: limits.max_batch });
        }
        elements.push(element(text, scanner, sender)?);
        open = scanner.take(b',');
        if !open && !scanner.take(b']') {
            return Err(scanner.unexpected());
        }
    }
    scanner.end()?;
    if elements.is_empty() { Err(Rejected::EmptyBatch) } else { Ok(elements) }
}

/// The value that begins here: the outer error is one of the text, the inner one of the message.
fn element(
    text: &ByteString,
    scanner: &mut Scanner<'_>,
    sender: Sender,
) -> Result<Element, Rejected> {
    let start = scanner.position();
    if scanner.peek() != b'{' {
        scanner.skip()?;
        return Ok(Err(Rejected::Invalid { id: None, reason: "not an object" }));
    }
    let envelope = scanner.envelope()?;
    let whole = start == 0 && scanner.position() == text.len();
    let text = if whole { text.clone() } else { text.slice_ref(&text[start..scanner.position()]) };
    Ok(classify(text, envelope, sender))
}
