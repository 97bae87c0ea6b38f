//! `x-mcp-header`: arguments of a tool that modern requests repeat as headers (MCP digest §8.2).

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use super::{PARAM_HEADER, header};
use crate::jsonrpc::{RawObject, raw_elements};

/// The key of the annotation.
const ANNOTATION: &str = "x-mcp-header";
/// Largest integer that such a header may carry.
const MAX_INTEGER: i64 = (1 << 53) - 1;

/// The type of an argument that a header repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A string.
    String,
    /// An integer within ±(2^53−1).
    Integer,
    /// `true` or `false`.
    Boolean,
}

/// One argument that is repeated as a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The whole header name, in lower case.
    pub header: String,
    /// The names that lead to the argument, from the root of `arguments`.
    pub path: Vec<String>,
    /// Its type.
    pub kind: ParamKind,
}

/// What is wrong with an annotation; the tool must not be offered over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnnotation {
    /// The name is no header token.
    #[error("x-mcp-header must be a header token")]
    Token,
    /// The same header twice.
    #[error("x-mcp-header {0} is given twice")]
    Twice(String),
    /// The annotated property is not of a type that a header can carry.
    #[error("x-mcp-header stands on a property that is no string, integer or boolean")]
    Type,
    /// It stands where no argument can be told from.
    #[error("x-mcp-header stands outside of properties")]
    Place,
}

/// The annotations of a tool's `inputSchema` (JSON text), outermost first.
///
/// # Errors
/// The first annotation that the rules do not allow.
pub fn param_headers(schema: &[u8]) -> Result<Vec<ParamHeader>, BadAnnotation> {
    // Most schemas have none: they are not read.
    if memchr::memmem::find(schema, ANNOTATION.as_bytes()).is_none() {
        return Ok(Vec::new());
    }
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    walk(&schema, &mut Vec::new(), &mut found)?;
    Ok(found)
}

/// The schema without annotations, wherever they stand; all else keeps its bytes.
pub fn strip_annotations(schema: &Bytes) -> Bytes {
    if memchr::memmem::find(schema, ANNOTATION.as_bytes()).is_none() {
        return schema.clone();
    }
    if let Some(mut object) = RawObject::parse(schema) {
        object.remove(ANNOTATION);
        let names: Vec<String> = object.iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if let Some(value) = object.get(&name).map(strip_annotations) {
                object.set(&name, value);
            }
        }
        return object.to_bytes();
    }
    match raw_elements(schema) {
        Some(elements) => {
            let elements: Vec<Bytes> = elements.iter().map(strip_annotations).collect();
            [b"[", &elements.join(&b","[..])[..], b"]"].concat().into()
        }
        None => schema.clone(),
    }
}

/// Looks through one schema that is reached by property names alone.
fn walk(
    schema: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<ParamHeader>,
) -> Result<(), BadAnnotation> {
    let Value::Object(members) = schema else { return Ok(()) };
    for (key, value) in members {
        match key.as_str() {
            ANNOTATION => found.push(annotated(members, value, path, found)?),
            "properties" => {
                let Value::Object(properties) = value else { continue };
                for (name, property) in properties {
                    path.push(name.clone());
                    walk(property, path, found)?;
                    path.pop();
                }
            }
            // Values, not schemas: what stands there is no annotation.
            "const" | "enum" | "default" | "examples" => {}
            _ if annotates(value) => return Err(BadAnnotation::Place),
            _ => {}
        }
    }
    Ok(())
}

fn annotated(
    members: &serde_json::Map<String, Value>,
    name: &Value,
    path: &[String],
    found: &[ParamHeader],
) -> Result<ParamHeader, BadAnnotation> {
    let name = name.as_str().filter(|name| is_token(name)).ok_or(BadAnnotation::Token)?;
    let kind = match members.get("type").and_then(Value::as_str) {
        _ if path.is_empty() => return Err(BadAnnotation::Place),
        Some("string") => ParamKind::String,
        Some("integer") => ParamKind::Integer,
        Some("boolean") => ParamKind::Boolean,
        _ => return Err(BadAnnotation::Type),
    };
    let header = format!("{PARAM_HEADER}{}", name.to_ascii_lowercase());
    if found.iter().any(|known| known.header == header) {
        return Err(BadAnnotation::Twice(name.to_owned()));
    }
    Ok(ParamHeader { header, path: path.to_vec(), kind })
}

/// Whether an annotation stands anywhere in a value.
fn annotates(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(key, value)| key == ANNOTATION || annotates(value))
        }
        Value::Array(values) => values.iter().any(annotates),
        _ => false,
    }
}

fn is_token(name: &str) -> bool {
    let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(tchar)
}

impl ParamHeader {
    /// The argument, as JSON text; `None` when it is absent or null.
    pub fn argument(&self, arguments: &Bytes) -> Option<Bytes> {
        let mut value = arguments.clone();
        for name in &self.path {
            value = RawObject::parse(&value)?.remove(name)?;
        }
        (&value[..] != b"null").then_some(value)
    }

    /// The header value for an argument; `None` when the argument is not of its type, so that the upstream judges it.
    pub fn value(&self, argument: &[u8]) -> Option<String> {
        let text = match self.kind {
            ParamKind::String => serde_json::from_slice::<String>(argument).ok()?,
            ParamKind::Integer => integer(argument)?.to_string(),
            ParamKind::Boolean => serde_json::from_slice::<bool>(argument).ok()?.to_string(),
        };
        Some(header::encode(&text).into_owned())
    }

