//! Upstreams that do as the test says: a JSON-RPC and MCP server over HTTP in this process, and a
//! child on stdio (`examples/fake_stdio.rs`).

pub mod http;
pub mod modern;
#[allow(dead_code, reason = "some of it is for `examples/fake_stdio.rs` only")]
pub mod scene;
pub mod stage;
pub mod stdio;
pub mod ws;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{broadcast, oneshot};

pub use http::{Request, Responder};

/// One exchange with the fake.
#[derive(Clone)]
pub struct Call {
    pub req: Request,
    pub out: Responder,
    pub fake: Arc<Core>,
}

impl Call {
    /// The request's id as written, `null` if it has none.
    pub fn id(&self) -> String {
        self.req.id().unwrap_or_else(|| "null".into())
    }

    /// The text of a response to this request.
    pub fn response(&self, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id())
    }

    /// The text of an error response to this request.
    pub fn error_text(&self, code: i64, message: &str) -> String {
        let error = json!({"code": code, "message": message});
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.id())
    }

    /// Answers with JSON.
    pub async fn result(&self, result: &str) {
        self.out.json(self.response(result)).await;
    }

    /// Answers with a tool result of one text.
    pub async fn say(&self, text: &str) {
        self.result(&said(text).to_string()).await;
    }

    /// Answers with an error, HTTP 200.
    pub async fn error(&self, code: i64, message: &str) {
        self.out.json(self.error_text(code, message)).await;
    }

    /// A member of the tool's arguments.
    pub fn arg(&self, name: &str) -> Value {
        self.req.json()["params"]["arguments"][name].clone()
    }

    /// The name of the tool called.
    pub fn tool(&self) -> String {
        self.req.json()["params"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// The progress token of the request, as JSON text.
    pub fn token(&self) -> String {
        self.req.json()["params"]["_meta"]["progressToken"].to_string()
    }

    /// The text of a progress notification for this request.
    pub fn progress(&self, done: u64, message: &str) -> String {
        let token = self.token();
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{done},"message":"{message}"}}}}"#
        )
    }

    /// On an event stream that is open: asks the client and waits for its response.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let (id, answer) = self.fake.open_ask();
        let ask = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.out.event(ask.to_string()).await;
        answer.await.expect("the fake lives as long as its calls")
    }
}

/// A tool result of one text.
pub fn said(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// A tool as listed.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("Does {name}."), "inputSchema": {"type": "object"}})
}

type Handler = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the fake holds; tests may change it while it runs.
pub struct Lists {
    pub capabilities: Value,
    pub instructions: Option<String>,
    pub tools: Vec<Value>,
    pub prompts: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    /// Cursors between pages; pages are of equal length. None: one page.
    pub cursors: Vec<String>,
    /// The revision it answers `initialize` with; none: the one asked for.
    pub revision: Option<String>,
}

/// The state of a fake.
pub struct Core {
    lists: Mutex<Lists>,
    handlers: Mutex<HashMap<String, Handler>>,
    log: Mutex<Vec<Request>>,
    sessions: Mutex<HashSet<String>>,
    asks: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    streams: broadcast::Sender<String>,
    counter: AtomicU64,
    mcp: bool,
    stateful: bool,
}

impl Core {
    fn open_ask(&self) -> (u64, oneshot::Receiver<Value>) {
        let (tx, rx) = oneshot::channel();
        let id = self.counter.fetch_add(1, Ordering::Relaxed);
        self.asks.lock().insert(id, tx);
        (id, rx)
    }

    /// Changes what is listed.
    pub fn edit(&self, change: impl FnOnce(&mut Lists)) {
        change(&mut self.lists.lock());
    }

    /// Sends a message on the GET streams that are open.
    pub fn push(&self, message: &str) {
        let _ = self.streams.send(message.to_owned());
    }

    /// How many GET streams are open.
    pub fn streams(&self) -> usize {
        self.streams.receiver_count()
    }

    /// Forgets all sessions, as after a restart.
    pub fn forget(&self) {
        self.sessions.lock().clear();
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.sessions.lock().len()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().clone()
    }

    /// All POSTs of that JSON-RPC method so far.
    pub fn of(&self, method: &str) -> Vec<Request> {
        self.log.lock().iter().filter(|r| r.rpc().as_deref() == Some(method)).cloned().collect()
    }

