//! The official conformance suite through the gateway: its server scenarios in front of reference servers of either
//! era and in a mixed fleet, its client scenarios behind it.
//!
//! What passes is kept in `tests/conformance`, one file for each kind of upstream, and only rises: see the README
//! there.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::{
    EVERYTHING, FILESYSTEM, LONG, SDK2, Served, TIME, absent, everything, free_port, peers, up,
};
use crate::gateway::{Gateway, Setup, repository};

const OLD: &str = "2025-11-25";
const NEW: &str = "2026-07-28";
/// The newest suite that is no pre-release. It knows no revision after 2025-11-25.
const OLDER_SUITE: &str = "0.1.16";

/// Where the suite's scripts and the real servers are.
struct Suite {
    scripts: PathBuf,
    peers: PathBuf,
}

/// One run of the suite.
struct Run<'a> {
    /// The file in `tests/conformance`, without its ending.
    baseline: &'a str,
    spec: &'a str,
    /// The suite's version, where it is not the one that the scripts choose.
    version: Option<&'a str>,
    /// How many scenarios have to pass, of how many.
    passing: (usize, usize),
}

/// A run of the usual suite.
fn run<'a>(baseline: &'a str, spec: &'a str, passing: (usize, usize)) -> Run<'a> {
    Run { baseline, spec, version: None, passing }
}

/// Scripts and servers, if these peers are installed, too.
fn suite(needed: &[&str]) -> Option<Suite> {
    let scripts = std::env::var_os("CONFORMANCE_DIR")
        .map_or_else(|| repository("../shared/conformance"), PathBuf::from);
    if !scripts.join("run.sh").exists() {
        absent(&format!("{} is not there", scripts.display()));
        return None;
    }
    Some(Suite { scripts, peers: peers(&[&[SDK2], needed].concat())? })
}

