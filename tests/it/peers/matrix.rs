//! Every SDK on both sides at once: servers of each generation behind one route, and a client of each that lists them
//! all, calls a tool on each, and is asked a question by each that can ask it.
//!
//! The programs are in `tests/peers/matrix` and `tests/peers/rust`. All servers offer the same: `echo`, and `ask`, which
//! asks for the client's name by elicitation, or by sampling where the SDK or the client knows no elicitation.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{LONG, SDK1, SDK2, SDK171, output, peers};
use crate::gateway::{Gateway, Setup, repository};

const SDK194: &str = "sdk194/bin/python";
const SDK1131: &str = "sdk1131/bin/python";
const FASTMCP: &str = "fastmcp/bin/python";
pub const NODE: &str = "node/node";
pub const RUST: &str = "rust/debug/trunkline-peers";
const TS110: &str = "ts/node_modules/ts1.10";
const TS112: &str = "ts/node_modules/ts1.12";
const TS117: &str = "ts/node_modules/ts1.17";
const TS132: &str = "ts/node_modules/ts1.32";
const TS_CLIENT: &str = "ts/node_modules/@modelcontextprotocol/client";
const TS_SERVER: &str = "ts/node_modules/@modelcontextprotocol/server";

const ALL: [&str; 13] = [
    SDK171, SDK194, SDK1131, SDK1, SDK2, FASTMCP, NODE, RUST, TS110, TS112, TS117, TS132, TS_SERVER,
];

/// How a program asks, or can be asked.
#[derive(Clone, Copy, PartialEq)]
enum Question {
    Elicitation,
    Sampling,
}
use Question::{Elicitation, Sampling};

/// A server: the name of its upstream, its command line, and what it asks, the best first.
struct Server {
    name: &'static str,
    line: &'static [&'static str],
    asks: &'static [Question],
}

/// A client: its command line before and after the URL, scheme and path of that, the revision it has to end up with, and what it
/// answers.
struct Client {
    line: &'static [&'static str],
    scheme: &'static str,
    path: &'static str,
    rest: &'static [&'static str],
    revision: &'static str,
    answers: &'static [Question],
}

const BOTH: &[Question] = &[Elicitation, Sampling];

/// Servers over stdio, HTTP+SSE and Streamable HTTP, of each revision and of both eras. Those over HTTP print where.
const SERVERS: [Server; 15] = [
    Server { name: "py171", line: &[SDK171, "server1.py", "sse"], asks: &[Sampling] },
    // Over HTTP, that of 1.9.4 ends when a client ends its session.
    Server { name: "py194", line: &[SDK194, "server1.py", "sse"], asks: &[Sampling] },
    Server { name: "py1131", line: &[SDK1131, "server1.py", "stdio"], asks: BOTH },
    Server { name: "py130", line: &[SDK1, "server1.py", "http"], asks: BOTH },
    Server { name: "py23", line: &[SDK2, "server2.py", "mcp", "http"], asks: &[Elicitation] },
    Server { name: "py23io", line: &[SDK2, "server2.py", "mcp", "stdio"], asks: &[Elicitation] },
    Server {
        name: "fast",
        line: &[FASTMCP, "server2.py", "fastmcp", "http"],
        asks: &[Elicitation],
    },
    Server { name: "ts110", line: &[NODE, "server.cjs", TS110, "sse"], asks: &[Sampling] },
    Server { name: "ts112", line: &[NODE, "server.cjs", TS112, "http"], asks: &[Sampling] },
    Server { name: "ts112io", line: &[NODE, "server.cjs", TS112, "stdio"], asks: &[Sampling] },
    Server { name: "ts117", line: &[NODE, "server.cjs", TS117, "http"], asks: BOTH },
    Server { name: "ts132", line: &[NODE, "server.cjs", TS132, "http"], asks: BOTH },
    Server { name: "ts24", line: &[NODE, "server2.cjs", TS_SERVER], asks: &[Elicitation] },
    Server { name: "rust", line: &[RUST, "rmcp-server", "http"], asks: &[Elicitation] },
    Server { name: "rustio", line: &[RUST, "rmcp-server", "stdio"], asks: &[Elicitation] },
];

const fn client(
    line: &'static [&'static str],
    rest: &'static [&'static str],
    revision: &'static str,
    answers: &'static [Question],
) -> Client {
    Client { line, scheme: "http", path: "/mcp", rest, revision, answers }
}

