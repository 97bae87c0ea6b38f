//! Children on stdio: what they print, how they die, what they leave behind.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fake::Fake;
use crate::gateway::{Gateway, Setup, is_alive, signal, until};
use crate::mcp::{Answer, Mcp};

async fn with(script: Value, lines: &str) -> (Gateway, Mcp) {
    let gateway = Setup::new().child("kid", &script, lines).mcp(&["kid"]).start().await;
    let client = gateway.mcp().await;
    (gateway, client)
}

fn pid(answer: &Answer) -> u32 {
    answer.said().parse().unwrap()
}

#[tokio::test]
async fn c026_noise_on_standard_output_is_skipped_and_counted() {
    let other = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .child("kid", &json!({"noise": true}), "")
        .fake("other", &other)
        .mcp(&["kid", "other"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools.len() > 10).await;
    for n in 0..10 {
        assert_eq!(client.call("kid__noise", json!({"lines": n})).await.said(), "noise");
        assert_eq!(client.call("other__x", json!({})).await.said(), "x");
    }
    let before = gateway.output().lines().len();
    client.call("kid__noise", json!({"lines": 100_000})).await.said();
    let written = gateway.output().lines().len() - before;
    assert!(written < 200, "{written} lines were logged for it");
}

#[tokio::test]
async fn c028_long_lines_pass_unchanged() {
    let (_gateway, client) = with(json!({"instructions_bytes": 132_096}), "").await;
    for chars in [21_845, 21_846, 65_537, 349_526, 4_194_304] {
        let answer = client.call("big", json!({ "chars": chars })).await;
        assert_eq!(answer.said().chars().count(), chars);
        assert!(answer.said().chars().all(|c| c == '語'));
    }
}

#[tokio::test]
async fn c010_characters_cut_anywhere_arrive_whole() {
    let (_gateway, client) = with(json!({}), "").await;
    let text = "aä語🚂\u{2028}z".repeat(10);
    assert_eq!(client.call("split", json!({ "text": text })).await.said(), text);
}

#[tokio::test]
async fn c010_invalid_utf8_fails_that_call_and_no_other() {
    let (gateway, client) = with(json!({}), "timeout = \"3s\"").await;
    let waiting = client.call("wait", json!({"ms": 500, "tag": "t"}));
    let (bad, good) = tokio::join!(client.call("invalid_utf8", json!({})), waiting);
    assert!(matches!(bad.code(), -31006 | -31003), "{}", bad.text);
    assert_eq!(good.said(), "t");
    assert_eq!(gateway.metrics().await.value("trunkline_upstream_restarts_total", &[]), 0.0);
}

#[tokio::test]
async fn c030_a_line_without_end_is_cut_off_and_the_next_call_works() {
    let (gateway, client) = with(json!({}), "max_message = \"1MiB\"\ntimeout = \"10s\"").await;
    client.call("pid", json!({})).await.said();
    let before = gateway.memory();
    let (bad, good) = tokio::join!(client.call("runaway", json!({"mib": 200})), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.call("pid", json!({})).await
    });
    assert!(matches!(bad.code(), -31006 | -31003), "{}", bad.text);
    pid(&good);
    pid(&client.call("pid", json!({})).await);
    let grown = gateway.memory().saturating_sub(before) >> 20;
    assert!(grown < 65, "memory grew by {grown} MiB");
}

#[tokio::test]
async fn c032_a_child_that_dies_fails_its_calls_at_once_and_comes_back() {
    let (gateway, client) = with(json!({}), "").await;
    let first = pid(&client.call("pid", json!({})).await);
    let begun = Instant::now();
    let waiting = (0..5).map(|_| client.call("wait", json!({"ms": 60_000})));
    let waiting = futures_util::future::join_all(waiting);
    let dying = client.call("die", json!({"after_ms": 300, "code": 137}));
    let (waiting, dying) = tokio::join!(waiting, dying);
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    for answer in waiting.iter().chain([&dying]) {
        assert_eq!((answer.code(), answer.reason()), (-31005, "upstream_closed"));
        assert_eq!(answer.json["error"]["data"]["upstream"], "kid");
    }
    gateway
        .until("it is back", |m| m.value("trunkline_upstream_up", &[("upstream", "kid")]) == 1.0)
        .await;
    let second = pid(&client.call("pid", json!({})).await);
    assert_ne!(first, second);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_upstream_restarts_total", &[("upstream", "kid")]), 1.0);
    assert_eq!(metrics.value("trunkline_children", &[("upstream", "kid")]), 1.0);
    assert_eq!(gateway.children(), [second], "no zombie is left");
}

