//! What prompts are.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::call::Call;
use super::message::RpcError;
use super::resources::Contents;
use super::revision::Revision;
use super::service;
use super::tools::ToolError;

/// A prompt's definition.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) name: Cow<'static, str>,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) arguments: Vec<PromptArgument>,
}

/// An argument of a prompt; its value is always a string.
#[derive(Clone, Debug)]
pub(super) struct PromptArgument {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) required: bool,
}

impl Prompt {
    /// The definition as a client of this revision understands it.
    pub(super) fn to_value(&self, revision: Revision) -> Value {
        let mut prompt = json!({"name": self.name});
        if revision >= Revision::V2025_06_18 {
            prompt["title"] = json!(self.title);
        }
        prompt["description"] = json!(self.description);
        let arguments = self.arguments.iter().map(|argument| {
            let PromptArgument { name, description, required } = argument;
            json!({"name": name, "description": description, "required": required})
        });
        prompt["arguments"] = arguments.collect();
        prompt
    }

    /// Checks that required arguments are there and all are strings.
    pub(super) fn check(&self, arguments: &Map<String, Value>) -> Result<(), RpcError> {
        for PromptArgument { name, required, .. } in &self.arguments {
            match arguments.get(*name) {
                None if *required => {
                    return Err(RpcError::params(format!("argument {name} is missing")));
                }
                Some(value) if !value.is_string() => {
                    return Err(RpcError::params(format!("argument {name} must be a string")));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Fills in the prompt that `params` of a `prompts/get` name. `None` if the call was cancelled.
pub(super) async fn run(call: &Call, params: &Value) -> Option<Result<Value, RpcError>> {
    match get(call, params).await {
        Ok(result) | Err(ToolError::Asks(result)) => Some(Ok(result)),
        Err(ToolError::Cancelled) => None,
        Err(ToolError::Protocol(error)) => Some(Err(error)),
        Err(ToolError::Unknown) => Some(Err(RpcError::params("unknown prompt"))),
        Err(ToolError::Arguments(why) | ToolError::Failed(why)) => Some(Err(RpcError::params(why))),
    }
}

async fn get(call: &Call, params: &Value) -> Result<Value, ToolError> {
    let name = service::text(params, "name")?;
    let content = &call.server.content;
    let prompts = content.prompts();
    let prompt = prompts.iter().find(|prompt| prompt.name == name);
    let prompt = prompt.ok_or_else(|| RpcError::params(format!("unknown prompt: {name}")))?;
    let empty = Map::new();
    let arguments = params.get("arguments").and_then(Value::as_object).unwrap_or(&empty);
    prompt.check(arguments)?;
    let messages = content.prompt(call, name, arguments).await?;
    Ok(json!({"description": prompt.description, "messages": messages}))
}

/// The value of an argument, or a default.
pub(super) fn argument<'a>(
    arguments: &'a Map<String, Value>,
    name: &str,
    default: &'a str,
) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or(default)
}

/// A message of the user in text.
pub(super) fn user_text(text: impl Into<String>) -> Value {
    json!({"role": "user", "content": {"type": "text", "text": text.into()}})
}

/// A message of the user that holds a resource.
pub(super) fn user_resource(contents: &Contents) -> Value {
    json!({"role": "user", "content": {"type": "resource", "resource": contents.to_value()}})
}
