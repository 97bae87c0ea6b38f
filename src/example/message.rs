//! JSON-RPC as this server reads and writes it. Ids, and the `params` of plain JSON-RPC, stay the
//! text that the client wrote, so that `1.0` does not come back as `1`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Not JSON, or not UTF-8.
pub(super) const PARSE_ERROR: i64 = -32700;
/// JSON, but not a message that may stand here.
pub(super) const INVALID_REQUEST: i64 = -32600;
/// A method this server does not have.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// The method exists, its parameters do not fit.
pub(super) const INVALID_PARAMS: i64 = -32602;
/// The server's own trouble, such as a limit of it.
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// MCP up to 2025-11-25: there is no such resource.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;

/// MCP 2026-07-28: a header is missing, or does not say what the body says.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// MCP 2026-07-28: the client did not declare what this needs.
pub(super) const MISSING_CAPABILITY: i64 = -32021;
/// MCP 2026-07-28: the revision is not offered.
pub(super) const UNSUPPORTED_REVISION: i64 = -32022;

/// Messages in one array, at most.
pub(super) const MAX_BATCH: usize = 1000;

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RpcError {
    /// What kind; see the constants of this module.
    pub(super) code: i64,
    /// For people.
    pub(super) message: String,
    /// For programs.
    pub(super) data: Option<Value>,
}

impl RpcError {
    /// An error without `data`.
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// `-32602` with a reason.
    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// `-32021`; `required` is the capabilities that the client should have declared.
    pub(super) fn capability(required: &Value) -> Self {
        let message = format!("the client must have declared {required}");
        let data = Some(json!({"requiredCapabilities": required}));
        Self { data, ..Self::new(MISSING_CAPABILITY, message) }
    }

    /// The error for an array, in revisions that have none.
    pub(super) fn no_batches() -> Self {
        Self::new(INVALID_REQUEST, "this revision of MCP has no batches")
    }

    /// `-32601` for a method by name.
    pub(super) fn no_method(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("unknown method: {method}"))
    }

    /// The `error` member.
    pub(super) fn to_value(&self) -> Value {
        match &self.data {
            None => json!({"code": self.code, "message": self.message}),
            Some(data) => json!({"code": self.code, "message": self.message, "data": data}),
        }
    }
}

/// One message with its members as they were written; `None` is an absent member.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Keeps `null` apart from an absent member, which `Option` alone does not.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl<'a> Envelope<'a> {
    /// Reads one object. Repeated members are refused: two readers could differ on which counts.
    pub(super) fn read(raw: &'a RawValue) -> Result<Self, RpcError> {
        let text = raw.get();
        if !text.starts_with('{') {
            return Err(RpcError::new(INVALID_REQUEST, "a message must be an object"));
        }
        serde_json::from_str(text)
            .map_err(|why| RpcError::new(INVALID_REQUEST, format!("not a message: {why}")))
    }

    /// Whether `jsonrpc` is "2.0".
    pub(super) fn check_version(&self) -> Result<(), RpcError> {
        match self.jsonrpc.map(text_of) {
            Some(Some(version)) if version == "2.0" => Ok(()),
            _ => Err(RpcError::new(INVALID_REQUEST, "jsonrpc must be \"2.0\"")),
        }
    }

    /// The method's name, unescaped.
    pub(super) fn method(&self) -> Result<String, RpcError> {
        match self.method.map(text_of) {
            Some(Some(name)) if !name.is_empty() => Ok(name),
            _ => Err(RpcError::new(INVALID_REQUEST, "method must be a non-empty string")),
        }
    }
}

