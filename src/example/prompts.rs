//! What prompts are.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::message::RpcError;
use super::resources::Contents;
use super::revision::Revision;

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
