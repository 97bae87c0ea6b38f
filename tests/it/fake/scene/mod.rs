//! An MCP server of any revision without its transport: whatever it speaks, it offers the same tools, resources and
//! prompts, as far as the revision has them. Over HTTP it is served by `fake::stage`, on standard input and output by
//! `examples/fake_stdio.rs`. It is strict: what a client must not send is refused and noted as a violation.

pub mod journal;

mod check;
mod lists;
mod serve;
mod tools;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use check::{Header, encode};
pub use journal::Journal;
use journal::locked;

/// Every revision, the oldest first.
pub const REVISIONS: [&str; 5] =
    ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// The one without sessions.
pub const MODERN: &str = "2026-07-28";
/// Levels of log messages, in rising order.
pub const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// Keys of `_meta` that belong to the era without sessions.
pub const META: &str = "io.modelcontextprotocol/";

/// Where messages go.
pub type Out = mpsc::UnboundedSender<Value>;

/// The server.
#[derive(Debug)]
pub struct Scene {
    /// The revision it speaks.
    pub revision: String,
    /// What happened.
    pub journal: Arc<Journal>,
    counter: AtomicU64,
}

/// A session or a connection; over HTTP of the modern era a single request.
#[derive(Debug, Default)]
pub struct Hop {
    /// Tells sessions apart in the journal.
    name: String,
    /// What the client declared at `initialize`.
    caps: Mutex<Value>,
    /// The rank set by `logging/setLevel`.
    level: Mutex<Option<usize>>,
    /// Where messages go that belong to no exchange.
    side: Mutex<Option<Out>>,
    /// Whether exchanges carry nothing but their answers.
    mute: bool,
    /// Whether the end of an exchange's stream is the wish to cancel it.
    hangs_up: bool,
    subscribed: Mutex<HashSet<String>>,
    asks: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    running: Mutex<HashMap<String, CancellationToken>>,
}

/// One request that is being served.
struct Exchange {
    scene: Arc<Scene>,
    hop: Arc<Hop>,
    id: Value,
    method: String,
    params: Value,
    out: Out,
    /// Answers of the client in earlier rounds; modern only.
    answers: Vec<Value>,
}

/// Why a request gets no result.
struct Failure {
    code: i64,
    message: String,
    data: Value,
}

impl Failure {
    fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: Value::Null }
    }
}

impl Scene {
    /// A server of that revision.
    pub fn new(revision: &str, journal: Arc<Journal>) -> Arc<Self> {
        Arc::new(Self { revision: revision.to_owned(), journal, counter: AtomicU64::new(7000) })
    }

    /// Whether it speaks the era without sessions.
    pub fn is_modern(&self) -> bool {
        self.revision == MODERN
    }

    /// Whether its revision is that one or a later one.
    pub fn since(&self, revision: &str) -> bool {
        self.revision.as_str() >= revision
    }

    /// Notes what a client must not do.
    pub fn violation(&self, what: &str, message: &Value) {
        self.journal.write(&json!({"event": "violation", "what": what, "message": message}));
    }

    fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes one message that passed the checks of its transport. What belongs to it goes to `out`, the answer last;
    /// nothing comes for notifications, responses and what was cancelled.
    pub async fn take(self: &Arc<Self>, hop: &Arc<Hop>, message: Value, out: Out) {
        let Some(method) = message["method"].as_str() else { return self.settle(hop, message) };
        if message.get("id").is_none() {
            return self.hear(hop, method, &message);
        }
        let id = message["id"].clone();
        let cancel = CancellationToken::new();
        let before = locked(&hop.running).insert(id.to_string(), cancel.clone());
        if before.is_some() {
            self.violation("two requests in flight with one id", &message);
        }
        let exchange = Exchange {
            scene: Arc::clone(self),
            hop: Arc::clone(hop),
            id: id.clone(),
            method: method.to_owned(),
            params: message["params"].clone(),
            out: out.clone(),
            answers: Vec::new(),
        };
        let gone = async {
            if hop.hangs_up {
                out.closed().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let outcome = tokio::select! {
            outcome = exchange.serve() => Some(outcome),
            () = cancel.cancelled() => None,
            () = gone => None,
        };
        locked(&hop.running).remove(&id.to_string());
        match outcome {
            Some(Ok(result)) => {
                let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "result": result}));
            }
            Some(Err(failure)) => {
                let mut error = json!({"code": failure.code, "message": failure.message});
                if !failure.data.is_null() {
                    error["data"] = failure.data;
                }
                let _ = out.send(json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            None => {
                let key = &message["params"]["arguments"]["key"];
                let entry = json!({"event": "cancelled", "method": method, "key": key});
                self.journal.write(&entry);
            }
        }
    }

    fn settle(&self, hop: &Hop, message: Value) {
        let ask = message["id"].as_u64().and_then(|id| locked(&hop.asks).remove(&id));
        match ask {
            Some(ask) => {
                let (result, error) = (&message["result"], &message["error"]);
                let entry = json!({"event": "told", "result": result, "error": error});
                self.journal.write(&entry);
                let _ = ask.send(message);
            }
            None => self.violation("a response to nothing", &message),
        }
    }

    fn hear(&self, hop: &Hop, method: &str, message: &Value) {
        if method == "notifications/cancelled" {
            let id = message["params"]["requestId"].to_string();
            if let Some(cancel) = locked(&hop.running).remove(&id) {
                cancel.cancel();
            }
        }
        self.journal.write(&json!({"event": "heard", "method": method}));
    }

    /// Tells a legacy session of changes, for as long as it has a side.
    pub fn announce(self: &Arc<Self>, hop: &Arc<Hop>) {
        let mut news = self.journal.follow();
        let hop = Arc::downgrade(hop);
        tokio::spawn(async move {
            while let Ok(entry) = news.recv().await {
                let Some(hop) = hop.upgrade() else { return };
                let note = match entry["event"].as_str() {
                    Some("changed") => note("notifications/tools/list_changed", json!({})),
                    Some("updated") => {
                        let uri = entry["uri"].as_str().unwrap_or_default();
                        if !locked(&hop.subscribed).contains(uri) {
                            continue;
                        }
                        note("notifications/resources/updated", json!({ "uri": uri }))
                    }
                    _ => continue,
                };
                if let Some(side) = &*locked(&hop.side) {
                    let _ = side.send(note);
                }
            }
        });
    }
}

impl Hop {
    /// A session or a connection.
    pub fn session(name: &str, mute: bool) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), mute, ..Self::default() })
    }

    /// One HTTP request of the era without sessions: nobody waits any more when its stream ends.
    pub fn request(mute: bool) -> Arc<Self> {
        Arc::new(Self { mute, hangs_up: true, ..Self::default() })
    }

    /// Sends what belongs to no exchange there.
    pub fn set_side(&self, side: Out) {
        *locked(&self.side) = Some(side);
    }
}

/// A notification.
pub fn note(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}