/// A raw value as a string, if it is one that UTF-8 can hold.
fn text_of(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// What a piece of text holds: one message, or an array.
pub(super) enum Text<'a> {
    One(&'a RawValue),
    Many(Vec<&'a RawValue>),
}

impl<'a> Text<'a> {
    /// Reads the text; the error is for the text as a whole.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, RpcError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| RpcError::new(PARSE_ERROR, "the text is not UTF-8"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let whole: &RawValue = serde_json::from_str(text)
            .map_err(|why| RpcError::new(PARSE_ERROR, format!("not JSON: {why}")))?;
        match whole.get().as_bytes().first() {
            Some(b'{') => Ok(Self::One(whole)),
            Some(b'[') => Self::read_array(whole),
            _ => Err(RpcError::new(INVALID_REQUEST, "a message must be an object or an array")),
        }
    }

    fn read_array(whole: &'a RawValue) -> Result<Self, RpcError> {
        let many: Vec<&RawValue> = serde_json::from_str(whole.get())
            .map_err(|why| RpcError::new(PARSE_ERROR, format!("not JSON: {why}")))?;
        match many.len() {
            0 => Err(RpcError::new(INVALID_REQUEST, "the array is empty")),
            n if n > MAX_BATCH => Err(RpcError::new(
                INVALID_REQUEST,
                format!("an array may hold {MAX_BATCH} messages, this one holds {n}"),
            )),
            _ => Ok(Self::Many(many)),
        }
    }
}

/// The id of a request, as text to echo.
pub(super) type Id = Box<RawValue>;

/// A request of an MCP client.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Id,
    pub(super) method: String,
    /// Always an object; absent parameters are an empty one.
    pub(super) params: Value,
}

/// A message of an MCP client.
#[derive(Debug)]
pub(super) enum Incoming {
    Request(Request),
    Notification {
        method: String,
        params: Value,
    },
    /// The answer to a request of ours.
    Response {
        id: Value,
        outcome: Result<Value, Value>,
    },
    /// Not a message; the id is there if it could be read and is a legal one.
    Invalid {
        id: Option<Id>,
        why: RpcError,
    },
}

/// What an MCP client sent in one piece.
#[derive(Debug)]
pub(super) enum Piece {
    One(Incoming),
    Many(Vec<Incoming>),
}

impl Piece {
    /// Reads a body or a line.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, RpcError> {
        Ok(match Text::read(bytes)? {
            Text::One(raw) => Self::One(Incoming::read(raw)),
            Text::Many(many) => Self::Many(many.into_iter().map(Incoming::read).collect()),
        })
    }
}

impl Incoming {
    fn read(raw: &RawValue) -> Self {
        match Envelope::read(raw) {
            Ok(envelope) => {
                let id = envelope.id.filter(|id| is_mcp_id(id)).map(ToOwned::to_owned);
                Self::classify(&envelope).unwrap_or_else(|why| Self::Invalid { id, why })
            }
            Err(why) => Self::Invalid { id: None, why },
        }
    }

    fn classify(envelope: &Envelope<'_>) -> Result<Self, RpcError> {
        envelope.check_version()?;
        if envelope.id.is_some_and(|id| !is_mcp_id(id)) {
            return Err(RpcError::new(INVALID_REQUEST, "id must be a string or an integer"));
        }
        if envelope.method.is_none() {
            return Self::response(envelope);
        }
        let method = envelope.method()?;
        let params = match envelope.params.map(value_of).transpose()? {
            None | Some(Value::Null) => json!({}),
            Some(params @ Value::Object(_)) => params,
            Some(_) => return Err(RpcError::new(INVALID_REQUEST, "params must be an object")),
        };
        Ok(match envelope.id {
            Some(id) => Self::Request(Request { id: id.to_owned(), method, params }),
            None => Self::Notification { method, params },
        })
    }

    fn response(envelope: &Envelope<'_>) -> Result<Self, RpcError> {
        let outcome = match (envelope.result, envelope.error) {
            (Some(result), None) => Ok(value_of(result)?),
            (None, Some(error)) => Err(value_of(error)?),
            _ => {
                let why = "neither a request, a notification nor a response";
                return Err(RpcError::new(INVALID_REQUEST, why));
            }
        };
        let id = envelope.id.map(value_of).transpose()?.unwrap_or(Value::Null);
        Ok(Self::Response { id, outcome })
    }
}

