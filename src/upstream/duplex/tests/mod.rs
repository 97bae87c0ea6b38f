//! Tests of the protocol over in-memory pipes with paused time.

mod ask;
mod call;
mod far;
mod greet;
mod inbound;
mod listen;
mod modern;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::super::backoff::Backoff;
use super::super::link::{Inlet, LinkContext, LinkKey, LinkScope, Notice};
use super::super::verdict::Verdict;
use super::super::{CallError, CallEvent, CallerId, OutCall};
use crate::config::{UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
use crate::mcp::{ClientCaps, Era};
use crate::telemetry::Metrics;

/// The context of a link for clients with sessions, and what it reports.
pub(in crate::upstream) fn context(
    config: UpstreamConfig,
) -> (LinkContext, mpsc::Receiver<Notice>) {
    context_for(config, Era::Legacy)
}

/// The context of a link for clients of that era, and what it reports.
pub(in crate::upstream) fn context_for(
    config: UpstreamConfig,
    era: Era,
) -> (LinkContext, mpsc::Receiver<Notice>) {
    let caps = ClientCaps::parse(br#"{"sampling":{},"elicitation":{},"roots":{}}"#);
    let name = UpstreamName::new("notes").unwrap();
    let (notices, reported) = mpsc::channel(4);
    let link = LinkKey { scope: LinkScope::Shared, caps, era };
    let ctx = LinkContext {
        metrics: Metrics::new(&[]).upstream(&name),
        inlet: Inlet { upstream: name.clone(), link, notices },
        name,
        verdict: Arc::new(Verdict::new(config.revision)),
        config: Arc::new(config),
        caps,
        tasks: Default::default(),
        stop: Default::default(),
        backoff: Arc::new(Backoff::default()),
    };
    (ctx, reported)
}

pub(in crate::upstream) fn message(text: &str) -> Message {
    Message::parse(text.to_owned().into(), 64).unwrap()
}

/// A call as every client sends it: id 1, progress token 1.
pub(in crate::upstream) fn call(caller: u64) -> (OutCall, crate::upstream::EventQueue) {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"_meta":{"progressToken":1}}}"#;
    let (events, received) = crate::upstream::events(16);
    let call = OutCall {
        message: message(text),
        edits: Default::default(),
        caller: CallerId::of(caller),
        client: crate::upstream::Client::default(),
        params: None,
        timeout: Duration::from_secs(10),
        max_timeout: Duration::from_secs(60),
        events,
    };
    (call, received)
}

pub(in crate::upstream) fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

pub(in crate::upstream) fn result(answer: &Result<Message, CallError>) -> Value {
    json(&answer.as_ref().unwrap().result().unwrap())
}

/// Waits for a condition that another process or task brings about.
pub(in crate::upstream) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "in vain: {what}");
}
