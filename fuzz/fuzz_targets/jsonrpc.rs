//! Any bytes: accepted as JSON exactly when `serde_json` accepts them, and what was scanned
//! survives the exchange of its id.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use trunkline::jsonrpc::{
    Body, Id, Kind, Limits, Member, Message, Rejected, parse_answers, parse_body,
};

/// Deep enough that no input of the default length is too deep for it.
const LIMITS: Limits = Limits { max_depth: u16::MAX, max_batch: usize::MAX };

fn is_json(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Everything that is told of a message holds, and all but the id stays when the id is exchanged.
fn check(message: &Message) {
    assert_eq!(message.kind() == Kind::Response, message.method().is_empty());
    let parts = [message.params(), message.result(), message.error(), message.member(Member::Meta)];
    for part in parts.iter().flatten() {
        assert!(is_json(part));
    }
    if let Some(name) = message.member(Member::Name) {
        let string = serde_json::from_slice::<String>(&name).ok();
        assert_eq!(message.member_str(Member::Name).as_deref(), string.as_deref());
    }
    let text = message.with_id(&Id::from_number(7)).into_bytes();
    let other = Message::parse_answer(text, u16::MAX).expect("another id keeps a message one");
    assert_eq!(other.id().map(|id| id.as_number()), message.id().map(|_| Some(7)));
    assert_eq!(other.method(), message.method());
    assert_eq!(other.params(), message.params());
    assert_eq!(other.result(), message.result());
    assert_eq!(other.ambiguous_member(), message.ambiguous_member());
}

fuzz_target!(|text: &[u8]| {
    let bytes = Bytes::copy_from_slice(text);
    // Small limits: only that nothing panics.
    let _ = parse_body(bytes.clone(), &Limits { max_depth: 3, max_batch: 2 });
    for body in [parse_body(bytes.clone(), &LIMITS), parse_answers(bytes, &LIMITS)] {
        if matches!(body, Err(Rejected::TooDeep { .. })) {
            continue;
        }
        assert_eq!(!matches!(body, Err(Rejected::Syntax { .. })), is_json(text));
        match &body {
            Ok(Body::One(message)) => check(message),
            Ok(Body::Batch(elements)) => elements.iter().flatten().for_each(check),
            Err(_) => {}
        }
    }
});
