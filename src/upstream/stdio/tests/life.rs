//! Real children, with nothing but `/bin/sh`.

use std::path::Path;
use std::time::Instant;

use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;

use super::super::super::link::NoticeKind;
use super::super::StdioLink;
use super::*;

/// Answers `initialize` and takes `notifications/initialized`.
const GREET: &str = r#"read line; printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh"}}}\n'; read line; "#;

fn sh(script: &str) -> UpstreamConfig {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    UpstreamConfig { command: Some(command), ..Default::default() }
}

/// A folder for notes of children, and a script's start that notes its process number there.
fn notes() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let note = format!("echo $$ >> {}; ", folder.path().join("pids").display());
    (folder, note)
}

fn pids(folder: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(folder.join("pids")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Whether a process runs; one that ended and waits for its parent does not.
fn alive(pid: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            !matches!(state, Some('Z' | 'X'))
        }
        Err(_) if Path::new("/proc/self/stat").exists() => false,
        Err(_) => Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok()),
    }
}

/// Every task of the link has ended; nothing of it is left.
async fn all_ended(ctx: &LinkContext) {
    ctx.tasks.close();
    ctx.tasks.wait().await;
    assert_eq!(ctx.metrics.children.get(), 0);
}

#[tokio::test]
async fn a_child_that_dies_fails_its_calls_at_once_and_another_takes_its_place() {
    let (folder, note) = notes();
    let (ctx, mut notices) =
        context(sh(&format!("{note}{GREET} for i in 1 2 3 4 5 6; do read line; done; exit 137")));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    assert!(link.hello().caps.tools);
    assert_eq!(ctx.metrics.children.get(), 1);
    assert!(matches!(notices.recv().await.unwrap().kind, NoticeKind::Opened));

    let begin = Instant::now();
    let calls: Vec<_> = (1..=6).map(|caller| call(caller).0).collect();
    let ended = futures_util::future::join_all(calls.into_iter().map(|call| link.call(call))).await;
    assert!(begin.elapsed() < Duration::from_secs(5));
    for end in ended {
        let Err(CallError::Closed { written: true, what, .. }) = end else { panic!("{end:?}") };
        assert_eq!(what, "exit status 137");
    }
    assert!(!link.is_open());
    let next = link.call(call(1).0).await;
    let Err(CallError::Connect { what, .. }) = next else { panic!("{next:?}") };
    assert_eq!(what, "the child is being restarted: exit status 137");

    assert!(matches!(notices.recv().await.unwrap().kind, NoticeKind::Lost));
    assert!(matches!(notices.recv().await.unwrap().kind, NoticeKind::Opened));
    assert!(link.is_open());
    assert_eq!((ctx.metrics.restarts.get(), ctx.metrics.children.get()), (1, 1));
    let pids = pids(folder.path());
    assert!(pids.len() == 2 && pids[0] != pids[1]);
    link.close().await;
    all_ended(&ctx).await;
    assert!(!pids.into_iter().any(alive));
    assert!(notices.try_recv().is_err(), "a link that we close ourselves is not lost");
}

