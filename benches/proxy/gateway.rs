//! The gateway under test: the program of the bench profile, or the one of `--gateway`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;
use crate::catalog::{MERGED, MODERN, SPREAD, STREAMING};
use crate::child::Child;

/// A running gateway and the folder of its configuration and log.
pub(crate) struct Gateway {
    /// The process.
    pub(crate) child: Child,
    _folder: tempfile::TempDir,
}

impl Gateway {
    /// Starts one in front of the stub, with the configuration a user would write.
    pub(crate) fn start(program: Option<&Path>, stub: SocketAddr) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("trunkline.toml");
        std::fs::write(&config, configuration(stub))?;
        let program = program.unwrap_or(Path::new(env!("CARGO_BIN_EXE_trunkline")));
        let mut command = Command::new(program);
        command.arg("run").arg("-c").arg(&config).current_dir(folder.path());
        command.stdin(Stdio::null()).stderr(File::create(folder.path().join("log"))?);
        let child = Child::start(command).map_err(|error| {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            format!("{error}\n{log}")
        })?;
        Ok(Self { child, _folder: folder })
    }
}

fn configuration(stub: SocketAddr) -> String {
    let mut text = String::from(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstreams.plain]\nprotocol = \"jsonrpc\"\n",
    );
    text += &format!("url = \"http://{stub}/rpc\"\nmax_concurrency = 256\n");
    for server in MERGED {
        text += &format!("[upstreams.{server}]\nurl = \"http://{stub}/{server}\"\n");
        // As many as the load has connections: the queue is not what is measured.
        text += "max_concurrency = 256\n";
    }
    text += &format!(
        "[upstreams.modern]\nurl = \"http://{stub}{MODERN}\"\nmax_concurrency = 256\n\
         [upstreams.shared]\nurl = \"http://{stub}{STREAMING}\"\nisolation = \"shared\"\n\
         [upstreams.own]\nurl = \"http://{stub}{STREAMING}\"\n\
         [[routes]]\npath = \"/modern\"\nupstreams = [\"modern\"]\n\
         [[routes]]\npath = \"/shared\"\nupstreams = [\"shared\"]\n\
         [[routes]]\npath = \"/own\"\nupstreams = [\"own\"]\n"
    );
    text += &format!(
        "[upstreams.socket]\nprotocol = \"jsonrpc\"\nurl = \"ws://{stub}/rpc\"\nmax_concurrency = 256\n\
         [[routes]]\npath = \"/ws\"\nprotocol = \"jsonrpc\"\nmethods = {{ \"*\" = \"socket\" }}\n\
         subscriptions = {{ \"demo_subscribe\" = {{ notification = \"demo_subscription\", \
         unsubscribe = \"demo_unsubscribe\", id = \"params.subscription\", share = true }} }}\n"
    );
    for (path, arrays) in [("/rpc4", false), ("/rpc4arrays", true)] {
        text += &spread(stub, path, arrays);
    }
    text += "[[routes]]\npath = \"/mcp\"\nupstreams = [\"a\"]\n\
             [[routes]]\npath = \"/mcp4\"\nupstreams = [\"a\", \"b\", \"c\", \"d\"]\n\
             [[routes]]\npath = \"/rpc\"\nprotocol = \"jsonrpc\"\nmethods = { \"*\" = \"plain\" }\n";
    text
}

/// A route that spreads a batch over four upstreams, which take arrays or do not.
fn spread(stub: SocketAddr, path: &str, arrays: bool) -> String {
    let mut text = String::new();
    let mut methods = Vec::new();
    for letter in SPREAD {
        let name = if arrays { format!("{letter}-arrays") } else { letter.to_owned() };
        text += &format!(
            "[upstreams.{name}]\nprotocol = \"jsonrpc\"\nurl = \"http://{stub}/rpc\"\n\
             max_concurrency = 1024\nbatch = {arrays}\n"
        );
        methods.push(format!("\"{letter}_*\" = \"{name}\""));
    }
    let methods = methods.join(", ");
    text + &format!(
        "[[routes]]\npath = \"{path}\"\nprotocol = \"jsonrpc\"\nmethods = {{ {methods} }}\n"
    )
}
