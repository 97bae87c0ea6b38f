//! A small HTTP/1.1 server that says exactly the bytes it is told to, also wrong ones.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// One request as it came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

#[derive(serde::Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

impl Request {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the gateway sends UTF-8")
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    fn envelope(&self) -> Option<Envelope<'_>> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The JSON-RPC method, if the body is one message.
    pub fn rpc(&self) -> Option<String> {
        self.envelope()?.method
    }

    /// The JSON-RPC id as written.
    pub fn id(&self) -> Option<String> {
        Some(self.envelope()?.id?.get().to_owned())
    }

    /// The JSON-RPC params as written.
    pub fn params(&self) -> Option<String> {
        Some(self.envelope()?.params?.get().to_owned())
    }
}

/// The way back.
#[derive(Clone)]
pub struct Responder {
    io: Arc<Mutex<OwnedWriteHalf>>,
    close: Arc<AtomicBool>,
    gone: CancellationToken,
}

impl Responder {
    /// Writes bytes as they are.
    pub async fn bytes(&self, bytes: impl AsRef<[u8]>) {
        let mut io = self.io.lock().await;
        // The other side may have gone; that is its business.
        let _ = io.write_all(bytes.as_ref()).await;
        let _ = io.flush().await;
    }

    /// A whole response with a length.
    pub async fn full(&self, status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let mut out = format!("HTTP/1.1 {status} Status\r\n").into_bytes();
        for (name, value) in headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        out.extend_from_slice(body);
        self.bytes(out).await;
    }

    /// 200 with a JSON body.
    pub async fn json(&self, body: impl AsRef<[u8]>) {
        self.full(200, &[("content-type", "application/json")], body).await;
    }

    /// The head of an event stream; chunks follow.
    pub async fn sse(&self) {
        self.bytes(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    }

    /// One chunk of a chunked body.
    pub async fn chunk(&self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
        self.bytes(out).await;
    }

    /// One event in one chunk.
    pub async fn event(&self, data: impl AsRef<str>) {
        self.chunk(format!("event: message\ndata: {}\n\n", data.as_ref())).await;
    }

    /// The end of a chunked body.
    pub async fn end(&self) {
        self.bytes("0\r\n\r\n").await;
    }

    /// Closes the connection after this exchange.
    pub fn close(&self) {
        self.close.store(true, Ordering::Relaxed);
    }

    /// Returns when the other side has closed the connection before this exchange was over.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Closes the connection with a reset.
    pub async fn reset(&self) {
        let io = self.io.lock().await;
        let _ = socket2::SockRef::from(io.as_ref()).set_linger(Some(Duration::ZERO));
        self.close();
    }
}

type Future_ = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server on a port of its own; ends when dropped.
pub struct HttpServer {
    addr: SocketAddr,
    task: AbortHandle,
    cut: Arc<Notify>,
}

impl HttpServer {
    /// Starts it at an address, port 0 for a free one; `handler` is called for each request, in order on each
    /// connection.
    pub async fn start_at<F, R>(addr: SocketAddr, handler: F) -> Self
    where
        F: Fn(Request, Responder) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(addr).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let handler = Arc::new(move |req, out| -> Future_ { Box::pin(handler(req, out)) });
        let cut = Arc::<Notify>::default();
        let cuts = Arc::clone(&cut);
        let task = tokio::spawn(async move {
            // Dropped with this task, and all connections with it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (handler, cuts) = (Arc::clone(&handler), Arc::clone(&cuts));
                connections.spawn(async move {
                    tokio::select! {
                        () = serve(stream, &*handler) => {}
                        () = cuts.notified() => {}
                    }
                });
            }
        });
        Self { addr, task: task.abort_handle(), cut }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ends all connections, and what is being done for them.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, handler: &(dyn Fn(Request, Responder) -> Future_ + Send + Sync)) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let mut read = BufReader::new(read);
    let io = Arc::new(Mutex::new(write));
    while let Ok(Some(request)) = read_request(&mut read, &io).await {
        let gone = CancellationToken::new();
        let out = Responder { io: Arc::clone(&io), close: Arc::default(), gone: gone.clone() };
        let mut handling = handler(request, out.clone());
        tokio::select! {
            () = &mut handling => {}
            // What comes meanwhile is the next request, and stays in the buffer.
            more = read.fill_buf() => {
                if more.map_or(true, <[u8]>::is_empty) {
                    gone.cancel();
                }
                handling.await;
            }
        }
        if out.close.load(Ordering::Relaxed) {
            return;
        }
    }
}

async fn read_request(
    read: &mut BufReader<OwnedReadHalf>,
    io: &Mutex<OwnedWriteHalf>,
) -> io::Result<Option<Request>> {
    let first = read_line(read).await?;
    let mut words = first.split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    loop {
        let line = read_line(read).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if request.header("expect").is_some() {
        io.lock().await.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    if let Some(length) = request.header("content-length") {
        let length = length.parse().map_err(io::Error::other)?;
        request.body = vec![0; length];
        read.read_exact(&mut request.body).await?;
    } else if request.header("transfer-encoding").is_some() {
        loop {
            let line = read_line(read).await?;
            let size = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
            let start = request.body.len();
            request.body.resize(start + size, 0);
            read.read_exact(&mut request.body[start..]).await?;
            read_line(read).await?;
            if size == 0 {
                break;
            }
        }
    }
    Ok(Some(request))
}

async fn read_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<String> {
    let mut line = String::new();
    read.read_line(&mut line).await?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
