use std::net::{Ipv4Addr, TcpListener};

use super::super::Process;
use super::*;

fn dialled(script: &str, port: u16) -> (LinkContext, Vec<String>) {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let url = Some(format!("http://127.0.0.1:{port}/mcp").parse().unwrap());
    let start_timeout = Duration::from_millis(500);
    let config =
        UpstreamConfig { command: Some(command.clone()), url, start_timeout, ..Default::default() };
    (context(config).0, command)
}

#[tokio::test]
async fn a_dialled_child_is_ready_once_it_accepts_and_comes_back_when_it_dies() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let end = folder.path().join("end");
    let script = format!("while ! rm {} 2>/dev/null; do sleep 0.05; done; exit 7", end.display());
    let (ctx, command) = dialled(&script, listener.local_addr().unwrap().port());
    let process = Process::start(ctx.clone(), command);
    process.ready().await.unwrap();
    assert_eq!(ctx.metrics.children.get(), 1);
    std::fs::write(&end, "").unwrap();
    until("the child is started again", || ctx.metrics.restarts.get() == 1).await;
    process.ready().await.unwrap();
    process.stop().await;
    assert!(process.ready().await.is_err());
    ctx.tasks.close();
    ctx.tasks.wait().await;
    assert_eq!(ctx.metrics.children.get(), 0);
}

#[tokio::test]
async fn a_dialled_child_that_never_accepts_is_ended_and_tried_again() {
    // A port that nobody listens on.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let (ctx, command) = dialled("echo up; read line; echo down >&2", free);
    let process = Process::start(ctx.clone(), command);
    let ready = process.ready().await;
    let Err(CallError::Connect { what, .. }) = ready else { panic!("{ready:?}") };
    assert_eq!(what, "the child is being restarted: start timeout");
    until("it is tried again", || ctx.metrics.restarts.get() == 1).await;
    drop(process);
    ctx.tasks.close();
    ctx.tasks.wait().await;
    assert_eq!(ctx.metrics.children.get(), 0);
}

#[tokio::test]
async fn a_dialled_child_keeps_its_input_open_and_its_output_read() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let script = "i=0; while [ $i -lt 5000 ]; do echo \"line $i of output\"; i=$((i+1)); done; read line; echo over";
    let (ctx, command) = dialled(script, listener.local_addr().unwrap().port());
    let process = Process::start(ctx.clone(), command);
    process.ready().await.unwrap();
    let last = |text: &'static str| {
        let process = Arc::clone(&process);
        move || process.output_tail().last().is_some_and(|line| line == text)
    };
    until("all output is read", last("line 4999 of output")).await;
    process.stop().await;
    until("closing the input ended it", last("over")).await;
}
