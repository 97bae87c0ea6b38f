//! A server on a port of its own that answers as it is told, byte by byte where that matters.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// One request as it came in; header names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) verb: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
    /// `initialize`, `GET`, `response`.
    pub(crate) fn what(&self) -> String {
        let json = self.json();
        match json["method"].as_str() {
            Some(method) => method.to_owned(),
            None if self.verb == "POST" => "response".to_owned(),
            None => self.verb.clone(),
        }
    }
    pub(crate) fn id(&self) -> String {
        self.json()["id"].to_string()
    }
}

/// The way back. Dropping it without an answer closes the connection.
pub(crate) struct Back {
    out: OwnedWriteHalf,
    keep: bool,
}

impl Back {
    pub(crate) async fn bytes(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.out.write_all(bytes.as_ref()).await;
        self.keep = true;
    }
    pub(crate) async fn full(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) {
        let mut text = format!("HTTP/1.1 {status} Status\r\n");
        for (key, value) in headers {
            text += &format!("{key}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n", body.as_ref().len());
        self.bytes([text.as_bytes(), body.as_ref()].concat()).await;
    }
    pub(crate) async fn json(&mut self, body: impl AsRef<[u8]>) {
        self.full(200, &[("content-type", "application/json")], body).await;
    }
    /// `{"jsonrpc":"2.0","id":ID,"result":RESULT}`
    pub(crate) async fn result(&mut self, asked: &Asked, result: &str) {
        self.json(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, asked.id())).await;
    }
    pub(crate) async fn sse(&mut self) {
        self.bytes(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    }
    pub(crate) async fn chunk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let head = format!("{:x}\r\n", bytes.len());
        self.bytes([head.as_bytes(), bytes, b"\r\n"].concat()).await;
    }
    pub(crate) async fn event(&mut self, data: impl AsRef<str>) {
        self.chunk(format!("event: message\ndata: {}\n\n", data.as_ref())).await;
    }
    pub(crate) async fn end(&mut self) {
        self.bytes("0\r\n\r\n").await;
    }
    /// Resolves when the other side has closed the connection.
    pub(crate) async fn closed(&self) {
        let mut byte = [0];
        while matches!(self.out.as_ref().peek(&mut byte).await, Ok(1..)) {
            tokio::task::yield_now().await;
        }
    }
    /// A JSON-RPC error with that HTTP status.
    pub(crate) async fn error(&mut self, asked: &Asked, status: u16, error: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, asked.id());
        self.full(status, &[("content-type", "application/json")], text).await;
    }
    /// The connection ends with this exchange.
    pub(crate) fn close(&mut self) {
        self.keep = false;
    }
}

type Answering = Pin<Box<dyn Future<Output = Back> + Send>>;
type Handler = Arc<dyn Fn(Asked, Back) -> Answering + Send + Sync>;

