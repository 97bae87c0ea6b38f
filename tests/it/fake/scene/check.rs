//! What a strict server looks at before it serves a request, and what it answers when something is wrong.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::journal::locked;
use super::{Hop, META, MODERN, Scene};

/// The value of a header, by its name in lower case.
pub type Header<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// A request that is not served.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The JSON-RPC code.
    pub code: i64,
    /// Why.
    pub message: String,
    /// More about it.
    pub data: Value,
}

impl Refusal {
    fn new(status: u16, code: i64, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), data: Value::Null }
    }

    /// The answer to the request with that id.
    pub fn answer(&self, id: &Value) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if !self.data.is_null() {
            error["data"] = self.data.clone();
        }
        let mut answer = json!({"jsonrpc": "2.0", "error": error});
        if !id.is_null() {
            answer["id"] = id.clone();
        }
        answer
    }
}

/// The text as the value of a header.
pub fn encode(text: &str) -> String {
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let marked = text.starts_with("=?base64?") && text.ends_with("?=");
    let padded = text.is_empty() || text.starts_with(' ') || text.ends_with(' ');
    if printable && !marked && !padded {
        text.to_owned()
    } else {
        format!("=?base64?{}?=", STANDARD.encode(text))
    }
}

/// The text that the value of a header stands for.
pub fn decode(value: &str) -> Option<String> {
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    match inner {
        None => Some(value.to_owned()),
        Some(inner) => String::from_utf8(STANDARD.decode(inner).ok()?).ok(),
    }
}

const METHODS: [&str; 11] = [
    "server/discover",
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "completion/complete",
    "subscriptions/listen",
    "notifications/cancelled",
];

impl Scene {
    /// Checks a message of the era without sessions. `header` gives the headers of an HTTP request.
    pub fn check_modern(&self, message: &Value, header: Option<Header<'_>>) -> Result<(), Refusal> {
        let Some(method) = message["method"].as_str() else {
            return Err(Refusal::new(400, -32600, "neither a request nor a notification"));
        };
        if message.get("id").is_none() {
            return Ok(());
        }
        if method == "initialize" {
            let mut refusal = Refusal::new(404, -32601, "this server speaks 2026-07-28 only");
            refusal.data = json!({"supported": [MODERN]});
            return Err(refusal);
        }
        let meta = &message["params"]["_meta"];
        let version = meta[format!("{META}protocolVersion")].as_str();
        let Some(version) = version else {
            let headed = header.is_none_or(|header| header("mcp-protocol-version").is_some());
            return Err(if headed {
                Refusal::new(400, -32602, "missing _meta member protocolVersion")
            } else {
                Refusal::new(400, -32020, "missing header MCP-Protocol-Version")
            });
        };
        if !meta[format!("{META}clientCapabilities")].is_object() {
            return Err(Refusal::new(400, -32602, "missing _meta member clientCapabilities"));
        }
        if version != MODERN {
            let mut refusal = Refusal::new(400, -32022, "unsupported protocol version");
            refusal.data = json!({"supported": [MODERN], "requested": version});
            return Err(refusal);
        }
        if let Some(header) = header {
            self.check_headers(method, &message["params"], version, header)?;
        }
        if !METHODS.contains(&method) {
            return Err(Refusal::new(404, -32601, "method not found"));
        }
        Ok(())
    }

    fn check_headers(
        &self,
        method: &str,
        params: &Value,
        version: &str,
        header: Header<'_>,
    ) -> Result<(), Refusal> {
        let named = match method {
            "tools/call" | "prompts/get" => Some("name"),
            "resources/read" => Some("uri"),
            _ => None,
        };
        let mut wanted = vec![
            ("mcp-protocol-version".to_owned(), version.to_owned()),
            ("mcp-method".to_owned(), method.to_owned()),
        ];
        if let Some(member) = named {
            let value = params[member].as_str().unwrap_or_default();
            wanted.push(("mcp-name".to_owned(), value.to_owned()));
        }
        if method == "tools/call" {
            let name = params["name"].as_str().unwrap_or_default();
            wanted.extend(self.param_headers(name, &params["arguments"]));
        }
        for (name, value) in wanted {
            let Some(found) = header(&name) else {
                return Err(Refusal::new(400, -32020, format!("missing header {name}")));
            };
            if decode(&found).as_deref() != Some(&value) {
                let text = format!("header {name} is {found:?}, the body says {value:?}");
                return Err(Refusal::new(400, -32020, text));
            }
        }
        Ok(())
    }

    /// The headers that repeat arguments of a call, and their values.
    fn param_headers(&self, tool: &str, arguments: &Value) -> Vec<(String, String)> {
        let tools = self.tools();
        let Some(tool) = tools.iter().find(|item| item["name"] == tool) else { return Vec::new() };
        let Some(properties) = tool["inputSchema"]["properties"].as_object() else {
            return Vec::new();
        };
        let annotated = properties.iter().filter_map(|(name, schema)| {
            let header = schema["x-mcp-header"].as_str()?;
            let value = match &arguments[name] {
                Value::Null => return None,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some((format!("mcp-param-{}", header.to_ascii_lowercase()), value))
        });
        annotated.collect()
    }

    /// Checks a request within a legacy session.
    pub fn check_legacy(&self, message: &Value) {
        let Some(params) = message["params"].as_object() else { return };
        if message["method"] == "server/discover" {
            return;
        }
        for name in ["inputResponses", "requestState", "notifications"] {
            if params.contains_key(name) {
                self.violation(&format!("{name} in a legacy session"), message);
            }
        }
        let meta = params.get("_meta").and_then(Value::as_object);
        if meta.is_some_and(|meta| meta.keys().any(|key| key.starts_with(META))) {
            self.violation("_meta of the modern era in a legacy session", message);
        }
        if params.contains_key("context") && !self.since("2025-06-18") {
            self.violation("context of a completion before 2025-06-18", message);
        }
    }

    /// Checks that a legacy connection was opened before it is used.
    pub fn check_opened(&self, hop: &Hop, message: &Value) {
        let first = ["initialize", "server/discover", "ping"];
        let first = message["method"].as_str().is_some_and(|method| first.contains(&method));
        if !first && locked(&hop.caps).is_null() {
            self.violation("a message before initialize", message);
        }
    }
}