#[tokio::test]
async fn a_killed_child_comes_back_and_a_call_meanwhile_fails_fast_or_works() {
    let (gateway, client) = with(json!({"start_delay_ms": 300}), "").await;
    let first = pid(&client.call("pid", json!({})).await);
    signal(first, Signal::KILL);
    until("it is gone", || !is_alive(first)).await;
    let begun = Instant::now();
    let answer = client.call("pid", json!({})).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    if !answer.json["error"].is_null() {
        assert!(matches!(answer.code(), -31004 | -31005), "{}", answer.text);
    }
    gateway
        .until("it is back", |m| m.value("trunkline_upstream_up", &[("upstream", "kid")]) == 1.0)
        .await;
    assert_ne!(pid(&client.call("pid", json!({})).await), first);
}

#[tokio::test]
async fn c032_a_child_that_ends_at_once_is_started_ever_more_rarely() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = json!({"exit_at_start": 3, "starts_file": starts});
    let good = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .child("kid", &script, "")
        .fake("good", &good)
        .mcp(&["kid", "good"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("the good one", |tools| tools == ["good__x"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let count = std::fs::read_to_string(&starts).unwrap().lines().count();
    assert!((2..=12).contains(&count), "{count} starts in 5 s");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_upstream_up", &[("upstream", "kid")]), 0.0);
    assert!(metrics.value("trunkline_upstream_restarts_total", &[("upstream", "kid")]) >= 1.0);
    let body = gateway.admin().get("/readyz").await;
    assert_eq!(body.status, 200);
    assert!(body.text().contains("kid"), "{}", body.text());
    assert_eq!(client.call("good__x", json!({})).await.said(), "x");
}

#[tokio::test]
async fn c034_an_idle_child_is_stopped_and_started_again_on_demand() {
    let (gateway, client) = with(json!({}), "idle_timeout = \"1s\"").await;
    let first = pid(&client.call("pid", json!({})).await);
    client.delete().await;
    until("it is stopped", || !is_alive(first)).await;
    gateway.until("it is counted out", |m| m.value("trunkline_children", &[]) == 0.0).await;
    let client = gateway.mcp().await;
    assert_ne!(pid(&client.call("pid", json!({})).await), first);
}

#[tokio::test]
async fn c036_a_slow_start_within_the_limit_works_and_its_noise_is_no_error() {
    let script = json!({"start_delay_ms": 2000, "stderr_lines": 200});
    let (gateway, client) = with(script, "start_timeout = \"10s\"").await;
    client.until_tools("it came", |tools| !tools.is_empty()).await;
    pid(&client.call("pid", json!({})).await);
    assert_eq!(gateway.metrics().await.value("trunkline_upstream_restarts_total", &[]), 0.0);
    assert!(gateway.output().count("npm notice") > 0, "standard error goes to the log");
}

#[tokio::test]
async fn c036_a_start_over_the_limit_is_ended_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = json!({"mute": true, "ignore_eof": true, "starts_file": starts});
    let good = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .child("kid", &script, "start_timeout = \"500ms\"")
        .fake("good", &good)
        .mcp(&["good", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("the good one", |tools| tools == ["good__x"]).await;
    let pids = || -> Vec<u32> {
        let text = std::fs::read_to_string(&starts).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    until("it is tried again", || pids().len() >= 2).await;
    let first = pids()[0];
    until("the first is gone", || !is_alive(first)).await;
    assert_eq!(gateway.admin().get("/readyz").await.status, 200);
    assert!(gateway.admin().get("/readyz").await.text().contains("kid"));
}

#[tokio::test]
async fn a_program_that_does_not_exist_costs_only_itself() {
    let good = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .upstream("gone", "command = [\"/no/such/program\"]")
        .fake("good", &good)
        .mcp(&["gone", "good"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("the good one", |tools| tools == ["good__x"]).await;
    assert!(gateway.output().count("gone") > 0, "the log says so");
}

#[tokio::test]
async fn the_whole_group_of_a_child_ends_with_the_gateway() {
    let script = json!({"ignore_eof": true, "ignore_term": true});
    let mut gateway = Setup::new()
        .server("drain_timeout = \"1s\"")
        .child("deaf", &script, "")
        .child("kid", &json!({}), "")
        .mcp(&["deaf", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() > 30).await;
    let mut pids = Vec::new();
    for upstream in ["deaf", "kid"] {
        for tool in ["pid", "spawn"] {
            pids.push(pid(&client.call(&format!("{upstream}__{tool}"), json!({})).await));
        }
    }
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(0));
    until("none is left", || pids.iter().all(|pid| !is_alive(*pid))).await;
}

#[tokio::test]
async fn a_childs_environment_is_an_allow_list_and_what_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().canonicalize().unwrap();
    let lines = format!(
        "cwd = {cwd:?}\nenv = {{ TOKEN = \"${{GIVEN}}\", EMPTY = \"${{MISSING:-fallback}}\" }}"
    );
    let gateway = Setup::new()
        .env("GIVEN", "t0p")
        .env("AWS_SECRET_ACCESS_KEY", "leak")
        .child("kid", &json!({}), &lines)
        .mcp(&["kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    let seen: Value = serde_json::from_str(client.call("env", json!({})).await.said()).unwrap();
    assert_eq!(seen["cwd"], json!(cwd));
    assert_eq!(seen["vars"]["TOKEN"], "t0p");
    assert_eq!(seen["vars"]["EMPTY"], "fallback");
    assert!(seen["vars"]["PATH"].is_string());
    for absent in ["AWS_SECRET_ACCESS_KEY", "GIVEN", "CARGO_MANIFEST_DIR"] {
        assert!(seen["vars"].get(absent).is_none(), "{absent}");
    }
}

#[tokio::test]
async fn standard_error_goes_to_the_log_with_the_upstreams_name_and_in_measure() {
    let (gateway, client) = with(json!({}), "").await;
    client.call("stderr", json!({"lines": 3})).await.said();
    gateway.until_log("the lines", |log| log.count("complaint 2") == 1).await;
    let lines = gateway.output().lines();
    assert!(lines.iter().any(|line| line.contains("complaint 2") && line.contains("kid")));
    client.call("stderr", json!({"lines": 50_000})).await.said();
    pid(&client.call("pid", json!({})).await);
    let logged = gateway.output().count("complaint");
    assert!(logged < 5_000, "{logged} of 50000 lines were logged");
}

#[tokio::test]
async fn a_second_answer_to_one_call_is_dropped() {
    let (_gateway, client) = with(json!({}), "").await;
    for _ in 0..3 {
        assert_eq!(client.call("twice", json!({})).await.said(), "first");
        pid(&client.call("pid", json!({})).await);
    }
}

#[tokio::test]
async fn what_a_child_gets_is_one_line_with_the_clients_bytes() {
    let (_gateway, client) = with(json!({}), "").await;
    let arguments = "{ \"b\" : 1.10,\r\n\t\"a\":[ 1e2 , \"x \\u00e4 y\" ] }";
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\n\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"echo\",\n\"arguments\":{arguments}}}}}"
    );
    let answer = client.exchange(&body).await;
    let got: String = answer.said().chars().filter(|c| !c.is_whitespace()).collect();
    assert!(got.contains(r#"{"b":1.10,"a":[1e2,"x\u00e4y"]}"#), "{}", answer.said());
    assert!(!answer.said().contains(['\r', '\n']), "{:?}", answer.said());
}

#[tokio::test]
async fn a_changed_list_of_a_child_reaches_the_clients() {
    let (_gateway, client) = with(json!({}), "").await;
    client.until_tools("the first list", |tools| !tools.is_empty()).await;
    let mut stream = client.stream().await;
    client.call("grow", json!({"name": "sprout"})).await.said();
    let told = stream.next_message().await.unwrap();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert!(client.tools().await.contains(&"sprout".to_owned()), "a list after it is fresh");
    assert_eq!(client.call("sprout", json!({})).await.said(), "sprout");
}

#[tokio::test]
async fn isolation_decides_who_shares_a_child() {
    for (isolation, children) in [("", 1), ("isolation = \"session\"", 3)] {
        let gateway = Setup::new().child("kid", &json!({}), isolation).mcp(&["kid"]).start().await;
        let mut clients = Vec::new();
        let mut pids = std::collections::HashSet::new();
        for _ in 0..3 {
            let client = gateway.mcp().await;
            pids.insert(pid(&client.call("pid", json!({})).await));
            clients.push(client);
        }
        assert_eq!(pids.len(), children, "{isolation:?}");
        for client in clients {
            client.delete().await;
        }
        let gauge = |m: &crate::metrics::Metrics| m.value("trunkline_children", &[]);
        gateway.until("at most one stays", |m| gauge(m) <= 1.0).await;
        let truth = gateway.children().len();
        gateway.until("the gauge tells the truth", |m| gauge(m) == truth as f64).await;
    }
}

#[tokio::test]
async fn a_child_may_be_started_and_dialled_at_an_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let lines = format!(
        "command = [\"{{self}}\", \"example-server\", \"--kind\", \"files\", \"--http\", \"{addr}\"]\n\
         url = \"http://{addr}/mcp\""
    );
    let mut gateway = Setup::new().upstream("files", &lines).mcp(&["files"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its tools", |tools| !tools.is_empty()).await;
    let children = gateway.children();
    assert_eq!(children.len(), 1);
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(0));
    until("it is gone", || !is_alive(children[0])).await;
}
