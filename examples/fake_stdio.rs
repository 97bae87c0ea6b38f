//! An MCP server on standard input and output that does as the tests say, wrong things too.
//!
//! Its only argument is a JSON object, all members optional: `tools` (names beside the built-in ones),
//! `start_delay_ms`, `stderr_lines` and `noise` (written before it serves), `exit_at_start` (exit code),
//! `mute` (never answers `initialize`), `ignore_eof` and `ignore_term`, `instructions_bytes`,
//! `capabilities` (instead of `tools` alone), `starts_file` (a line is added to it at each start).
//! What the tools do stands at [`Fake::run`].
//!
//! With `revision` and `journal` (a file) it is a `Scene` instead: a strict server of that revision that offers what the
//! same scene offers over HTTP. Of the other members only `noise` has a meaning then.

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "made for the tests, which use all of it"
)]
#[path = "../tests/it/fake/scene/mod.rs"]
mod scene;

use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use serde_json::{Value, json};

const TOOLS: [&str; 18] = [
    "echo",
    "pid",
    "die",
    "wait",
    "noise",
    "runaway",
    "big",
    "split",
    "progress",
    "ask",
    "twice",
    "spawn",
    "env",
    "stats",
    "invalid_utf8",
    "stderr",
    "log",
    "grow",
];

#[derive(Default)]
struct Fake {
    script: Value,
    /// Ids of calls that were cancelled, as written.
    cancelled: Mutex<HashSet<String>>,
    bell: Condvar,
    /// Names of the tools called so far.
    calls: Mutex<Vec<String>>,
    grown: Mutex<Vec<String>>,
    asks: Mutex<Vec<(u64, mpsc::Sender<Value>)>>,
    counter: AtomicU64,
}

#[derive(serde::Deserialize)]
struct Message {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
}

fn main() {
    let script = std::env::args().nth(1).unwrap_or_else(|| "{}".into());
    let script: Value = serde_json::from_str(&script).expect("the script is JSON");
    let fake = Arc::new(Fake { script, ..Fake::default() });
    exit_with_parent();
    if let Some(revision) = fake.script["revision"].as_str() {
        if fake.script["noise"] == true {
            write_noise();
        }
        let journal = fake.script["journal"].as_str().expect("a scene has a journal");
        return perform(revision, std::path::Path::new(journal));
    }
    fake.begin();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Message>(&line) else { continue };
        match &message.method {
            None => fake.settle(&line),
            Some(method) if method == "tools/call" => {
                let fake = Arc::clone(&fake);
                std::thread::spawn(move || fake.call(&message));
            }
            Some(method) => fake.answer(method, &message),
        }
    }
    if fake.script["ignore_eof"] == true {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Serves a scene until standard input ends.
fn perform(revision: &str, journal: &std::path::Path) {
    let journal = scene::Journal::in_file(journal);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        Arc::clone(&journal).watch();
        let scene = scene::Scene::new(revision, journal);
        let (out, mut messages) = tokio::sync::mpsc::unbounded_channel::<Value>();
        let hop = scene::Hop::session("stdio", false);
        hop.set_side(out.clone());
        if !scene.is_modern() {
            scene.announce(&hop);
        }
        tokio::spawn(async move {
            while let Some(message) = messages.recv().await {
                write_line(&message.to_string());
            }
        });
        let mut lines =
            tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(tokio::io::stdin()));
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(message) = serde_json::from_str::<Value>(&line) else {
                scene.violation("no JSON", &json!(line));
                continue;
            };
            if scene.is_modern() {
                if let Err(refusal) = scene.check_modern(&message, None) {
                    // Clients of either era may find out about it.
                    if message["method"] != "initialize" {
                        scene.violation(&refusal.message, &message);
                    }
                    let _ = out.send(refusal.answer(&message["id"]));
                    continue;
                }
            } else {
                scene.check_legacy(&message);
                scene.check_opened(&hop, &message);
            }
            let (scene, hop, out) = (Arc::clone(&scene), Arc::clone(&hop), out.clone());
            tokio::spawn(async move { scene.take(&hop, message, out).await });
        }
    });
    // Reading standard input may still block a thread.
    std::process::exit(0);
}

/// A test that dies must not leave children behind.
fn exit_with_parent() {
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(200));
        }
        std::process::exit(1);
    });
}

fn ignore_term() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let term = tokio::signal::unix::SignalKind::terminate();
            let mut term = tokio::signal::unix::signal(term).expect("a signal handler");
            while term.recv().await.is_some() {}
        });
    });
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with the lock")
}

fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn write_line(text: &str) {
    write(format!("{text}\n").as_bytes());
}

