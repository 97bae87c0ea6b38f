//! One logical upstream: its links by key, opened lazily and once, retired when nobody uses them.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{CallError, Hello, LinkKey, Notice, OutCall};
use crate::config::{UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
use crate::telemetry::UpstreamMetrics;

/// What an upstream needs from outside.
#[derive(Debug)]
pub struct UpstreamDeps {
    /// Its metrics.
    pub metrics: Arc<UpstreamMetrics>,
    /// Where notices go.
    pub notices: mpsc::Sender<Notice>,
    /// Owns every task that is spawned.
    pub tasks: TaskTracker,
    /// Ends everything.
    pub stop: CancellationToken,
    /// How many worker threads there are (shards of connection pools).
    pub workers: usize,
}

/// State for `/readyz` and the start-up summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was tried yet.
    Idle,
    /// Being opened.
    Starting,
    /// At least one link is up (plain JSON-RPC: the last call reached it).
    Up,
    /// The last attempt failed; the text names why, without addresses.
    Down(String),
}

/// One logical upstream.
#[derive(Debug)]
pub struct Upstream {
    name: UpstreamName,
    config: Arc<UpstreamConfig>,
}

impl Upstream {
    /// Sets it up; opens nothing.
    pub fn new(name: UpstreamName, config: Arc<UpstreamConfig>, deps: UpstreamDeps) -> Arc<Self> {
        let _ = &deps;
        Arc::new(Self { name, config })
    }
    /// Its name.
    pub fn name(&self) -> &UpstreamName {
        &self.name
    }
    /// Its configuration.
    pub fn config(&self) -> &Arc<UpstreamConfig> {
        &self.config
    }
    /// MCP: calls on the link with that key, opening it first when needed (single flight, bounded by the
    /// call's timeout). A lost upstream session is opened anew once and the refused call sent again. Dropping the future cancels
    /// the call upstream. Tasks of concurrent callers run in parallel.
    pub async fn call(
        self: &Arc<Self>,
        key: &LinkKey,
        call: OutCall,
    ) -> Result<Message, CallError> {
        let _ = (key, call);
        todo!()
    }
    /// MCP: sends a notification if the link is open; otherwise does nothing.
    pub async fn notify(
        self: &Arc<Self>,
        key: &LinkKey,
        message: &Message,
    ) -> Result<(), CallError> {
        let _ = (key, message);
        todo!()
    }
    /// MCP: opens the link if it is not open and tells what the upstream said.
    pub async fn hello(self: &Arc<Self>, key: &LinkKey) -> Result<Arc<Hello>, CallError> {
        let _ = key;
        todo!()
    }
    /// MCP: what any link of this upstream last heard; kept while it is down.
    pub fn known(&self) -> Option<Arc<Hello>> {
        todo!()
    }
    /// Plain JSON-RPC: one request or notification over HTTP. The answer is validated (JSONRPC rows 24 to 29, 47);
    /// `Ok(None)` for notifications.
    pub async fn call_plain(self: &Arc<Self>, call: OutCall) -> Result<Option<Message>, CallError> {
        let _ = call;
        todo!()
    }
    /// Plain JSON-RPC with `batch = true`: the elements travel as one array; answers in the order of `calls`,
    /// `Ok(None)` for notifications.
    pub async fn call_batch(
        self: &Arc<Self>,
        calls: Vec<OutCall>,
    ) -> Vec<Result<Option<Message>, CallError>> {
        let _ = calls;
        todo!()
    }
    /// Ends the links of one client session (DELETE upstream, children stopped).
    pub fn end_session(self: &Arc<Self>, session: u64) {
        let _ = session;
        todo!()
    }
    /// How it is.
    pub fn state(&self) -> State {
        todo!()
    }
    /// Ends every link and child: graceful, bounded to a few seconds.
    pub async fn shutdown(&self) {
        todo!()
    }
}
