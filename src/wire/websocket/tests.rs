use std::io::IoSlice;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::jsonrpc::Chunks;

/// A frame as a client sends it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        long @ 126..65536 => {
            frame.push(0x80 | 126);
            frame.extend((long as u16).to_be_bytes());
        }
        longer => {
            frame.push(0x80 | 127);
            frame.extend((longer as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

/// What a reader gives of these bytes, given in pieces of this size.
fn read(bytes: &[u8], limit: usize, piece: usize) -> (Vec<Received>, Option<FrameError>) {
    let mut reader = FrameReader::new(limit);
    let mut seen = Vec::new();
    for part in bytes.chunks(piece) {
        reader.room().extend_from_slice(part);
        loop {
            match reader.take() {
                Ok(Some(received)) => seen.push(received),
                Ok(None) => break,
                Err(error) => return (seen, Some(error)),
            }
        }
    }
    (seen, None)
}

fn message(text: &str) -> Received {
    Received::Message(Bytes::copy_from_slice(text.as_bytes()))
}

/// All that waits, in writes of at most `most` bytes.
fn written(writer: &mut FrameWriter, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while writer.pending() > 0 {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = writer.slices(&mut slices);
        let bytes: Vec<u8> =
            slices[..count].iter().flat_map(|slice| slice.to_vec()).take(most).collect();
        assert!(!bytes.is_empty());
        all.extend(&bytes);
        writer.written(bytes.len());
    }
    all
}

#[test]
fn a_message_in_fragments_is_whole_whatever_stands_between_them() {
    let euro = "€".as_bytes();
    // The fragments break a character; a ping stands inside.
    let bytes = [
        frame(0x01, &[b"{", &euro[..1]].concat()),
        frame(0x89, b"are you there"),
        frame(0x00, &euro[1..2]),
        frame(0x00, b""),
        frame(0x80, &[&euro[2..], b"}"].concat()),
        frame(0x82, b"binary"),
    ]
    .concat();
    for piece in [1, 2, 3, 7, 1000] {
        let (seen, error) = read(&bytes, 64, piece);
        let ping = Received::Ping(Bytes::from_static(b"are you there"));
        assert_eq!((seen, error), (vec![ping, message("{€}"), message("binary")], None));
    }
}

#[test]
fn what_breaks_the_rules_is_refused_with_the_code_that_says_why() {
    let unmasked = vec![0x81, 0x01, b'x'];
    let huge = [&[0x81, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    let code = |bytes: &[u8]| read(bytes, 16, 1).1.map(|error| u16::from(error.code()));
    for (bytes, expected, what) in [
        (unmasked, 1002, "not masked"),
        (frame(0xc1, b"x"), 1002, "a reserved bit"),
        (frame(0x83, b"x"), 1002, "a reserved data opcode"),
        (frame(0x8b, b"x"), 1002, "a reserved control opcode"),
        (frame(0x09, b"x"), 1002, "a ping in fragments"),
        (frame(0x89, &[b'x'; 126]), 1002, "a long ping"),
        (frame(0x80, b"x"), 1002, "a continuation of nothing"),
        ([frame(0x01, b"x"), frame(0x81, b"x")].concat(), 1002, "a message within a message"),
        (frame(0x88, b"x"), 1002, "half a code"),
        (frame(0x88, &1005_u16.to_be_bytes()), 1002, "a code that is never sent"),
        (frame(0x88, b"\x03\xe8\xff"), 1007, "a reason that is not UTF-8"),
        (frame(0x81, b"\xc3\x28"), 1007, "text that is not UTF-8"),
        ([frame(0x01, b"\xe2"), frame(0x80, b"\x82")].concat(), 1007, "half a character"),
        (frame(0x81, &[b'x'; 17]), 1009, "a long message"),
        ([frame(0x01, &[b'x'; 9]), frame(0x80, &[b'x'; 8])].concat(), 1009, "long in fragments"),
        (huge, 1009, "a length that no memory holds"),
    ] {
        assert_eq!(code(&bytes), Some(expected), "{what}");
    }
}

#[test]
fn a_close_frame_may_say_why_or_nothing() {
    let (seen, _) = read(&[frame(0x88, b"")].concat(), 16, 100);
    assert_eq!(seen, [Received::Close(None)]);
    let (seen, _) = read(&[frame(0x8a, b"x"), frame(0x88, b"\x03\xe9bye")].concat(), 16, 100);
    assert_eq!(seen, [Received::Pong, Received::Close(Some(CloseCode::Away))]);
}

#[test]
fn nothing_is_kept_by_an_idle_connection() {
    let mut reader = FrameReader::new(1 << 20);
    let large = [frame(0x81, &[b'x'; 200_000]), frame(0x81, b"next"), frame(0x81, b"half")];
    let large = large.concat();
    reader.room().extend_from_slice(&large[..large.len() - 1]);
    assert!(matches!(reader.take(), Ok(Some(Received::Message(text))) if text.len() == 200_000));
    assert_eq!(reader.take(), Ok(Some(message("next"))));
    assert_eq!(reader.take(), Ok(None));
    assert!(reader.room().capacity() < 64 << 10, "the rest does not keep a large message");
    reader.room().extend_from_slice(&large[large.len() - 1..]);
    assert_eq!(reader.take(), Ok(Some(message("half"))));
    reader.rest();
    assert_eq!(reader.buffer.capacity(), 0);
    let mut writer = FrameWriter::default();
    writer.message(&Bytes::from(vec![b'x'; 200_000]).into());
    written(&mut writer, 50_000);
    assert_eq!((writer.tail.capacity(), writer.queue.capacity()), (0, 0));
}

#[test]
fn a_reason_is_cut_to_what_a_frame_can_hold() {
    let mut writer = FrameWriter::default();
    writer.close(CloseCode::Policy, &"ä".repeat(100));
    let bytes = written(&mut writer, 1000);
    assert_eq!((bytes[0], usize::from(bytes[1])), (0x88, 2 + 122));
    assert!(std::str::from_utf8(&bytes[4..]).is_ok());
}

proptest! {
    #[test]
    fn what_is_written_in_any_pieces_reads_as_it_was(
        lengths in proptest::collection::vec(proptest::collection::vec(0_usize..20_000, 1..4), 1..5),
        most in 1_usize..30_000,
    ) {
        let mut writer = FrameWriter::default();
        let mut expected = Vec::new();
        for (number, lengths) in lengths.iter().enumerate() {
            let fill = b'a' + u8::try_from(number).expect("few");
            let text: Chunks = lengths.iter().map(|length| Bytes::from(vec![fill; *length])).collect();
            writer.message(&text);
            expected.push(text.into_bytes());
        }
        let bytes = written(&mut writer, most);
        // Masked with zeros, a server's frames are those of a client.
        let mut masked = Vec::new();
        let mut rest = &bytes[..];
        for text in &expected {
            let head = match text.len() { 0..126 => 2, 126..65536 => 4, _ => 10 };
            masked.extend([rest[0], rest[1] | 0x80]);
            masked.extend(&rest[2..head]);
            masked.extend([0; 4]);
            masked.extend(&rest[head..head + text.len()]);
            rest = &rest[head + text.len()..];
        }
        let (seen, error) = read(&masked, 1 << 20, most);
        let expected: Vec<_> = expected.into_iter().map(Received::Message).collect();
        prop_assert_eq!((seen, error), (expected, None));
        prop_assert!(rest.is_empty());
    }
}