/// Clients of each revision; those of the modern era also held to the handshake. `rmcp` asks for a revision that has no
/// handshake, unless told to look first.
const CLIENTS: [Client; 17] = [
    Client { path: "/mcp/sse", ..client(&[SDK171, "client1.py"], &[], "2024-11-05", &[Sampling]) },
    client(&[SDK194, "client1.py"], &[], "2025-03-26", &[Sampling]),
    client(&[SDK1131, "client1.py"], &[], "2025-06-18", BOTH),
    client(&[SDK1, "client1.py"], &[], "2025-11-25", BOTH),
    client(&[SDK2, "client2.py", "mcp"], &["auto"], "2026-07-28", BOTH),
    client(&[SDK2, "client2.py", "mcp"], &["legacy"], "2025-11-25", BOTH),
    client(&[FASTMCP, "client2.py", "fastmcp"], &["auto"], "2026-07-28", BOTH),
    Client {
        path: "/mcp/sse",
        ..client(&[NODE, "client.cjs", TS110], &["legacy"], "2024-11-05", &[Sampling])
    },
    client(&[NODE, "client.cjs", TS110], &["legacy"], "2024-11-05", &[Sampling]),
    client(&[NODE, "client.cjs", TS112], &["legacy"], "2025-03-26", &[Sampling]),
    client(&[NODE, "client.cjs", TS117], &["legacy"], "2025-06-18", BOTH),
    client(&[NODE, "client.cjs", TS132], &["legacy"], "2025-11-25", BOTH),
    client(&[NODE, "client.cjs", TS_CLIENT], &["auto"], "2026-07-28", BOTH),
    Client { scheme: "ws", ..client(&[SDK1, "client1.py"], &[], "2025-11-25", BOTH) },
    Client {
        scheme: "ws",
        ..client(&[NODE, "client.cjs", TS132], &["legacy"], "2025-11-25", BOTH)
    },
    client(&[RUST, "rmcp-client"], &["initialize"], "2025-11-25", &[Elicitation]),
    client(&[RUST, "rmcp-client"], &["auto"], "2026-07-28", &[Elicitation]),
];

/// A command line with the programs where they are.
fn command(peers: &Path, line: &[&str]) -> Vec<String> {
    let found = |word: &&str| -> PathBuf {
        let (installed, ours) = (peers.join(word), repository("tests/peers/matrix").join(word));
        if word.contains('/') {
            installed
        } else if word.contains('.') {
            ours
        } else {
            word.into()
        }
    };
    line.iter().map(|word| found(word).display().to_string()).collect()
}

/// A server that says on its first line where it serves.
pub struct Announced {
    _child: Child,
    pub url: String,
}

impl Announced {
    pub async fn start(line: &[String]) -> Self {
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().expect("the peer starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let url = tokio::time::timeout(LONG, lines.next_line()).await;
        let url = url.expect("the peer gets ready").expect("its output can be read");
        Self { _child: child, url: url.unwrap_or_else(|| panic!("{line:?} ended")) }
    }
}

/// A gateway with all servers behind its route, once all of them are up.
async fn fleet(peers: &Path) -> (Gateway, Vec<Announced>) {
    let mut setup = Setup::new().server("session_idle_timeout = \"10m\"");
    let mut starting = Vec::new();
    for server in &SERVERS {
        let line = command(peers, server.line);
        if server.line.last().is_some_and(|last| ["http", "sse"].contains(last)) {
            starting.push(async move { (server.name, Announced::start(&line).await) });
        } else {
            let line = toml::Value::from(line);
            let lines =
                format!("command = {line}\nstart_timeout = \"60s\"\nlist_timeout = \"60s\"");
            setup = setup.upstream(server.name, &lines);
        }
    }
    let mut served = Vec::new();
    for (name, server) in futures_util::future::join_all(starting).await {
        setup = setup.upstream(name, &format!("url = \"{}\"\nlist_timeout = \"60s\"", server.url));
        served.push(server);
    }
    let names: Vec<_> = SERVERS.iter().map(|server| server.name).collect();
    let gateway = setup.mcp(&names).start().await;
    super::up(&gateway, 15).await;
    (gateway, served)
}

/// What a client has to print: every server's echo, and the name wherever it can be asked for.
fn expected(client: &Client) -> (Vec<&'static str>, usize) {
    let mut asked = 0;
    let results = SERVERS.iter().flat_map(|server| {
        let can = server.asks.iter().any(|question| client.answers.contains(question));
        asked += usize::from(can);
        [server.name, if can { "hello Ada" } else { "hello stranger" }]
    });
    (results.collect(), asked)
}

#[tokio::test]
async fn clients_of_every_sdk_list_call_and_are_asked_by_servers_of_every_sdk() {
    let Some(peers) = peers(&ALL) else { return };
    let (gateway, _served) = fleet(&peers).await;
    let calls = SERVERS.iter().flat_map(|server| {
        let tool = |tool: &str| format!("{}__{tool}", server.name);
        [json!([tool("echo"), {"message": server.name}]), json!([tool("ask"), {}])]
    });
    let calls = Value::from(calls.collect::<Vec<_>>()).to_string();
    // One after the other: over stdio, older SDKs ask without saying in which call.
    let mut wrong = Vec::new();
    for client in &CLIENTS {
        let who = [client.line, client.rest, &[client.scheme]].concat();
        let line = self::command(&peers, client.line);
        let mut command = Command::new(&line[0]);
        let url = gateway.url(client.path).replacen("http", client.scheme, 1);
        command.args(&line[1..]).arg(url).args(client.rest).arg(&calls);
        let printed: Value = serde_json::from_str(&output(command).await).expect("it is JSON");
        let (results, asked) = expected(client);
        for (index, want) in results.iter().enumerate() {
            // Older clients get structured results as a second text.
            let (got, server) = (&printed["results"][index], SERVERS[index / 2].name);
            if got[0] != *want {
                wrong.push(format!("{who:?} at {server}: {got} instead of {want}"));
            }
        }
        if printed["asked"] != json!(vec!["Your name?"; asked]) {
            wrong.push(format!("{who:?} was asked {}", printed["asked"]));
        }
        if printed["revision"] != client.revision {
            wrong.push(format!("{who:?} speaks {}", printed["revision"]));
        }
        if printed["tools"].as_array().map(Vec::len) != Some(2 * SERVERS.len()) {
            wrong.push(format!("{who:?} lists {}", printed["tools"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
