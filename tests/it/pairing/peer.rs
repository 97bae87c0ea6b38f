//! A client of any revision, with a user behind it who answers what servers ask. It is strict, too.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::client::{Http, Streaming};
use crate::fake::scene::{META, MODERN};
use crate::mcp::{Answer, Mcp, request};
use crate::modern::{self, Modern};

/// The client.
pub enum Peer {
    /// With a session.
    Legacy(Legacy),
    /// Without.
    Modern(Modern),
}

/// A session, and what came on its GET stream.
pub struct Legacy {
    pub mcp: Mcp,
    heard: Arc<Mutex<Vec<Value>>>,
    listener: AbortHandle,
}

impl Drop for Legacy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// What the user does with a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Accepts,
    Declines,
    Cancels,
}

/// How a request went.
#[derive(Debug, Default)]
pub struct Story {
    /// Notifications on the way.
    pub notes: Vec<Value>,
    /// What the user was asked, in words.
    pub asked: Vec<String>,
    /// How many requests it took.
    pub requests: usize,
    /// The answer; null if there was none.
    pub answer: Value,
}

impl Story {
    /// The first text of the result.
    pub fn said(&self) -> &str {
        self.answer["result"]["content"][0]["text"].as_str().unwrap_or("")
    }

    /// The params of the notifications of that method.
    pub fn params_of(&self, method: &str) -> Vec<&Value> {
        let notes = self.notes.iter().filter(|note| note["method"] == method);
        notes.map(|note| &note["params"]).collect()
    }
}

/// What a client of that revision declares; no two of them the same.
pub fn capabilities(revision: &str) -> Value {
    match revision {
        "2024-11-05" => json!({"sampling": {}, "roots": {}}),
        "2025-03-26" => json!({"sampling": {}, "roots": {"listChanged": true}}),
        "2025-06-18" => json!({"sampling": {}, "roots": {}, "elicitation": {}}),
        "2025-11-25" => {
            let elicitation = json!({"form": {}, "url": {}});
            json!({"sampling": {}, "roots": {"listChanged": true}, "elicitation": elicitation})
        }
        _ => json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}}),
    }
}

impl Peer {
    /// Connects a client of that revision.
    pub async fn connect(http: Http, revision: &str) -> Self {
        let caps = capabilities(revision);
        if revision == MODERN {
            return Self::Modern(Modern::new(http, caps));
        }
        let mcp = Mcp::open_at(http, "/mcp", revision, caps).await;
        assert_eq!(mcp.revision, revision, "the revision that was asked for");
        let heard = Arc::<Mutex<Vec<Value>>>::default();
        let stream = mcp.stream().await;
        let listener = tokio::spawn(listen(stream, Arc::clone(&heard))).abort_handle();
        Self::Legacy(Legacy { mcp, heard, listener })
    }

    /// What came outside of any call; modern clients have no such place.
    pub fn heard(&self, method: &str) -> Vec<Value> {
        let Self::Legacy(legacy) = self else { return Vec::new() };
        let heard = legacy.heard.lock();
        heard.iter().filter(|note| note["method"] == method).cloned().collect()
    }

    /// A request of the gateway that came outside of any call.
    pub fn stray(&self) -> Option<Value> {
        let Self::Legacy(legacy) = self else { return None };
        legacy.heard.lock().iter().find(|note| note.get("id").is_some()).cloned()
    }

    /// All items of a list, following cursors.
    pub async fn list(&self, method: &str, member: &str) -> Vec<Value> {
        match self {
            Self::Legacy(legacy) => legacy.mcp.list(method, member).await,
            Self::Modern(modern) => modern.list(method, member).await,
        }
    }

    /// Sends a request and answers what is asked meanwhile.
    pub async fn request(&self, method: &str, params: Value, user: User) -> Story {
        match self {
            Self::Legacy(legacy) => legacy.request(method, params, user).await,
            Self::Modern(modern) => in_rounds(modern, method, params, user).await,
        }
    }
}

async fn listen(mut stream: Streaming, heard: Arc<Mutex<Vec<Value>>>) {
    while let Some(event) = stream.block().await {
        if !event.comment && !event.data.is_empty() {
            let message = serde_json::from_str(&event.data).expect("events hold JSON");
            heard.lock().push(message);
        }
    }
}

/// Sends a request, and again with answers for as long as some are wanted.
async fn in_rounds(client: &Modern, method: &str, params: Value, user: User) -> Story {
    let mut story = Story::default();
    let mut sent = params.clone();
    while story.requests < 8 {
        story.requests += 1;
        let answer = client.request(method, sent).await;
        story.notes.extend(answer.before.iter().cloned());
        let result = &answer.json["result"];
        if result["resultType"] != "input_required" {
            return Story { answer: answer.json, ..story };
        }
        sent = params.clone();
        if let Some(requests) = result["inputRequests"].as_object() {
            let mut responses = json!({});
            for (key, ask) in requests {
                assert!(ask.get("id").is_none(), "a question is no request: {}", answer.text);
                let declared = declared(&client.caps, ask);
                assert!(declared, "it was not declared: {}", answer.text);
                story.asked.push(in_words(ask));
                responses[key] = user.answers(ask);
            }
            sent["inputResponses"] = responses;
        }
        if let Some(state) = result.get("requestState") {
            sent["requestState"] = state.clone();
        }
    }
    panic!("it never ends: {method} {params}");
}

