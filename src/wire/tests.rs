//! Tests of the room.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::jsonrpc::{Chunks, Span};

const LIMIT: usize = 1 << 20;

/// Cuts `text` at the given places, taken modulo its length.
fn pieces(text: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| Bytes::copy_from_slice(&text[pair[0]..pair[1]])).collect()
}

fn events_of(decoder: &mut SseDecoder) -> Vec<Result<SseEvent, SseError>> {
    std::iter::from_fn(|| decoder.next_event()).collect()
}

/// Decodes the pieces, reading after each push.
fn decode_pieces(pieces: Vec<Bytes>, limit: usize) -> Vec<Result<SseEvent, SseError>> {
    let mut decoder = SseDecoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        events.extend(events_of(&mut decoder));
    }
    events
}

fn decode(text: &str) -> Vec<SseEvent> {
    let pieces = vec![Bytes::copy_from_slice(text.as_bytes())];
    decode_pieces(pieces, LIMIT).into_iter().map(Result::unwrap).collect()
}

fn datas(text: &str) -> Vec<String> {
    decode(text).into_iter().map(|event| String::from_utf8(event.data.to_vec()).unwrap()).collect()
}

fn lines_of(pieces: Vec<Bytes>, limit: usize) -> Vec<Line> {
    let mut decoder = LineDecoder::new(limit);
    let mut lines = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        lines.extend(std::iter::from_fn(|| decoder.next_line()));
    }
    lines
}

fn text_line(text: &str) -> Line {
    Line::Text(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn every_line_end_ends_a_line() {
    assert_eq!(
        datas("data: a\n\ndata: b\r\rdata: c\r\n\r\ndata: d\r\n\ndata: e\n\r"),
        ["a", "b", "c", "d", "e"]
    );
}

#[test]
fn a_cr_that_ends_a_chunk_yields_the_event_at_once_and_swallows_a_late_lf() {
    let mut decoder = SseDecoder::new(LIMIT);
    decoder.push(Bytes::from_static(b"data: a\r\n\r"));
    assert_eq!(events_of(&mut decoder).len(), 1);
    decoder.push(Bytes::from_static(b"\n"));
    decoder.push(Bytes::from_static(b"data: b\r"));
    decoder.push(Bytes::from_static(b"\ndata: c\n\n"));
    let events = events_of(&mut decoder);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].as_ref().unwrap().data, "b\nc");
}

#[test]
fn fields_are_read_in_any_order() {
    let event = SseEvent {
        event: Some("endpoint".into()),
        data: "x".into(),
        id: Some("7".into()),
        retry: Some(10),
    };
    assert_eq!(decode("id: 7\nevent: endpoint\nretry: 10\ndata: x\n\n")[0], event);
    assert_eq!(decode("data: x\nretry: 10\nevent: endpoint\nid: 7\n\n"), [event]);
}

#[test]
fn one_space_behind_the_colon_is_dropped() {
    assert_eq!(datas("data:a\n\ndata: b\n\ndata:  c\n\ndata:d: e\n\n"), ["a", "b", " c", "d: e"]);
}

#[test]
fn data_lines_are_joined() {
    assert_eq!(datas("data: a\ndata\ndata:\ndata: b\n\n"), ["a\n\n\nb"]);
}

#[test]
fn comments_unknown_fields_and_blank_lines_make_no_event() {
    assert_eq!(decode(": hello\n\n:\n\nfoo: bar\n\n\n\ndatax: 1\n\nDATA: 1\n\n data: 1\n\n"), []);
    assert_eq!(decode(std::str::from_utf8(KEEP_ALIVE).unwrap()), []);
}

#[test]
fn an_event_without_data_carries_its_id() {
    let events = decode("id: 1\ndata:\n\nid: 2\n\ndata: x\n\n");
    assert_eq!(events[0], SseEvent { id: Some("1".into()), ..SseEvent::default() });
    assert_eq!(events[1], SseEvent { id: Some("2".into()), ..SseEvent::default() });
    assert_eq!(events[2].id, None);
}

#[test]
fn an_id_with_nul_and_a_retry_of_other_than_digits_are_ignored() {
    let events = decode(
        "id: 1\nid: a\0b\nretry: 5\nretry: 1s\nretry: -1\nretry:\nretry: 99999999999999999999\ndata: x\n\n",
    );
    assert_eq!(events[0].id, Some("1".into()));
    assert_eq!(events[0].retry, Some(5));
}

#[test]
fn the_type_message_is_the_type_of_no_name() {
    assert_eq!(decode("event: message\ndata: x\n\n")[0].event, None);
    assert_eq!(decode("event:\ndata: x\n\n")[0].event, None);
    assert_eq!(decode("event: ping\ndata: x\n\n")[0].event, Some("ping".into()));
    assert_eq!(decode("event: ping\nevent: message\ndata: x\n\n")[0].event, None);
}

