//! Capability objects: the few members the gateway understands.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::Era;

/// The extension for tasks (MCP digest §16.2).
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// What a client declared and the gateway can relay (MCP digest §9.4, §19.5). A small set, so that it can
/// be part of a pool key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientCaps(u16);

impl ClientCaps {
    /// Declares nothing.
    pub const NONE: Self = Self(0);
    const SAMPLING: u16 = 1;
    const SAMPLING_CONTEXT: u16 = 1 << 1;
    const SAMPLING_TOOLS: u16 = 1 << 2;
    const ELICITATION_FORM: u16 = 1 << 3;
    const ELICITATION_URL: u16 = 1 << 4;
    const ROOTS: u16 = 1 << 5;
    const ROOTS_LIST_CHANGED: u16 = 1 << 6;
    const ELICITATION_PLAIN: u16 = 1 << 7;
    const TASKS: u16 = 1 << 8;
    /// How many sets there are.
    const SETS: usize = 1 << 9;

    /// Reads `params.capabilities` of `initialize`, or what a modern request declares. Unknown members are not relayable
    /// and left out.
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
        if let Some(Value::Object(extensions)) = caps.get("extensions") {
            set |= flag(extensions, TASKS_EXTENSION, Self::TASKS);
        }
        Self(set)
    }

    /// What of it an `initialize` can declare.
    #[must_use]
    pub fn of_a_session(self) -> Self {
        Self(self.0 & !Self::TASKS)
    }

    /// The capability object to declare on a modern request: `{}` is spelled out, and roots announce no changes.
    pub fn to_modern_json(self) -> Value {
        let plain = self.0 & !(Self::ELICITATION_PLAIN | Self::ROOTS_LIST_CHANGED);
        let mut caps = Self(plain).to_json();
        if self.has(Self::TASKS) {
            caps["extensions"] = json!({ TASKS_EXTENSION: {} });
        }
        caps
    }

    /// The same as JSON text, made once for each set.
    pub fn to_modern_text(self) -> Bytes {
        static TEXTS: [OnceLock<Box<str>>; ClientCaps::SETS] =
            [const { OnceLock::new() }; ClientCaps::SETS];
        let text = || self.to_modern_json().to_string().into_boxed_str();
        match TEXTS.get(usize::from(self.0)) {
            // Static, since a count of users would be shared by all threads.
            Some(known) => Bytes::from_static(known.get_or_init(text).as_bytes()),
            None => text().into_string().into(),
        }
    }

    /// The capability object to declare at `initialize`.
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

    /// Whether there is anything that this client may be asked.
    pub fn can_be_asked(self) -> bool {
        let asked = Self::ELICITATION_FORM | Self::ELICITATION_URL | Self::SAMPLING | Self::ROOTS;
        self.0 & asked != 0
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

    /// Whether a form may be put to the client.
    pub fn elicits_forms(self) -> bool {
        self.has(Self::ELICITATION_FORM)
    }

    /// Whether the client can be asked to open a URL.
    pub fn elicits_urls(self) -> bool {
        self.has(Self::ELICITATION_URL)
    }

    /// Whether a sampling request may carry tools.
    pub fn samples_with_tools(self) -> bool {
        self.has(Self::SAMPLING_TOOLS)
    }

    /// Whether the client knows tasks as the extension has them.
    pub fn tasks(self) -> bool {
        self.has(Self::TASKS)
    }

    /// Whether the client will tell of changed roots.
    pub fn roots_list_changed(self) -> bool {
        self.has(Self::ROOTS_LIST_CHANGED)
    }

    fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }
}

fn flag(object: &Map<String, Value>, key: &str, bit: u16) -> u16 {
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
    /// The extension for tasks.
    pub tasks: bool,
}

impl ServerCaps {
    /// Everything that a session can use: promised of an upstream of which nothing is known yet.
    pub const PROMISED: Self = Self {
        tools: true,
        prompts: true,
        resources: true,
        subscribe: true,
        completions: true,
        logging: true,
        list_changed: true,
        tasks: false,
    };

    /// Reads the `capabilities` of an `InitializeResult` or `DiscoverResult`.
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
            tasks: caps["extensions"].get(TASKS_EXTENSION).is_some_and(Value::is_object),
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
            tasks: self.tasks | other.tasks,
        }
    }

    /// The object the gateway advertises to a client of that era: membership can always change.
    pub fn to_json(self, era: Era) -> Value {
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
        if self.tasks && era == Era::Modern {
            caps.insert("extensions".into(), json!({ TASKS_EXTENSION: {} }));
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
    fn on_modern_requests_capabilities_are_spelled_out() {
        for (declared, modern) in [
            (r#"{"elicitation":{}}"#, r#"{"elicitation":{"form":{}}}"#),
            (r#"{"roots":{"listChanged":true}}"#, r#"{"roots":{}}"#),
            (
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{},"x/y":{}}}"#,
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            ),
        ] {
            let caps = ClientCaps::parse(declared.as_bytes());
            assert_eq!(caps.to_modern_json().to_string(), modern);
            assert_eq!(caps.to_modern_text(), modern);
            assert_eq!(ClientCaps::parse(modern.as_bytes()).to_modern_json().to_string(), modern);
            assert!(!caps.of_a_session().tasks());
        }
    }

    #[test]
    fn capabilities_that_cannot_be_relayed_are_left_out() {
        let caps = ClientCaps::parse(br#"{"tasks":{"list":{}},"experimental":{"x":{}}}"#);
        assert_eq!(caps, ClientCaps::NONE);
        assert!(!caps.allows("sampling/createMessage"));
    }
}