    /// How many POSTs of that JSON-RPC method came so far.
    pub fn count(&self, method: &str) -> usize {
        self.of(method).len()
    }
}

/// A JSON-RPC or MCP upstream over HTTP.
pub struct Fake {
    server: http::HttpServer,
    core: Arc<Core>,
}

impl std::ops::Deref for Fake {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

/// A fake before it starts.
pub struct Builder {
    core: Core,
    addr: SocketAddr,
}

impl Fake {
    /// An MCP server with these tools, which answer with their name.
    pub fn mcp<const N: usize>(tools: [&str; N]) -> Builder {
        Builder::new(true, tools.map(tool).to_vec())
    }

    /// A plain JSON-RPC server; a method without a handler answers with its params, or null.
    pub fn plain() -> Builder {
        Builder::new(false, Vec::new())
    }

    /// Where its endpoint is.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.server.addr())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Ends all connections and forgets all sessions, as when the process is replaced.
    pub fn restart(&self) {
        self.core.forget();
        self.server.cut();
    }

    /// Waits until a condition holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Core) -> bool) {
        for _ in 0..500 {
            if holds(&self.core) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let seen: Vec<_> = self.requests().iter().map(|r| (r.method.clone(), r.rpc())).collect();
        panic!("the fake upstream waited in vain: {what}; it saw {seen:?}");
    }

    /// Waits until a method came that many times.
    pub async fn until_count(&self, method: &str, count: usize) {
        self.until(&format!("{count} × {method}"), |core| core.count(method) >= count).await;
    }
}

impl Builder {
    fn new(mcp: bool, tools: Vec<Value>) -> Self {
        let lists = Lists {
            capabilities: json!({"tools": {"listChanged": true}}),
            instructions: None,
            tools,
            prompts: Vec::new(),
            resources: Vec::new(),
            templates: Vec::new(),
            cursors: Vec::new(),
            revision: None,
        };
        let core = Core {
            lists: Mutex::new(lists),
            handlers: Mutex::default(),
            log: Mutex::default(),
            sessions: Mutex::default(),
            asks: Mutex::default(),
            streams: broadcast::channel(1024).0,
            counter: AtomicU64::new(1000),
            mcp,
            stateful: true,
        };
        Self { core, addr: SocketAddr::from(([127, 0, 0, 1], 0)) }
    }

    /// Sets what it holds.
    pub fn with(self, change: impl FnOnce(&mut Lists)) -> Self {
        self.core.edit(change);
        self
    }

    /// Gives out no session ids.
    pub fn stateless(mut self) -> Self {
        self.core.stateful = false;
        self
    }

    /// Starts at an address that was free a moment ago.
    pub fn at(mut self, addr: SocketAddr) -> Self {
        self.addr = addr;
        self
    }

    /// Answers one JSON-RPC method; `GET`, `DELETE` and `*` (everything else) are taken, too.
    pub fn on<F, R>(self, method: &str, handler: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |call| Box::pin(handler(call)));
        self.core.handlers.lock().insert(method.to_owned(), handler);
        self
    }

    /// Starts it.
    pub async fn start(self) -> Fake {
        let core = Arc::new(self.core);
        let shared = Arc::clone(&core);
        let server = http::HttpServer::start_at(self.addr, move |req, out| {
            let fake = Arc::clone(&shared);
            fake.log.lock().push(req.clone());
            answer(Call { req, out, fake })
        })
        .await;
        Fake { server, core }
    }
}

async fn answer(call: Call) {
    let method = call.req.rpc();
    let key = match (call.req.method.as_str(), &method) {
        ("POST", Some(method)) => method.clone(),
        ("POST", None) => "*".to_owned(),
        (other, _) => other.to_owned(),
    };
    let core = Arc::clone(&call.fake);
    let handler = {
        let handlers = core.handlers.lock();
        handlers.get(&key).or_else(|| handlers.get("*")).cloned()
    };
    if core.mcp && core.stateful && !knows_session(&call) {
        return call.out.full(404, &[], "").await;
    }
    match handler {
        Some(handler) => handler(call).await,
        None if core.mcp => answer_mcp(call, &key).await,
        None => answer_plain(call).await,
    }
}