fn write_noise() {
    for line in
        ["Starting v1.2", "", "2026-01-02 INFO x", "-5", "\"str\"", "null", "🚂 hello", "   "]
    {
        write_line(line);
    }
}

fn said(text: &str) -> String {
    json!({"content": [{"type": "text", "text": text}]}).to_string()
}

fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn pause(args: &Value, member: &str) {
    std::thread::sleep(Duration::from_millis(args[member].as_u64().unwrap_or(0)));
}

impl Fake {
    fn begin(&self) {
        if self.script["ignore_term"] == true {
            ignore_term();
        }
        if let Some(path) = self.script["starts_file"].as_str() {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let mut file = file.expect("the file of starts can be written");
            writeln!(file, "{}", std::process::id()).expect("the file of starts can be written");
        }
        for n in 0..self.script["stderr_lines"].as_u64().unwrap_or(0) {
            eprintln!("npm notice fetching package {n}");
        }
        pause(&self.script, "start_delay_ms");
        if let Some(code) = self.script["exit_at_start"].as_i64() {
            std::process::exit(i32::try_from(code).expect("an exit code"));
        }
        if self.script["noise"] == true {
            write_noise();
            write("\u{feff}".as_bytes());
        }
    }

    fn answer(&self, method: &str, message: &Message) {
        let params = message.params.as_ref().map_or("null", |raw| raw.get());
        let params: Value = serde_json::from_str(params).unwrap_or(Value::Null);
        if method == "notifications/cancelled" {
            locked(&self.cancelled).insert(params["requestId"].to_string());
            self.bell.notify_all();
        }
        let Some(id) = message.id.as_ref().map(|raw| raw.get()) else { return };
        let answer = match method {
            "initialize" if self.script["mute"] == true => return,
            "initialize" => self.initialize(&params),
            "tools/list" => self.tools(),
            "ping" | "logging/setLevel" => json!({}),
            _ => {
                let error = json!({"code": -32601, "message": "Method not found"});
                return write_line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
            }
        };
        write_line(&result(id, &answer.to_string()));
    }

