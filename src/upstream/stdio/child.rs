//! One child process and the group it leads.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::super::link::LinkContext;
use crate::telemetry::UpstreamMetrics;

/// How long a child may take to end once its standard input was closed.
const UNTIL_TERM: Duration = Duration::from_secs(1);
/// How long it may take to end after SIGTERM.
const UNTIL_KILL: Duration = Duration::from_secs(2);
/// How long the kernel may take to end it after SIGKILL.
const UNTIL_LOST: Duration = Duration::from_secs(5);
/// How often, and how many times, killed members of the group are looked for.
const REAP: (Duration, u32) = (Duration::from_millis(10), 50);

/// A child that runs. Dropping it kills the whole group at once, which is for the case that the runtime itself goes
/// away; [`Child::end`] is the way to end one.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    /// `None` once the group was ended: its number may be given to another one.
    group: Option<Pid>,
    metrics: Arc<UpstreamMetrics>,
}

/// The other ends of a child's standard input and output.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

impl Child {
    /// Starts `command` in a group of its own, with the environment, folder and metrics of the upstream.
    pub(super) fn spawn(
        ctx: &LinkContext,
        command: &[String],
    ) -> io::Result<(Self, Pipes, ChildStderr)> {
        let mut process = build(ctx, command)?.spawn()?;
        let taken = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = taken else {
            return Err(io::Error::other("a standard stream is missing"));
        };
        let group = process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        ctx.metrics.children.inc();
        let metrics = Arc::clone(&ctx.metrics);
        Ok((Self { process, group, metrics }, Pipes { stdin, stdout }, stderr))
    }

    /// The process number, for the log.
    pub(super) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Resolves when it has ended by itself, with how. May be dropped and called again.
    pub(super) async fn wait(&mut self) -> String {
        match self.process.wait().await {
            Ok(status) => describe(status),
            Err(error) => format!("cannot wait for it: {error}"),
        }
    }

    /// Ends it and every process in its group. Its standard input must be closed already: that is the first, polite
    /// request. Bounded by a few seconds.
    pub(super) async fn end(mut self) {
        if timeout(UNTIL_TERM, self.wait()).await.is_err() {
            self.signal(Signal::TERM);
            if timeout(UNTIL_KILL, self.wait()).await.is_err() {
                self.signal(Signal::KILL);
                if timeout(UNTIL_LOST, self.wait()).await.is_err() {
                    tracing::error!(pid = self.process.id(), "a killed child does not end");
                }
            }
        }
        // Whatever the leader left behind.
        self.signal(Signal::KILL);
        self.reap_group().await;
        self.group = None;
    }

    /// Members of the group whose parent died become ours when the gateway is process 1 (in a container).
    async fn reap_group(&self) {
        let Some(group) = self.group else { return };
        for _ in 0..REAP.1 {
            match waitpgid(group, WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => tokio::time::sleep(REAP.0).await,
                Err(_) => return,
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It fails when nobody is left, which is what it is for.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.process.try_wait();
        self.metrics.children.dec();
    }
}

fn build(ctx: &LinkContext, command: &[String]) -> io::Result<Command> {
    let itself = std::env::current_exe()?;
    let itself = itself.to_string_lossy();
    let mut words = command.iter().map(|word| word.replace("{self}", &itself));
    let program = words.next().ok_or_else(|| io::Error::other("the command is empty"))?;
    let mut command = Command::new(program);
    command.args(words).env_clear();
    for name in &ctx.config.env_inherit {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    for (name, value) in &ctx.config.env {
        command.env(name, value.expose());
    }
    if let Some(folder) = &ctx.config.cwd {
        command.current_dir(folder);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}
