//! Properties: whatever is not itself translated keeps its bytes, and no text makes the bridge fall over.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use super::answer::Recipient;
use super::place::{Edits, Object, push_member};
use super::*;
use crate::jsonrpc::{Id, RawObject};
use crate::mcp::ClientCaps;

/// Values as they may be written; many of them change when they are read and written again.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "1.10",
        "12345678901234567890",
        "1e400",
        "-0.0",
        "null",
        "true",
        "\"é\"",
        "\"a\\u0062\\/\"",
        "\"\\ud800\"",
        "\"}],\\\"\"",
        "\"\"",
        "[]",
        "{}",
        "[ ]",
        "{\n}",
        "\"result\"",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(" , "))),
            object_of(inner).prop_map(|members| written(&members)),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a",
        "b",
        "content",
        "structured",
        "é",
        "\\u0061\\u0062",
        "x/y",
        "",
        "_m",
        "type",
        "tool\\\"s",
        "code",
    ])
    .prop_map(str::to_owned)
}

type Members = Vec<(String, String)>;

/// Members with different names.
fn object_of(value: impl Strategy<Value = String>) -> impl Strategy<Value = Members> {
    prop::collection::btree_map(key(), value, 0..6)
        .prop_map(|members| members.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

fn written(members: &Members) -> String {
    let members: Vec<_> = members.iter().map(|(k, v)| format!(" \"{k}\" :\t{v}\n")).collect();
    format!("{{{}}}", members.join(","))
}

/// Members with `more` put in between, each at some place.
fn mixed(mut members: Members, more: &[(&str, &str)], at: &[prop::sample::Index]) -> Members {
    for ((name, value), at) in more.iter().zip(at) {
        let place = at.index(members.len() + 1);
        members.insert(place, ((*name).to_owned(), (*value).to_owned()));
    }
    members
}

/// Names and values of an object, but for those that are `new`.
fn rest(text: &Bytes, new: &[&str]) -> Vec<(String, Bytes)> {
    let mut object = RawObject::parse(text).unwrap_or_else(|| panic!("{text:?}"));
    object.retain(|name, _| !new.contains(&name));
    object.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

fn parsed(text: String) -> Message {
    Message::parse_answer(Bytes::from(text), 256).expect("a message")
}

fn to(version: ProtocolVersion, method: &str) -> Recipient<'_> {
    Recipient { version, caps: ClientCaps::NONE, method, uri: None, wrapped: None }
}

fn across(to: &Recipient<'_>, from: ProtocolVersion, given: &str) -> Bytes {
    let message = parsed(format!(r#"{{"id":7,"result":{given},"jsonrpc":"2.0"}}"#));
    let text = answer(to, from, &message, &Id::from_number(1)).text.into_bytes();
    parsed(String::from_utf8(text.to_vec()).expect("UTF-8")).result().expect("a result")
}

const MODERN: [(&str, &str); 4] = [
    ("resultType", "\"complete\""),
    ("ttlMs", "10"),
    ("cacheScope", "\"public\""),
    ("_meta", r#"{"io.modelcontextprotocol/serverInfo":{"name":"}"}}"#),
];

fn places() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 4)
}

/// A schema: keywords, names that look like keywords, and references.
fn schema() -> impl Strategy<Value = Value> {
    let target = prop::sample::select(vec![
        "#",
        "#/$defs/a",
        "#/properties/const",
        "#name",
        "other.json#/a",
        "",
        "#/items",
    ]);
    let leaf = prop_oneof![
        Just(serde_json::json!(true)),
        Just(serde_json::json!({ "type": "array" })),
        target.clone().prop_map(|target| serde_json::json!({ "$ref": target })),
        target.prop_map(|target| serde_json::json!({ "const": { "$ref": target } })),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let named = prop::collection::btree_map(
            prop::sample::select(vec!["a", "const", "$ref", "$id", "properties"]),
            inner.clone(),
            0..4,
        );
        let named = named.prop_map(|named| {
            named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        });
        let keyword =
            prop::sample::select(vec!["properties", "$defs", "patternProperties", "definitions"]);
        prop_oneof![
            (keyword, named).prop_map(|(keyword, named): (_, serde_json::Map<_, _>)| {
                serde_json::json!({ "$schema": "s", keyword: named })
            }),
            inner.clone().prop_map(|inner| serde_json::json!({ "items": inner })),
            inner.clone().prop_map(|inner| serde_json::json!({ "$id": "own", "items": inner })),
            prop::collection::vec(inner, 0..3).prop_map(|all| serde_json::json!({ "allOf": all })),
        ]
    })
}

/// References as they are after the root moved, by the definition: looked at from the root down, knowing what each
/// position holds.
fn moved(schema: &Value) -> Value {
    let Value::Object(keywords) = schema else { return schema.clone() };
    if keywords.get("$id").is_some_and(Value::is_string) {
        return schema.clone();
    }
    let moved_one = |(keyword, value): (&String, &Value)| {
        let value = match (keyword.as_str(), value) {
            ("const", _) => value.clone(),
            ("$ref", Value::String(target)) => match target.as_str() {
                "" | "#" => "#/properties/result".into(),
                target if target.starts_with("#/") => {
                    target.replacen('#', "#/properties/result", 1).into()
                }
                _ => value.clone(),
            },
            (
                "properties" | "$defs" | "patternProperties" | "definitions",
                Value::Object(named),
            ) => named.iter().map(|(name, value)| (name.clone(), moved(value))).collect(),
            ("allOf", Value::Array(all)) => all.iter().map(moved).collect(),
            _ => moved(value),
        };
        (keyword.clone(), value)
    };
    keywords.iter().map(moved_one).collect()
}

proptest! {
    #[test]
    fn legacy_clients_get_every_other_member_byte_for_byte(
        members in object_of(value()), at in places(), lead in 0..4_usize
    ) {
        let text = written(&mixed(members.clone(), &MODERN, &at));
        let got = across(&to(ProtocolVersion::ALL[lead], "x/y"), ProtocolVersion::V2026_07_28, &text);
        prop_assert_eq!(rest(&got, &[]), rest(&written(&members).into(), &[]));
    }

    #[test]
    fn modern_clients_get_every_member_byte_for_byte(
        members in object_of(value()), from in 0..4_usize
    ) {
        let new = ["resultType", "ttlMs", "cacheScope"];
        for method in ["resources/read", "tools/call"] {
            let given = written(&members);
            let got = across(&to(ProtocolVersion::V2026_07_28, method), ProtocolVersion::ALL[from], &given);
            let mut expected = rest(&given.into(), &[]);
            let mut got_rest = rest(&got, &new);
            if method == "tools/call" && !members.iter().any(|(name, _)| name == "content") {
                got_rest.remove(0);
            }
            prop_assert_eq!(&got_rest, &expected);
            expected.clear();
            let object = RawObject::parse(&got).expect("an object");
            prop_assert_eq!(object.get_str("resultType"), Some("complete".to_owned()));
            prop_assert_eq!(object.get("ttlMs").is_some(), method == "resources/read");
        }
    }

    #[test]
    fn structured_content_keeps_its_bytes_within_its_wrapping(
        content in value(), wrapped in any::<bool>(), text in value()
    ) {
        let block = format!(r#"{{"type":"text","text":{text}}}"#);
        let given = format!(r#"{{"content":[{block}],"structuredContent": {content}}}"#);
        let to = Recipient { wrapped: Some(wrapped), ..to(ProtocolVersion::V2025_11_25, "tools/call") };
        let got = across(&to, ProtocolVersion::V2026_07_28, &given);
        let got = RawObject::parse(&got).expect("an object");
        let inner = got.get("structuredContent").expect("it stays");
        if wrapped || !content.starts_with('{') {
            prop_assert_eq!(inner, &format!(r#"{{"result":{content}}}"#));
            // Some text holds it, read as a client reads it.
            let texts = crate::jsonrpc::raw_elements(got.get("content").expect("it stays")).expect("an array");
            let texts: Vec<_> = texts.iter().filter_map(|b| RawObject::parse(b)?.get_str("text")).collect();
            let same = |text: &String| {
                text.trim() == content || match (serde_json::from_str::<Value>(text), serde_json::from_str::<Value>(&content)) {
                    (Ok(text), Ok(content)) => text == content,
                    _ => false,
                }
            };
            prop_assert!(texts.iter().any(same), "{:?}", texts);
        } else {
            prop_assert_eq!(inner, &content);
        }
    }

    #[test]
    fn changing_members_leaves_the_others(
        members in object_of(value()), gone in prop::collection::vec(key(), 0..4), new in any::<bool>()
    ) {
        let text = Bytes::from(written(&members));
        let object = Object::at(&text, 0).expect("an object");
        let gone: Vec<String> = gone.iter().map(|name| serde_json::from_str(&format!("\"{name}\"")).expect("a string")).collect();
        let mut more = Vec::new();
        if new {
            push_member(&mut more, "new", b"1.0");
        }
        let mut edits = Edits::new();
        object.change(|name| gone.iter().any(|gone| gone == name), more, &mut edits);
        let changed = Chunks::splice(&text, &edits).into_bytes();
        let names: Vec<&str> = gone.iter().map(String::as_str).collect();
        prop_assert_eq!(rest(&changed, &["new"]), rest(&text, &names));
        prop_assert_eq!(RawObject::parse(&changed).expect("an object").get("new").is_some(), new);
    }

    #[test]
    fn a_retry_differs_in_what_was_learnt_only(
        members in object_of(value()), response in object_of(value()), state in any::<Option<String>>(), round in any::<bool>()
    ) {
        let params = written(&members);
        let text = format!(r#"{{"jsonrpc":"2.0", "id":7,"method":"tools/call" ,"params":{params}}}"#);
        let original = Message::parse(text.into(), 256).expect("a request");
        let response = Bytes::from(written(&response));
        let state = state.map(|state| Bytes::from(serde_json::to_vec(&state).expect("a string")));
        let responses = vec![("k\"0".to_owned(), response.clone())];
        let mut again = retry(&original, &responses, state.as_ref());
        if round {
            again = retry(&again, &responses, state.as_ref());
        }
        let learnt = ["inputResponses", "requestState"];
        let got = again.params().expect("params");
        prop_assert_eq!(rest(&got, &learnt), rest(&params.into(), &[]));
        prop_assert_eq!(again.member(Member::RequestState), state);
        prop_assert_eq!(input_responses(&again), Ok(responses));
        let bare = retry(&again, &[], None);
        prop_assert_eq!(rest(&bare.params().expect("params"), &[]), rest(&original.params().expect("params"), &[]));
        prop_assert_eq!(again.id(), original.id());
    }

    #[test]
    fn references_in_a_wrapped_schema_lead_to_the_same_places(root in schema()) {
        let tool_text = serde_json::json!({ "name": "t", "outputSchema": root }).to_string();
        let shown = tool(&tool_text.clone().into());
        prop_assert_eq!(&shown.text, &tool_text);
        prop_assert!(shown.wrapped);
        let legacy: Value = serde_json::from_slice(&shown.legacy.expect("another text")).expect("JSON");
        let wrapper = &legacy["outputSchema"];
        let mut expected = moved(&root);
        let dialect = expected.as_object_mut().and_then(|schema| schema.remove("$schema"));
        prop_assert_eq!(&wrapper["properties"]["result"], &expected);
        prop_assert_eq!(wrapper.get("$schema"), dialect.as_ref());
        prop_assert_eq!(&wrapper["type"], "object");
        prop_assert_eq!(&wrapper["required"][0], "result");
    }

    #[test]
    fn no_text_makes_it_fall_over(text in "[\\[\\]{}:,\" \\\\a1]{0,40}") {
        let bytes = Bytes::from(text);
        let _ = tool(&bytes);
        let _ = reply(&bytes);
        let _ = progress(ProtocolVersion::V2024_11_05, bytes.clone().into());
        for at in 0..=bytes.len() {
            if let Some(object) = Object::at(&bytes, at) {
                let names: Vec<_> = object.places.iter().map(|place| object.name(place)).collect();
                prop_assert!(names.len() <= bytes.len());
            }
        }
    }
}