    fn initialize(&self, params: &Value) -> Value {
        let capabilities = match &self.script["capabilities"] {
            Value::Null => json!({"tools": {"listChanged": true}, "logging": {}}),
            given => given.clone(),
        };
        let mut hello = json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": {"name": "fake-stdio", "version": "1"},
        });
        if let Some(bytes) = self.script["instructions_bytes"].as_u64() {
            hello["instructions"] = json!("語".repeat(usize::try_from(bytes).expect("fits") / 3));
        }
        hello
    }

    fn tools(&self) -> Value {
        let more = self.script["tools"].as_array().cloned().unwrap_or_default();
        let names = TOOLS.iter().map(|name| json!(name)).chain(more);
        let grown = locked(&self.grown).clone();
        let tools: Vec<_> = names
            .chain(grown.into_iter().map(Value::from))
            .map(|name| json!({"name": name, "inputSchema": {"type": "object"}}))
            .collect();
        json!({ "tools": tools })
    }

    fn settle(&self, line: &str) {
        let answer: Value = serde_json::from_str(line).unwrap_or(Value::Null);
        let mut asks = locked(&self.asks);
        if let Some(at) = asks.iter().position(|(id, _)| Some(*id) == answer["id"].as_u64()) {
            let _ = asks.remove(at).1.send(answer);
        }
    }

    fn call(&self, message: &Message) {
        let (Some(id), Some(raw)) = (&message.id, &message.params) else { return };
        let params: Value = serde_json::from_str(raw.get()).unwrap_or(Value::Null);
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        locked(&self.calls).push(name.clone());
        if let Some(answer) = self.run(&name, id.get(), raw.get(), &params) {
            write_line(&result(id.get(), &answer));
        }
    }

    /// Runs a tool; the JSON text of its result, or nothing when that was written already or never is.
    fn run(&self, name: &str, id: &str, raw: &str, params: &Value) -> Option<String> {
        let args = &params["arguments"];
        let count = |member: &str| args[member].as_u64().unwrap_or(0);
        match name {
            // {}: the params as they were received, as text.
            "echo" => return Some(said(raw)),
            // {}: the process id.
            "pid" => return Some(said(&std::process::id().to_string())),
            // {after_ms, code}: ends the process.
            "die" => {
                pause(args, "after_ms");
                std::process::exit(i32::try_from(count("code")).unwrap_or(1));
            }
            // {ms, tag, deaf}: answers with the tag after a while; not if cancelled, unless deaf.
            "wait" => return self.wait(id, args),
            // {lines}: that many lines that are no messages, then an answer.
            "noise" => (0..count("lines")).for_each(|n| write_line(&format!("noise {n}"))),
            // {mib}: that much without a line break, a line break, no answer.
            "runaway" => {
                // Held, or another answer would end up inside this line.
                let mut out = std::io::stdout().lock();
                let block = vec![b'x'; 1 << 20];
                let blocks = (0..count("mib")).map(|_| block.as_slice()).chain([&b"\n"[..]]);
                for block in blocks {
                    if out.write_all(block).is_err() {
                        std::process::exit(1);
                    }
                }
                let _ = out.flush();
                return None;
            }
            // {chars}: a text of that many characters of three bytes.
            "big" => {
                let chars = usize::try_from(count("chars")).unwrap_or(0);
                return Some(said(&"語".repeat(chars)));
            }
            // {text}: the text, written byte by byte.
            "split" => {
                let text = args["text"].as_str().unwrap_or_default();
                let line = format!("{}\n", result(id, &said(text)));
                line.as_bytes().iter().for_each(|byte| write(&[*byte]));
                return None;
            }
            // {before, after, tag}: that many progress notifications before and after the answer.
            "progress" => {
                self.progress(params, 0, count("before"));
                write_line(&result(id, &said("progressed")));
                self.progress(params, count("before"), count("after"));
                return None;
            }
            // {method, params, ms}: after a while asks the client; its response as text.
            "ask" => {
                pause(args, "ms");
                return Some(said(&self.ask(args).to_string()));
            }
            // {}: two answers.
            "twice" => write_line(&result(id, &said("first"))),
            // {}: a child of its own that sleeps; its process id.
            "spawn" => {
                let child = std::process::Command::new("sleep").arg("1000").spawn();
                return Some(said(&child.expect("sleep exists").id().to_string()));
            }
            // {}: environment and working folder as JSON text.
            "env" => {
                let vars: std::collections::BTreeMap<String, String> = std::env::vars().collect();
                let cwd = std::env::current_dir().expect("a working folder");
                return Some(said(&json!({"vars": vars, "cwd": cwd}).to_string()));
            }
            // {}: calls and cancellations so far, as JSON text.
            "stats" => {
                let cancelled: Vec<_> = locked(&self.cancelled).iter().cloned().collect();
                let calls = locked(&self.calls).clone();
                let stats =
                    json!({"calls": calls, "cancelled": cancelled, "pid": std::process::id()});
                return Some(said(&stats.to_string()));
            }
            // {}: an answer that is not UTF-8.
            "invalid_utf8" => {
                let text = result(id, &said("#"));
                let (before, after) = text.split_once('#').expect("it stands there");
                write(&[before.as_bytes(), &[0xc3, 0x28], after.as_bytes(), b"\n"].concat());
                return None;
            }
            // {lines}: that many lines on standard error.
            "stderr" => (0..count("lines")).for_each(|n| eprintln!("complaint {n}")),
            // {level, text}: a log message of MCP before the answer.
            "log" => {
                let params =
                    json!({"level": args["level"], "logger": "fake", "data": args["text"]});
                let log =
                    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
                write_line(&log.to_string());
            }
            // {name}: one more tool, announced.
            "grow" => {
                let name = args["name"].as_str().unwrap_or("grown").to_owned();
                locked(&self.grown).push(name);
                write_line(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
            }
            _ => {}
        }
        Some(said(name))
    }

    fn wait(&self, id: &str, args: &Value) -> Option<String> {
        let end = Instant::now() + Duration::from_millis(args["ms"].as_u64().unwrap_or(0));
        let mut cancelled = locked(&self.cancelled);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            if cancelled.contains(id) && args["deaf"] != true {
                return None;
            }
            cancelled = self.bell.wait_timeout(cancelled, left).expect("no thread panics").0;
        }
        Some(said(args["tag"].as_str().unwrap_or_default()))
    }

    fn progress(&self, params: &Value, from: u64, count: u64) {
        let token = &params["_meta"]["progressToken"];
        let tag = &params["arguments"]["tag"];
        for n in from..from + count {
            let params = json!({"progressToken": token, "progress": n + 1, "message": tag});
            let note =
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
            write_line(&note.to_string());
        }
    }

    fn ask(&self, args: &Value) -> Value {
        let id = self.counter.fetch_add(1, Ordering::Relaxed);
        let (tx, answer) = mpsc::channel();
        locked(&self.asks).push((id, tx));
        let ask = json!({
            "jsonrpc": "2.0", "id": id, "method": args["method"], "params": args["params"],
        });
        write_line(&ask.to_string());
        answer.recv().unwrap_or(Value::Null)
    }
}
