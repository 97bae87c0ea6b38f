//! WebSocket clients: one that speaks whole messages, one that sends the bytes the test says.

use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Request};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::patient;
use crate::gateway::Gateway;

/// The key that every handshake here sends, and what it must be answered with (RFC 6455 §1.3).
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// An open connection.
pub struct Ws {
    io: WebSocketStream<TcpStream>,
    /// Headers of the answer to the upgrade.
    pub headers: HeaderMap,
}

impl Ws {
    /// Connects to a path.
    pub async fn open(gateway: &Gateway, path: &str) -> Self {
        let opened = Self::try_open(gateway, path, &[]).await;
        opened.unwrap_or_else(|status| panic!("the upgrade is refused with {status}"))
    }

    /// Connects with more headers; the status when that is refused.
    pub async fn try_open(
        gateway: &Gateway,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, u16> {
        let stream = TcpStream::connect(gateway.addr()).await.expect("the gateway listens");
        let mut request = Request::builder()
            .uri(format!("ws://{}{path}", gateway.addr()))
            .header("host", gateway.addr().to_string())
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", KEY);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("it is a request");
        let opened = tokio_tungstenite::client_async(request, stream);
        match patient("the upgrade", opened).await {
            Ok((io, answer)) => Ok(Self { io, headers: answer.headers().clone() }),
            Err(Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(error) => panic!("no upgrade: {error}"),
        }
    }

    /// Sends a text.
    pub async fn say(&mut self, text: impl Into<String>) {
        self.send(Message::text(text.into())).await;
    }

    /// Sends any message.
    pub async fn send(&mut self, message: Message) {
        self.io.send(message).await.expect("the gateway reads");
    }

    /// The next message, of whatever kind.
    pub async fn next(&mut self) -> Message {
        let next = patient("the next message", self.io.next()).await;
        next.expect("the connection is open").expect("the connection does not break")
    }

    /// The next text; pings are answered and passed over.
    pub async fn hear(&mut self) -> String {
        loop {
            match self.next().await {
                Message::Text(text) => return text.to_string(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("no text: {other:?}"),
            }
        }
    }

    /// The next text as JSON.
    pub async fn json(&mut self) -> Value {
        let text = self.hear().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    }

    /// Sends a text and gives the next one that comes.
    pub async fn ask(&mut self, text: impl Into<String>) -> Value {
        self.say(text).await;
        self.json().await
    }

    /// How the gateway closes: code and reason. What else comes is passed over.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            match self.next().await {
                Message::Close(Some(frame)) => {
                    // Answers, so that the gateway need not wait.
                    let _ = self.io.close(None).await;
                    return (frame.code.into(), frame.reason.to_string());
                }
                Message::Close(None) => panic!("it closes without a code"),
                _ => {}
            }
        }
    }
}

/// The handshake as text, without the empty line at its end.
pub fn handshake(gateway: &Gateway, path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n",
        gateway.addr()
    )
}

/// A connection whose frames the test writes itself.
pub struct Raw {
    io: TcpStream,
}

impl Raw {
    /// Connects to a path.
    pub async fn open(gateway: &Gateway, path: &str) -> Self {
        Self::upgrade(gateway, &handshake(gateway, path)).await.0
    }

    /// Connects with this head, to which only its end is added; the head of the answer, too.
    pub async fn upgrade(gateway: &Gateway, head: &str) -> (Self, String) {
        let mut io = TcpStream::connect(gateway.addr()).await.expect("the gateway listens");
        io.write_all(format!("{head}\r\n").as_bytes()).await.expect("the gateway reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(patient("the answer's head", io.read_u8()).await.expect("it is answered"));
        }
        let answer = String::from_utf8(answer).expect("heads are text");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        (Self { io }, answer)
    }

    /// Sends these bytes.
    pub async fn write(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the gateway reads");
    }

    /// The next frame: its first byte and its payload; `None` when the gateway has closed.
    pub async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        patient("the next frame", async {
            let first = self.io.read_u8().await.ok()?;
            let length = match self.io.read_u8().await.ok()? {
                126 => u64::from(self.io.read_u16().await.ok()?),
                127 => self.io.read_u64().await.ok()?,
                short => u64::from(short),
            };
            let mut payload = vec![0; usize::try_from(length).expect("it fits")];
            self.io.read_exact(&mut payload).await.ok()?;
            Some((first, payload))
        })
        .await
    }

    /// The next frame, which must be a whole text.
    pub async fn text(&mut self) -> String {
        let (first, payload) = self.frame().await.expect("the connection is open");
        assert_eq!(first, 0x81, "no text: {payload:?}");
        String::from_utf8(payload).expect("texts are UTF-8")
    }

    /// The next frame, which must close, and nothing behind it: the code.
    pub async fn closed(&mut self) -> u16 {
        let (first, payload) = self.frame().await.expect("a reason is given");
        assert_eq!(first, 0x88, "no close frame: {payload:?}");
        assert_eq!(self.frame().await, None, "nothing comes behind the end");
        u16::from_be_bytes([payload[0], payload[1]])
    }
}

/// A frame as clients send it.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(0x80 | u8::try_from(short).expect("it is short")),
        long @ 126..65536 => {
            frame.push(0xfe);
            frame.extend(u16::try_from(long).expect("it fits").to_be_bytes());
        }
        longer => {
            frame.push(0xff);
            frame.extend((longer as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}
