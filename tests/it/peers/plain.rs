//! Plain JSON-RPC services and clients as people have them: libraries of four languages over HTTP and WebSocket, each client
//! with each service. The programs are in `tests/peers/plain` and `tests/peers/rust`.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use super::matrix::{Announced, NODE, RUST};
use super::{output, peers};
use crate::client::patient;
use crate::gateway::{Gateway, Setup, repository};

const PYTHON: &str = "rpc/bin/python";
const PACKAGES: &str = "ts/node_modules";

/// Name and command line of each service; the one with `batch` gets arrays as such.
const SERVICES: [(&str, &[&str], &str); 8] = [
    ("flask", &[PYTHON, "service.py", "flask"], "batch = true"),
    ("aiohttp", &[PYTHON, "service.py", "aiohttp"], ""),
    ("java", &[PYTHON, "service.py", "java"], ""),
    ("websockets", &[PYTHON, "service.py", "websockets"], ""),
    ("jayson", &[NODE, "service.cjs", "jayson", PACKAGES], ""),
    ("ws", &[NODE, "service.cjs", "ws", PACKAGES], ""),
    ("jsonrpsee", &[RUST, "jsonrpsee-server", "http"], ""),
    ("jsonrpsee-ws", &[RUST, "jsonrpsee-server", "ws"], ""),
];

/// The command line of each client, and whether it speaks WebSocket. They are given URLs, and call each.
const CLIENTS: [(&[&str], &str); 5] = [
    (&[PYTHON, "client.py"], "ws"),
    (&[NODE, "client.cjs", "jayson", PACKAGES], "http"),
    (&[NODE, "client.cjs", "ws", PACKAGES], "ws"),
    (&[RUST, "jsonrpsee-client"], "http"),
    (&[RUST, "jsonrpsee-client"], "ws"),
];

/// A command line with the programs where they are.
fn command(peers: &Path, line: &[&str]) -> Vec<String> {
    let found = |word: &&str| match *word {
        word if word.contains('/') => peers.join(word).display().to_string(),
        word if word.contains('.') => {
            repository("tests/peers/plain").join(word).display().to_string()
        }
        word => word.to_owned(),
    };
    line.iter().map(found).collect()
}

/// All services, and a gateway with a route to each.
async fn serve(peers: &Path) -> (Gateway, Vec<Announced>) {
    let lines = SERVICES.map(|(_, line, _)| command(peers, line));
    let served =
        futures_util::future::join_all(lines.iter().map(|line| Announced::start(line))).await;
    let mut setup = Setup::new();
    for ((name, _, more), service) in SERVICES.iter().zip(&served) {
        let upstream = format!("protocol = \"jsonrpc\"\nurl = \"{}\"\n{more}", service.url);
        let route = format!(
            "[[routes]]\npath = \"/{name}\"\nprotocol = \"jsonrpc\"\nmethods = {{ \"*\" = \"{name}\" }}"
        );
        setup = setup.upstream(name, &upstream).toml(&route);
    }
    (setup.start().await, served)
}

#[tokio::test]
async fn every_json_rpc_client_calls_every_json_rpc_service_over_http_and_websocket() {
    let Some(peers) = peers(&[PYTHON, NODE, RUST, PACKAGES]) else { return };
    let (gateway, _served) = serve(&peers).await;
    let all = json!({
        "echo": {"text": "süß 🚂"}, "add": 3, "fail": -32000, "batch": [7, -32000, 2],
    });
    for (line, scheme) in CLIENTS {
        let whole = self::command(&peers, line);
        let mut command = Command::new(&whole[0]);
        command.args(&whole[1..]);
        for (name, ..) in SERVICES {
            command.arg(gateway.url(&format!("/{name}")).replacen("http", scheme, 1));
        }
        let said: Vec<Value> = serde_json::from_str(&output(command).await).expect("it is JSON");
        for ((name, ..), said) in SERVICES.iter().zip(&said) {
            assert_eq!(said, &all, "{line:?} over {scheme} at {name}");
        }
        assert_eq!(said.len(), SERVICES.len(), "{line:?}");
    }
    // What a service says beside JSON-RPC is not for the client.
    for name in ["flask", "aiohttp"] {
        let crash = r#"{"jsonrpc":"2.0","id":1,"method":"crash"}"#;
        let reply = patient("an answer", gateway.http().post(&format!("/{name}"), crash)).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (502, &json!(-31004)), "{}", reply.text());
        assert!(!reply.text().contains("line 42"), "{}", reply.text());
    }
}