impl Suite {
    /// The reference server as a command.
    fn refserver(&self, args: &[&str]) -> Vec<String> {
        let program = [self.peers.join(SDK2), self.scripts.join("refserver.py")];
        let program = program.map(|path| path.display().to_string());
        program.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    /// The reference server over HTTP; of both eras unless the arguments say otherwise.
    async fn served(&self, args: &[&str]) -> Served {
        let addr = free_port();
        let line = self.refserver(&[&["--port", &addr.port().to_string()], args].concat());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        Served::start(command, addr).await
    }

    /// The reference server over stdio, with nothing of the other era, as lines of an upstream.
    fn child_of(&self, era: &str) -> String {
        let mut line = vec![self.peers.join(SDK2).display().to_string()];
        line.push(repository("tests/peers/one_era.py").display().to_string());
        line.push(era.to_owned());
        line.extend(self.refserver(&["--stdio"]));
        command(line)
    }

    fn script(&self, name: &str, run: &Run<'_>) -> Command {
        let mut command = Command::new("bash");
        command.arg(self.scripts.join(name));
        if let Some(version) = run.version {
            command.env("CONFORMANCE_VERSION", version);
        }
        command
    }

    /// Runs the suite's server scenarios against a URL.
    async fn judge(&self, url: &str, run: Run<'_>) -> String {
        let mut command = self.script("run.sh", &run);
        command.args([url, run.spec]);
        hold(command, &run, None).await
    }

    /// Runs the suite's client scenarios through gateways that the script starts itself.
    async fn judge_clients(&self, run: Run<'_>) {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let log = folder.path().join("gateways.log");
        let binary = env!("CARGO_BIN_EXE_trunkline");
        let config = repository("tests/conformance/gateway.toml");
        let gateway =
            format!("exec '{binary}' run -c '{}' >> '{}' 2>&1", config.display(), log.display());
        let mut command = self.script("client.sh", &run);
        command.env("DRIVER_PYTHON", self.peers.join(SDK2)).env_remove("RUST_LOG");
        command.args([run.spec, "--gateway", &gateway]);
        hold(command, &run, Some(&log)).await;
    }
}

/// `command = […]` and the patience that children in Python need on a busy machine.
fn command(line: Vec<String>) -> String {
    format!(
        "command = {}\nstart_timeout = \"60s\"\nlist_timeout = \"60s\"",
        toml::Value::from(line)
    )
}

fn url(server: &Served) -> String {
    format!("url = \"{}\"", server.url())
}

/// Runs a script to its end and gives its table: nothing is worse than in the baseline, and as many scenarios pass
/// as have to.
async fn hold(mut command: Command, run: &Run<'_>, log: Option<&Path>) -> String {
    let baseline = repository("tests/conformance").join(format!("{}.json", run.baseline));
    let writes = std::env::var_os("TRUNKLINE_WRITE_BASELINES").is_some();
    if writes {
        command.arg("--write").arg(&baseline).arg(run.baseline);
    } else {
        command.arg(&baseline);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(LONG * 2, command.output()).await;
    let ended = ended.expect("the suite ends").expect("the suite runs");
    let table = String::from_utf8_lossy(&ended.stdout).into_owned();
    let log = log.and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
    let errors = String::from_utf8_lossy(&ended.stderr);
    let all = format!("{} at {}:\n{table}{errors}{log}", run.baseline, run.spec);
    assert!(ended.status.success() || writes, "worse than the baseline: {all}");
    let (passing, scenarios) = counts(&table).unwrap_or_else(|| panic!("no counts: {all}"));
    assert_eq!(scenarios, run.passing.1, "another number of scenarios: {all}");
    assert!(passing >= run.passing.0, "too few scenarios pass: {all}");
    table
}

/// The numbers of `SPEC at suite VERSION: 33 of 33 scenarios pass, …`.
fn counts(table: &str) -> Option<(usize, usize)> {
    let line = table.lines().find(|line| line.contains(" scenarios pass"))?;
    let mut words = line.split(": ").nth(1)?.split(' ');
    let passing = words.next()?.parse().ok()?;
    Some((passing, words.nth(1)?.parse().ok()?))
}

/// The scenarios that a table says pass.
fn passed(table: &str) -> Vec<&str> {
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(1) == Some(&"pass")).map(|row| row[0]).collect()
}

/// A gateway with one upstream, its names unchanged, once that is up.
async fn alone(upstream: &str) -> Gateway {
    let gateway = Setup::new().upstream("under_test", upstream).mcp(&["under_test"]).start().await;
    up(&gateway, 1).await;
    gateway
}

#[tokio::test]
async fn conformance_through_the_gateway_is_that_of_a_server_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let server = suite.served(&[]).await;
    let gateway = alone(&url(&server)).await;
    let at = gateway.url("/mcp");
    suite.judge(&at, run("refserver", OLD, (33, 33))).await;
    suite.judge(&at, run("refserver", NEW, (40, 40))).await;
    let older = Run { version: Some(OLDER_SUITE), ..run("refserver-0.1.16", OLD, (32, 32)) };
    suite.judge(&at, older).await;
}