#[test]
fn one_mark_at_the_start_is_skipped() {
    assert_eq!(datas("\u{feff}data: a\n\n"), ["a"]);
    assert_eq!(datas("\u{feff}\u{feff}data: a\n\n"), Vec::<String>::new());
    assert_eq!(datas("data: a\n\n\u{feff}data: b\n\n"), ["a"]);
}

#[test]
fn an_unterminated_event_is_not_yielded() {
    assert_eq!(decode("data: a\n\ndata: b\n").len(), 1);
    assert_eq!(decode("data: a\n\ndata: b").len(), 1);
}

#[test]
fn data_of_one_line_shares_the_chunk() {
    let chunk = Bytes::from_static(b"data: abc\n\n");
    let mut decoder = SseDecoder::new(LIMIT);
    decoder.push(chunk.clone());
    let event = decoder.next_event().unwrap().unwrap();
    assert_eq!(event.data.as_ptr() as usize, chunk.as_ptr() as usize + 6);
}

#[test]
fn an_event_over_the_limit_ends_decoding() {
    let too_large = Some(Err(SseError::TooLarge { limit: 16 }));
    for text in [
        "data: 0123456789x\n\n",
        "data: 012345678901234",
        ": a comment without an end",
        "data: 01234567\ndata: 0123456789\n\n",
        "id: 012345678\ndata: 01234567\n\n",
        "unknown-field-of-some-length",
    ] {
        let mut decoder = SseDecoder::new(16);
        decoder.push(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(decoder.next_event(), too_large, "{text}");
        decoder.push(Bytes::from_static(b"\n\ndata: x\n\n"));
        assert_eq!(decoder.next_event(), None, "{text}");
    }
}

#[test]
fn the_limit_counts_each_event_alone_and_no_finished_comments() {
    let text = "data: 0123456789\n\n: comment\n: comment\n: comment\nx: unknown\n".repeat(100);
    let events = decode_pieces(vec![Bytes::from(text)], 16);
    assert_eq!(events.len(), 100);
    assert!(events.iter().all(Result::is_ok));
}

#[test]
fn encoded_events_are_as_the_protocol_shows_them() {
    let data = Chunks::from(Bytes::from_static(b"{}"));
    assert_eq!(encode_event(None, &data), "event: message\ndata: {}\n\n");
    assert_eq!(encode_event(Some("a-1"), &data), "event: message\nid: a-1\ndata: {}\n\n");
    assert_eq!(encode_event(Some("a\n1"), &data), "event: message\ndata: {}\n\n");
    let broken = Chunks::from(Bytes::from_static(b"{\n\"a\":\r\n1\r}"));
    assert_eq!(
        encode_event(None, &broken),
        "event: message\ndata: {\ndata: \"a\":\ndata: 1\ndata: }\n\n"
    );
}

#[test]
fn lines_end_with_lf_or_crlf() {
    let lines = lines_of(vec![Bytes::from_static(b"a\nb\r\n\n\r\nc\rd\ne")], LIMIT);
    assert_eq!(lines, ["a", "b", "", "", "c\rd"].map(text_line));
}

#[test]
fn a_line_over_the_limit_is_dropped_and_decoding_goes_on() {
    let text = b"1234\n12345\n1234\r\n12345\r\n123456789\nx\n";
    let expected = [
        text_line("1234"),
        Line::TooLong { bytes: 5 },
        text_line("1234"),
        Line::TooLong { bytes: 5 },
        Line::TooLong { bytes: 9 },
        text_line("x"),
    ];
    assert_eq!(lines_of(vec![Bytes::from_static(text)], 4), expected);
    let bytes: Vec<Bytes> = text.iter().map(|&byte| Bytes::copy_from_slice(&[byte])).collect();
    assert_eq!(lines_of(bytes, 4), expected);
}

#[test]
fn what_stands_behind_the_last_line_end_comes_at_the_end() {
    let finish = |text: &'static str| {
        let mut decoder = LineDecoder::new(4);
        decoder.push(Bytes::from_static(text.as_bytes()));
        while decoder.next_line().is_some() {}
        decoder.finish()
    };
    assert_eq!(finish("a\nb"), Some(text_line("b")));
    assert_eq!(finish("a\nb\r"), Some(text_line("b")));
    assert_eq!(finish("a\n12345"), Some(Line::TooLong { bytes: 5 }));
    assert_eq!(finish("a\n"), None);
    assert_eq!(finish(""), None);
}

