//! What a tool or a prompt may want to know from the client in the middle of its work. Up to
//! 2025-11-25 each is a request to the client; since 2026-07-28 the result asks (`input_required`)
//! and the client comes again with the answers.

use serde_json::{Map, Value, json};

/// One question to the client.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// What its answer is found under (2026-07-28); unique within a call.
    pub(super) key: &'static str,
    pub(super) method: &'static str,
    pub(super) params: Value,
    /// A member that an accepted form must hold to count as an answer.
    field: Option<&'static str>,
}

impl Question {
    /// A form for the user. `schema` describes its fields.
    pub(super) fn form(key: &'static str, message: &str, schema: Value) -> Self {
        let params = json!({"message": message, "requestedSchema": schema});
        Self { key, method: "elicitation/create", params, field: None }
    }

    /// A form of one required field.
    pub(super) fn field(key: &'static str, message: &str, name: &'static str, kind: &str) -> Self {
        let schema = fields(json!({name: {"type": kind}}), &[name]);
        Self { field: Some(name), ..Self::form(key, message, schema) }
    }

    /// A text for the client's model to go on with.
    pub(super) fn sample(key: &'static str, text: &str, max_tokens: u64) -> Self {
        let message = json!({"role": "user", "content": {"type": "text", "text": text}});
        let params = json!({"messages": [message], "maxTokens": max_tokens});
        Self { key, method: "sampling/createMessage", params, field: None }
    }

    /// The folders that the client has opened.
    pub(super) fn roots(key: &'static str) -> Self {
        Self { key, method: "roots/list", params: json!({}), field: None }
    }

    /// The capability that a client must have declared.
    pub(super) fn capability(&self) -> &'static str {
        match self.method {
            "elicitation/create" => "elicitation",
            "sampling/createMessage" => "sampling",
            _ => "roots",
        }
    }

    /// The same as an object of capabilities.
    pub(super) fn required(&self) -> Value {
        match self.capability() {
            "elicitation" => json!({"elicitation": {"form": {}}}),
            name => json!({name: {}}),
        }
    }

    /// Whether a client with these capabilities may be asked.
    pub(super) fn suits(&self, capabilities: &Value) -> bool {
        let Some(Value::Object(declared)) = capabilities.get(self.capability()) else {
            return false;
        };
        // Forms are meant unless only URLs are named (MCP 2025-11-25, elicitation).
        self.capability() != "elicitation"
            || declared.contains_key("form")
            || !declared.contains_key("url")
    }

    /// Whether this can be the answer; anything else is asked again.
    pub(super) fn is_answered_by(&self, answer: &Value) -> bool {
        match self.method {
            "elicitation/create" => match answer["action"].as_str() {
                Some("accept") => self.field.is_none_or(|name| !answer["content"][name].is_null()),
                Some("decline" | "cancel") => true,
                _ => false,
            },
            "sampling/createMessage" => !answer["content"].is_null(),
            _ => answer["roots"].is_array(),
        }
    }

    /// The entry of `inputRequests`.
    pub(super) fn to_value(&self) -> Value {
        json!({"method": self.method, "params": self.params})
    }
}

/// Questions that are asked together.
pub(super) struct Round {
    pub(super) questions: Vec<Question>,
    /// What is to be known when the answers come; the client carries it, sealed.
    pub(super) state: Option<String>,
}

impl Round {
    /// Questions, with nothing to be kept until they are answered.
    pub(super) fn of(questions: impl IntoIterator<Item = Question>) -> Self {
        Self { questions: questions.into_iter().collect(), state: None }
    }

    /// The same with a state.
    pub(super) fn keeping(self, state: impl Into<String>) -> Self {
        Self { state: Some(state.into()), ..self }
    }

    /// The result that asks; `state` is sealed.
    pub(super) fn to_value(&self, state: Option<String>) -> Value {
        let asked = self.questions.iter().map(|one| (one.key.to_owned(), one.to_value()));
        let asked: Map<String, Value> = asked.collect();
        let mut result = json!({"resultType": "input_required", "inputRequests": asked});
        if let Some(state) = state {
            result["requestState"] = json!(state);
        }
        result
    }
}

/// The schema of a form's fields; forms know no more than this.
pub(super) fn fields(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_for_clients_that_show_forms() {
        let form = Question::form("k", "m", json!({}));
        for (declared, suits) in [
            (json!({"elicitation": {}}), true),
            (json!({"elicitation": {"form": {}, "url": {}}}), true),
            (json!({"elicitation": {"url": {}}}), false),
            (json!({"elicitation": true}), false),
            (json!({"sampling": {}}), false),
        ] {
            assert_eq!(form.suits(&declared), suits, "{declared}");
        }
        assert!(Question::roots("k").suits(&json!({"roots": {}})));
    }

    #[test]
    fn only_what_can_be_the_answer_counts_as_one() {
        let name = Question::field("k", "m", "name", "string");
        assert!(name.is_answered_by(&json!({"action": "accept", "content": {"name": "x"}})));
        assert!(name.is_answered_by(&json!({"action": "decline"})));
        assert!(!name.is_answered_by(&json!({"action": "accept", "content": {"other": "x"}})));
        assert!(!name.is_answered_by(&json!({"roots": []})));
        assert!(!Question::roots("k").is_answered_by(&json!({"action": "cancel"})));
    }
}
