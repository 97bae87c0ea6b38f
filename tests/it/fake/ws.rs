//! An upstream over WebSocket whose connections are in the hands of the test, and the example server as one.

use std::net::SocketAddr;
use std::process::Stdio;

use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use crate::client::patient;
use crate::gateway::trunkline;

/// A listener of WebSocket connections.
pub struct FakeWs {
    listener: TcpListener,
}

/// The upstream's end of one connection.
pub struct Peer {
    socket: WebSocketStream<TcpStream>,
    pub headers: HeaderMap,
}

impl FakeWs {
    /// One that accepts when the test does.
    pub async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.expect("a free port") }
    }

    pub fn url(&self) -> String {
        format!("ws://{}/", self.listener.local_addr().expect("an address"))
    }

    /// The next connection, as it comes.
    pub async fn tcp(&self) -> TcpStream {
        patient("a connection", self.listener.accept()).await.expect("it accepts").0
    }

    /// The next connection, upgraded.
    pub async fn accept(&self) -> Peer {
        let stream = self.tcp().await;
        let mut headers = HeaderMap::new();
        #[expect(clippy::result_large_err, reason = "as the library has it")]
        let look = |request: &Request, response: Response| {
            headers = request.headers().clone();
            Ok(response)
        };
        let socket = patient("an upgrade", accept_hdr_async(stream, look)).await;
        Peer { socket: socket.expect("an upgrade"), headers }
    }
}

impl Peer {
    /// The next message that is no control frame; `None` at the end.
    pub async fn read(&mut self) -> Option<String> {
        loop {
            match patient("a message", self.socket.next()).await?.ok()? {
                Message::Text(text) => return Some(text.to_string()),
                Message::Close(_) => return None,
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("not a text: {other:?}"),
            }
        }
    }

    /// The next message.
    pub async fn json(&mut self) -> Value {
        serde_json::from_str(&self.read().await.expect("a message")).expect("JSON")
    }

    /// Reads a request with that method; its id.
    pub async fn asked(&mut self, method: &str) -> u64 {
        let request = self.json().await;
        assert_eq!(request["method"], method, "{request}");
        request["id"].as_u64().expect("an id of the gateway")
    }

    pub async fn write(&mut self, text: impl Into<String>) {
        self.socket.send(Message::text(text.into())).await.expect("it is written");
    }

    pub async fn answer(&mut self, id: u64, result: &str) {
        self.write(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)).await;
    }

    /// Reads until the gateway has closed.
    pub async fn ended(&mut self) {
        while self.read().await.is_some() {}
    }
}

/// `trunkline example-server --ws`, as a process of its own.
pub struct ExampleWs {
    _child: Child,
    pub addr: SocketAddr,
}

impl ExampleWs {
    /// Starts it at any port.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    /// Starts it at that address.
    pub async fn start_at(addr: &str) -> Self {
        let mut command = trunkline();
        command.args(["example-server", "--ws", addr]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let line = patient("where it listens", lines.next_line()).await.expect("a line");
        let line = line.expect("a line");
        let addr = line.strip_prefix("listening on ws://").and_then(|l| l.strip_suffix("/mcp"));
        let addr = addr.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
        Self { _child: child, addr }
    }
}
