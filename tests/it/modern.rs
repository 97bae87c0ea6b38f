//! A client of 2026-07-28: no session; what the server has to know of it travels with each request. It is strict: what
//! a server must not send fails the test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::client::{Http, MCP_HEADERS, Reply, Streaming};
use crate::fake::scene::{META, MODERN, encode};
use crate::mcp::Answer;

/// Methods whose results say how long they may be kept.
pub const CACHEABLE: [&str; 6] = [
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
];

/// The client.
#[derive(Debug)]
pub struct Modern {
    http: Http,
    path: String,
    /// What it declares with each request.
    pub caps: Value,
    next: AtomicU64,
    /// The schemas of the tools that were listed to it.
    schemas: Mutex<HashMap<String, Value>>,
}

/// Headers of one request; names are as they go out.
pub type Headers = Vec<(String, String)>;

impl Modern {
    /// A client of `/mcp` that declares these capabilities.
    pub fn new(http: Http, caps: Value) -> Self {
        Self::at(http, "/mcp", caps)
    }

    /// The same at another path.
    pub fn at(http: Http, path: &str, caps: Value) -> Self {
        let path = path.to_owned();
        Self { http, path, caps, next: AtomicU64::new(1), schemas: Mutex::default() }
    }

    /// What each request says of its client.
    pub fn meta(&self) -> Value {
        json!({
            format!("{META}protocolVersion"): MODERN,
            format!("{META}clientCapabilities"): self.caps,
            format!("{META}clientInfo"): {"name": "modern", "version": "2"},
        })
    }