#[test]
fn a_message_becomes_one_line() {
    let text = Bytes::from_static(b"{\r\n\"a\":\n1,\r\"b\":\"\\n\"}");
    assert_eq!(to_line(&Chunks::from(text)), "{  \"a\": 1, \"b\":\"\\n\"}\n");
    assert_eq!(to_line(&Chunks::default()), "\n");
}

/// Decodes a whole text by the letter of the standard, without limits.
fn reference(text: &str) -> Vec<SseEvent> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop();
    let (mut events, mut event, mut data) = (Vec::new(), SseEvent::default(), Vec::<&str>::new());
    let mut any = false;
    for line in lines {
        if line.is_empty() {
            event.data = Bytes::from(data.join("\n"));
            data.clear();
            let complete = std::mem::take(&mut event);
            if std::mem::take(&mut any) {
                events.push(complete);
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => data.push(value),
            "event" => {
                let named = !value.is_empty() && value != "message";
                event.event = named.then(|| Bytes::copy_from_slice(value.as_bytes()));
            }
            "id" if !line.contains('\0') => {
                event.id = Some(Bytes::copy_from_slice(value.as_bytes()))
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                match value.parse() {
                    Ok(retry) => event.retry = Some(retry),
                    Err(_) => continue,
                }
            }
            _ => continue,
        }
        any = true;
    }
    events
}

/// Text made of what a decoder can stumble over.
fn stream_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(vec![
            "\n",
            "\n",
            "\n\n",
            "\r",
            "\r\n",
            "\r\n\r\n",
            "data",
            "data:",
            "data: ",
            "id: ",
            "event: ",
            "message",
            "retry: ",
            "12",
            ":",
            " ",
            "\0",
            "\u{feff}",
            "\u{e9}",
            "{\"a\":1}",
        ])
        .prop_map(str::to_owned),
        "[a-z]{0,9}",
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..12)
}

proptest! {
    #[test]
    fn sse_decoding_follows_the_standard_wherever_chunks_are_cut(text in stream_text(), cuts in cuts()) {
        let decoded = decode_pieces(pieces(text.as_bytes(), &cuts), LIMIT);
        let decoded: Vec<SseEvent> = decoded.into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(decoded, reference(&text));
    }

    #[test]
    fn pushing_ahead_of_reading_changes_nothing(text in stream_text(), cuts in cuts()) {
        let mut decoder = SseDecoder::new(LIMIT);
        for piece in pieces(text.as_bytes(), &cuts) {
            decoder.push(piece);
        }
        let decoded: Vec<SseEvent> = events_of(&mut decoder).into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(decoded, reference(&text));
    }

    #[test]
    fn encoded_events_decode_to_what_was_encoded(
        data in "[ -~\r\n\u{e9}]{0,80}",
        id in prop::option::of("[!-~]{1,9}"),
        cuts in cuts(),
    ) {
        let half = data.char_indices().nth(data.chars().count() / 2).map_or(0, |(at, _)| at);
        let whole = Bytes::copy_from_slice(data.as_bytes());
        let at = Span { start: half as u32, end: half as u32 };
        // An empty edit leaves the text as it is; two slices make it one of several chunks.
        for chunks in [Chunks::from(whole.clone()), Chunks::splice(&whole, &[(at, Bytes::new())])] {
            let encoded = encode_event(id.as_deref(), &chunks);
            let decoded = decode_pieces(pieces(&encoded, &cuts), LIMIT);
            let expected = data.replace("\r\n", "\n").replace('\r', "\n");
            prop_assert_eq!(decoded.len(), 1);
            let event = decoded[0].as_ref().unwrap();
            prop_assert_eq!(&event.data, expected.as_bytes());
            prop_assert_eq!(event.id.as_deref(), id.as_deref().map(str::as_bytes));
        }
    }

    #[test]
    fn lines_do_not_depend_on_cuts(text in "([a-z]{0,6}|\r|\n|\r\n|\n){0,30}", limit in 0_usize..8, cuts in cuts()) {
        let expected: Vec<Line> = {
            let mut lines: Vec<&str> = text.split('\n').collect();
            lines.pop();
            lines.into_iter().map(|line| {
                let line = line.strip_suffix('\r').unwrap_or(line);
                if line.len() > limit { Line::TooLong { bytes: line.len() as u64 } } else { text_line(line) }
            }).collect()
        };
        prop_assert_eq!(lines_of(pieces(text.as_bytes(), &cuts), limit), expected);
    }

    #[test]
    fn lines_of_ours_are_one_line_each(text in "[ -~\r\n]{0,60}") {
        let line = to_line(&Chunks::from(Bytes::copy_from_slice(text.as_bytes())));
        let lines = lines_of(vec![line], LIMIT);
        let expected = text.replace(['\r', '\n'], " ");
        prop_assert_eq!(lines, [text_line(&expected)]);
    }
}
