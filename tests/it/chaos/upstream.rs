//! Upstreams that keep book: which call ran how often, what runs now, and what was told that must not have been.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::EVIL;
use crate::fake::modern::modern;
use crate::fake::{self, Call, Fake, said, tool};

/// What they offer.
const TOOLS: [&str; 5] = ["echo", "report", "ask", "twice", "hang"];

/// What is known of the calls to one upstream.
#[derive(Debug, Default)]
pub struct Book {
    /// How often a call of that mark began.
    runs: Mutex<HashMap<String, usize>>,
    /// Calls that are being served, and what ends them: by session and id.
    running: Mutex<HashMap<String, Running>>,
    /// Calls that were cancelled before they came: on another connection that can happen.
    early: Mutex<HashSet<String>>,
    violations: Mutex<Vec<String>>,
}

impl Book {
    /// How often a call of that mark began.
    pub fn runs(&self, mark: &str) -> usize {
        self.runs.lock().get(mark).copied().unwrap_or(0)
    }

    /// Marks of calls that began more than once.
    pub fn repeated(&self) -> Vec<String> {
        let runs = self.runs.lock();
        runs.iter().filter(|(_, count)| **count > 1).map(|(mark, _)| mark.clone()).collect()
    }

    /// What runs now.
    pub fn running(&self) -> Vec<String> {
        let running = self.running.lock();
        running.iter().map(|(key, running)| format!("{} as {key}", running.what)).collect()
    }

    /// What was told that must not have been.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    fn violation(&self, what: String) {
        self.violations.lock().push(what);
    }
}

/// A call that is being served.
#[derive(Debug)]
struct Running {
    what: String,
    ended: CancellationToken,
}

/// One upstream.
pub struct Up {
    pub name: &'static str,
    pub fake: Fake,
    pub book: Arc<Book>,
    /// Whether it is left in peace.
    pub calm: bool,
}

/// A call that is in the book while it is served.
struct Entry {
    book: Arc<Book>,
    key: String,
    ended: CancellationToken,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.book.running.lock().remove(&self.key);
    }
}

fn key(call: &Call, id: &str) -> String {
    let session = call.req.header("mcp-session-id");
    // Without sessions nobody cancels by id.
    match session {
        Some(session) => format!("{session} {id}"),
        None => format!("{id} {:p}", Arc::as_ptr(&call.fake)),
    }
}

impl Up {
    /// Starts one of the legacy era.
    pub async fn legacy(name: &'static str, calm: bool) -> Self {
        let book = Arc::<Book>::default();
        let (calls, cancels, ends) = (Arc::clone(&book), Arc::clone(&book), Arc::clone(&book));
        let fake = Fake::mcp(TOOLS)
            .with(|lists| {
                lists.capabilities = json!({"tools": {"listChanged": true}, "logging": {}});
            })
            .on("tools/call", move |call: Call| serve(call, Arc::clone(&calls), false))
            .on("notifications/cancelled", move |call: Call| {
                let id = call.req.json()["params"]["requestId"].to_string();
                let key = key(&call, &id);
                match cancels.running.lock().get(&key) {
                    Some(running) => running.ended.cancel(),
                    None => _ = cancels.early.lock().insert(key),
                }
                async move { call.out.full(202, &[], "").await }
            })
            // With its session a call ends.
            .on("DELETE", move |call: Call| {
                let session = key(&call, "");
                let running = ends.running.lock();
                let of_session = running.iter().filter(|(key, _)| key.starts_with(&session));
                of_session.for_each(|(_, running)| running.ended.cancel());
                async move { fake::answer_mcp(call, "DELETE").await }
            })
            .start()
            .await;
        Self { name, fake, book, calm }
    }

    /// Starts one of 2026-07-28.
    pub async fn modern(name: &'static str, calm: bool) -> Self {
        let book = Arc::<Book>::default();
        let calls = Arc::clone(&book);
        let fake = modern(TOOLS.map(tool).to_vec())
            .on("tools/call", move |call: Call| serve(call, Arc::clone(&calls), true))
            .start()
            .await;
        Self { name, fake, book, calm }
    }

    /// Replaces it by another process of the same kind.
    pub fn restart(&self) {
        self.fake.restart();
    }

    /// Says on the streams of no call what nobody may hear.
    pub fn whisper(&self) {
        // Nobody has declared roots: whose call it may belong to does not matter.
        let ask = json!({"_meta": {"note": EVIL}});
        let progress = json!({"progressToken": 1_000_000, "progress": 1, "message": EVIL});
        for message in [
            json!({"jsonrpc": "2.0", "id": 4, "method": "roots/list", "params": ask}),
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}),
            json!({"jsonrpc": "2.0", "id": 7, "result": said(EVIL)}),
        ] {
            self.fake.push(&message.to_string());
        }
        self.fake.push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    }
}