fn knows_session(call: &Call) -> bool {
    match call.req.header("mcp-session-id") {
        Some(id) => call.fake.sessions.lock().contains(id),
        None => true,
    }
}

/// What a plain server does: echoes its params.
pub async fn answer_plain(call: Call) {
    match call.req.id() {
        None => call.out.full(204, &[], "").await,
        Some(_) => {
            let params = call.req.params().unwrap_or_else(|| "null".into());
            call.result(&params).await;
        }
    }
}

/// What an MCP server does.
pub async fn answer_mcp(call: Call, key: &str) {
    let core = Arc::clone(&call.fake);
    let list = |pick: fn(&Lists) -> &Vec<Value>| pick(&core.lists.lock()).clone();
    match key {
        "initialize" => initialize(call).await,
        "tools/list" => page(&call, "tools", list(|lists| &lists.tools)).await,
        "prompts/list" => page(&call, "prompts", list(|lists| &lists.prompts)).await,
        "resources/list" => page(&call, "resources", list(|lists| &lists.resources)).await,
        "resources/templates/list" => {
            page(&call, "resourceTemplates", list(|lists| &lists.templates)).await;
        }
        "tools/call" => call.say(&call.tool()).await,
        "resources/read" => {
            let uri = call.req.json()["params"]["uri"].clone();
            let contents = json!({"contents": [{"uri": uri, "text": core.name(&call)}]});
            call.result(&contents.to_string()).await;
        }
        "GET" => stream(call).await,
        "DELETE" => {
            if let Some(id) = call.req.header("mcp-session-id") {
                core.sessions.lock().remove(id);
            }
            call.out.full(200, &[], "").await;
        }
        "*" => {
            let body = call.req.json();
            let waiting = body["id"].as_u64().and_then(|id| core.asks.lock().remove(&id));
            if let Some(waiting) = waiting {
                let _ = waiting.send(body);
            }
            call.out.full(202, &[], "").await;
        }
        _ if call.req.id().is_none() => call.out.full(202, &[], "").await,
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            call.result("{}").await;
        }
        _ => call.error(-32601, "Method not found").await,
    }
}

impl Core {
    fn name(&self, call: &Call) -> String {
        format!("read at {}", call.req.header("host").unwrap_or_default())
    }
}

/// Answers `initialize` in JSON and opens a session.
pub async fn initialize(call: Call) {
    let (result, session) = hello(&call);
    let mut headers = vec![("content-type", "application/json")];
    if let Some(session) = &session {
        headers.push(("mcp-session-id", session));
    }
    call.out.full(200, &headers, call.response(&result.to_string())).await;
}

/// The result of `initialize`, and the id of the session it opened.
pub fn hello(call: &Call) -> (Value, Option<String>) {
    let core = &call.fake;
    let session = core.stateful.then(|| {
        let id = format!("fake-{}", core.counter.fetch_add(1, Ordering::Relaxed));
        core.sessions.lock().insert(id.clone());
        id
    });
    let lists = core.lists.lock();
    let asked = call.req.json()["params"]["protocolVersion"].clone();
    let mut result = json!({
        "protocolVersion": lists.revision.as_ref().map_or(asked, |r| json!(r)),
        "capabilities": lists.capabilities,
        "serverInfo": {"name": "fake", "version": "1"},
    });
    if let Some(text) = &lists.instructions {
        result["instructions"] = json!(text);
    }
    (result, session)
}

async fn page(call: &Call, member: &str, items: Vec<Value>) {
    let cursors = call.fake.lists.lock().cursors.clone();
    let pages = cursors.len() + 1;
    let length = items.len().div_ceil(pages);
    let asked = call.req.json()["params"]["cursor"].clone();
    let index = match asked.as_str() {
        None => 0,
        Some(cursor) => match cursors.iter().position(|c| c == cursor) {
            Some(index) => index + 1,
            None => return call.error(-32602, "bad cursor").await,
        },
    };
    let items: Vec<_> = items.iter().skip(index * length).take(length).collect();
    let mut result = json!({ member: items });
    if let Some(next) = cursors.get(index) {
        result["nextCursor"] = json!(next);
    }
    call.result(&result.to_string()).await;
}

async fn stream(call: Call) {
    let mut messages = call.fake.streams.subscribe();
    call.out.sse().await;
    while let Ok(message) = messages.recv().await {
        call.out.event(message).await;
    }
}
