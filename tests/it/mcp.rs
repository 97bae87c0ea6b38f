//! A client's legacy MCP session.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::client::{Http, MCP_HEADERS, Reply, Streaming};
use crate::gateway::Gateway;

/// The newest legacy revision.
pub const NEWEST: &str = "2025-11-25";

/// A session that is open.
#[derive(Debug)]
pub struct Mcp {
    http: Http,
    path: String,
    /// The id the gateway gave.
    pub session: String,
    /// The revision agreed on.
    pub revision: String,
    /// The result of `initialize`.
    pub hello: Value,
    next: AtomicU64,
}

/// How a request ended: what came before the answer, and the answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Messages before the answer.
    pub before: Vec<Value>,
    /// The answer's text.
    pub text: String,
    /// The answer.
    pub json: Value,
}

impl Answer {
    /// The result; fails on an error.
    pub fn result(&self) -> &Value {
        assert!(self.json["error"].is_null(), "an error came back: {}", self.text);
        &self.json["result"]
    }

    /// The first text of a tool result.
    pub fn said(&self) -> &str {
        let text = self.result()["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text in {}", self.text))
    }

    /// The error's code; fails on a result.
    pub fn code(&self) -> i64 {
        let code = self.json["error"]["code"].as_i64();
        code.unwrap_or_else(|| panic!("no error in {}", self.text))
    }

    /// `data.reason` of the error.
    pub fn reason(&self) -> &str {
        self.json["error"]["data"]["reason"].as_str().unwrap_or("")
    }
}

/// The body of a request.
pub fn request(id: impl std::fmt::Display, method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// The params of `initialize`.
pub fn hello(revision: &str, capabilities: &Value) -> Value {
    let info = json!({"name": "test", "version": "1"});
    json!({"protocolVersion": revision, "capabilities": capabilities, "clientInfo": info})
}

impl Mcp {
    /// Opens a session on `/mcp` at the newest revision.
    pub async fn open(gateway: &Gateway, capabilities: Value) -> Self {
        Self::open_at(gateway.http(), "/mcp", NEWEST, capabilities).await
    }

    /// Opens a session.
    pub async fn open_at(http: Http, path: &str, revision: &str, capabilities: Value) -> Self {
        let body = request(0, "initialize", &hello(revision, &capabilities));
        let reply = http.send("POST", path, &MCP_HEADERS, body).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let session = reply.header("mcp-session-id").to_owned();
        assert!(!session.is_empty(), "initialize gives a session id: {:?}", reply.headers);
        let answer = read(reply_stream(&reply), &reply);
        let hello = answer.result().clone();
        let revision = hello["protocolVersion"].as_str().expect("a revision").to_owned();
        let path = path.to_owned();
        let mcp = Self { http, path, session, revision, hello, next: AtomicU64::new(1) };
        mcp.notify("notifications/initialized", json!({})).await;
        mcp
    }

    /// The headers of its requests.
    pub fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = MCP_HEADERS.to_vec();
        headers.push(("mcp-session-id", &self.session));
        headers.push(("mcp-protocol-version", &self.revision));
        headers
    }

    /// POSTs a body and gives the response as it comes.
    pub async fn open_post(&self, body: &str) -> Streaming {
        self.http.open("POST", &self.path, &self.headers(), body.to_owned()).await
    }

    /// POSTs a body and gives the whole response.
    pub async fn post(&self, body: &str) -> Reply {
        self.open_post(body).await.whole().await
    }

    /// POSTs a request as written and gives its answer.
    pub async fn exchange(&self, body: &str) -> Answer {
        let mut stream = self.open_post(body).await;
        if !stream.is_sse() {
            let reply = stream.whole().await;
            return read(Vec::new(), &reply);
        }
        let mut messages = Vec::new();
        while let Some(event) = stream.next_event().await {
            messages.push(event.data);
        }
        finish(stream.status, messages)
    }

    /// A request with an id of its own.
    pub async fn request(&self, method: &str, params: Value) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.exchange(&request(id, method, &params)).await;
        assert_eq!(answer.json["id"], id, "{}", answer.text);
        answer
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Starts a call under an id and gives its response as it comes, once its head is there.
    pub async fn open_call(&self, id: u64, tool: &str, arguments: Value, meta: Value) -> Streaming {
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        self.open_post(&request(id, "tools/call", &params)).await
    }

    /// All names of a list in its order, following cursors.
    pub async fn names(&self, method: &str, member: &str, key: &str) -> Vec<String> {
        let items = self.list(method, member).await;
        items.iter().map(|item| item[key].as_str().expect("a text").to_owned()).collect()
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

    /// The names of the tools.
    pub async fn tools(&self) -> Vec<String> {
        self.names("tools/list", "tools", "name").await
    }

    /// Waits until the list of tools satisfies a condition.
    pub async fn until_tools(&self, what: &str, holds: impl Fn(&[String]) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            let tools = self.tools().await;
            if holds(&tools) {
                return;
            }
            assert!(begun.elapsed() < crate::gateway::PATIENCE, "in vain: {what}: {tools:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Sends a notification, which is accepted.
    pub async fn notify(&self, method: &str, params: Value) {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params});
        let reply = self.post(&body.to_string()).await;
        assert_eq!((reply.status, reply.text()), (202, ""));
    }

    /// Answers a request of the server.
    pub async fn answer(&self, id: &Value, result: Value) {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
        let reply = self.post(&body.to_string()).await;
        assert_eq!(reply.status, 202, "{:?}", reply.body);
    }

    /// Cancels a request.
    pub async fn cancel(&self, id: Value) {
        self.notify("notifications/cancelled", json!({"requestId": id, "reason": "test"})).await;
    }

    /// Opens the GET stream.
    pub async fn stream(&self) -> Streaming {
        let stream = self.http.open("GET", &self.path, &self.headers(), "").await;
        assert_eq!(stream.status, 200);
        assert!(stream.is_sse(), "{:?}", stream.headers);
        stream
    }

    /// Ends the session.
    pub async fn delete(&self) -> u16 {
        self.http.send("DELETE", &self.path, &self.headers(), "").await.status
    }
}

fn reply_stream(reply: &Reply) -> Vec<String> {
    if !reply.header("content-type").starts_with("text/event-stream") {
        return Vec::new();
    }
    let lines = reply.text().lines().filter_map(|line| line.strip_prefix("data:"));
    lines.map(|data| data.trim().to_owned()).filter(|data| !data.is_empty()).collect()
}

fn read(messages: Vec<String>, reply: &Reply) -> Answer {
    let messages = if messages.is_empty() { vec![reply.text().to_owned()] } else { messages };
    finish(reply.status, messages)
}

fn finish(status: u16, mut messages: Vec<String>) -> Answer {
    let text = messages.pop().expect("a stream ends with its answer");
    let json = |text: &String| -> Value {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}): {text:?}"))
    };
    Answer { status, before: messages.iter().map(json).collect(), json: json(&text), text }
}
