//! Any stream: the same events wherever it is cut, within the limit; and events of ours come back.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trunkline::jsonrpc::Chunks;
use trunkline::wire::{SseDecoder, SseEvent, encode_event};

const LIMIT: usize = 64;

/// The events up to the first error, and whether there was one.
fn decode<'a>(chunks: impl Iterator<Item = &'a [u8]>, limit: usize) -> (Vec<SseEvent>, bool) {
    let mut decoder = SseDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.push(Bytes::copy_from_slice(chunk));
        while let Some(event) = decoder.next_event() {
            match event {
                Ok(event) => events.push(event),
                Err(_) => return (events, true),
            }
        }
    }
    (events, false)
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, text)) = input.split_first() else { return };
    let whole = decode(std::iter::once(text), LIMIT);
    let cut = decode(text.chunks(usize::from(size).max(1)), LIMIT);
    assert_eq!(whole, cut);
    assert!(whole.0.iter().all(|event| event.data.len() <= LIMIT));

    let event = encode_event(Some("1"), &Chunks::from(Bytes::copy_from_slice(text)));
    let (events, failed) = decode(event.chunks(usize::from(size).max(1)), usize::MAX);
    assert!(!failed && events.len() == 1);
});
