//! Tests of the room against a server that answers as it is told.

mod answers;
mod asks;
mod beside;
mod children;
mod connections;
mod eras;
mod feed;
mod modern;
mod plain;
mod sessions;
mod sse;
mod streams;
mod stub;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::stub::Stub;
use crate::budget::Budget;
use crate::config::{Protocol, UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
use crate::mcp::{ClientCaps, Era};
use crate::telemetry::{Metrics, UpstreamMetrics};
use crate::upstream::{
    CallError, CallerId, LinkKey, LinkScope, Notice, NoticeKind, OutCall, Upstream, UpstreamDeps,
};

/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One upstream under test, and what it reports.
struct Rig {
    upstream: Arc<Upstream>,
    metrics: Arc<UpstreamMetrics>,
    notices: mpsc::Receiver<Notice>,
    tasks: TaskTracker,
}

impl Rig {
    fn to(stub: &Stub) -> Self {
        Self::with(stub.url.clone(), |_| {})
    }

    fn plain(stub: &Stub) -> Self {
        Self::with(stub.url.clone(), |config| config.protocol = Protocol::JsonRpc)
    }

    fn child(command: Option<Vec<String>>) -> Self {
        Self::of(UpstreamConfig { command, ..UpstreamConfig::default() })
    }

    fn with(url: url::Url, change: impl FnOnce(&mut UpstreamConfig)) -> Self {
        let mut config = UpstreamConfig { url: Some(url), ..UpstreamConfig::default() };
        config.timeout = Duration::from_secs(5);
        change(&mut config);
        Self::of(config)
    }

    fn of(config: UpstreamConfig) -> Self {
        let name = UpstreamName::new("stub").expect("a name");
        let metrics = Metrics::new(&[]).upstream(&name);
        let (sender, notices) = mpsc::channel(64);
        let tasks = TaskTracker::new();
        let deps = UpstreamDeps {
            metrics: Arc::clone(&metrics),
            notices: sender,
            tasks: tasks.clone(),
            stop: CancellationToken::new(),
            workers: 2,
            budget: Budget::unlimited(),
        };
        Self { upstream: Upstream::new(name, Arc::new(config), deps), metrics, notices, tasks }
    }

    /// Calls on the shared link; the result as text.
    async fn call(&self, method: &str, params: &str) -> Result<String, CallError> {
        self.call_with(request(method, params)).await
    }

    async fn call_with(&self, call: OutCall) -> Result<String, CallError> {
        let key = shared();
        let called = self.upstream.call(&key, call);
        let answer = timeout(PATIENCE, called).await.expect("an outcome in time")?;
        Ok(String::from_utf8_lossy(answer.message.text()).into_owned())
    }

    /// The same for a client without a session.
    async fn call_modern(&self, method: &str, params: &str) -> Result<String, CallError> {
        let key = sessionless();
        let called = self.upstream.call(&key, request(method, params));
        let answer = timeout(PATIENCE, called).await.expect("an outcome in time")?;
        Ok(String::from_utf8_lossy(answer.message.text()).into_owned())
    }

    /// The kind of the next notice.
    async fn notice(&mut self) -> NoticeKind {
        let notice = timeout(PATIENCE, self.notices.recv()).await.expect("a notice in time");
        notice.expect("a notice").kind
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, || holds(self)).await;
    }
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(2)).await;
    }
}

fn shared() -> LinkKey {
    LinkKey { scope: LinkScope::Shared, caps: ClientCaps::NONE, era: Era::Legacy }
}

/// The key of a client without a session.
fn sessionless() -> LinkKey {
    LinkKey { era: Era::Modern, ..shared() }
}

/// A request of a client, whose events nobody hears.
fn request(method: &str, params: &str) -> OutCall {
    listened(method, params).0
}

/// A request of a client, and what precedes its answer.
fn listened(method: &str, params: &str) -> (OutCall, crate::upstream::EventQueue) {
    let text = format!(r#"{{"jsonrpc":"2.0","id":"c1","method":"{method}","params":{params}}}"#);
    let (events, receiver) = crate::upstream::events(8);
    let call = OutCall {
        message: Message::parse(text.into(), 64).expect("a message"),
        edits: SmallVec::new(),
        caller: CallerId::of(1),
        client: crate::upstream::Client::default(),
        params: None,
        timeout: Duration::from_secs(5),
        max_timeout: Duration::from_secs(20),
        events,
    };
    (call, receiver)
}

/// What an invalid answer is told to be.
fn protocol(result: Result<String, CallError>) -> String {
    match result {
        Err(CallError::Protocol { what, .. }) => what,
        other => panic!("not an invalid answer: {other:?}"),
    }
}