async fn serve(call: Call, book: Arc<Book>, modern: bool) {
    let mark = call.arg("mark").as_str().unwrap_or_default().to_owned();
    let state = call.req.json()["params"]["requestState"].clone();
    if state.is_null() {
        *book.runs.lock().entry(mark.clone()).or_default() += 1;
    }
    if modern {
        for wrong in call.mismatches(&[]) {
            book.violation(format!("{mark}: {wrong}"));
        }
    }
    let (key, ended) = (key(&call, &call.id()), CancellationToken::new());
    let running = Running { what: format!("{} {mark}", call.tool()), ended: ended.clone() };
    let earlier = book.running.lock().insert(key.clone(), running);
    if !modern && earlier.is_some() {
        book.violation(format!("{mark}: id {} is in use", call.id()));
    }
    if book.early.lock().contains(&key) {
        ended.cancel();
    }
    let entry = Entry { book, key, ended };
    tokio::select! {
        () = perform(&call, &mark, &state, &entry.book, modern) => {}
        () = entry.ended.cancelled() => call.out.close(),
        // Here the end of the connection is the wish to cancel.
        () = call.out.gone(), if modern => {}
    }
}

fn finished(mark: &str, modern: bool, more: &Value) -> String {
    let mut result = said(&json!({"mark": mark, "heard": more}).to_string());
    if modern {
        result["resultType"] = json!("complete");
    }
    result.to_string()
}

async fn perform(call: &Call, mark: &str, state: &Value, book: &Book, modern: bool) {
    let rounds = call.arg("n").as_u64().unwrap_or(1);
    let pause = Duration::from_millis(call.arg("ms").as_u64().unwrap_or(0));
    let result = finished(mark, modern, &json!([]));
    match call.tool().as_str() {
        "echo" => {
            tokio::time::sleep(pause).await;
            call.result(&result).await;
        }
        "report" => {
            call.out.sse().await;
            for n in 1..=rounds {
                if call.token() != "null" {
                    call.out.event(call.progress(n, mark)).await;
                }
                if !modern {
                    let params = json!({"level": "error", "data": mark});
                    let method = "notifications/message";
                    let log = json!({"jsonrpc": "2.0", "method": method, "params": params});
                    call.out.event(log.to_string()).await;
                }
                tokio::time::sleep(pause).await;
            }
            answer(call, &result).await;
        }
        "twice" => {
            call.out.sse().await;
            let evil = said(EVIL);
            let foreign = json!({"jsonrpc": "2.0", "id": 99_999_999, "result": evil});
            call.out.event(foreign.to_string()).await;
            tokio::time::sleep(pause).await;
            call.out.event(call.response(&result)).await;
            call.out.event(call.response(&evil.to_string())).await;
            call.out.end().await;
        }
        "ask" if modern => ask_by_result(call, mark, state, book, rounds).await,
        "ask" => {
            call.out.sse().await;
            let mut heard = Vec::new();
            for n in 0..rounds {
                let (method, params) = question(mark, n);
                let told = call.ask(method, params).await;
                let told = told.get("result").unwrap_or(&told["error"]);
                check(told, mark, book);
                heard.push(told.clone());
                tokio::time::sleep(pause).await;
            }
            answer(call, &finished(mark, false, &json!(heard))).await;
        }
        // No answer.
        _ => std::future::pending().await,
    }
}

async fn answer(call: &Call, result: &str) {
    call.out.event(call.response(result)).await;
    call.out.end().await;
}

/// The question of a round; its text is the mark.
fn question(mark: &str, round: u64) -> (&'static str, Value) {
    if round.is_multiple_of(2) {
        let schema = json!({"type": "object", "properties": {"tag": {"type": "string"}}});
        ("elicitation/create", json!({"message": mark, "requestedSchema": schema}))
    } else {
        let content = json!({"type": "text", "text": mark});
        let messages = json!([{"role": "user", "content": content}]);
        ("sampling/createMessage", json!({"messages": messages, "maxTokens": 5}))
    }
}

/// An answer must be that of the client that was asked, to this very question.
fn check(told: &Value, mark: &str, book: &Book) {
    for text in [&told["content"]["tag"], &told["content"]["text"]] {
        if text.as_str().is_some_and(|text| text != mark) {
            book.violation(format!("{mark} was answered with {told}"));
        }
    }
}

/// The rounds of a server without sessions: it keeps nothing, all is in the state.
async fn ask_by_result(call: &Call, mark: &str, state: &Value, book: &Book, rounds: u64) {
    let round = match state.as_str() {
        None => 0,
        Some(state) => {
            let (of, round) = state.split_once(' ').unwrap_or_default();
            if of != mark {
                book.violation(format!("{mark} came with the state of {of}"));
            }
            let params = &call.req.json()["params"];
            let told = &params["inputResponses"]["q"];
            check(told, mark, book);
            let round = round.parse().unwrap_or(0);
            if told.is_null() { round } else { round + 1 }
        }
    };
    if round >= rounds {
        return call.result(&finished(mark, true, &json!([]))).await;
    }
    let (method, params) = question(mark, round);
    let result = json!({
        "resultType": "input_required",
        "inputRequests": {"q": {"method": method, "params": params}},
        "requestState": format!("{mark} {round}"),
    });
    call.result(&result.to_string()).await;
}