#[tokio::test]
async fn conformance_at_a_modern_server_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let server = suite.served(&["--era", "modern"]).await;
    let gateway = alone(&url(&server)).await;
    suite.judge(&gateway.url("/mcp"), run("refserver-modern", OLD, (33, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("refserver-modern", NEW, (40, 40))).await;
}

/// Two scenarios want the key `user_name` of a question, while questions of the legacy era have no keys.
#[tokio::test]
async fn conformance_at_a_legacy_server_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let server = suite.served(&["--era", "legacy"]).await;
    let gateway = alone(&url(&server)).await;
    suite.judge(&gateway.url("/mcp"), run("refserver-legacy", OLD, (33, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("refserver-legacy", NEW, (38, 40))).await;
}

#[tokio::test]
async fn conformance_at_a_modern_child_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let gateway = alone(&suite.child_of("modern")).await;
    suite.judge(&gateway.url("/mcp"), run("stdio-modern", OLD, (32, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("stdio-modern", NEW, (40, 40))).await;
}

#[tokio::test]
async fn conformance_at_a_legacy_child_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let gateway = alone(&suite.child_of("legacy")).await;
    suite.judge(&gateway.url("/mcp"), run("stdio-legacy", OLD, (32, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("stdio-legacy", NEW, (37, 40))).await;
}

#[tokio::test]
async fn conformance_at_a_child_of_both_eras_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let gateway = alone(&command(suite.refserver(&["--stdio"]))).await;
    suite.judge(&gateway.url("/mcp"), run("stdio", OLD, (32, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("stdio", NEW, (40, 40))).await;
}

#[tokio::test]
async fn conformance_at_a_server_of_the_first_transport_holds_for_clients_of_both_eras() {
    let Some(suite) = suite(&[]) else { return };
    let server = suite.served(&["--sse"]).await;
    let gateway = alone(&format!("url = \"http://{}/sse\"", server.addr)).await;
    suite.judge(&gateway.url("/mcp"), run("sse", OLD, (32, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("sse", NEW, (38, 40))).await;
}

/// Scenarios that pass without a tool or a prompt of a fixed name. Others pass in front of prefixed names, too, by
/// luck: a tool that is not there is refused like one that is called wrongly.
const UNNAMED: [(&str, usize, &[&str]); 2] = [
    (
        OLD,
        33,
        &[
            "dns-rebinding-protection",
            "logging-set-level",
            "ping",
            "prompts-list",
            "resources-list",
            "resources-read-binary",
            "resources-read-text",
            "resources-subscribe",
            "resources-templates-read",
            "resources-unsubscribe",
            "server-initialize",
            "server-session-lifecycle",
            "server-sse-multiple-streams",
            "tools-list",
        ],
    ),
    (
        NEW,
        40,
        &[
            "caching",
            "dns-rebinding-protection",
            "http-custom-header-server-validation",
            "http-header-validation",
            "input-required-result-unsupported-methods",
            "prompts-list",
            "resources-list",
            "resources-read-binary",
            "resources-read-text",
            "resources-templates-read",
            "sep-2164-resource-not-found",
            "server-sse-multiple-streams",
            "tools-list",
        ],
    ),
];

/// The reference server of both eras, one of the legacy era beside it, and a child of either era, on a route with
/// plain names and on one with prefixes.
#[tokio::test]
async fn conformance_holds_in_a_mixed_fleet_and_with_prefixes_where_no_name_is_fixed() {
    let Some(suite) = suite(&[EVERYTHING, FILESYSTEM, TIME]) else { return };
    let (reference, other) = tokio::join!(suite.served(&[]), everything(&suite.peers));
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = |name: &str| suite.peers.join(name).display().to_string();
    let route = |path: &str, names: &str| {
        let upstreams = ["reference", "everything", "files", "time"];
        format!(
            "[[routes]]\npath = \"{path}\"\nprotocol = \"mcp\"\nupstreams = {upstreams:?}\nnames = \"{names}\""
        )
    };
    let gateway = Setup::new()
        .upstream("reference", &url(&reference))
        .upstream("everything", &url(&other))
        .upstream("files", &command(vec![program(FILESYSTEM), folder.path().display().to_string()]))
        .upstream("time", &command(vec![program(TIME)]))
        .toml(&route("/mcp", "plain"))
        .toml(&route("/prefixed", "prefix"))
        .start()
        .await;
    up(&gateway, 4).await;
    let ends = ["test_simple_text", "echo", "read_text_file", "convert_time"];
    let all_four =
        |tools: &[String]| ends.iter().all(|end| tools.iter().any(|tool| tool.ends_with(end)));
    gateway.mcp().await.until_tools("those of all four", all_four).await;
    suite.judge(&gateway.url("/mcp"), run("mixed-plain", OLD, (33, 33))).await;
    suite.judge(&gateway.url("/mcp"), run("mixed-plain", NEW, (39, 40))).await;
    for (spec, scenarios, unnamed) in UNNAMED {
        let run = run("mixed-prefix", spec, (unnamed.len(), scenarios));
        let table = suite.judge(&gateway.url("/prefixed"), run).await;
        let passed = passed(&table);
        let missing: Vec<_> = unnamed.iter().filter(|name| !passed.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?} do not pass at {spec}:\n{table}");
    }
}

#[tokio::test]
async fn conformance_of_the_gateway_as_a_legacy_client() {
    let Some(suite) = suite(&[]) else { return };
    suite.judge_clients(run("clients", OLD, (5, 5))).await;
}

#[tokio::test]
async fn conformance_of_the_gateway_as_a_modern_client() {
    let Some(suite) = suite(&[]) else { return };
    suite.judge_clients(run("clients", NEW, (8, 8))).await;
}
