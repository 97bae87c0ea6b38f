//! A client that sends what the test says and shows what comes back.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::PATIENCE;

/// Headers of a POST that every MCP client sends.
pub const MCP_HEADERS: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

/// A client of one address; each request has a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Http {
    addr: SocketAddr,
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the answer is UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {} {:?}", self.status, self.body))
    }

    /// A header's text, empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("it is text"))
    }

    /// The code of the JSON-RPC error in the body.
    pub fn code(&self) -> i64 {
        let json = self.json();
        json["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {json}"))
    }
}

impl Http {
    /// A client of that address.
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr }
    }

    /// Sends a request and gives the response as it comes.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Streaming {
        let mut request = http::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", self.addr.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let send = async {
            let stream = TcpStream::connect(self.addr).await.expect("the gateway accepts");
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
            tokio::spawn(connection);
            sender.send_request(request).await.expect("the gateway answers")
        };
        let response = patient("a response head", send).await;
        let (head, body) = response.into_parts();
        Streaming {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            text: BytesMut::new(),
        }
    }

    /// Sends a request and gives the whole response.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.open(method, path, headers, body).await.whole().await
    }

    /// GET without headers.
    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }

    /// POST of JSON to a plain route.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body).await
    }

    /// Writes bytes on a connection of their own and reads until the other side closes.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let exchange = async {
            let mut stream = TcpStream::connect(self.addr).await.expect("the gateway accepts");
            // It may answer and close before it has read all.
            let _ = stream.write_all(bytes).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        patient("the end of a raw exchange", exchange).await
    }
}

/// A response on its way.
#[derive(Debug)]
pub struct Streaming {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    text: BytesMut,
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    /// `event`, empty when it is not given.
    pub kind: String,
    pub data: String,
    /// It was a comment, not an event.
    pub comment: bool,
}

impl Streaming {
    /// A header's text, empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("it is text"))
    }

    /// Whether it is an event stream.
    pub fn is_sse(&self) -> bool {
        self.header("content-type").starts_with("text/event-stream")
    }

    /// Everything until its end.
    pub async fn whole(self) -> Reply {
        let body = patient("the end of a body", self.body.collect()).await;
        let body = body.expect("a complete body").to_bytes();
        Reply { status: self.status, headers: self.headers, body }
    }

    /// The next block of an event stream, comments included; `None` at its end.
    pub async fn next_block(&mut self) -> Option<Event> {
        patient("the next event", self.block()).await
    }

    /// The same, however long it takes.
    pub async fn block(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let block = self.text.split_to(end + 2);
                return Some(Event::parse(std::str::from_utf8(&block).expect("UTF-8")));
            }
            let frame = self.body.frame().await?;
            if let Ok(data) = frame.expect("the stream does not break").into_data() {
                self.text.extend_from_slice(&data);
            }
        }
    }

    /// The next event with data; `None` at the end. Comments do not prolong the wait.
    pub async fn next_event(&mut self) -> Option<Event> {
        patient("the next event with data", async {
            loop {
                let event = self.next_block().await?;
                if !event.comment && !event.data.is_empty() {
                    return Some(event);
                }
            }
        })
        .await
    }

    /// The next message; `None` at the end.
    pub async fn next_message(&mut self) -> Option<Value> {
        let event = self.next_event().await?;
        Some(serde_json::from_str(&event.data).expect("events hold JSON"))
    }

    /// The next message that comes within that time.
    pub async fn message_within(&mut self, time: Duration) -> Option<Value> {
        tokio::time::timeout(time, self.next_message()).await.ok().flatten()
    }
}

impl Event {
    fn parse(block: &str) -> Self {
        let mut event = Self { comment: true, ..Self::default() };
        let mut data = Vec::new();
        for line in block.lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
            event.comment = false;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => data.push(value),
                "id" => event.id = Some(value.to_owned()),
                "event" => event.kind = value.to_owned(),
                "retry" => {}
                other => panic!("an unknown field of an event: {other}"),
            }
        }
        event.data = data.join("\n");
        event
    }
}

/// Waits for a future, but not for ever.
pub async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
