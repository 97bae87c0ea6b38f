//! Real servers and clients from the registries, and the official conformance suite.
//!
//! These need Node or Python and what `.ci/peers` installs into the folder that `TRUNKLINE_PEERS` names. Where that
//! is missing they say so and pass, except with `CI=true`, where they must run.

mod conformance;
mod matrix;
mod plain;
mod servers;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::client::{Http, patient};
use crate::gateway::{Gateway, Setup, repository};
use crate::mcp::{Mcp, NEWEST, hello, request};

const EVERYTHING: &str = "npm/node_modules/.bin/mcp-server-everything";
const FILESYSTEM: &str = "npm/node_modules/.bin/mcp-server-filesystem";
const MEMORY: &str = "npm/node_modules/.bin/mcp-server-memory";
const THINKING: &str = "npm/node_modules/.bin/mcp-server-sequential-thinking";
const TIME: &str = "sdk2/bin/mcp-server-time";
const SDK1: &str = "sdk1/bin/python";
const SDK171: &str = "sdk171/bin/python";
const SDK2: &str = "sdk2/bin/python";
const INSPECTOR: &str = "inspector/node_modules/.bin/mcp-inspector";

/// How long a peer may take; they start slowly on a machine that is busy with tests.
const LONG: Duration = Duration::from_secs(120);

/// The folder of the peers, if all of these are in it.
fn peers(needed: &[&str]) -> Option<PathBuf> {
    let folder = std::env::var_os("TRUNKLINE_PEERS")
        .map_or_else(|| repository("target/peers"), PathBuf::from);
    match needed.iter().find(|name| !folder.join(name).exists()) {
        None => Some(folder),
        Some(missing) => {
            absent(&format!("{} is not installed", folder.join(missing).display()));
            None
        }
    }
}

/// Says that a test cannot run; fails where it has to.
fn absent(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "in CI this has to run: {why}");
    eprintln!("skipped: {why}; `.ci/run` installs what is needed");
}

/// A server on stdio that is spoken to directly, without a gateway.
struct Direct {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    next: u64,
}

impl Direct {
    async fn start(command: &[String], env: &[(&str, &Path)]) -> Self {
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the peer starts");
        let stdin = child.stdin.take().expect("it is piped");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut direct = Self { _child: child, stdin, lines, next: 1 };
        direct.request("initialize", &hello(NEWEST, &json!({}))).await;
        direct.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        direct
    }

    async fn write(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.expect("the peer reads");
    }

    async fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.write(&request(id, method, params)).await;
        let answer = async {
            loop {
                let line = self.lines.next_line().await.expect("a line").expect("the peer lives");
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                if message["id"] == id && message.get("method").is_none() {
                    return message["result"].clone();
                }
            }
        };
        tokio::time::timeout(LONG, answer).await.expect("the peer answers")
    }
}

/// A process that serves HTTP on a port of its own.
struct Served {
    _child: Child,
    addr: SocketAddr,
}

