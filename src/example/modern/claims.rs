//! What a request says of its client and of itself (MCP 2026-07-28, `_meta`), and what it brings
//! from the round before.

use serde_json::{Map, Value};

use super::super::message::RpcError;
use super::super::service;
use crate::mcp::{TASKS_EXTENSION, meta};

/// What a request says of its client, and the answers that come with it.
#[derive(Debug)]
pub(in super::super) struct Claims {
    /// What the client can do, as far as this request goes.
    pub(in super::super) capabilities: Value,
    /// Answers to the questions of the round before, by key.
    pub(in super::super) responses: Map<String, Value>,
    /// What the round before gave the client to carry.
    pub(in super::super) state: Option<String>,
    /// The name of the lowest level of log messages to send; without one, none are sent.
    log_level: Option<Value>,
}

/// The revision that a request names; whoever names one is of this era, whatever it is.
pub(in super::super) fn revision(params: &Value) -> Option<&Value> {
    params.get("_meta")?.get(meta::PROTOCOL_VERSION)
}

/// What tells a call from others and stays the same from round to round.
pub(super) fn purpose(method: &str, params: &Value) -> String {
    let mut purpose = format!("{method} {} ", params["name"]);
    push_sorted(&mut purpose, &params["arguments"]);
    purpose
}

/// Prints a value with the members of its objects in order, so that clients may reorder them.
fn push_sorted(text: &mut String, value: &Value) {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort_unstable();
            text.push('{');
            for name in names {
                *text += &format!("{}:", Value::from(name.as_str()));
                push_sorted(text, &members[name]);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            for value in values {
                push_sorted(text, value);
                text.push(',');
            }
            text.push(']');
        }
        plain => *text += &plain.to_string(),
    }
}

impl Claims {
    /// Reads the parameters of a request.
    pub(super) fn read(params: &Value) -> Result<Self, RpcError> {
        let member = |name: &str| params.get("_meta").and_then(|meta| meta.get(name));
        let missing = |name: &str, kind: &str| {
            RpcError::params(format!("params._meta[\"{name}\"] must be {kind}"))
        };
        if !member(meta::PROTOCOL_VERSION).is_some_and(Value::is_string) {
            return Err(missing(meta::PROTOCOL_VERSION, "a string"));
        }
        let capabilities = member(meta::CLIENT_CAPABILITIES).filter(|caps| caps.is_object());
        let capabilities =
            capabilities.ok_or_else(|| missing(meta::CLIENT_CAPABILITIES, "an object"))?.clone();
        let responses = params.get("inputResponses").and_then(Value::as_object);
        let state = params.get("requestState").and_then(Value::as_str);
        Ok(Self {
            capabilities,
            responses: responses.cloned().unwrap_or_default(),
            state: state.map(str::to_owned),
            log_level: member(meta::LOG_LEVEL).cloned(),
        })
    }

    /// Checks what is not needed to know what the request is about.
    pub(super) fn check(&self) -> Result<(), RpcError> {
        match &self.log_level {
            None => Ok(()),
            Some(level) => service::log_level(level.as_str().unwrap_or_default()).map(|_| ()),
        }
    }

    /// Whether the client wants log messages of this level.
    pub(in super::super) fn wants_log(&self, level: usize) -> bool {
        let lowest = self.log_level.as_ref().and_then(Value::as_str);
        lowest.and_then(|name| service::log_level(name).ok()).is_some_and(|lowest| level >= lowest)
    }

    /// Whether the client declared the extension for tasks.
    pub(in super::super) fn knows_tasks(&self) -> bool {
        let extensions = self.capabilities.get("extensions");
        extensions.and_then(|all| all.get(TASKS_EXTENSION)).is_some_and(Value::is_object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revision_and_capabilities_must_be_told_and_the_rest_may() {
        let whole = json!({meta::PROTOCOL_VERSION: "2026-07-28", meta::CLIENT_CAPABILITIES: {}});
        assert!(Claims::read(&json!({"_meta": whole})).is_ok());
        for name in [meta::PROTOCOL_VERSION, meta::CLIENT_CAPABILITIES] {
            let mut part = whole.clone();
            part[name] = json!(1);
            let why = Claims::read(&json!({"_meta": part})).unwrap_err();
            assert!(why.code == -32602 && why.message.contains(name), "{why:?}");
            part.as_object_mut().unwrap().remove(name);
            assert!(Claims::read(&json!({"_meta": part})).is_err());
        }
        assert!(Claims::read(&json!({})).is_err());
    }

    #[test]
    fn no_log_message_is_wanted_unless_a_level_is_named() {
        let claims = |level: Value| {
            let meta = json!({
                meta::PROTOCOL_VERSION: "2026-07-28",
                meta::CLIENT_CAPABILITIES: {},
                meta::LOG_LEVEL: level,
            });
            Claims::read(&json!({"_meta": meta})).unwrap()
        };
        let warning = claims(json!("warning"));
        assert!(warning.wants_log(3) && !warning.wants_log(2) && warning.check().is_ok());
        for odd in [json!("loud"), json!(3), Value::Null] {
            assert!(!claims(odd.clone()).wants_log(7) && claims(odd).check().is_err());
        }
    }

    #[test]
    fn a_purpose_is_the_same_for_the_same_call_only() {
        let call = |arguments: Value| {
            purpose(
                "tools/call",
                &json!({"name": "x", "arguments": arguments, "inputResponses": {}}),
            )
        };
        let one = call(json!({"a": 1, "b": [{"d": 2, "c": "x"}]}));
        assert_eq!(one, call(json!({"b": [{"c": "x", "d": 2}], "a": 1})));
        assert_ne!(one, call(json!({"a": 1, "b": [{"d": 2, "c": "y"}]})));
        assert_ne!(one, call(json!(null)));
    }
}
