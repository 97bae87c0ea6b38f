//! Any bytes: the same lines wherever they are cut, and none over the limit.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trunkline::jsonrpc::Chunks;
use trunkline::wire::{Line, LineDecoder, to_line};

const LIMIT: usize = 32;

fn decode<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut decoder = LineDecoder::new(LIMIT);
    let mut lines = Vec::new();
    for chunk in chunks {
        decoder.push(Bytes::copy_from_slice(chunk));
        lines.extend(std::iter::from_fn(|| decoder.next_line()));
    }
    lines.extend(decoder.finish());
    lines
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, text)) = input.split_first() else { return };
    let whole = decode(std::iter::once(text));
    assert_eq!(whole, decode(text.chunks(usize::from(size).max(1))));
    for line in whole {
        match line {
            Line::Text(line) => assert!(line.len() <= LIMIT),
            Line::TooLong { bytes } => assert!(bytes > LIMIT as u64),
        }
    }
    let line = to_line(&Chunks::from(Bytes::copy_from_slice(text)));
    assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
    assert_eq!(line.len(), text.len() + 1);
});