impl Served {
    async fn start(mut command: Command, addr: SocketAddr) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().expect("the peer starts");
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(addr).await.is_err() {
            assert!(begun.elapsed() < LONG, "the peer does not listen on {addr}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Self { _child: child, addr }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }
}

fn free_port() -> SocketAddr {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("a bound socket")
}

async fn everything(peers: &Path) -> Served {
    everything_over(peers, "streamableHttp").await
}

/// The server of all features, over a transport of its own choice of words.
async fn everything_over(peers: &Path, transport: &str) -> Served {
    let addr = free_port();
    let mut command = Command::new(peers.join(EVERYTHING));
    command.arg(transport).env("PORT", addr.port().to_string());
    Served::start(command, addr).await
}

/// Waits until so many upstreams are up, which takes long where a busy machine starts many.
async fn up(gateway: &Gateway, upstreams: u8) {
    let begun = Instant::now();
    while gateway.metrics().await.value("trunkline_upstream_up", &[]) < f64::from(upstreams) {
        assert!(begun.elapsed() < LONG, "the upstreams do not come up");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs a peer that ends by itself and gives what it printed.
async fn output(mut command: Command) -> String {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONG, command.output()).await;
    let output = output.expect("the peer ends").expect("the peer runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// The servers of the mixed fleet: everything over HTTP, four others over stdio.
struct Fleet {
    gateway: Gateway,
    everything: Served,
    /// Upstream name and its command, for the direct conversation.
    children: Vec<(&'static str, Vec<String>)>,
    folder: tempfile::TempDir,
}

async fn fleet(peers: &Path) -> Fleet {
    let everything = everything(peers).await;
    let folder = tempfile::tempdir().expect("a scratch folder");
    let files = folder.path().canonicalize().expect("it is there").join("files");
    std::fs::create_dir(&files).expect("it can be made");
    std::fs::write(files.join("a.txt"), "süß\n").expect("it can be written");
    let program = |name: &str| peers.join(name).display().to_string();
    let children = vec![
        ("filesystem", vec![program(FILESYSTEM), files.display().to_string()]),
        ("memory", vec![program(MEMORY)]),
        ("thinking", vec![program(THINKING)]),
        ("time", vec![program(TIME)]),
    ];
    let memory = folder.path().join("through.json");
    let mut setup = Setup::new()
        .server("session_idle_timeout = \"10m\"")
        .upstream("everything", &format!("url = \"{}\"", everything.url()));
    for (name, command) in &children {
        let command = toml::Value::from(command.clone());
        let lines = format!(
            "command = {command}\nstart_timeout = \"60s\"\nlist_timeout = \"60s\"\n\
             env = {{ MEMORY_FILE_PATH = {memory:?} }}"
        );
        setup = setup.upstream(name, &lines);
    }
    let names = ["everything", "filesystem", "memory", "thinking", "time"];
    let gateway = setup.mcp(&names).start().await;
    up(&gateway, 5).await;
    Fleet { gateway, everything, children, folder }
}

/// The lists of one server, with the names that the gateway gives them.
#[derive(Default)]
struct Lists(HashMap<&'static str, Vec<Value>>);

const KINDS: [(&str, &str, Option<&str>); 4] = [
    ("tools/list", "tools", Some("name")),
    ("prompts/list", "prompts", Some("name")),
    ("resources/list", "resources", None),
    ("resources/templates/list", "resourceTemplates", None),
];

impl Lists {
    fn add(&mut self, member: &'static str, upstream: &str, renamed: Option<&str>, items: &Value) {
        for item in items.as_array().into_iter().flatten() {
            let mut item = item.clone();
            if let Some(key) = renamed {
                let own = item[key].as_str().expect("it has a name");
                item[key] = json!(format!("{upstream}__{own}"));
            }
            self.0.entry(member).or_default().push(item);
        }
    }
}

#[tokio::test]
async fn five_real_servers_at_once_are_listed_and_called_as_they_are() {
    let Some(peers) = peers(&[EVERYTHING, FILESYSTEM, MEMORY, THINKING, TIME]) else { return };
    let fleet = fleet(&peers).await;
    let through = fleet.gateway.mcp().await;
    through
        .until_tools("all five", |tools| {
            ["everything__", "filesystem__", "memory__", "thinking__", "time__"]
                .iter()
                .all(|prefix| tools.iter().any(|tool| tool.starts_with(prefix)))
        })
        .await;

    let straight = Mcp::open_at(Http::new(fleet.everything.addr), "/mcp", NEWEST, json!({})).await;
    let mut lists = Lists::default();
    for (method, member, renamed) in KINDS {
        let items = straight.list(method, member).await;
        lists.add(member, "everything", renamed, &json!(items));
    }
    let memory = fleet.folder.path().join("direct.json");
    let mut direct = HashMap::new();
    for (name, command) in &fleet.children {
        let mut server = Direct::start(command, &[("MEMORY_FILE_PATH", &memory)]).await;
        for (method, member, renamed) in KINDS {
            let page = server.request(method, &json!({})).await;
            assert!(page.get("nextCursor").is_none(), "{name} has one page");
            lists.add(member, name, renamed, &page[member]);
        }
        direct.insert(*name, server);
    }
    for (method, member, _) in KINDS {
        let merged = through.list(method, member).await;
        let union = lists.0.remove(member).unwrap_or_default();
        assert_eq!(merged.len(), union.len(), "{member}");
        for (got, said) in merged.iter().zip(&union) {
            assert_eq!(got, said, "{member}");
        }
    }
    compare_calls(&through, &straight, &mut direct, fleet.folder.path()).await;
}

/// Calls tools of each server through the gateway and directly; the results are equal.
async fn compare_calls(
    through: &Mcp,
    straight: &Mcp,
    direct: &mut HashMap<&str, Direct>,
    folder: &Path,
) {
    let file = |name: &str| folder.canonicalize().expect("it is there").join("files").join(name);
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["süß", "1.0"]});
    let calls = [
        ("everything", "echo", json!({"message": "grüezi 🚂"})),
        ("everything", "get-sum", json!({"a": 1.5, "b": 2})),
        ("everything", "get-tiny-image", json!({})),
        ("everything", "get-structured-content", json!({"location": "Chicago"})),
        (
            "everything",
            "get-annotated-message",
            json!({"messageType": "error", "includeImage": true}),
        ),
        ("everything", "get-resource-links", json!({"count": 3})),
        ("everything", "get-sum", json!({"a": "no number"})),
        ("filesystem", "read_text_file", json!({"path": file("a.txt")})),
        ("filesystem", "list_directory", json!({"path": file("")})),
        ("filesystem", "read_text_file", json!({"path": "/etc/hostname"})),
        ("memory", "create_entities", json!({"entities": [entity]})),
        ("memory", "read_graph", json!({})),
        (
            "thinking",
            "sequentialthinking",
            json!({"thought": "t", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}),
        ),
        (
            "time",
            "convert_time",
            json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
        ),
    ];
    for (upstream, tool, arguments) in calls {
        let got = through.call(&format!("{upstream}__{tool}"), arguments.clone()).await;
        let said = match direct.get_mut(upstream) {
            None => straight.call(tool, arguments).await.result().clone(),
            Some(server) => {
                let params = json!({"name": tool, "arguments": arguments});
                server.request("tools/call", &params).await
            }
        };
        // The time server answers with today's date, which may change in between.
        assert_eq!(got.result(), &said, "{upstream} {tool}");
    }
}

/// What a Python script of ours printed.
async fn script(python: PathBuf, script: &str, url: &str, calls: &Value) -> Value {
    let mut command = Command::new(python);
    command.arg(repository("tests/peers").join(script)).arg(url).arg(calls.to_string());
    let text = output(command).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[tokio::test]
async fn both_generations_of_the_python_sdk_list_and_call_through_the_gateway() {
    let needed = [EVERYTHING, FILESYSTEM, MEMORY, THINKING, TIME, SDK1, SDK2];
    let Some(peers) = peers(&needed) else { return };
    let fleet = fleet(&peers).await;
    let slow = json!({"duration": 1, "steps": 2});
    let own = json!([
        ["echo", {"message": "hi"}],
        ["get-structured-content", {"location": "New York"}],
        ["trigger-long-running-operation", slow],
    ]);
    let public = json!([
        ["everything__echo", {"message": "hi"}],
        ["everything__get-structured-content", {"location": "New York"}],
        ["everything__trigger-long-running-operation", slow],
    ]);
    let tools = fleet.gateway.mcp().await.tools().await;
    for (python, program, revision) in [(SDK1, "sdk1.py", NEWEST), (SDK2, "sdk2.py", "2026-07-28")]
    {
        let python = peers.join(python);
        let straight = script(python.clone(), program, &fleet.everything.url(), &own).await;
        let through = script(python, program, &fleet.gateway.url("/mcp"), &public).await;
        assert_eq!(through["tools"], json!(tools), "{program}");
        assert_eq!(through["results"], straight["results"], "{program}");
        assert_eq!(through["progress"], straight["progress"], "{program}");
        // The gateway speaks what the client prefers, whatever its upstreams speak.
        assert_eq!(through["revision"], revision, "{program}");
    }
}

#[tokio::test]
async fn the_python_sdk_of_2024_lists_calls_and_is_asked_through_the_gateway() {
    let Some(peers) = peers(&[EVERYTHING, SDK171]) else { return };
    let (older, newer) = (everything_over(&peers, "sse").await, everything(&peers).await);
    let gateway = Setup::new()
        .upstream("everything", &format!("url = \"{}\"", newer.url()))
        .mcp(&["everything"])
        .start()
        .await;
    gateway.mcp().await.until_tools("its tools", |tools| !tools.is_empty()).await;
    let calls = json!([
        ["echo", {"message": "grüezi 🚂"}],
        ["get-sum", {"a": 1.5, "b": 2}],
        ["get-tiny-image", {}],
        ["trigger-long-running-operation", {"duration": 1, "steps": 4}],
        ["trigger-sampling-request", {"prompt": "why?", "maxTokens": 10}],
    ]);
    let straight = format!("http://{}/sse", older.addr);
    let straight = script(peers.join(SDK171), "sdk171.py", &straight, &calls).await;
    let through = gateway.url("/mcp/sse");
    let through = script(peers.join(SDK171), "sdk171.py", &through, &calls).await;
    assert_eq!(through["revision"], "2024-11-05");
    assert_eq!((&through["asked"], &through["same"]), (&json!(2), &json!(true)), "{through}");
    assert_eq!(through, straight);
    let sessions = [("route", "/mcp"), ("era", "legacy")];
    gateway.until("one session", |m| m.value("trunkline_sessions", &sessions) == 1.0).await;
}

#[tokio::test]
async fn the_inspector_lists_and_calls_through_the_gateway() {
    let Some(peers) = peers(&[EVERYTHING, INSPECTOR]) else { return };
    let everything = everything(&peers).await;
    let gateway = Setup::new()
        .upstream("everything", &format!("url = \"{}\"", everything.url()))
        .mcp(&["everything"])
        .start()
        .await;
    gateway.mcp().await.until_tools("its tools", |tools| !tools.is_empty()).await;
    let inspect = async |url: &str, args: &[&str]| -> Value {
        let mut command = Command::new(peers.join(INSPECTOR));
        command.args(["--cli", url, "--transport", "http", "--method"]).args(args);
        let text = output(command).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    };
    for args in [
        &["tools/list"][..],
        &["tools/call", "--tool-name", "echo", "--tool-arg", "message=hi"],
        &["prompts/list"],
        &["resources/list"],
    ] {
        let through = inspect(&gateway.url("/mcp"), args).await;
        assert_eq!(through, inspect(&everything.url(), args).await, "{args:?}");
    }
}

#[tokio::test]
async fn the_official_filesystem_server_survives_a_client_that_leaves() {
    let Some(peers) = peers(&[FILESYSTEM]) else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let root = folder.path().canonicalize().expect("it is there");
    let command = vec![peers.join(FILESYSTEM).display().to_string(), root.display().to_string()];
    let lines = format!("command = {}\nstart_timeout = \"60s\"", toml::Value::from(command));
    let gateway = Setup::new().upstream("files", &lines).mcp(&["files"]).start().await;
    for round in 0..3 {
        let client = gateway.mcp().await;
        client.until_tools("its tools", |tools| tools.len() > 10).await;
        let path = root.join(format!("{round}.txt"));
        let written = client.call("write_file", json!({"path": path, "content": "x"})).await;
        assert_ne!(written.result()["isError"], true);
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "x");
        patient("the end of the session", client.delete()).await;
    }
    assert_eq!(gateway.children().len(), 1, "one child served them all");
}
