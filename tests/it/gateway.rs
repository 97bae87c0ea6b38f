//! The real gateway as a child process: its configuration, its addresses, its metrics, its end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::client::Http;
use crate::fake::Fake;
use crate::mcp::Mcp;
use crate::metrics::Metrics;

/// How long any condition is waited for.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A `trunkline` command, not yet started.
pub fn trunkline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// What a command that ends by itself printed, and its exit code.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `trunkline` with these arguments to its end.
pub async fn run(args: &[&str]) -> Ended {
    let output = tokio::time::timeout(PATIENCE, trunkline().args(args).output());
    let output = output.await.expect("the command ends").expect("the command runs");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A configuration in the making.
#[derive(Default)]
pub struct Setup {
    listen: Option<String>,
    server: String,
    rest: String,
    env: Vec<(String, String)>,
}

impl Setup {
    /// An empty one: ports are chosen, nothing else is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it listens, as TOML.
    pub fn listen(mut self, places: &str) -> Self {
        self.listen = Some(places.to_owned());
        self
    }

    /// Lines of `[server]`.
    pub fn server(mut self, lines: &str) -> Self {
        self.server.push_str(lines);
        self.server.push('\n');
        self
    }

    /// A variable of the gateway's own environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Any other part of the file.
    pub fn toml(mut self, text: &str) -> Self {
        self.rest.push_str(text);
        self.rest.push('\n');
        self
    }

    /// `[upstreams.NAME]` with these lines.
    pub fn upstream(self, name: &str, lines: &str) -> Self {
        self.toml(&format!("[upstreams.{name}]\n{lines}"))
    }

    /// An MCP upstream at a fake.
    pub fn fake(self, name: &str, fake: &Fake) -> Self {
        self.fake_with(name, fake, "")
    }

    /// An MCP upstream at a fake, and more lines.
    pub fn fake_with(self, name: &str, fake: &Fake, lines: &str) -> Self {
        self.upstream(name, &format!("url = \"{}\"\n{lines}", fake.url()))
    }

    /// A plain JSON-RPC upstream at a fake.
    pub fn plain(self, name: &str, fake: &Fake, lines: &str) -> Self {
        self.fake_with(name, fake, &format!("protocol = \"jsonrpc\"\n{lines}"))
    }

    /// A fake child with this script.
    pub fn child(self, name: &str, script: &serde_json::Value, lines: &str) -> Self {
        self.upstream(name, &format!("{}\n{lines}", crate::fake::stdio::command(script)))
    }

    /// The route `/mcp` over these upstreams.
    pub fn mcp(self, upstreams: &[&str]) -> Self {
        self.mcp_with(upstreams, "")
    }

    /// The route `/mcp`, and more lines.
    pub fn mcp_with(self, upstreams: &[&str], lines: &str) -> Self {
        self.toml(&format!(
            "[[routes]]\npath = \"/mcp\"\nprotocol = \"mcp\"\nupstreams = {upstreams:?}\n{lines}"
        ))
    }

    /// The route `/rpc` with these methods, such as `"*" = "node"`.
    pub fn rpc(self, methods: &str) -> Self {
        self.toml(&format!(
            "[[routes]]\npath = \"/rpc\"\nprotocol = \"jsonrpc\"\nmethods = {{ {methods} }}"
        ))
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        format!(
            "[server]\nlisten = {}\n{}\n[admin]\nlisten = \"127.0.0.1:0\"\n\n{}",
            self.listen.as_deref().unwrap_or("\"127.0.0.1:0\""),
            self.server,
            self.rest
        )
    }

    /// Starts a gateway with it.
    pub async fn start(self) -> Gateway {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("t.toml");
        std::fs::write(&file, self.text()).expect("the scratch folder can be written");
        let mut command = trunkline();
        command.args(["run", "-c"]).arg(&file).envs(self.env);
        Gateway::spawn(command, folder).await
    }
}

/// A running gateway. Dropping it kills it; when the test failed, its output is printed.
pub struct Gateway {
    child: Child,
    output: Output,
    /// Holds its configuration; goes with it.
    _folder: tempfile::TempDir,
    addr: SocketAddr,
    admin: SocketAddr,
    pid: u32,
}

/// Lines of both outputs in order of arrival.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Vec<String>>>);

impl Output {
    fn collect(&self, stream: impl AsyncRead + Unpin + Send + 'static) {
        let lines = self.clone();
        tokio::spawn(async move {
            let mut read = BufReader::new(stream).lines();
            while let Ok(Some(line)) = read.next_line().await {
                lines.0.lock().push(line);
            }
        });
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// How many lines hold this text.
    pub fn count(&self, text: &str) -> usize {
        self.0.lock().iter().filter(|line| line.contains(text)).count()
    }
}

impl Gateway {
    /// Runs a command that becomes a gateway, until it is ready.
    pub async fn spawn(mut command: Command, folder: tempfile::TempDir) -> Self {
        command.current_dir(folder.path()).process_group(0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the gateway starts");
        let output = Output::default();
        output.collect(child.stdout.take().expect("it is piped"));
        output.collect(child.stderr.take().expect("it is piped"));
        let pid = child.id().expect("it runs");
        let begun = Instant::now();
        while output.0.lock().iter().all(|line| !line.starts_with("ready")) {
            let over = child.try_wait().expect("it can be waited for");
            if over.is_some() || begun.elapsed() > PATIENCE {
                let lines = output.lines().join("\n");
                panic!("the gateway does not get ready ({over:?}):\n{lines}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let addr = address(&output, &["listening on http://", "listening on https://"]);
        let admin = address(&output, &["admin on http://"]);
        Self { child, output, _folder: folder, addr, admin, pid }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// A client for any path.
    pub fn http(&self) -> Http {
        Http::new(self.addr)
    }

    /// A client of the operator's side.
    pub fn admin(&self) -> Http {
        Http::new(self.admin)
    }

    /// An MCP session on `/mcp` at the newest legacy revision, without capabilities.
    pub async fn mcp(&self) -> Mcp {
        Mcp::open(self, serde_json::json!({})).await
    }

    /// What it printed and logged so far.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// A scrape of `/metrics`.
    pub async fn metrics(&self) -> Metrics {
        let reply = self.admin().get("/metrics").await;
        assert_eq!(reply.status, 200);
        Metrics::parse(reply.text())
    }

    /// Waits until the metrics satisfy a condition.
    pub async fn until(&self, what: &str, holds: impl Fn(&Metrics) -> bool) -> Metrics {
        let begun = Instant::now();
        loop {
            let metrics = self.metrics().await;
            if holds(&metrics) {
                return metrics;
            }
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}; {metrics:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the log satisfies a condition.
    pub async fn until_log(&self, what: &str, holds: impl Fn(&Output) -> bool) {
        until(what, || holds(&self.output)).await;
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        signal(self.pid, rustix::process::Signal::TERM);
    }

    /// Waits for its end and gives its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.expect("it ends").expect("it can be waited for").code()
    }

    /// Processes whose parent it is.
    pub fn children(&self) -> Vec<u32> {
        processes()
            .into_iter()
            .filter(|(_, parent)| *parent == self.pid)
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("the line is there");
        kib.trim().parse::<u64>().expect("it is a number") * 1024
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.output.lines();
            eprintln!("--- output of the gateway (last of {} lines)", lines.len());
            lines.iter().rev().take(60).rev().for_each(|line| eprintln!("{line}"));
        }
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let Some(group) = pid.filter(|_| self.child.id().is_some()) else { return };
        // Two signals end it at once, with its children, which have groups of their own.
        for _ in 0..2 {
            signal(self.pid, rustix::process::Signal::TERM);
            std::thread::sleep(Duration::from_millis(5));
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), signal).expect("it can be signalled");
}

/// Whether a process runs (zombies do not).
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}

/// All processes with their parents; zombies, too.
fn processes() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    })
    .collect()
}

fn address(output: &Output, prefixes: &[&str]) -> SocketAddr {
    let lines = output.lines();
    let after = |line: &'_ String| {
        prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)).map(str::to_owned)
    };
    let address = lines.iter().find_map(after);
    let address = address.unwrap_or_else(|| panic!("no line `{prefixes:?}…` in {lines:#?}"));
    address.trim().parse().expect("it is an address")
}

/// An address where nobody listens, and nobody else will for a while: kept bound, never accepting.
pub fn closed_port() -> (SocketAddr, socket2::Socket) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let addr = socket.local_addr().ok().and_then(|addr| addr.as_socket());
    (addr.expect("a bound socket"), socket)
}

/// Where a file of this repository lies.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
