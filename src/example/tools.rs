//! What tools are: their definitions by revision, their arguments, their results.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::call::Call;
use super::message::RpcError;
use super::revision::Revision;
use super::service;

/// What a tool does to its surroundings, told to clients as hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Changes nothing.
    Reads,
    /// Adds something.
    Adds,
    /// Changes or removes what was there.
    Destroys,
    /// Reaches people or models on the client's side.
    Asks,
}

/// A tool's definition.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: Cow<'static, str>,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// Schema of the arguments.
    pub(super) input: Value,
    /// Schema of the structured result, if there is one.
    pub(super) output: Option<Value>,
    pub(super) effect: Effect,
}

impl Tool {
    /// A tool without a structured result. `properties` describes the arguments.
    pub(super) fn new(
        name: &'static str,
        title: &'static str,
        effect: Effect,
        description: &'static str,
        input: Value,
    ) -> Self {
        Self { name: Cow::Borrowed(name), title, description, input, output: None, effect }
    }

    /// The same tool with a structured result.
    pub(super) fn with_output(self, schema: Value) -> Self {
        Self { output: Some(schema), ..self }
    }

    /// The definition as a client of this revision understands it.
    pub(super) fn to_value(&self, revision: Revision) -> Value {
        let mut tool = json!({"name": self.name});
        if revision >= Revision::V2025_06_18 {
            tool["title"] = json!(self.title);
        }
        tool["description"] = json!(self.description);
        tool["inputSchema"] = self.input.clone();
        if let (Some(schema), true) = (&self.output, revision >= Revision::V2025_06_18) {
            tool["outputSchema"] = schema.clone();
        }
        if revision >= Revision::V2025_03_26 {
            tool["annotations"] = self.annotations();
        }
        tool
    }

    fn annotations(&self) -> Value {
        let mut hints = json!({
            "title": self.title,
            "readOnlyHint": matches!(self.effect, Effect::Reads | Effect::Asks),
            "openWorldHint": self.effect == Effect::Asks,
        });
        if matches!(self.effect, Effect::Adds | Effect::Destroys) {
            hints["destructiveHint"] = json!(self.effect == Effect::Destroys);
            hints["idempotentHint"] = json!(self.effect == Effect::Destroys);
        }
        hints
    }
}

/// An object schema with these properties, of which some are required.
pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema["additionalProperties"] = json!(false);
    schema
}

/// The schema of a tool without arguments.
pub(super) fn nothing() -> Value {
    json!({"type": "object", "additionalProperties": false})
}

/// Why a tool gives no result.
#[derive(Debug)]
pub(super) enum ToolError {
    /// There is no such tool.
    Unknown,
    /// The arguments do not fit; the caller can mend that.
    Arguments(String),
    /// It was tried and did not work out.
    Failed(String),
    /// The call was cancelled; nobody waits.
    Cancelled,
    /// The client has to answer something first; this is the result that asks.
    Asks(Value),
    /// An error of the protocol, not for the model.
    Protocol(RpcError),
}

impl From<RpcError> for ToolError {
    fn from(error: RpcError) -> Self {
        Self::Protocol(error)
    }
}

/// A tool's result.
#[derive(Debug)]
pub(super) struct ToolResult {
    content: Vec<Value>,
    structured: Option<Value>,
    is_error: bool,
}

impl ToolResult {
    /// One block of text.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::blocks(vec![json!({"type": "text", "text": text.into()})])
    }

    /// Several blocks.
    pub(super) fn blocks(content: Vec<Value>) -> Self {
        Self { content, structured: None, is_error: false }
    }

    /// A structured result, with the same as text for clients that do not know such.
    pub(super) fn structured(value: Value) -> Self {
        Self { structured: Some(value.clone()), ..Self::text(value.to_string()) }
    }

    /// A result that reports a failure to the model.
    pub(super) fn error(why: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(why) }
    }

    fn into_value(self, revision: Revision) -> Value {
        let mut result = json!({"content": self.content});
        if let (Some(value), true) = (self.structured, revision >= Revision::V2025_06_18) {
            result["structuredContent"] = value;
        }
        if self.is_error {
            result["isError"] = json!(true);
        }
        result
    }
}

/// Runs the tool that `params` of a `tools/call` name. `None` if the call was cancelled.
pub(super) async fn run(call: &Call, params: &Value) -> Option<Result<Value, RpcError>> {
    let revision = call.revision();
    let name = match service::text(params, "name") {
        Ok(name) => name,
        Err(why) => return Some(Err(why)),
    };
    let empty = Map::new();
    let arguments = match params.get("arguments") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Some(Err(RpcError::params("arguments must be an object"))),
    };
    let content = &call.server.content;
    let result = match content.call(call, name, Arguments(arguments)).await {
        Ok(result) => result,
        Err(ToolError::Cancelled) => return None,
        Err(ToolError::Asks(result)) => return Some(Ok(result)),
        Err(ToolError::Protocol(error)) => return Some(Err(error)),
        Err(ToolError::Unknown) => {
            return Some(Err(RpcError::params(format!("unknown tool: {name}"))));
        }
        // Since 2025-11-25 the model is to see such errors; before, they were the protocol's.
        Err(ToolError::Arguments(why)) if revision < Revision::V2025_11_25 => {
            return Some(Err(RpcError::params(why)));
        }
        Err(ToolError::Arguments(why) | ToolError::Failed(why)) => ToolResult::error(why),
    };
    Some(Ok(result.into_value(revision)))
}

/// A tool's arguments.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Arguments<'a> {
    fn given(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A required string.
    pub(super) fn text(self, name: &str) -> Result<&'a str, ToolError> {
        let value = self.given(name).ok_or_else(|| missing(name))?;
        value.as_str().ok_or_else(|| ToolError::Arguments(format!("{name} must be a string")))
    }

    /// An optional string.
    pub(super) fn text_or(self, name: &str, default: &'a str) -> Result<&'a str, ToolError> {
        if self.given(name).is_some() { self.text(name) } else { Ok(default) }
    }

    /// A required number.
    pub(super) fn number(self, name: &str) -> Result<&'a serde_json::Number, ToolError> {
        match self.given(name).ok_or_else(|| missing(name))? {
            Value::Number(number) => Ok(number),
            _ => Err(ToolError::Arguments(format!("{name} must be a number"))),
        }
    }

    /// A required whole number from 0 to `most`.
    pub(super) fn whole(self, name: &str, most: u64) -> Result<u64, ToolError> {
        let number = self.number(name)?;
        let whole = number.as_u64().or_else(|| {
            let float = number.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0);
            float.map(|f| f as u64)
        });
        whole.filter(|whole| *whole <= most).ok_or_else(|| {
            ToolError::Arguments(format!("{name} must be a whole number from 0 to {most}"))
        })
    }

    /// An optional truth value.
    pub(super) fn flag_or(self, name: &str, default: bool) -> Result<bool, ToolError> {
        match self.given(name) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| ToolError::Arguments(format!("{name} must be true or false"))),
        }
    }

    /// An optional whole number from 0 to `most`.
    pub(super) fn whole_or(self, name: &str, default: u64, most: u64) -> Result<u64, ToolError> {
        if self.given(name).is_some() { self.whole(name, most) } else { Ok(default) }
    }
}

fn missing(name: &str) -> ToolError {
    ToolError::Arguments(format!("{name} is missing"))
}
