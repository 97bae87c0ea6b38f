//! Capability objects: the few members the gateway understands.

use serde_json::{Map, Value, json};

/// What a client declared and the gateway can relay (MCP digest §9.4, §19.5). A small set, so that it can
/// be part of a pool key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientCaps(u8);

impl ClientCaps {
    /// Declares nothing.
    pub const NONE: Self = Self(0);
    const SAMPLING: u8 = 1;
    const SAMPLING_CONTEXT: u8 = 1 << 1;
    const SAMPLING_TOOLS: u8 = 1 << 2;
    const ELICITATION_FORM: u8 = 1 << 3;
    const ELICITATION_URL: u8 = 1 << 4;
    const ROOTS: u8 = 1 << 5;
    const ROOTS_LIST_CHANGED: u8 = 1 << 6;
    const ELICITATION_PLAIN: u8 = 1 << 7;

    /// Reads `params.capabilities` of `initialize`. Unknown members are not relayable and left out.
    pub fn parse(text: &[u8]) -> Self {
        let Ok(Value::Object(caps)) = serde_json::from_slice::<Value>(text) else {
            return Self::NONE;
        };
        let mut set = 0;
        if let Some(Value::Object(sampling)) = caps.get("sampling") {
            set |= Self::SAMPLING;
            set |= flag(sampling, "context", Self::SAMPLING_CONTEXT);
            set |= flag(sampling, "tools", Self::SAMPLING_TOOLS);
        }
        if let Some(Value::Object(elicitation)) = caps.get("elicitation") {
            let form = flag(elicitation, "form", Self::ELICITATION_FORM);
            let url = flag(elicitation, "url", Self::ELICITATION_URL);
            // `{}` means form only, and is how 2025-06-18 spells it.
            set |= if form | url == 0 {
                Self::ELICITATION_FORM | Self::ELICITATION_PLAIN
            } else {
                form | url
            };
        }
        if let Some(Value::Object(roots)) = caps.get("roots") {
            set |= Self::ROOTS;
            if roots.get("listChanged") == Some(&Value::Bool(true)) {
                set |= Self::ROOTS_LIST_CHANGED;
            }
        }
        Self(set)
    }

    /// The capability object to declare upstream.
    pub fn to_json(self) -> Value {
        let mut caps = Map::new();
        if self.has(Self::SAMPLING) {
            let mut sampling = Map::new();
            if self.has(Self::SAMPLING_CONTEXT) {
                sampling.insert("context".into(), json!({}));
            }
            if self.has(Self::SAMPLING_TOOLS) {
                sampling.insert("tools".into(), json!({}));
            }
            caps.insert("sampling".into(), sampling.into());
        }
        if self.has(Self::ELICITATION_FORM) || self.has(Self::ELICITATION_URL) {
            let mut elicitation = Map::new();
            if !self.has(Self::ELICITATION_PLAIN) {
                if self.has(Self::ELICITATION_FORM) {
                    elicitation.insert("form".into(), json!({}));
                }
                if self.has(Self::ELICITATION_URL) {
                    elicitation.insert("url".into(), json!({}));
                }
            }
            caps.insert("elicitation".into(), elicitation.into());
        }
        if self.has(Self::ROOTS) {
            let roots = if self.has(Self::ROOTS_LIST_CHANGED) {
                json!({ "listChanged": true })
            } else {
                json!({})
            };
            caps.insert("roots".into(), roots);
        }
        Value::Object(caps)
    }

    /// Whether a request of an upstream with that method may be put to this client.
    pub fn allows(self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.has(Self::SAMPLING),
            "elicitation/create" => {
                self.has(Self::ELICITATION_FORM) || self.has(Self::ELICITATION_URL)
            }
            "roots/list" => self.has(Self::ROOTS),
            _ => false,
        }
    }

    /// Whether the client will tell of changed roots.
    pub fn roots_list_changed(self) -> bool {
        self.has(Self::ROOTS_LIST_CHANGED)
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

fn flag(object: &Map<String, Value>, key: &str, bit: u8) -> u8 {
    if object.get(key).is_some_and(Value::is_object) { bit } else { 0 }
}

/// What a server advertised, as far as the gateway acts on it (MCP digest §9.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCaps {
    /// `tools`
    pub tools: bool,
    /// `prompts`
    pub prompts: bool,
    /// `resources`
    pub resources: bool,
    /// `resources.subscribe`
    pub subscribe: bool,
    /// `completions`
    pub completions: bool,
    /// `logging`
    pub logging: bool,
    /// `listChanged` of every list it has: no need to poll.
    pub list_changed: bool,
}

impl ServerCaps {
    /// Reads the `capabilities` of an `InitializeResult`.
    pub fn parse(caps: &Value) -> Self {
        let has = |key: &str| caps.get(key).is_some_and(Value::is_object);
        let member = |key: &str, inner: &str| caps[key].get(inner) == Some(&Value::Bool(true));
        let notifies = |key: &str| !has(key) || member(key, "listChanged");
        Self {
            tools: has("tools"),
            prompts: has("prompts"),
            resources: has("resources"),
            subscribe: member("resources", "subscribe"),
            completions: has("completions"),
            logging: has("logging"),
            list_changed: notifies("tools") && notifies("prompts") && notifies("resources"),
        }
    }

    /// What either has.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            tools: self.tools | other.tools,
            prompts: self.prompts | other.prompts,
            resources: self.resources | other.resources,
            subscribe: self.subscribe | other.subscribe,
            completions: self.completions | other.completions,
            logging: self.logging | other.logging,
            list_changed: self.list_changed & other.list_changed,
        }
    }

    /// The object the gateway advertises to a legacy client: membership can always change.
    pub fn to_json(self) -> Value {
        let mut caps = Map::new();
        if self.tools {
            caps.insert("tools".into(), json!({ "listChanged": true }));
        }
        if self.prompts {
            caps.insert("prompts".into(), json!({ "listChanged": true }));
        }
        if self.resources {
            let mut resources = Map::new();
            if self.subscribe {
                resources.insert("subscribe".into(), true.into());
            }
            resources.insert("listChanged".into(), true.into());
            caps.insert("resources".into(), resources.into());
        }
        if self.completions {
            caps.insert("completions".into(), json!({}));
        }
        if self.logging {
            caps.insert("logging".into(), json!({}));
        }
        Value::Object(caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_capabilities_survive_as_they_were_declared() {
        for text in [
            r#"{}"#,
            r#"{"sampling":{}}"#,
            r#"{"sampling":{"context":{},"tools":{}}}"#,
            r#"{"elicitation":{}}"#,
            r#"{"elicitation":{"form":{},"url":{}}}"#,
            r#"{"elicitation":{"url":{}}}"#,
            r#"{"roots":{"listChanged":true}}"#,
            r#"{"roots":{}}"#,
        ] {
            let caps = ClientCaps::parse(text.as_bytes());
            assert_eq!(caps.to_json().to_string(), text);
        }
    }

    #[test]
    fn capabilities_that_cannot_be_relayed_are_left_out() {
        let caps = ClientCaps::parse(br#"{"tasks":{"list":{}},"experimental":{"x":{}}}"#);
        assert_eq!(caps, ClientCaps::NONE);
        assert!(!caps.allows("sampling/createMessage"));
    }
}
