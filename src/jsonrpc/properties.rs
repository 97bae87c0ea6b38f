//! Properties of the room, against `serde_json` as the second opinion.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::*;

const LIMITS: Limits = Limits { max_depth: 1000, max_batch: 1000 };

/// The members of an object in order, twins included, with their values where they stand.
struct Pairs<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl<'a> Pairs<'a> {
    /// The members; none when the value is no object, `None` when a key is no Unicode.
    fn of(text: &'a str) -> Option<Self> {
        if !text.starts_with('{') {
            return Some(Self(Vec::new()));
        }
        serde_json::from_str(text).ok()
    }

    fn last(&self, key: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.get())
    }

    fn count(&self, key: &str) -> usize {
        self.0.iter().filter(|(name, _)| name.to_lowercase() == key).count()
    }
}

/// Whether a text is JSON by the second opinion.
fn is_json(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    std::str::from_utf8(text)
        .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// Where each member is looked for: the keys on the way to it.
const PLACES: [(Member, &[&str]); Member::COUNT] = [
    (Member::Name, &["params", "name"]),
    (Member::Uri, &["params", "uri"]),
    (Member::Cursor, &["params", "cursor"]),
    (Member::Arguments, &["params", "arguments"]),
    (Member::Meta, &["params", "_meta"]),
    (Member::ProgressToken, &["params", "progressToken"]),
    (Member::RequestId, &["params", "requestId"]),
    (Member::Level, &["params", "level"]),
    (Member::TaskId, &["params", "taskId"]),
    (Member::Task, &["params", "task"]),
    (Member::RequestState, &["params", "requestState"]),
    (Member::InputResponses, &["params", "inputResponses"]),
    (Member::ProtocolVersion, &["params", "protocolVersion"]),
    (Member::Capabilities, &["params", "capabilities"]),
    (Member::ClientInfo, &["params", "clientInfo"]),
    (Member::Ref, &["params", "ref"]),
    (Member::RefName, &["params", "ref", "name"]),
    (Member::RefUri, &["params", "ref", "uri"]),
    (Member::MetaProgressToken, &["params", "_meta", "progressToken"]),
    (Member::MetaProtocolVersion, &["params", "_meta", "io.modelcontextprotocol/protocolVersion"]),
    (
        Member::MetaClientCapabilities,
        &["params", "_meta", "io.modelcontextprotocol/clientCapabilities"],
    ),
    (Member::MetaClientInfo, &["params", "_meta", "io.modelcontextprotocol/clientInfo"]),
    (Member::MetaLogLevel, &["params", "_meta", "io.modelcontextprotocol/logLevel"]),
    (Member::MetaTraceparent, &["params", "_meta", "traceparent"]),
    (Member::IsError, &["result", "isError"]),
    (Member::NextCursor, &["result", "nextCursor"]),
    (Member::ResultType, &["result", "resultType"]),
    (Member::ErrorCode, &["error", "code"]),
];

/// Follows keys into a text; `Err` when a key on the way is no Unicode.
fn follow<'a>(text: &'a str, keys: &[&str]) -> Result<Option<&'a str>, ()> {
    let mut here = text;
    for key in keys {
        match Pairs::of(here).ok_or(())?.last(key) {
            Some(value) => here = value,
            None => return Ok(None),
        }
    }
    Ok(Some(here))
}

/// Compares everything that is told of an accepted text with the second opinion.
fn agrees(message: &Message) -> Result<(), TestCaseError> {
    let text = std::str::from_utf8(message.text()).unwrap();
    let Some(root) = Pairs::of(text) else { return Ok(()) };
    for key in ENVELOPE {
        prop_assert!(root.count(key) <= 1, "{} in {}", key, text);
    }
    let place = |value: &str| {
        let start = value.as_ptr() as usize - text.as_ptr() as usize;
        Span { start: start as u32, end: (start + value.len()) as u32 }
    };
    let at = |key| root.last(key).map(place);
    prop_assert_eq!(message.params_span(), at("params"));
    prop_assert_eq!(message.result(), at("result").map(|span| message.text().slice(span.range())));
    prop_assert_eq!(message.error(), at("error").map(|span| message.text().slice(span.range())));
    if message.id_span().is_some() || message.kind() != Kind::Response {
        prop_assert_eq!(message.id_span(), at("id"));
    }
    if message.kind() != Kind::Response {
        let method: String = serde_json::from_str(root.last("method").unwrap_or("")).unwrap();
        prop_assert_eq!(message.method(), method);
    }
    for (member, keys) in PLACES {
        if let Ok(found) = follow(text, keys) {
            prop_assert_eq!(message.member_span(member), found.map(place), "{:?}", member);
            let string = found.and_then(|value| serde_json::from_str::<String>(value).ok());
            prop_assert_eq!(message.member_str(member), string.map(Cow::Owned), "{:?}", member);
        }
    }
    Ok(())
}

