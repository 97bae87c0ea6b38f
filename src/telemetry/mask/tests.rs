//! What must be masked, what must not, and that nothing secret survives.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn names_are_secret_in_any_spelling() {
    for name in [
        "password",
        "Passwd",
        "API-Key",
        "x_api_key",
        "apiKey",
        "Authorization",
        "set-cookie",
        "client_secret",
        "privateKey",
        "access_token",
        "refreshToken",
        "token",
        "id-token",
        "AWS_SECRET_ACCESS_KEY",
        "credentials",
        "tokens",
        "Mcp-Session-Id",
        "auth",
    ] {
        assert!(is_secret(name), "{name}");
    }
    for name in ["progressToken", "maxTokens", "name", "author", "key", "compass", "cursor"] {
        assert!(!is_secret(name), "{name}");
    }
}

#[test]
fn everything_else_stays_byte_for_byte() {
    let text = r#"{"jsonrpc":"2.0","id":1e2,"method":"tools/call","params":{"name":"add",
        "arguments":{"a":0.10,"b":"caf\u00e9 \"x\" {}"},"_meta":{"progressToken":7}}}"#;
    assert_eq!(mask(text), text);
}

#[test]
fn members_are_masked_at_any_depth_whatever_their_value() {
    let text =
        r#"{"a":[{"password" : "x\"y","b":1},{"Token":null},{"apiKey":{"k":["}"]}}],"secret":12}"#;
    let expected =
        r#"{"a":[{"password" : "***","b":1},{"Token":"***"},{"apiKey":"***"}],"secret":"***"}"#;
    assert_eq!(mask(text), expected);
}

#[test]
fn an_escaped_name_is_the_same_name() {
    assert_eq!(mask(r#"{"pass\u0077ord":"x1y2"}"#), r#"{"pass\u0077ord":"***"}"#);
}

#[test]
fn json_and_headers_in_strings_are_read_too() {
    let text = r#"{"text":"got {\"password\":\"x1y2\",\"n\":1}"}"#;
    assert_eq!(mask(text), r#"{"text":"got {\"password\":\"***\",\"n\":1}"}"#);
    let text = r#"{"text":"GET /?api_key=x1y2&q=1\nAuthorization: Digest a=x1y2, b\nHost: h"}"#;
    let expected = r#"{"text":"GET /?api_key=***&q=1\nAuthorization: ***\nHost: h"}"#;
    assert_eq!(mask(text), expected);
}

#[test]
fn bearer_and_known_tokens_are_masked_anywhere() {
    for (text, expected) in [
        ("use Bearer abc.def-1 now", "use Bearer *** now"),
        (r#"["bearer abc"]"#, r#"["bearer ***"]"#),
        ("Basic dXNlcjpwYXNz", "Basic ***"),
        ("a basic idea", "a basic idea"),
        ("t eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_1!", "t ***!"),
        ("ghp_0123456789abcdefABCD", "***"),
        ("postgres://me:x1y2@host/db", "postgres://me:***@host/db"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ] {
        assert_eq!(mask(text), expected);
    }
}

#[test]
fn broken_and_foreign_texts_are_masked_too() {
    for text in [
        r#"{"password":"x1y2"#,
        r#"{"password":"x1y2" "#,
        r#"it"s {"password":"x1y2"}"#,
        r#"it"s {"credentials":{"user":"x1y2"}}"#,
        r#"{'password': 'a x1y2'}"#,
        "password = x1y2",
        "token=>x1y2",
        "Token: Bearer x1y2",
        "Cookie: a=b; c=x1y2",
        r#"env["API_KEY"] = "x1y2""#,
        r#"{\"password\":\"x1y2\"}"#,
    ] {
        let masked = mask(text);
        assert!(!masked.contains("x1y2") && masked.contains(MASK), "{text} -> {masked}");
    }
}

const MARKER: &str = "hunter2";

fn secret_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "password",
        "Api-Key",
        "client_secret",
        "accessToken",
        "Set-Cookie",
        "credentials",
        "private_key",
        "AUTHORIZATION",
    ])
    .prop_map(str::to_owned)
}

fn plain_leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        r#"[ -~\n\\"é{}\[\]:,]{0,12}"#.prop_map(Value::from),
    ]
}

fn secret_value() -> impl Strategy<Value = Value> {
    r#"[a-z"\\{}\[\], :]{0,4}"#.prop_flat_map(|around| {
        let text = format!("{around}{MARKER}{around}");
        prop_oneof![
            Just(json!(text)),
            Just(json!({ "x": [text, 1] })),
            Just(json!([[{ "y": text }]])),
        ]
    })
}

/// A tree in which the marker stands only below secret names; `true` also puts trees into strings.
fn tree() -> impl Strategy<Value = Value> {
    plain_leaf().prop_recursive(4, 24, 4, |inner| {
        let entry = prop_oneof![
            ("[a-d]{1,3}", inner.clone()),
            (secret_name(), secret_value()),
            ("[a-d]{1,3}", inner.clone().prop_map(|value| json!(value.to_string()))),
        ];
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            prop::collection::vec(entry, 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_masked_value_survives(value in tree(), pretty in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let text = if pretty { format!("{value:#}") } else { value.to_string() };
        let masked = mask(&text);
        prop_assert!(!masked.contains(MARKER), "{} -> {}", text, masked);
        prop_assert!(serde_json::from_str::<Value>(&masked).is_ok(), "{} -> {}", text, masked);
        let short = &text[..text.floor_char_boundary(cut.index(text.len() + 1))];
        let masked = mask(short);
        prop_assert!(!masked.contains(MARKER), "{} -> {}", short, masked);
    }

    #[test]
    fn any_text_is_masked_without_a_panic(text in any::<String>(), json in r#"["\\{}\[\]:,a-z=u0é ]{0,60}"#) {
        mask(&text);
        mask(&json);
        mask(&format!("{json}password{text}"));
    }

    #[test]
    fn masking_again_changes_nothing_of_valid_json(value in tree()) {
        let once = mask(&value.to_string());
        prop_assert_eq!(mask(&once), once);
    }
}
