//! Tests of the room against a server whose other end is in the hands of the test.

mod mcp;
mod plain;
mod subscribing;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message as WsMessage;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::budget::Budget;
use crate::config::{Protocol, UpstreamConfig, UpstreamName};
use crate::jsonrpc::Message;
use crate::telemetry::{Metrics, UpstreamMetrics};
use crate::upstream::{CallError, CallerId, Notice, OutCall, Upstream, UpstreamDeps};

/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listener of WebSocket connections.
struct Stub {
    listener: TcpListener,
}

/// The other end of one connection.
struct Peer {
    socket: WebSocketStream<TcpStream>,
    headers: HeaderMap,
    path: String,
}

impl Stub {
    async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.expect("a port") }
    }

    fn url(&self) -> url::Url {
        let address = self.listener.local_addr().expect("an address");
        format!("ws://{address}/rpc?key=1").parse().expect("a url")
    }

    /// The next connection, as it comes.
    async fn tcp(&self) -> TcpStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("in time").expect("accepts").0
    }

    /// The next connection, upgraded.
    async fn accept(&self) -> Peer {
        self.accept_with(|_| {}).await
    }

    /// The same with changes to the answer.
    async fn accept_with(&self, change: impl Fn(&mut Response) + Unpin) -> Peer {
        let stream = self.tcp().await;
        let mut seen = None;
        #[expect(clippy::result_large_err, reason = "as the library has it")]
        let look = |request: &Request, mut response: Response| {
            seen = Some((request.headers().clone(), request.uri().to_string()));
            change(&mut response);
            Ok(response)
        };
        let socket = accept_hdr_async(stream, look).await.expect("an upgrade");
        let (headers, path) = seen.expect("a request");
        Peer { socket, headers, path }
    }
}

impl Peer {
    /// The next message that is no control frame.
    async fn read(&mut self) -> String {
        loop {
            let next = timeout(PATIENCE, self.socket.next()).await.expect("a message in time");
            match next.expect("a message").expect("no error") {
                WsMessage::Text(text) => return text.to_string(),
                WsMessage::Ping(_) | WsMessage::Pong(_) => {}
                other => panic!("not a text: {other:?}"),
            }
        }
    }

    async fn json(&mut self) -> Value {
        serde_json::from_str(&self.read().await).expect("JSON")
    }

    /// Reads a request and gives its id.
    async fn asked(&mut self, method: &str) -> u64 {
        let request = self.json().await;
        assert_eq!(request["method"], method, "{request}");
        request["id"].as_u64().expect("an id of ours")
    }

    async fn write(&mut self, text: impl Into<String>) {
        self.socket.send(WsMessage::text(text.into())).await.expect("it is written");
    }

    async fn answer(&mut self, id: u64, result: &str) {
        self.write(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    }

    /// Reads until the other side has closed; its code.
    async fn closed(&mut self) -> Option<u16> {
        let mut code = None;
        let read = async {
            while let Some(Ok(next)) = self.socket.next().await {
                if let WsMessage::Close(Some(frame)) = next {
                    code = Some(frame.code.into());
                }
            }
        };
        timeout(PATIENCE, read).await.expect("an end in time");
        code
    }
}

/// One upstream under test, and what it reports.
struct Rig {
    upstream: Arc<Upstream>,
    metrics: Arc<UpstreamMetrics>,
    notices: mpsc::Receiver<Notice>,
    tasks: TaskTracker,
}

impl Rig {
    fn plain(stub: &Stub) -> Self {
        Self::with(stub, |_| {})
    }

    fn with(stub: &Stub, change: impl FnOnce(&mut UpstreamConfig)) -> Self {
        let mut config = UpstreamConfig { url: Some(stub.url()), ..UpstreamConfig::default() };
        config.protocol = Protocol::JsonRpc;
        config.timeout = Duration::from_secs(5);
        change(&mut config);
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

    /// Begins a call of plain JSON-RPC.
    fn call(&self, text: &str) -> tokio::task::JoinHandle<Result<Option<String>, CallError>> {
        let (upstream, call) = (Arc::clone(&self.upstream), call(text));
        tokio::spawn(async move {
            let answer = timeout(PATIENCE, upstream.call_plain(call)).await.expect("an outcome");
            let text = |message: Message| String::from_utf8_lossy(message.text()).into_owned();
            answer.map(|message| message.map(text))
        })
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}: not in time");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends it; nothing must be left.
    async fn end(self) {
        self.upstream.shutdown().await;
        self.tasks.close();
        timeout(PATIENCE, self.tasks.wait()).await.expect("all tasks end");
        assert_eq!(self.metrics.connections_active.get(), 0);
        assert_eq!(self.metrics.up.get(), 0);
    }
}

fn call(text: &str) -> OutCall {
    OutCall {
        message: Message::parse(text.to_owned().into(), 64).expect("a message"),
        edits: Default::default(),
        caller: CallerId::of(1),
        client: crate::upstream::Client::default(),
        params: None,
        timeout: Duration::from_secs(5),
        max_timeout: Duration::from_secs(5),
        events: crate::upstream::Events::closed(),
    }
}

const SUM: &str = r#"{"jsonrpc":"2.0","id":"c","method":"sum","params":[1, 2.50]}"#;