/// A raw value as a tree; fails on one that is nested too deeply.
fn value_of(raw: &RawValue) -> Result<Value, RpcError> {
    serde_json::from_str(raw.get())
        .map_err(|why| RpcError::new(INVALID_REQUEST, format!("cannot read: {why}")))
}

/// Whether an id is a string or an integer, all that MCP allows.
fn is_mcp_id(id: &RawValue) -> bool {
    let text = id.get();
    text.starts_with('"') || is_number(text) && !text.contains(['.', 'e', 'E'])
}

/// Whether an id is a string, a number or null, all that JSON-RPC 2.0 allows.
pub(super) fn is_plain_id(id: &RawValue) -> bool {
    let text = id.get();
    text.starts_with('"') || text == "null" || is_number(text)
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}

/// How an error without a usable id says so: `null` is base JSON-RPC, MCP 2025-11-25 leaves it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoId {
    Null,
    Absent,
}

/// Prints the answer to a request; `result` is JSON text.
pub(super) fn print_result(id: &RawValue, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
}

/// Prints an error for a request, or for something that had no usable id.
pub(super) fn print_error(id: Option<&RawValue>, none: NoId, error: &RpcError) -> String {
    let error = error.to_value();
    match (id, none) {
        (Some(id), _) => format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.get()),
        (None, NoId::Null) => format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#),
        (None, NoId::Absent) => format!(r#"{{"jsonrpc":"2.0","error":{error}}}"#),
    }
}

/// Prints a notification.
pub(super) fn print_notification(method: &str, params: Value) -> String {
    match params {
        Value::Null => json!({"jsonrpc": "2.0", "method": method}),
        params => json!({"jsonrpc": "2.0", "method": method, "params": params}),
    }
    .to_string()
}

/// Prints a request of ours.
pub(super) fn print_request(id: u64, method: &str, params: Value) -> String {
    match params {
        Value::Null => json!({"jsonrpc": "2.0", "id": id, "method": method}),
        params => json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Incoming {
        match Piece::read(text.as_bytes()).unwrap() {
            Piece::One(incoming) => incoming,
            Piece::Many(_) => panic!("an array"),
        }
    }

    #[test]
    fn the_four_shapes_are_told_apart() {
        let request = one(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#);
        assert!(matches!(request, Incoming::Request(r) if r.id.get() == "\"a\""));
        let notification = one(r#"{"jsonrpc":"2.0","method":"x","params":null}"#);
        assert!(matches!(notification, Incoming::Notification { .. }));
        let result = one(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
        assert!(matches!(result, Incoming::Response { outcome: Ok(_), .. }));
        let error = one(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}"#);
        assert!(matches!(error, Incoming::Response { outcome: Err(_), .. }));
    }

    #[test]
    fn what_mcp_forbids_is_invalid_with_the_id_where_it_is_legal() {
        for text in [
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        ] {
            assert!(matches!(one(text), Incoming::Invalid { id: None, .. }), "{text}");
        }
        for text in [
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":""}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
        ] {
            assert!(matches!(one(text), Incoming::Invalid { id: Some(_), .. }), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_message_says_why() {
        let code = |bytes: &[u8]| Piece::read(bytes).unwrap_err().code;
        assert_eq!(code(b"{"), PARSE_ERROR);
        assert_eq!(code(b"{} x"), PARSE_ERROR);
        assert_eq!(code(b"{\"a\":\"\xff\"}"), PARSE_ERROR);
        assert_eq!(code(b"[]"), INVALID_REQUEST);
        assert_eq!(code(b"5"), INVALID_REQUEST);
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused_and_does_not_overflow() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":{deep}}}}}"#);
        assert!(matches!(one(&text), Incoming::Invalid { .. }));
    }
}