impl Legacy {
    async fn request(&self, method: &str, params: Value, user: User) -> Story {
        // Ids of its own, apart from those of `Mcp`.
        let id = json!(format!("p{}", uuid()));
        let mut stream = self.mcp.open_post(&request(&id, method, &params)).await;
        let mut story = Story { requests: 1, ..Story::default() };
        if !stream.is_sse() {
            let whole = stream.whole().await;
            story.answer = whole.json();
        } else {
            while let Some(message) = stream.next_message().await {
                assert!(story.answer.is_null(), "after the answer: {message}");
                match (message.get("method"), message.get("id")) {
                    (Some(_), Some(_)) => self.answer(&message, user, &mut story).await,
                    (Some(_), None) => story.notes.push(message),
                    _ => story.answer = message,
                }
            }
        }
        if !story.answer.is_null() {
            check(&id, method, &story.answer);
        }
        story
    }

    async fn answer(&self, ask: &Value, user: User, story: &mut Story) {
        let revision = self.mcp.revision.as_str();
        assert!(declared(&capabilities(revision), ask), "it was not declared: {ask}");
        story.asked.push(in_words(ask));
        self.mcp.answer(&ask["id"], user.answers(ask)).await;
    }
}

/// A number that no other caller gets.
fn uuid() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Fails on what only a modern client may get.
fn check(id: &Value, method: &str, answer: &Value) {
    assert_eq!(answer["id"], *id, "{method}: {answer}");
    for name in ["resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"] {
        assert!(answer["result"].get(name).is_none(), "{method}: {name}: {answer}");
    }
    let meta = answer["result"]["_meta"].as_object();
    let modern = meta.is_some_and(|meta| meta.keys().any(|key| key.starts_with(META)));
    assert!(!modern, "{method}: _meta of the modern era: {answer}");
}

/// Whether a client that declared this may be asked so.
fn declared(caps: &Value, ask: &Value) -> bool {
    match ask["method"].as_str() {
        Some("sampling/createMessage") => caps["sampling"].is_object(),
        Some("roots/list") => caps["roots"].is_object(),
        Some("elicitation/create") => {
            let mode = ask["params"]["mode"].as_str().unwrap_or("form");
            caps["elicitation"][mode].is_object()
                || (mode == "form" && caps["elicitation"] == json!({}))
        }
        _ => false,
    }
}

/// A question in words.
fn in_words(ask: &Value) -> String {
    let params = &ask["params"];
    match ask["method"].as_str().unwrap_or_default() {
        "elicitation/create" if params["mode"] == "url" => {
            let url = params["url"].as_str().unwrap_or_default();
            let id = if params["elicitationId"].is_string() { " with an id" } else { "" };
            format!("visit {url}{id}")
        }
        "elicitation/create" => {
            let names = params["requestedSchema"]["properties"].as_object();
            let names: Vec<_> =
                names.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            format!("form {}", names.join(" "))
        }
        "sampling/createMessage" => {
            let text = params["messages"][0]["content"]["text"].as_str();
            format!("sample {}", text.unwrap_or("nothing"))
        }
        other => other.to_owned(),
    }
}

impl User {
    fn answers(self, ask: &Value) -> Value {
        match ask["method"].as_str().unwrap_or_default() {
            "sampling/createMessage" => {
                let content = json!({"type": "text", "text": "hi"});
                json!({"role": "assistant", "content": content, "model": "m", "stopReason": "endTurn"})
            }
            "roots/list" => json!({"roots": [{"uri": "file:///work", "name": "w"}]}),
            _ if ask["params"]["mode"] == "url" => json!({"action": "accept"}),
            _ => match self {
                Self::Accepts => json!({"action": "accept", "content": {"name": "Ann"}}),
                Self::Declines => json!({"action": "decline"}),
                Self::Cancels => json!({"action": "cancel"}),
            },
        }
    }
}

/// A request that somebody is going to cancel or that is going to break.
pub struct Begun {
    /// Ends with the answer, or null.
    task: tokio::task::JoinHandle<Answer>,
}

impl Begun {
    /// Sends a call in the background. Of a legacy client the id is given, so that it can be cancelled.
    pub fn call(peer: &Arc<Peer>, id: Value, tool: &str, arguments: Value) -> Self {
        let (peer, tool) = (Arc::clone(peer), tool.to_owned());
        let task = tokio::spawn(async move {
            let params = json!({"name": tool, "arguments": arguments});
            match &*peer {
                Peer::Legacy(legacy) => {
                    let body = request(&id, "tools/call", &params);
                    let mut stream = legacy.mcp.open_post(&body).await;
                    let (status, mut text) = (stream.status, String::new());
                    if stream.is_sse() {
                        while let Some(event) = stream.next_event().await {
                            text = event.data;
                        }
                    } else {
                        text = stream.whole().await.text().to_owned();
                    }
                    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
                    Answer { status, before: Vec::new(), text, json }
                }
                Peer::Modern(client) => {
                    let body = client.body(&id, "tools/call", params);
                    let stream = client.send(&client.headers(&body), &body.to_string()).await;
                    modern::read(stream).await
                }
            }
        });
        Self { task }
    }

    /// How it ended.
    pub async fn ended(self) -> Answer {
        let answer = crate::client::patient("the end of a call", self.task).await;
        answer.expect("the client does not fail")
    }

    /// Closes its connection.
    pub async fn hang_up(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