#[tokio::test]
async fn a_child_that_is_killed_says_so() {
    let (folder, note) = notes();
    let (ctx, mut notices) = context(sh(&format!("{note}{GREET} read line; kill -9 $$")));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    let ended = link.call(call(1).0).await;
    let Err(CallError::Closed { what, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!(what, "killed by signal 9");
    notices.recv().await.unwrap();
    drop(link);
    all_ended(&ctx).await;
    assert!(!pids(folder.path()).into_iter().any(alive));
}

#[tokio::test]
async fn what_a_child_answered_before_it_died_is_delivered() {
    let answer = r#"printf '{"jsonrpc":"2.0","id":2,"result":{"last":"words"}}\n'; exit 1"#;
    let (ctx, _notices) = context(sh(&format!("{GREET} read line; {answer}")));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    assert_eq!(result(&link.call(call(1).0).await)["last"], "words");
    drop(link);
    all_ended(&ctx).await;
}

#[tokio::test]
async fn a_child_that_does_not_start_in_time_is_ended_with_its_group() {
    let (folder, note) = notes();
    let pids_file = folder.path().join("pids");
    let script = format!("{note} sleep 600 & echo $! >> {}; wait", pids_file.display());
    let (ctx, _notices) =
        context(UpstreamConfig { start_timeout: Duration::from_millis(500), ..sh(&script) });
    let opened = StdioLink::open(ctx.clone()).await;
    let Err(CallError::Connect { what, .. }) = opened else { panic!("{opened:?}") };
    assert_eq!(what, "start timeout");
    all_ended(&ctx).await;
    let pids = pids(folder.path());
    assert_eq!(pids.len(), 2);
    until("the group is gone", || !pids.iter().copied().any(alive)).await;
}

#[tokio::test]
async fn grandchildren_end_with_a_child_that_exits() {
    let (folder, _) = notes();
    let pids_file = folder.path().join("pids");
    let script = format!("sleep 600 & echo $! >> {}; exit 3", pids_file.display());
    let (ctx, _notices) = context(sh(&script));
    let opened = StdioLink::open(ctx.clone()).await;
    let Err(CallError::Connect { what, .. }) = opened else { panic!("{opened:?}") };
    assert_eq!(what, "exit status 3");
    all_ended(&ctx).await;
    let pids = pids(folder.path());
    assert_eq!(pids.len(), 1);
    until("the grandchild is gone", || !alive(pids[0])).await;
}

#[tokio::test]
async fn a_child_that_ignores_every_request_to_end_is_killed() {
    let (folder, note) = notes();
    let script = format!("trap '' TERM; {note}{GREET} while :; do sleep 1; done");
    let (ctx, _notices) = context(sh(&script));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    let begin = Instant::now();
    link.close().await;
    assert!(begin.elapsed() < Duration::from_secs(8));
    assert!(!link.is_open());
    assert!(link.call(call(1).0).await.is_err());
    all_ended(&ctx).await;
    assert!(!pids(folder.path()).into_iter().any(alive));
}

#[test]
fn nothing_is_left_when_the_runtime_goes_away() {
    let (folder, note) = notes();
    let pids_file = folder.path().join("pids");
    let script = format!("{note} sleep 600 & echo $! >> {}; {GREET} wait", pids_file.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (ctx, _notices) = context(sh(&script));
    let link = runtime.block_on(StdioLink::open(ctx.clone())).unwrap();
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert_eq!(ctx.metrics.children.get(), 0);
    let pids = pids(folder.path());
    assert_eq!(pids.len(), 2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(until("the group is gone", || !pids.iter().copied().any(alive)));
    drop(link);
}

#[tokio::test]
async fn a_child_that_cannot_start_is_not_started_again_and_again() {
    let (folder, note) = notes();
    let (ctx, _notices) = context(sh(&format!("{note} exit 1")));
    let begin = Instant::now();
    let mut opens = 0;
    while begin.elapsed() < Duration::from_secs(2) {
        assert!(StdioLink::open(ctx.clone()).await.is_err());
        opens += 1;
        tokio::task::yield_now().await;
    }
    let starts = pids(folder.path()).len();
    assert!((2..=5).contains(&starts), "{starts} starts in {opens} attempts");
    assert_eq!(ctx.metrics.restarts.get(), starts as u64 - 1);
    all_ended(&ctx).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let command = Some(vec!["/nowhere/to/be/found".to_owned()]);
    let (ctx, _notices) = context(UpstreamConfig { command, ..Default::default() });
    let opened = StdioLink::open(ctx.clone()).await;
    let Err(CallError::Connect { what, .. }) = opened else { panic!("{opened:?}") };
    assert!(what.starts_with("cannot start: "), "{what}");
    all_ended(&ctx).await;
}

#[tokio::test]
async fn a_child_sees_only_the_environment_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = sh(&format!("env > seen; {GREET} read line"));
    config.cwd = Some(folder.path().to_owned());
    config.env_inherit = vec!["PATH".to_owned(), "NOT_SET_ANYWHERE".to_owned()];
    config.env.insert("TOKEN".to_owned(), "s3cret".to_owned().into());
    // Cargo sets this for every test.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let (ctx, _notices) = context(config);
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
    let names: Vec<_> = seen.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(seen.lines().any(|line| line == "TOKEN=s3cret"));
    assert!(names.contains(&"PATH"));
    let own = ["PATH", "TOKEN", "PWD", "OLDPWD", "SHLVL", "_"];
    assert!(names.iter().all(|name| own.contains(name)), "{names:?}");
    link.close().await;
    all_ended(&ctx).await;
}

#[tokio::test]
async fn a_flood_on_standard_error_neither_blocks_the_child_nor_is_kept() {
    let flood = "i=0; while [ $i -lt 20000 ]; do echo \"npm noise $i\" >&2; i=$((i+1)); done; ";
    let (ctx, _notices) = context(sh(&format!("{flood}{GREET} read line")));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    link.close().await;
    all_ended(&ctx).await;
    let tail = link.stderr_tail();
    assert_eq!(tail.len(), 50);
    assert_eq!(tail.last().map(String::as_str), Some("npm noise 19999"));
}

#[tokio::test]
async fn a_child_that_closes_its_input_is_replaced() {
    let (ctx, mut notices) = context(sh(&format!("{GREET} exec 0<&-; sleep 600")));
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    notices.recv().await.unwrap();
    let short = || OutCall { timeout: Duration::from_millis(100), ..call(1).0 };
    let mut ended = link.call(short()).await;
    // Until it closes, a write succeeds and is lost.
    while matches!(ended, Err(CallError::Timeout { .. })) {
        ended = link.call(short()).await;
    }
    assert!(matches!(ended, Err(CallError::Closed { .. })), "{ended:?}");
    assert!(matches!(notices.recv().await.unwrap().kind, NoticeKind::Lost));
    link.close().await;
    all_ended(&ctx).await;
}

#[tokio::test]
async fn an_open_that_is_given_up_leaves_nothing_running() {
    let (folder, note) = notes();
    let (ctx, _notices) = context(sh(&format!("{note} read line; read line")));
    let open = tokio::spawn(StdioLink::open(ctx.clone()));
    until("the child runs", || pids(folder.path()).len() == 1).await;
    open.abort();
    all_ended(&ctx).await;
    assert!(!alive(pids(folder.path())[0]));
}

/// Ends over anything but `initialize`, as servers built on older `rmcp` do.
const PICKY: &str = r#"read line; case "$line" in *'"initialize"'*) ;; *) exit 1;; esac;
    printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh"}}}\n'; read line; "#;

#[tokio::test]
async fn a_child_that_ends_over_the_probe_is_started_again_at_once_and_not_asked_again() {
    let (folder, note) = notes();
    let config = sh(&format!("{note}{PICKY} read line"));
    let (ctx, mut notices) = context_for(config, Era::Modern);
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    assert_eq!(link.hello().version.as_str(), "2025-11-25");
    assert_eq!(ctx.metrics.restarts.get(), 0);
    assert_eq!(ctx.backoff.refusal(tokio::time::Instant::now()), None);
    assert_eq!(pids(folder.path()).len(), 2);
    assert!(matches!(notices.recv().await.unwrap().kind, NoticeKind::Opened));
    let second = StdioLink::open(ctx.clone()).await.unwrap();
    assert_eq!(pids(folder.path()).len(), 3, "the second one knows");
    futures_util::future::join(link.close(), second.close()).await;
    all_ended(&ctx).await;
    assert!(!pids(folder.path()).into_iter().any(alive));
}

#[tokio::test]
async fn a_child_that_ends_whatever_it_is_asked_is_not_started_again_and_again() {
    let (folder, note) = notes();
    let (ctx, _notices) = context_for(sh(&format!("{note} read line; exit 1")), Era::Modern);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        assert!(StdioLink::open(ctx.clone()).await.is_err());
        tokio::task::yield_now().await;
    }
    let starts = pids(folder.path()).len();
    assert!((2..=8).contains(&starts), "{starts} starts");
    all_ended(&ctx).await;
}

#[tokio::test]
async fn a_modern_child_that_was_started_again_is_subscribed_to_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let reply = |id: u32, result: &str| {
        format!(r#"printf '{{"jsonrpc":"2.0","id":{id},"result":{result}}}\n'; "#)
    };
    let discovered =
        r#"{"supportedVersions":["2026-07-28"],"capabilities":{"resources":{"subscribe":true}}}"#;
    let ack = |id: u32| {
        format!(
            r#"printf '{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{{"resourceSubscriptions":["a:b"]}}}}}}\n'; "#
        )
    };
    let take = format!("read line; echo \"$line\" >> {}; ", log.display());
    let script =
        [take.clone(), reply(1, discovered), take.clone(), ack(2), "read line; exit 1".into()]
            .concat();
    let (ctx, mut notices) = context_for(sh(&script), Era::Modern);
    let link = StdioLink::open(ctx.clone()).await.unwrap();
    notices.recv().await.unwrap();
    link.watch("a:b").await.unwrap();
    assert!(matches!(link.call(call(1).0).await, Err(CallError::Closed { written: true, .. })));
    for kind in ["Lost", "Opened"] {
        let notice = notices.recv().await.unwrap();
        assert_eq!(format!("{:?}", notice.kind), kind);
    }
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    until("it was subscribed to again", || lines().matches("a:b").count() == 2).await;
    assert_eq!(lines().matches("initialize").count(), 0);
    link.close().await;
    all_ended(&ctx).await;
}
