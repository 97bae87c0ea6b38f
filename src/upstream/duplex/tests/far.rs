//! The upstream's side of a channel, played by the test.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex,
    split,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::super::super::link::Notice;
use super::super::channel::Channel;
use super::*;
use crate::upstream::Hello;

/// A channel and its far end.
pub(super) struct Far {
    pub(super) channel: Arc<Channel>,
    pub(super) notices: mpsc::Receiver<Notice>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

/// A call that runs.
pub(super) struct Running {
    /// Its id towards the upstream.
    pub(super) id: u64,
    pub(super) task: JoinHandle<Result<Message, CallError>>,
    pub(super) events: crate::upstream::EventQueue,
}

impl Far {
    pub(super) fn new() -> Self {
        Self::with(UpstreamConfig::default(), 64 * 1024)
    }

    /// `room`: bytes that fit into the pipe.
    pub(super) fn with(config: UpstreamConfig, room: usize) -> Self {
        Self::of(context(config), room)
    }

    /// One for clients of that era.
    pub(super) fn of_era(era: Era) -> Self {
        Self::of(context_for(UpstreamConfig::default(), era), 64 * 1024)
    }

    /// One that was found to be modern, with those capabilities.
    pub(super) async fn modern(caps: Value) -> Self {
        let mut far = Self::of_era(Era::Modern);
        let greeting = far.greet(false);
        let line = far.line().await;
        far.answer(line["id"].as_u64().unwrap(), discovered(caps)).await;
        greeting.await.unwrap().unwrap();
        far
    }

    /// Begins to greet it.
    pub(super) fn greet(&self, wary: bool) -> JoinHandle<Result<Hello, CallError>> {
        let channel = Arc::clone(&self.channel);
        tokio::spawn(async move { channel.greet(Duration::from_secs(30), wary).await })
    }

    pub(super) fn of((ctx, notices): (LinkContext, mpsc::Receiver<Notice>), room: usize) -> Self {
        let (near, far) = duplex(room);
        let (reader, writer) = split(near);
        let channel = Channel::open(&ctx, Arc::default(), reader, writer);
        let (reader, writer) = split(far);
        Self { channel, notices, lines: BufReader::new(reader).lines(), writer }
    }

    /// The next line from the gateway.
    pub(super) async fn line(&mut self) -> Value {
        json(self.lines.next_line().await.unwrap().expect("a line").as_bytes())
    }

    /// Whether the gateway has closed the pipe.
    pub(super) async fn at_end(&mut self) -> bool {
        self.lines.next_line().await.unwrap().is_none()
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    pub(super) async fn send(&mut self, message: Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    pub(super) async fn answer(&mut self, id: u64, result: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }

    /// Answers with an error.
    pub(super) async fn refuse(&mut self, id: u64, error: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "error": error })).await;
    }

    pub(super) async fn progress(&mut self, token: u64, progress: u32) {
        let params = json!({ "progressToken": token, "progress": progress });
        self.send(
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }),
        )
        .await;
    }

    /// Starts a call and reads it on the far side.
    pub(super) async fn begin(&mut self, caller: u64) -> Running {
        let (call, events) = call(caller);
        self.begin_with(call, events).await
    }

    pub(super) async fn begin_with(
        &mut self,
        call: OutCall,
        events: crate::upstream::EventQueue,
    ) -> Running {
        let channel = Arc::clone(&self.channel);
        let task = tokio::spawn(async move { channel.call(call).await });
        let id = self.line().await["id"].as_u64().unwrap();
        Running { id, task, events }
    }

    pub(super) fn stray(&self) -> u64 {
        self.channel.ctx.metrics.stray.get()
    }

    pub(super) fn noise(&self) -> u64 {
        self.channel.ctx.metrics.noise.get()
    }
}

/// A `DiscoverResult`.
pub(super) fn discovered(caps: Value) -> Value {
    json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": caps,
        "instructions": "be kind", "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "far" } } })
}

impl Running {
    pub(super) async fn end(self) -> Result<Message, CallError> {
        self.task.await.unwrap()
    }

    /// The next event; progress as its `params`.
    pub(super) async fn event(&mut self) -> CallEvent {
        self.events.recv().await.expect("an event")
    }

    pub(super) async fn progress(&mut self) -> Value {
        match self.event().await {
            CallEvent::Progress(chunks) => json_of(&chunks.into_bytes())["params"].clone(),
            other => panic!("{other:?} is no progress"),
        }
    }
}

fn json_of(bytes: &[u8]) -> Value {
    super::json(bytes)
}
