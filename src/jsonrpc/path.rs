//! A value far down in `params`, found by names: for what only a configuration knows.

use super::error::push_string;
use super::tokens::{colon, peek, scalar, space, string};
use super::{Message, Span};

/// Most elements that are made up before a value in an array.
const MOST_BEFORE: usize = 64;

/// The way from `params` to a value: names of members, and places in arrays.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParamsPath(Box<[Box<str>]>);

impl ParamsPath {
    /// From a text such as `params.subscription` or `params.0`; `None` when it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut steps = text.split('.');
        if steps.next() != Some("params") {
            return None;
        }
        let steps: Box<[Box<str>]> = steps.map(Into::into).collect();
        let named = !steps.is_empty() && steps.iter().all(|step| !step.is_empty());
        named.then_some(Self(steps))
    }

    /// Where the value stands in a message, if it is there. Of a name that stands there twice the last value counts.
    pub fn find(&self, message: &Message) -> Option<Span> {
        let text = &message.text()[..];
        let mut at = message.params_span()?.range().start;
        for step in &self.0 {
            at = match peek(text, at) {
                b'{' => member(text, at, step)?,
                b'[' => element(text, at, step.parse().ok()?)?,
                _ => return None,
            };
        }
        let end = skip(text, at)?;
        Some(Span { start: u32::try_from(at).ok()?, end: u32::try_from(end).ok()? })
    }

    /// The way to the first of params that stand in an array.
    pub fn first() -> Self {
        Self(Box::new(["0".into()]))
    }

    /// Params that hold nothing but this value (JSON text), where the path leads.
    pub fn enclosing(&self, value: &[u8]) -> Vec<u8> {
        self.0.iter().rev().fold(value.to_vec(), |inner, step| match step.parse::<usize>() {
            Ok(place) => {
                let before = b"null,".repeat(place.min(MOST_BEFORE));
                [b"[", &before[..], &inner[..], b"]"].concat()
            }
            Err(_) => {
                let mut object = vec![b'{'];
                push_string(&mut object, step);
                object.push(b':');
                object.extend_from_slice(&inner);
                object.push(b'}');
                object
            }
        })
    }
}

/// Where the value of a member begins, in the object that begins at `at`.
fn member(text: &[u8], at: usize, name: &str) -> Option<usize> {
    let mut found = None;
    let mut at = space(text, at + 1);
    while peek(text, at) == b'"' {
        let end = string(text, at).ok()?;
        let key = &text[at..end];
        let value = colon(text, end).ok()?;
        if is_named(key, name) {
            found = Some(value);
        }
        at = space(text, skip(text, value)?);
        if peek(text, at) == b',' {
            at = space(text, at + 1);
        }
    }
    found
}

/// Whether a key, with its quotes, is that name.
fn is_named(key: &[u8], name: &str) -> bool {
    if key.contains(&b'\\') {
        return serde_json::from_slice::<String>(key).is_ok_and(|key| key == name);
    }
    key.get(1..key.len() - 1) == Some(name.as_bytes())
}

/// Where an element begins, in the array that begins at `at`.
fn element(text: &[u8], at: usize, place: usize) -> Option<usize> {
    let mut at = space(text, at + 1);
    for _ in 0..place {
        at = space(text, skip(text, at)?);
        if peek(text, at) != b',' {
            return None;
        }
        at = space(text, at + 1);
    }
    (peek(text, at) != b']').then_some(at)
}

/// The place behind the value that begins here. What stands there was found to be JSON.
fn skip(text: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = at;
    loop {
        at = match peek(text, at) {
            b'"' => string(text, at).ok()?,
            b'{' | b'[' => {
                depth += 1;
                at + 1
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at + 1
            }
            b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if depth > 0 => at + 1,
            _ => scalar(text, at).ok()?,
        };
        if depth == 0 {
            return Some(at);
        }
    }
}

/// JSON text without the white space between its tokens: equal texts are equal values, spelt the same.
pub fn compact(text: &[u8]) -> Vec<u8> {
    let mut compact = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => {
                let end = string(text, at).unwrap_or(text.len());
                compact.extend_from_slice(&text[at..end]);
                at = end;
            }
            b' ' | b'\n' | b'\r' | b'\t' => at += 1,
            byte => {
                compact.push(byte);
                at += 1;
            }
        }
    }
    compact
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn found(path: &str, params: &str) -> Option<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
        let message = Message::parse(Bytes::from(text), 64).expect("a message");
        let span = ParamsPath::parse(path).expect("a path").find(&message)?;
        Some(String::from_utf8(message.text()[span.range()].to_vec()).expect("UTF-8"))
    }

    #[test]
    fn a_value_is_found_by_names_and_places() {
        for (path, params, right) in [
            (
                "params.subscription",
                r#"{"result":{"a":[1,"}"]},"subscription":"0x1"}"#,
                Some("\"0x1\""),
            ),
            ("params.subscription", r#"{ "subscription" : 12 , "x":0}"#, Some("12")),
            ("params.subscription", r#"{"sub\u0073cription":{"a":"\""}}"#, Some(r#"{"a":"\""}"#)),
            ("params.a.1.b", r#"{"a":[[{}, "]"], {"c":0,"b":[1]}]}"#, Some("[1]")),
            ("params.0", r#"[ "x", 1]"#, Some("\"x\"")),
            ("params.1", "[1.0 , -2e3 ]", Some("-2e3")),
            ("params.a", r#"{"a":1,"a":2}"#, Some("2")),
            ("params.a", r#"{"b":{"a":1}}"#, None),
            ("params.2", "[1,2]", None),
            ("params.0", "[]", None),
            ("params.a", "[1]", None),
            ("params.a.b", r#"{"a":"b"}"#, None),
            ("params.a", "{}", None),
        ] {
            assert_eq!(found(path, params).as_deref(), right, "{path} in {params}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for text in ["", "params", "params.", "params..a", "result.a", "subscription", ".params"] {
            assert_eq!(ParamsPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn params_are_made_around_a_value() {
        for (path, right) in [
            ("params.subscription", r#"{"subscription":7}"#),
            ("params.a\".b", r#"{"a\"":{"b":7}}"#),
            ("params.0", "[7]"),
            ("params.a.2", r#"{"a":[null,null,7]}"#),
        ] {
            let path = ParamsPath::parse(path).expect("a path");
            let params = String::from_utf8(path.enclosing(b"7")).expect("UTF-8");
            assert_eq!(params, right);
        }
        assert_eq!(ParamsPath::parse("params.0"), Some(ParamsPath::first()));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~é\"\\\\]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c\"]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_member_of_any_params_is_found_as_a_tree_has_it(
            members in prop::collection::btree_map("[a-c\"\\\\]{1,2}", any_json(), 0..5),
            pretty in any::<bool>(),
        ) {
            let params = Value::Object(members.clone().into_iter().collect());
            let text = if pretty {
                serde_json::to_string_pretty(&params).expect("JSON")
            } else {
                params.to_string()
            };
            for (name, value) in members {
                let path = format!("params.{name}");
                let found = found(&path, &text).expect("it is there");
                prop_assert_eq!(serde_json::from_str::<Value>(&found).expect("JSON"), value);
            }
            let compact = compact(text.as_bytes());
            prop_assert_eq!(compact, params.to_string().into_bytes());
        }
    }
}
