//! The built-in example upstream behind `trunkline example-server`: a real MCP server over stdio,
//! Streamable HTTP or WebSocket, and a plain JSON-RPC service beside it. Newcomers meet it first; the gateway's
//! tests and benches use it as a peer. It is not on the data path, so it favours plain code, and
//! shares nothing but vocabulary with the gateway that it is meant to be tested against.
//!
//! Reading order: `service` answers methods; `session` is one client's connection up to 2025-11-25,
//! `modern` one request since 2026-07-28; `call` is one running tool, `question` what it may ask,
//! `tasks` those that outlive their request; `notes`, `files` and `suite` are what is offered;
//! `stdio`, `http`, `ws` and `rpc` carry it to clients.

mod arithmetic;
mod call;
mod completion;
mod content;
mod echo;
mod endpoint;
mod files;
mod http;
mod message;
mod modern;
mod notes;
mod outbox;
mod page;
mod prompts;
mod question;
mod resources;
mod resume;
mod revision;
mod rpc;
mod seal;
mod service;
mod session;
mod sessions;
mod sse;
mod stdio;
mod suite;
mod tasks;
#[cfg(test)]
mod tests;
mod tools;
mod topics;
mod ws;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;

use clap::{ArgGroup, Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use revision::Revision;

use content::Content;
use http::Http;
use revision::Offered;
use service::Server;
use ws::Site;

/// An example upstream: an MCP server, and over HTTP and WebSocket a plain JSON-RPC service beside it
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("transport").required(true).args(["stdio", "http", "ws"])))]
pub struct ExampleArgs {
    /// What to offer: notes with tools that show all of MCP, a small tree of files, or what the
    /// MCP conformance suite looks for
    #[arg(long, value_enum, default_value_t = Kind::Notes)]
    pub kind: Kind,
    /// Speak MCP on standard input and output
    #[arg(long)]
    pub stdio: bool,
    /// Listen here; MCP is on /mcp, plain JSON-RPC on /rpc. Port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Listen here for WebSocket; MCP is on /mcp, plain JSON-RPC with subscriptions on /rpc
    #[arg(long, value_name = "ADDR")]
    pub ws: Option<String>,
    /// Revisions of MCP to offer [default: all]
    ///
    /// One up to 2025-11-25 is offered with all before it; 2026-07-28 is offered alone, as by a
    /// server that knows no sessions.
    #[arg(long, value_enum, value_name = "REV")]
    pub revision: Option<Revision>,
    /// On HTTP, give out no session ids: requests of older revisions stand alone, too
    #[arg(long, conflicts_with_all = ["stdio", "ws"])]
    pub stateless: bool,
    /// On HTTP, how to answer: auto is JSON unless something precedes the answer
    #[arg(long, value_enum, default_value_t = Answers::Auto, conflicts_with_all = ["stdio", "ws"])]
    pub answers: Answers,
    /// Entries on one page of a list
    #[arg(long, value_name = "N", default_value = "50")]
    pub page_size: NonZeroUsize,
}

/// Which set of tools, prompts and resources to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Notes, and tools that show all of MCP.
    Notes,
    /// A small tree of files.
    Files,
    /// What the MCP conformance suite looks for.
    Suite,
}

/// How requests over HTTP are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Answers {
    /// JSON, or a stream of events when something precedes the answer.
    Auto,
    /// Always JSON. What would precede the answer goes to the session's GET stream, or nowhere.
    Json,
    /// Always a stream of events.
    Sse,
}

/// Why the example server ended.
#[derive(Debug, thiserror::Error)]
pub enum ExampleError {
    /// Nothing says how to speak to it.
    #[error("--stdio, --http ADDR or --ws ADDR is needed")]
    NoTransport,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// As it was given.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The system gives no threads or no signals.
    #[error("no runtime can be started")]
    Runtime(#[source] io::Error),
    /// Standard input or output broke.
    #[error("standard input or output failed")]
    Stdio(#[source] io::Error),
}

/// Runs the server until its input ends (stdio), or until SIGTERM or SIGINT (HTTP and WebSocket), which let open
/// requests finish for a moment. Dropping the future ends it at once.
pub async fn run(args: ExampleArgs) -> Result<(), ExampleError> {
    let content = Content::new(args.kind);
    let name = content.name();
    // A line is a session, whatever the options say.
    let lasting = args.stdio || !args.stateless;
    let server = Server::new(content, Offered::by(args.revision), args.page_size.get(), lasting);
    let server = Arc::new(server);
    let _stop = server.stop.clone().drop_guard();
    if args.stdio {
        note(&format!("{name} speaks MCP on standard input and output"));
        let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
        return stdio::serve(&server, input, output).await.map_err(ExampleError::Stdio);
    }
    let is_ws = args.ws.is_some();
    let address = args.ws.or(args.http).ok_or(ExampleError::NoTransport)?;
    let bound = match TcpListener::bind(&address).await {
        Ok(listener) => listener.local_addr().map(|local| (listener, local)),
        Err(why) => Err(why),
    };
    let (listener, local) = bound.map_err(|source| ExampleError::Listen { address, source })?;
    let scheme = if is_ws { "ws" } else { "http" };
    note(&format!("listening on {scheme}://{local}/mcp"));
    note(&format!("listening on {scheme}://{local}/rpc"));
    let [mut terminate, mut interrupt] =
        [signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?];
    let ending = server.ending.clone();
    let serving = async {
        if is_ws {
            ws::serve(listener, Arc::new(Site::new(server, local.ip()))).await;
        } else {
            http::serve(listener, Arc::new(Http::new(server, args.answers, local.ip()))).await;
        }
    };
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        () = serving.as_mut() => return Ok(()),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    ending.cancel();
    serving.await;
    Ok(())
}

fn signals(kind: SignalKind) -> Result<Signal, ExampleError> {
    signal(kind).map_err(ExampleError::Runtime)
}

/// Writes a line to standard error, which nobody may be reading.
fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
