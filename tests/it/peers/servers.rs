//! More real servers behind the gateway, one of them dead, and the inspector of today in front of it.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use super::matrix::NODE;
use super::{EVERYTHING, SDK2, everything, output, peers, up};
use crate::gateway::Setup;

const GIT: &str = "sdk2/bin/mcp-server-git";
const SQLITE: &str = "sdk1/bin/mcp-server-sqlite";
/// The same beside a library of the next generation: it ends as soon as it starts.
const DEAD: &str = "sdk2/bin/mcp-server-sqlite";
const INSPECTOR: &str = "inspector2/node_modules/.bin/mcp-inspector";

/// A repository with one commit.
async fn repository(folder: &Path) {
    let author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    for args in [&["init", "-q"][..], &["commit", "-q", "--allow-empty", "-m", "first süß"]] {
        let mut git = Command::new("git");
        git.current_dir(folder).args(author).args(args);
        output(git).await;
    }
}

#[tokio::test]
async fn servers_of_both_generations_serve_beside_one_that_never_answers() {
    let Some(peers) = peers(&[SDK2, GIT, SQLITE, DEAD]) else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let place = folder.path().canonicalize().expect("it is there");
    repository(&place).await;
    let child = |program: &str, args: &[&str]| {
        let program = peers.join(program).display().to_string();
        let line: Vec<_> = [program.as_str()].iter().chain(args).map(ToString::to_string).collect();
        let line = toml::Value::from(line);
        format!("command = {line}\nstart_timeout = \"60s\"\nlist_timeout = \"60s\"")
    };
    let (repository, database) = (place.display().to_string(), place.join("a.db"));
    let database = database.display().to_string();
    let gateway = Setup::new()
        .upstream("git", &child(GIT, &["--repository", &repository]))
        .upstream("data", &child(SQLITE, &["--db-path", &database]))
        .upstream("dead", &child(DEAD, &["--db-path", &database]))
        .mcp(&["git", "data", "dead"])
        .start()
        .await;
    up(&gateway, 2).await;
    let client = gateway.mcp().await;
    let both = |tools: &[String]| {
        ["git__", "data__"].iter().all(|prefix| tools.iter().any(|tool| tool.starts_with(prefix)))
    };
    client.until_tools("those of both", both).await;
    assert!(client.tools().await.iter().all(|tool| !tool.starts_with("dead__")));

    let log = client.call("git__git_log", json!({"repo_path": repository, "max_count": 1})).await;
    assert!(log.said().contains("first süß"), "{}", log.text);
    for (tool, query) in [
        ("data__create_table", "CREATE TABLE cars (name TEXT)"),
        ("data__write_query", "INSERT INTO cars VALUES ('🚂')"),
    ] {
        client.call(tool, json!({"query": query})).await.result();
    }
    let rows = client.call("data__read_query", json!({"query": "SELECT name FROM cars"})).await;
    assert!(rows.said().contains('🚂'), "{}", rows.text);

    let dead = client.call("dead__read_query", json!({"query": "SELECT 1"})).await;
    assert_eq!(dead.code(), -31004, "{}", dead.text);
    let down = [("upstream", "dead")];
    assert_eq!(gateway.metrics().await.value("trunkline_upstream_up", &down), 0.0);
    let again = |lines: &str| lines.contains("child started") && lines.contains("upstream=dead");
    let started =
        |output: &crate::gateway::Output| output.lines().iter().filter(|line| again(line)).count();
    gateway.until_log("it is tried again", |output| started(output) > 1).await;
}

#[tokio::test]
async fn the_newer_inspector_lists_and_calls_in_either_era() {
    let Some(peers) = peers(&[EVERYTHING, INSPECTOR, NODE]) else { return };
    let everything = everything(&peers).await;
    let gateway = Setup::new()
        .upstream("everything", &format!("url = \"{}\"", everything.url()))
        .mcp(&["everything"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("its tools", |tools| !tools.is_empty()).await;
    let tools = client.tools().await;
    for (era, first) in [("legacy", "initialize"), ("auto", "server/discover")] {
        let inspect = async |args: &[&str]| -> Value {
            let mut command = Command::new(peers.join(NODE));
            command.arg(peers.join(INSPECTOR)).args(["--cli", &gateway.url("/mcp")]);
            command.args(["--transport", "http", "--format", "json", "-q"]);
            command.args(["--protocol-era", era, "--method"]).args(args);
            let text = output(command).await;
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
        };
        let before = gateway.output().count(&format!("method={first}"));
        let listed = inspect(&["tools/list"]).await;
        assert!(gateway.output().count(&format!("method={first}")) > before, "{era}");
        let listed = listed["result"]["tools"].as_array().expect("a list");
        let names: Vec<_> = listed.iter().filter_map(|tool| tool["name"].as_str()).collect();
        // It can be asked: a server that wants to ask offers it more.
        assert!(tools.iter().all(|tool| names.contains(&tool.as_str())), "{era}: {names:?}");
        let said =
            inspect(&["tools/call", "--tool-name", "echo", "--tool-arg", "message=hi"]).await;
        assert_eq!(said["result"]["content"][0]["text"], "Echo: hi", "{era}");
    }
}
