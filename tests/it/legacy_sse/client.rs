//! A client of HTTP+SSE: one stream, and POSTs to where that says.

use serde_json::{Value, json};

use crate::client::{Http, Reply, Streaming, patient};
use crate::gateway::Gateway;
use crate::mcp::{hello, request};

/// What clients of that revision send with a POST.
pub const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
/// What they send with the GET.
pub const EVENTS: [(&str, &str); 1] = [("accept", "text/event-stream")];

/// An open stream.
pub struct Older {
    http: Http,
    pub stream: Streaming,
    /// What the `endpoint` event said.
    pub said: String,
    /// Path and query to POST to.
    pub endpoint: String,
    /// The result of `initialize`.
    pub hello: Value,
    next: u64,
}

/// Where a reference leads from a path, by RFC 3986.
pub fn resolve(path: &str, reference: &str) -> String {
    let base = url::Url::parse("http://gateway").and_then(|base| base.join(path));
    let url = base.and_then(|base| base.join(reference)).expect("a reference");
    assert_eq!(url.origin().ascii_serialization(), "http://gateway", "{reference}");
    format!("{}?{}", url.path(), url.query().unwrap_or_default())
}

impl Older {
    /// Opens a stream, and no session yet.
    pub async fn connect(http: Http, path: &str) -> Self {
        let mut stream = http.open("GET", path, &EVENTS, "").await;
        assert_eq!(stream.status, 200);
        assert!(stream.is_sse(), "{:?}", stream.headers);
        let first = stream.next_block().await.expect("a first event");
        assert_eq!((first.kind.as_str(), &first.id), ("endpoint", &None), "{first:?}");
        let endpoint = resolve(path, &first.data);
        Self { http, stream, said: first.data, endpoint, hello: Value::Null, next: 1 }
    }

    /// Opens a session on `/mcp`.
    pub async fn open(gateway: &Gateway) -> Self {
        Self::open_with(gateway, "2024-11-05", json!({})).await
    }

    /// Opens a session on `/mcp` at a revision.
    pub async fn open_with(gateway: &Gateway, revision: &str, capabilities: Value) -> Self {
        let mut older = Self::connect(gateway.http(), "/mcp/sse").await;
        older.initialize(revision, &capabilities).await;
        older
    }

    /// Opens the session.
    pub async fn initialize(&mut self, revision: &str, capabilities: &Value) {
        self.send(&request(0, "initialize", &hello(revision, capabilities))).await;
        let answer = self.next().await;
        assert_eq!((&answer["id"], &answer["error"]), (&json!(0), &Value::Null), "{answer}");
        self.hello = answer["result"].clone();
        self.notify("notifications/initialized", json!({})).await;
    }

    /// POSTs a body.
    pub async fn post(&self, body: &str) -> Reply {
        self.http.send("POST", &self.endpoint, &JSON, body.to_owned()).await
    }

    /// POSTs a body that is accepted.
    pub async fn send(&self, body: &str) {
        let reply = self.post(body).await;
        assert_eq!((reply.status, reply.text()), (202, ""), "{body}");
    }

    /// The next message; `None` at the end of the stream.
    pub async fn next_or_end(&mut self) -> Option<Value> {
        let event = self.stream.next_event().await?;
        assert_eq!((event.kind.as_str(), &event.id), ("message", &None), "{event:?}");
        Some(serde_json::from_str(&event.data).expect("events hold JSON"))
    }

    /// The next message.
    pub async fn next(&mut self) -> Value {
        self.next_or_end().await.expect("the stream goes on")
    }

    /// The end of the stream.
    pub async fn ended(&mut self) {
        assert_eq!(self.next_or_end().await, None);
    }

    /// Sends a request; its id.
    pub async fn begin(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&request(id, method, params)).await;
        id
    }

    /// A request and its answer, which is the next message but for notices of changed lists.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, &params).await;
        let answer = loop {
            let message = self.next().await;
            if !message["method"].as_str().is_some_and(|method| method.ends_with("list_changed")) {
                break message;
            }
        };
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Begins to call a tool; its id.
    pub async fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", &json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool and gives what it says.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> String {
        let id = self.begin_call(tool, arguments).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], id, "{answer}");
        said(&answer)
    }

    /// The names of the tools.
    pub async fn tools(&mut self) -> Vec<String> {
        let answer = self.request("tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().expect("a list").iter();
        tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    /// Answers a question.
    pub async fn answer(&self, id: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await;
    }

    /// Sees that nothing is left of requests before this one: a ping is the next that is answered.
    pub async fn nothing_but_a_ping(&mut self) {
        let pong = patient("a pong", self.request("ping", json!({}))).await;
        assert_eq!(pong["result"], json!({}), "{pong}");
    }
}

/// The first text of a tool result.
pub fn said(answer: &Value) -> String {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
}
