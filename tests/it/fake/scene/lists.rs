//! What a scene offers, in pages.

use serde_json::{Value, json};

use super::{Failure, REVISIONS, Scene};

/// Cursors between pages: the empty text is one, and the page behind it is empty, too.
const CURSORS: [&str; 2] = ["", "k \"9\" é"];
/// How many items the first page has.
const FIRST: usize = 2;

/// A tool: its name, and the revision from which on it exists.
const TOOLS: [(&str, &str); 18] = [
    ("echo", "2024-11-05"),
    ("progress", "2024-11-05"),
    ("slow", "2024-11-05"),
    ("fails", "2024-11-05"),
    ("structured", "2025-06-18"),
    ("array", "2026-07-28"),
    ("media", "2024-11-05"),
    ("ask_sampling", "2024-11-05"),
    ("ask_elicit", "2025-06-18"),
    ("ask_url", "2025-11-25"),
    ("ask_roots", "2024-11-05"),
    ("ask_twice", "2024-11-05"),
    ("logs", "2024-11-05"),
    ("change", "2024-11-05"),
    ("update", "2024-11-05"),
    ("demands", "2026-07-28"),
    ("endless", "2026-07-28"),
    ("Wetter_ä", "2024-11-05"),
];

impl Scene {
    /// Names of the tools it was made with.
    pub fn tool_names(revision: &str) -> Vec<&'static str> {
        TOOLS.iter().filter(|(_, since)| revision >= *since).map(|(name, _)| *name).collect()
    }

    /// The tools as they are now.
    pub(super) fn tools(&self) -> Vec<Value> {
        let own = Self::tool_names(&self.revision).into_iter().map(|name| self.tool(name));
        let more = self.journal.of("changed").into_iter().map(|entry| {
            let key = entry["key"].as_str().unwrap_or_default();
            json!({"name": format!("extra_{key}"), "inputSchema": {"type": "object"}})
        });
        own.chain(more).collect()
    }

    fn tool(&self, name: &str) -> Value {
        let mut tool = json!({
            "name": name,
            "description": format!("Does {name}."),
            "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}},
        });
        match name {
            "echo" if self.is_modern() => {
                let zone = json!({"type": "string", "x-mcp-header": "Zone"});
                tool["inputSchema"]["properties"]["zone"] = zone;
                let n = json!({"type": "integer", "x-mcp-header": "N"});
                tool["inputSchema"]["properties"]["n"] = n;
            }
            "echo" if self.since("2025-11-25") => {
                tool["execution"] = json!({"taskSupport": "optional"});
            }
            "structured" => {
                tool["outputSchema"] =
                    json!({"type": "object", "properties": {"n": {"type": "integer"}}});
            }
            "array" => {
                tool["outputSchema"] = json!({"type": "array", "items": {"type": "integer"}});
            }
            _ => {}
        }
        tool
    }

    fn memos() -> Vec<Value> {
        let memo = |name: &&str| json!({"uri": format!("memo://{name}"), "name": *name});
        REVISIONS.iter().chain(&["asks"]).map(memo).collect()
    }

    /// Answers one of the four methods that list.
    pub(super) fn list(&self, method: &str, params: &Value) -> Result<Value, Failure> {
        let (member, items) = match method {
            "tools/list" => ("tools", self.tools()),
            "prompts/list" => {
                let greet = json!({"name": "greet", "arguments": [{"name": "who"}]});
                ("prompts", vec![greet, json!({"name": "plain"}), json!({"name": "asks"})])
            }
            "resources/list" => ("resources", Self::memos()),
            _ => {
                let memo = json!({"uriTemplate": "memo://{id}", "name": "memo"});
                ("resourceTemplates", vec![memo])
            }
        };
        let page = match params.get("cursor").map(Value::as_str) {
            None => 0,
            Some(cursor) => {
                let place = CURSORS.iter().position(|known| Some(*known) == cursor);
                place.ok_or_else(|| Failure::new(-32602, "unknown cursor"))? + 1
            }
        };
        let items: Vec<_> = match page {
            0 => items.into_iter().take(FIRST).collect(),
            1 => Vec::new(),
            _ => items.into_iter().skip(FIRST).collect(),
        };
        let mut result = json!({ member: items });
        if let Some(next) = CURSORS.get(page) {
            result["nextCursor"] = json!(next);
        }
        Ok(self.hinted(result, 60_000))
    }

    /// With the hints for caches that the modern era wants.
    pub(super) fn hinted(&self, mut result: Value, ttl: u64) -> Value {
        if self.is_modern() {
            result["ttlMs"] = json!(ttl);
            result["cacheScope"] = json!("public");
        }
        result
    }

    /// Reads a resource.
    pub(super) fn read(&self, params: &Value) -> Result<Value, Failure> {
        let uri = params["uri"].as_str().unwrap_or_default();
        if Self::memos().iter().all(|memo| memo["uri"] != uri) {
            let code = if self.is_modern() { -32602 } else { -32002 };
            let mut failure = Failure::new(code, "resource not found");
            failure.data = json!({ "uri": uri });
            return Err(failure);
        }
        let text = format!("the text of {uri}");
        let contents = json!([{"uri": uri, "mimeType": "text/plain", "text": text}]);
        Ok(self.hinted(json!({ "contents": contents }), 0))
    }

    /// Gives a prompt.
    pub(super) fn prompt(params: &Value) -> Result<Value, Failure> {
        if params["name"] != "greet" {
            return Err(Failure::new(-32602, "unknown prompt"));
        }
        let text = format!("Greet {}.", params["arguments"]["who"].as_str().unwrap_or_default());
        let content = json!({"type": "text", "text": text});
        Ok(json!({"messages": [{"role": "user", "content": content}]}))
    }

    /// Completes the argument of the prompt; what the context says is among the values.
    pub(super) fn complete(params: &Value) -> Value {
        let start = params["argument"]["value"].as_str().unwrap_or_default();
        let names = ["ann", "anna", "bob"].iter().filter(|name| name.starts_with(start));
        let mut values: Vec<_> = names.map(|name| json!(name)).collect();
        if let Some(context) = params["context"]["arguments"]["how"].as_str() {
            values.push(json!(context));
        }
        json!({"completion": {"values": values, "hasMore": false}})
    }

    /// What it can do.
    pub(super) fn capabilities(&self) -> Value {
        let mut capabilities = json!({
            "tools": {"listChanged": true},
            "prompts": {},
            "resources": {"subscribe": true},
            "logging": {},
        });
        if self.since("2025-03-26") {
            capabilities["completions"] = json!({});
        }
        capabilities
    }
}