/// The server. Ends, with its connections, when it is dropped.
pub(crate) struct Stub {
    pub(crate) url: url::Url,
    log: Arc<Mutex<Vec<Asked>>>,
    accepted: Arc<AtomicUsize>,
    server: AbortHandle,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Stub {
    /// Answers every request by `handler`.
    pub(crate) async fn start<F, A>(handler: F) -> Self
    where
        F: Fn(Asked, Back) -> A + Send + Sync + 'static,
        A: Future<Output = Back> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, handler)
    }

    /// The same on a listener.
    pub(crate) fn on<F, A>(listener: TcpListener, handler: F) -> Self
    where
        F: Fn(Asked, Back) -> A + Send + Sync + 'static,
        A: Future<Output = Back> + Send + 'static,
    {
        let port = listener.local_addr().expect("an address").port();
        let url = format!("http://127.0.0.1:{port}/mcp").parse().expect("a url");
        let handler: Handler = Arc::new(move |asked, back| Box::pin(handler(asked, back)));
        let log = Arc::<Mutex<Vec<Asked>>>::default();
        let accepted = Arc::<AtomicUsize>::default();
        let (seen, count) = (Arc::clone(&log), Arc::clone(&accepted));
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, Arc::clone(&handler), Arc::clone(&seen)));
            }
        });
        Self { url, log, accepted, server: server.abort_handle() }
    }

    /// A server of MCP sessions; `handler` answers what is not about the session.
    pub(crate) async fn mcp<F, A>(handler: F) -> Self
    where
        F: Fn(Asked, Back) -> A + Send + Sync + 'static,
        A: Future<Output = Back> + Send + 'static,
    {
        let sessions = Arc::new(Sessions::default());
        Self::sessions(&sessions, handler).await
    }

    /// The same, with sessions that can be made to be forgotten.
    pub(crate) async fn sessions<F, A>(sessions: &Arc<Sessions>, handler: F) -> Self
    where
        F: Fn(Asked, Back) -> A + Send + Sync + 'static,
        A: Future<Output = Back> + Send + 'static,
    {
        let (sessions, handler) = (Arc::clone(sessions), Arc::new(handler));
        Self::start(move |asked, mut back| {
            let (sessions, handler) = (Arc::clone(&sessions), Arc::clone(&handler));
            async move {
                match asked.what().as_str() {
                    "initialize" => sessions.open(&asked, &mut back).await,
                    _ if asked.header("mcp-session-id") != Some(&*sessions.current()) => {
                        back.full(404, &[], "").await;
                    }
                    "notifications/initialized" => back.full(202, &[], "").await,
                    "GET" if !sessions.streams.load(Ordering::SeqCst) => {
                        back.full(405, &[], "").await
                    }
                    "DELETE" => back.full(200, &[], "").await,
                    _ => return handler(asked, back).await,
                }
                back
            }
        })
        .await
    }

    /// A server without sessions; `handler` answers all but `server/discover`.
    pub(crate) async fn modern<F, A>(handler: F) -> Self
    where
        F: Fn(Asked, Back) -> A + Send + Sync + 'static,
        A: Future<Output = Back> + Send + 'static,
    {
        let handler = Arc::new(handler);
        Self::start(move |asked, mut back| {
            let handler = Arc::clone(&handler);
            async move {
                match asked.what().as_str() {
                    "server/discover" => back.result(&asked, DISCOVERED).await,
                    "initialize" => back.error(&asked, 400, UNSUPPORTED).await,
                    "GET" | "DELETE" => back.full(405, &[], "").await,
                    _ => return handler(asked, back).await,
                }
                back
            }
        })
        .await
    }

    /// What was asked so far.
    pub(crate) fn log(&self) -> Vec<Asked> {
        self.log.lock().clone()
    }

    /// What of that kind was asked so far.
    pub(crate) fn asked(&self, what: &str) -> Vec<Asked> {
        self.log().into_iter().filter(|asked| asked.what() == what).collect()
    }

    /// How many connections were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// The sessions of a stub: one is known at a time.
#[derive(Default)]
pub(crate) struct Sessions {
    number: AtomicUsize,
    /// Whether GET is handed to the handler.
    pub(crate) streams: std::sync::atomic::AtomicBool,
}

impl Sessions {
    pub(crate) fn current(&self) -> String {
        format!("session-{}", self.number.load(Ordering::SeqCst))
    }
    /// The current session is known no more.
    pub(crate) fn forget(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
    }
    async fn open(&self, asked: &Asked, back: &mut Back) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{HELLO}}}"#, asked.id());
        let session = self.current();
        let headers = [("content-type", "application/json"), ("mcp-session-id", session.as_str())];
        back.full(200, &headers, text).await;
    }
}

/// An `InitializeResult`.
pub(crate) const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"},"instructions":"be kind"}"#;

/// A `DiscoverResult`.
pub(crate) const DISCOVERED: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"be brief","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"stub","version":"2"}}}"#;

/// How a server without sessions refuses one.
pub(crate) const UNSUPPORTED: &str = r#"{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}"#;

async fn serve(stream: TcpStream, handler: Handler, log: Arc<Mutex<Vec<Asked>>>) {
    let _ = stream.set_nodelay(true);
    let (read, mut out) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(asked) = read_request(&mut read).await {
        log.lock().push(asked.clone());
        let back = handler(asked, Back { out, keep: false }).await;
        if !back.keep {
            return;
        }
        out = back.out;
    }
}

async fn read_request(read: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Asked> {
    let mut line = String::new();
    read.read_line(&mut line).await.ok().filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (verb, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        read.read_line(&mut line).await.ok()?;
        let Some((key, value)) = line.trim_end().split_once(':') else { break };
        let (key, value) = (key.to_ascii_lowercase(), value.trim().to_owned());
        if key == "content-length" {
            length = value.parse().ok()?;
        }
        headers.push((key, value));
    }
    let mut text = vec![0; length];
    read.read_exact(&mut text).await.ok()?;
    Some(Asked { verb, path, headers, text: String::from_utf8(text).ok()? })
}
