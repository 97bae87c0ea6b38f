//! `completion/complete`.

use serde_json::{Value, json};

use super::content::Content;
use super::message::RpcError;
use super::service::text;

/// Values in one answer (MCP 2025-11-25, completion).
const MAX_VALUES: usize = 100;

/// What is being filled in.
pub(super) enum Reference<'a> {
    /// An argument of the prompt with this name.
    Prompt(&'a str),
    /// A variable of a template; each kind has one template.
    Template,
}

/// Answers with the values that begin as the client's text does.
pub(super) fn complete(content: &Content, params: &Value) -> Result<Value, RpcError> {
    let reference = &params["ref"];
    let reference = match reference["type"].as_str() {
        Some("ref/prompt") => {
            let name = text(reference, "name")?;
            if !content.prompts().iter().any(|prompt| prompt.name == name) {
                return Err(RpcError::params(format!("unknown prompt: {name}")));
            }
            Reference::Prompt(name)
        }
        Some("ref/resource") => {
            let uri = text(reference, "uri")?;
            if !content.templates().iter().any(|template| template.uri == uri) {
                return Err(RpcError::params(format!("unknown template: {uri}")));
            }
            Reference::Template
        }
        _ => return Err(RpcError::params("ref.type must be ref/prompt or ref/resource")),
    };
    let argument = &params["argument"];
    let (name, begun) = (text(argument, "name")?, text(argument, "value")?);
    let mut values = content.candidates(&reference, name);
    values.retain(|value| value.starts_with(begun));
    let total = values.len();
    values.truncate(MAX_VALUES);
    let more = total > values.len();
    Ok(json!({"completion": {"values": values, "total": total, "hasMore": more}}))
}