    /// An id that it did not use yet.
    pub fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A request with its `_meta`; members of `_meta` that `params` has stand.
    pub fn body(&self, id: &Value, method: &str, mut params: Value) -> Value {
        let mut meta = self.meta();
        if let Some(own) = params["_meta"].as_object() {
            for (key, value) in own {
                meta[key] = value.clone();
            }
        }
        params["_meta"] = meta;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// The headers that go with a body.
    pub fn headers(&self, body: &Value) -> Headers {
        let params = &body["params"];
        let method = body["method"].as_str().unwrap_or_default();
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut headers: Headers =
            MCP_HEADERS.iter().map(|(name, value)| own(name, value)).collect();
        let version = params["_meta"][format!("{META}protocolVersion")].as_str();
        headers.push(own("MCP-Protocol-Version", version.unwrap_or(MODERN)));
        headers.push(own("Mcp-Method", method));
        let named = match method {
            "tools/call" | "prompts/get" => &params["name"],
            "resources/read" => &params["uri"],
            _ => &Value::Null,
        };
        if let Some(name) = named.as_str() {
            headers.push(own("Mcp-Name", &encode(name)));
        }
        if method == "tools/call" {
            headers.extend(self.param_headers(params));
        }
        headers
    }

    fn param_headers(&self, params: &Value) -> Headers {
        let schemas = self.schemas.lock();
        let schema = params["name"].as_str().and_then(|name| schemas.get(name));
        let properties = schema.and_then(|schema| schema["properties"].as_object());
        let annotated = properties.into_iter().flatten().filter_map(|(name, schema)| {
            let header = format!("Mcp-Param-{}", schema["x-mcp-header"].as_str()?);
            let value = match &params["arguments"][name] {
                Value::Null => return None,
                Value::String(text) => encode(text),
                other => other.to_string(),
            };
            Some((header, value))
        });
        annotated.collect()
    }

    /// Sends a body with headers as they are.
    pub async fn send(&self, headers: &Headers, body: &str) -> Streaming {
        let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        self.http.open("POST", &self.path, &headers, body.to_owned()).await
    }

    /// Sends a body with the headers that belong to it and gives the whole response.
    pub async fn post(&self, body: &Value) -> Reply {
        self.send(&self.headers(body), &body.to_string()).await.whole().await
    }

    /// Sends a request and gives its response as it comes.
    pub async fn open(&self, id: &Value, method: &str, params: Value) -> Streaming {
        let body = self.body(id, method, params);
        self.send(&self.headers(&body), &body.to_string()).await
    }

    /// A request with an id of its own.
    pub async fn request(&self, method: &str, params: Value) -> Answer {
        let id = json!(self.id());
        let stream = self.open(&id, method, params).await;
        let answer = read(stream).await;
        self.check(&id, method, &answer);
        if method == "tools/list" {
            for tool in answer.json["result"]["tools"].as_array().into_iter().flatten() {
                let name = tool["name"].as_str().expect("a name").to_owned();
                self.schemas.lock().insert(name, tool["inputSchema"].clone());
            }
        }
        answer
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// All items of a list, following cursors.
    pub async fn list(&self, method: &str, member: &str) -> Vec<Value> {
        let (mut items, mut params) = (Vec::new(), json!({}));
        loop {
            let answer = self.request(method, params).await;
            let result = answer.result();
            items.extend(result[member].as_array().expect("a list").iter().cloned());
            match &result["nextCursor"] {
                Value::Null => return items,
                cursor => params = json!({ "cursor": cursor }),
            }
        }
    }

    /// Listens; the acknowledgement has come. Gives the stream, its id, and what is honoured.
    pub async fn listen(&self, filter: Value) -> (Streaming, Value, Value) {
        let id = json!(self.id());
        let params = json!({ "notifications": filter });
        let mut stream = self.open(&id, "subscriptions/listen", params).await;
        assert_eq!(stream.status, 200, "{:?}", stream.headers);
        assert!(stream.is_sse(), "{:?}", stream.headers);
        let first = stream.next_message().await.expect("the acknowledgement");
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        assert_eq!(first["params"]["_meta"][format!("{META}subscriptionId")], id, "{first}");
        let honoured = first["params"]["notifications"].clone();
        (stream, id, honoured)
    }

    /// Fails on what a server must not send.
    fn check(&self, id: &Value, method: &str, answer: &Answer) {
        let text = &answer.text;
        assert_eq!(answer.json["id"], *id, "{method}: {text}");
        for message in &answer.before {
            assert!(message.get("id").is_none(), "{method}: a request on a stream: {message}");
        }
        let Some(result) = answer.json.get("result") else {
            let status = match answer.code() {
                -32601 => 404,
                -32022..=-32020 => 400,
                _ => return,
            };
            let streamed = answer.status == 200 && !answer.before.is_empty();
            assert!(answer.status == status || streamed, "{method}: {} {text}", answer.status);
            return;
        };
        assert_eq!(answer.status, 200, "{method}: {text}");
        let kind = result["resultType"].as_str();
        let kinds: &[&str] = match method {
            "tools/call" | "prompts/get" | "resources/read" => &["complete", "input_required"],
            _ => &["complete"],
        };
        assert!(kind.is_some_and(|kind| kinds.contains(&kind)), "{method}: resultType: {text}");
        let cacheable = CACHEABLE.contains(&method) && kind == Some("complete");
        assert_eq!(result["ttlMs"].is_u64(), cacheable, "{method}: ttlMs: {text}");
        let scope = matches!(result["cacheScope"].as_str(), Some("public" | "private"));
        assert_eq!(scope, cacheable, "{method}: cacheScope: {text}");
    }
}

/// Reads a response to its end.
pub async fn read(mut stream: Streaming) -> Answer {
    let status = stream.status;
    let (mut before, mut text) = (Vec::new(), String::new());
    if stream.is_sse() {
        while let Some(event) = stream.next_event().await {
            assert_eq!(event.id, None, "event ids mean nothing here: {}", event.data);
            if !text.is_empty() {
                before.push(serde_json::from_str(&text).expect("events hold JSON"));
            }
            text = event.data;
        }
    } else {
        text = stream.whole().await.text().to_owned();
    }
    let json = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("no JSON ({error}): {status} {text:?}"));
    Answer { status, before, json, text }
}