/// White space between tokens, mostly none.
fn gap() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just(String::new()),
        1 => "[ \t\r\n]{1,3}",
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "null",
            "true",
            "false",
            "0",
            "-0",
            "1",
            "1.10",
            "1e2",
            "-1.5E+3",
            "2E-7",
            "18446744073709551616",
            r#""""#,
            r#""2.0""#,
            r#""a""#,
            r#""\ud83d\ude00""#,
            r#""\ud800""#,
            r#""\u0041\n\\\/""#,
            r#""é€😀""#,
            "[]",
            "{}",
        ])
        .prop_map(str::to_owned),
        "\"[a-z ]{0,70}\"",
    ]
}

/// A key, now and then spelt with an escape or in other case.
fn key() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "jsonrpc",
        "id",
        "method",
        "params",
        "result",
        "error",
        "name",
        "uri",
        "_meta",
        "arguments",
        "cursor",
        "ref",
        "progressToken",
        "traceparent",
        "io.modelcontextprotocol/protocolVersion",
        "isError",
        "nextCursor",
        "resultType",
        "code",
        "x",
        "",
        "taskId",
        "requestState",
        "level",
    ]);
    (known, 0..20_u8).prop_map(|(key, how)| match how {
        0 if !key.is_empty() => format!("\\u{:04x}{}", key.as_bytes()[0], &key[1..]),
        1 => key.to_uppercase(),
        _ => key.to_owned(),
    })
}

fn object(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec((gap(), key(), gap(), gap(), value, gap()), 0..6).prop_map(|members| {
        let members: Vec<String> = members
            .into_iter()
            .map(|(a, key, b, c, value, d)| format!("{a}\"{key}\"{b}:{c}{value}{d}"))
            .collect();
        format!("{{{}}}", members.join(","))
    })
}

fn value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 5, |inner| {
        let array = prop::collection::vec((gap(), inner.clone(), gap()), 0..4).prop_map(|items| {
            let items: Vec<String> =
                items.into_iter().map(|(a, item, b)| format!("{a}{item}{b}")).collect();
            format!("[{}]", items.join(","))
        });
        prop_oneof![array, object(inner)]
    })
}

/// Objects that are mostly messages.
fn message() -> impl Strategy<Value = String> {
    let id = prop_oneof![
        3 => prop::sample::select(vec!["", "\"id\":1,", "\"id\":\"a\",", "\"\\u0069d\":1.0,"]),
        1 => prop::sample::select(vec!["\"id\":null,", "\"id\":[],"]),
    ];
    let method = prop_oneof![
        4 => prop::sample::select(vec!["\"method\":\"tools/call\",", "\"method\":\"tools\\/call\","]),
        1 => prop::sample::select(vec![
            "\"method\":\"\",", "\"method\":1,", "\"result\":1,", "\"error\":{\"code\":1},", "",
        ]),
    ];
    let params = (object(value()), object(value()), object(value())).prop_map(
        |(params, meta, reference)| {
            let more = params.strip_suffix('}').unwrap_or(&params).to_owned();
            let comma = if more == "{" { "" } else { "," };
            format!("{more}{comma}\"_meta\":{meta},\"ref\":{reference}}}")
        },
    );
    let version = prop_oneof![19 => Just(r#""jsonrpc":"2.0""#), 1 => Just(r#""jsonrpc":2"#)];
    let place =
        prop::sample::select(vec!["params", "params", "params", "result", "error", "other"]);
    prop_oneof![
        8 => (gap(), id, method, place, params, gap(), version).prop_map(
            |(a, id, method, place, params, b, version)| format!("{a}{{{id}{method}\"{place}\":{params},{b}{version}}}{b}")
        ),
        1 => object(value()),
        1 => value(),
    ]
}

/// Changes of single bytes: what stands at a place is replaced, doubled or dropped.
fn mutations() -> impl Strategy<Value = Vec<(usize, u8, u8)>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"{}[]\",:\\ \n\t\r0129.eE+-tfnu\0\x1f\x7f\x80\xc3\xed\xff".to_vec()),
        1 => any::<u8>(),
    ];
    prop::collection::vec((any::<usize>(), byte, 0..3_u8), 0..3)
}

