//! Processes of a run: started, waited for until ready, ended with the run.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::Result;

/// How long a process may take from start to ready.
const START: Duration = Duration::from_secs(20);

/// A process that serves on one address. Dropping it ends it.
pub(crate) struct Child {
    process: std::process::Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Child {
    /// Starts the bench's own program in another role.
    pub(crate) fn role(role: &str, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).args(arguments);
        // A role ends when its standard input does, so none is left behind.
        command.stdin(Stdio::piped());
        Self::start(command)
    }

    /// Starts a program that prints `listening on http://ADDRESS` and then `ready`.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().ok_or("no standard output")?;
        let unspecified = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut child = Self { process, address: unspecified };
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // Read to the end, so that the process never waits for a reader.
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                let _ = sender.send(line);
            }
        });
        let deadline = Instant::now() + START;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines
                .recv_timeout(left)
                .map_err(|error| format!("{command:?} did not become ready: {error}"))?;
            if let Some(address) = line.strip_prefix("listening on http://") {
                child.address = address.trim().parse()?;
            }
            if line.starts_with("ready") {
                break;
            }
        }
        if child.address.port() == 0 {
            return Err(format!("{command:?} did not say where it listens").into());
        }
        Ok(child)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other side of [`Child::role`]: says that it listens, and waits for the end of the run.
pub(crate) fn announce_and_wait(address: SocketAddr) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on http://{address}\nready")?;
    stdout.flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