    /// Whether a header value says the same as the argument. Integers are compared as numbers.
    pub fn agrees(&self, argument: &[u8], value: &str) -> bool {
        let Ok(value) = header::decode(value) else { return false };
        let same = |text: &str| Cow::Borrowed(text) == value;
        match self.kind {
            ParamKind::Integer => match (integer(argument), integer(value.as_bytes())) {
                (Some(argument), Some(value)) => argument == value,
                _ => same(&String::from_utf8_lossy(argument)),
            },
            ParamKind::String | ParamKind::Boolean => match serde_json::from_slice(argument) {
                Ok(Value::String(text)) => same(&text),
                _ => same(&String::from_utf8_lossy(argument)),
            },
        }
    }
}

/// An integer within the limits, however it is written (`42`, `42.0`, `4.2e1`).
fn integer(text: &[u8]) -> Option<i64> {
    let number: serde_json::Number = serde_json::from_slice(text).ok()?;
    let value = match number.as_i64() {
        Some(value) => value,
        None => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0)?;
            let whole = float.abs() <= MAX_INTEGER as f64;
            // Exact: within ±2^53 and without a fraction.
            if whole { float as i64 } else { return None }
        }
    };
    (value.abs() <= MAX_INTEGER).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(schema: Value) -> Result<Vec<ParamHeader>, BadAnnotation> {
        param_headers(schema.to_string().as_bytes())
    }

    fn one(kind: &str) -> ParamHeader {
        let schema =
            json!({"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": "A"}}});
        headers(schema).expect("valid").remove(0)
    }

    #[test]
    fn annotations_are_found_below_properties_only() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "free": {"type": "string", "default": {"x-mcp-header": "not one"}},
        }});
        let found = headers(schema).expect("valid");
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].header.as_str(), &found[0].path[..]),
            ("mcp-param-region", &["region".to_owned()][..])
        );
        assert_eq!(found[1].path, ["deep", "n"]);
        let arguments = Bytes::from_static(br#"{"region":"x","deep":{"n":7}}"#);
        assert_eq!(found[1].argument(&arguments).as_deref(), Some(&b"7"[..]));
        let nothing = Bytes::from_static(br#"{"region":null,"deep":3}"#);
        assert_eq!(found[0].argument(&nothing), None);
        assert_eq!(found[1].argument(&nothing), None);
    }

    #[test]
    fn annotations_against_the_rules_are_refused() {
        let property = |property: Value| json!({"properties": {"a": property}});
        for (schema, wrong) in [
            (property(json!({"type": "string", "x-mcp-header": ""})), BadAnnotation::Token),
            (property(json!({"type": "string", "x-mcp-header": "a b"})), BadAnnotation::Token),
            (property(json!({"type": "string", "x-mcp-header": 7})), BadAnnotation::Token),
            (property(json!({"type": "number", "x-mcp-header": "A"})), BadAnnotation::Type),
            (property(json!({"x-mcp-header": "A"})), BadAnnotation::Type),
            (json!({"type": "string", "x-mcp-header": "A"}), BadAnnotation::Place),
            (
                property(json!({"items": {"type": "string", "x-mcp-header": "A"}})),
                BadAnnotation::Place,
            ),
            (
                json!({"$defs": {"d": {"type": "string", "x-mcp-header": "A"}}}),
                BadAnnotation::Place,
            ),
            (
                json!({"properties": {"a": {"type": "string", "x-mcp-header": "A"},
                                      "b": {"type": "string", "x-mcp-header": "a"}}}),
                BadAnnotation::Twice("a".into()),
            ),
        ] {
            assert_eq!(headers(schema.clone()), Err(wrong), "{schema}");
        }
        assert_eq!(headers(json!({"type": "object"})), Ok(Vec::new()));
    }

    #[test]
    fn annotations_can_be_taken_out_wherever_they_stand() {
        let schema =
            br#"{"a":{"x-mcp-header":"A","n":1.0},"b":[{"x-mcp-header":7},"x-mcp-header"]}"#;
        let bare = strip_annotations(&Bytes::from_static(schema));
        assert_eq!(&bare[..], br#"{"a":{"n":1.0},"b":[{},"x-mcp-header"]}"#);
    }

    #[test]
    fn values_are_written_and_compared_by_their_type() {
        let (text, number, flag) = (one("string"), one("integer"), one("boolean"));
        assert_eq!(text.value(br#""Z\u00fcrich""#).as_deref(), Some("=?base64?WsO8cmljaA==?="));
        assert_eq!(number.value(b"42.0").as_deref(), Some("42"));
        assert_eq!(flag.value(b"true").as_deref(), Some("true"));
        assert_eq!(
            (number.value(b"1.5"), text.value(b"7"), flag.value(b"\"x\"")),
            (None, None, None)
        );
        assert_eq!(number.value(b"9007199254740992"), None);
        assert!(text.agrees(br#""Z\u00fcrich""#, " =?base64?WsO8cmljaA==?= "));
        assert!(number.agrees(b"42", "42.0") && !number.agrees(b"42", "43"));
        assert!(!number.agrees(b"42", "=?base64?x?=") && !text.agrees(b"\"a\"", "A"));
        assert!(flag.agrees(b"true", "true") && !flag.agrees(b"true", "false"));
    }
}
