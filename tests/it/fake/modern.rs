//! A server of 2026-07-28 over HTTP on which tests hang their own tools; `stage` has fixed ones.

use serde_json::{Value, json};

use super::scene::{META, MODERN, encode};
use super::{Builder, Call, Fake};

/// A server with these tools that knows no sessions. Requests whose headers say something else than their body are
/// refused as it says there.
pub fn modern(tools: Vec<Value>) -> Builder {
    let discovered = json!({
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "ttlMs": 0,
        "cacheScope": "private",
    });
    Fake::mcp([])
        .stateless()
        .with(|lists| {
            lists.tools = tools;
            lists.prompts = vec![json!({"name": "p"})];
            lists.resources = vec![json!({"name": "r", "uri": "x://ä r"})];
        })
        .on("initialize", |call: Call| async move {
            let text = call.error_text(-32601, "Method not found");
            call.out.full(404, &[("content-type", "application/json")], text).await;
        })
        .on("server/discover", move |call: Call| {
            let discovered = discovered.to_string();
            async move { call.result(&discovered).await }
        })
        .on("GET", |call: Call| async move {
            call.out.full(405, &[("allow", "POST")], "").await;
        })
}

impl Call {
    /// A member of `_meta` that belongs to the protocol.
    pub fn meta(&self, name: &str) -> Value {
        self.req.json()["params"]["_meta"][format!("{META}{name}")].clone()
    }

    /// What is wrong with the headers of a request of this era; empty if nothing is.
    pub fn mismatches(&self, params: &[(&str, &str)]) -> Vec<String> {
        let body = self.req.json();
        let mut expected = vec![
            ("mcp-protocol-version".to_owned(), self.meta("protocolVersion")),
            ("mcp-method".to_owned(), body["method"].clone()),
        ];
        let named = ["name", "uri"].map(|member| body["params"][member].as_str());
        if let Some(name) = named.into_iter().flatten().next() {
            expected.push(("mcp-name".to_owned(), json!(encode(name))));
        }
        for (argument, header) in params {
            let value = match self.arg(argument) {
                Value::Null => continue,
                Value::String(text) => encode(&text),
                other => other.to_string(),
            };
            expected.push((format!("mcp-param-{header}"), json!(value)));
        }
        let wrong = expected.into_iter().filter_map(|(name, value)| {
            let given = self.req.header(&name);
            (given != value.as_str()).then(|| format!("{name} is {given:?}, not {value}"))
        });
        wrong.collect()
    }

    /// Answers with an error under an HTTP status.
    pub async fn refuse(&self, status: u16, code: i64, message: &str) {
        let text = self.error_text(code, message);
        self.out.full(status, &[("content-type", "application/json")], text).await;
    }
}