fn mutated(text: &str, mutations: &[(usize, u8, u8)]) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    for &(at, byte, how) in mutations {
        if text.is_empty() {
            break;
        }
        let at = at % text.len();
        match how {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => drop(text.remove(at)),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn texts_are_json_exactly_when_the_second_opinion_says_so(
        text in message(),
        mutations in mutations(),
        batch in any::<bool>(),
    ) {
        let text = if batch { format!("[{text}, {text}]") } else { text };
        let text = mutated(&text, &mutations);
        let bytes = Bytes::from(text.clone());
        let outcomes = [
            Message::parse(bytes.clone(), 1000).err(),
            Message::parse_answer(bytes.clone(), 1000).err(),
            parse_body(bytes.clone(), &LIMITS).err(),
            parse_answers(bytes, &LIMITS).err(),
        ];
        for outcome in outcomes {
            let json = !matches!(outcome, Some(Rejected::Syntax { .. }));
            prop_assert_eq!(json, is_json(&text), "{:?} {}", outcome, String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn spans_stand_where_the_second_opinion_finds_them(text in message(), mutations in mutations()) {
        let text = Bytes::from(mutated(&text, &mutations));
        if let Ok(message) = Message::parse(text.clone(), 1000) {
            agrees(&message)?;
        }
        if let Ok(message) = Message::parse_answer(text, 1000) {
            agrees(&message)?;
        }
    }

    #[test]
    fn elements_are_what_they_are_alone(texts in prop::collection::vec(message(), 1..4)) {
        let body = Bytes::from(format!("[{}]", texts.join(",")));
        let Body::Batch(elements) = parse_body(body, &LIMITS).unwrap() else { panic!("no batch") };
        prop_assert_eq!(elements.len(), texts.len());
        for (element, text) in elements.into_iter().zip(texts) {
            match (element, Message::parse(Bytes::from(text), 1000)) {
                (Ok(element), Ok(alone)) => {
                    prop_assert_eq!(element.text(), alone.text());
                    agrees(&element)?;
                }
                (Err(element), Err(alone)) => prop_assert_eq!(element, alone),
                (element, alone) => prop_assert!(false, "{:?} {:?}", element, alone),
            }
        }
    }

    #[test]
    fn an_edited_message_holds_the_new_values_and_all_else(text in message(), id in "[0-9]{1,30}") {
        let id = Id::from_text(Bytes::from(format!("\"{id}\"")));
        if let Ok(message) = Message::parse(Bytes::from(text), 1000) {
            let other = Message::parse(message.with_id(&id).into_bytes(), 1000).unwrap();
            let expected = message.id().map(|_| id);
            prop_assert_eq!(other.id(), expected);
            prop_assert_eq!(other.method(), message.method());
            prop_assert_eq!(other.params(), message.params());
            for (member, _) in PLACES {
                prop_assert_eq!(other.member(member), message.member(member));
            }
            let own = [(Member::Name, "\"n\u{e9}\""), (Member::MetaProgressToken, "12"), (Member::RefUri, "\"\"")];
            let edits: Vec<Edit> = own
                .iter()
                .filter_map(|(member, new)| Some((message.member_span(*member)?, Bytes::from_static(new.as_bytes()))))
                .collect();
            let edited = Message::parse(message.edited(&edits).into_bytes(), 1000).unwrap();
            for (member, new) in own {
                let expected = message.member(member).map(|_| Bytes::from_static(new.as_bytes()));
                prop_assert_eq!(edited.member(member), expected);
            }
            prop_assert_eq!(edited.member(Member::Arguments), message.member(Member::Arguments));
        }
    }

    #[test]
    fn splicing_is_replacing(
        long in any::<bool>(),
        places in prop::collection::vec((0..200_u32, "[A-Z]{0,8}"), 0..10),
    ) {
        let text = Bytes::from("0123456789".repeat(if long { 2000 } else { 20 }));
        let mut bounds: Vec<u32> = places.iter().map(|(place, _)| *place).collect();
        bounds.sort_unstable();
        let spans = bounds.chunks_exact(2).map(|pair| Span { start: pair[0], end: pair[1] });
        let mut edits: Vec<Edit> =
            spans.zip(&places).map(|(span, (_, new))| (span, Bytes::from(new.clone()))).collect();
        let mut expected = text.to_vec();
        for (span, new) in edits.iter().rev() {
            expected.splice(span.range(), new.iter().copied());
        }
        edits.rotate_left(places.len() / 4);
        let chunks = Chunks::splice(&text, &edits);
        prop_assert_eq!(chunks.len(), expected.len());
        prop_assert!(long || chunks.slices().len() <= 1);
        prop_assert_eq!(chunks.into_bytes(), expected);
    }

    #[test]
    fn errors_of_ours_are_json_for_every_message(message in any::<String>(), code in any::<i64>()) {
        let error = ErrorObject { code, message: message.clone().into(), data: None };
        let text = error_response(None, &error, NullId::Null);
        let answer = Message::parse_answer(text, 8).unwrap();
        prop_assert_eq!(answer.answer(), Answer::Error);
        let object: serde_json::Value = serde_json::from_slice(&answer.error().unwrap()).unwrap();
        prop_assert_eq!(&object["message"], &message);
        prop_assert_eq!(&object["code"], code);
    }
}

/// More cases by `PROPTEST_CASES`.
fn cases() -> u32 {
    ProptestConfig::default().cases.max(400)
}
