//! A [`Scene`] over HTTP, in this process: sessions and a GET stream where the revision has them, headers that repeat the
//! body where it wants them; answers as JSON or as event streams.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::scene::{Header, Hop, Journal, Scene};

type Body = BoxBody<Bytes, Infallible>;
type Messages = mpsc::UnboundedReceiver<Value>;

/// How requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// With one JSON object.
    Json,
    /// With an event stream.
    Sse,
}

/// The server; ends when dropped.
pub struct Stage {
    addr: SocketAddr,
    house: Arc<House>,
    listening: AbortHandle,
}

struct House {
    scene: Arc<Scene>,
    answers: Answers,
    sessions: Mutex<HashMap<String, Arc<Hop>>>,
    counter: AtomicU64,
    /// Connections and calls that run.
    tasks: Mutex<JoinSet<()>>,
}

impl Stage {
    /// Starts a server of that revision.
    pub async fn start(revision: &str, answers: Answers) -> Self {
        let house = Arc::new(House {
            scene: Scene::new(revision, Journal::in_memory()),
            answers,
            sessions: Mutex::default(),
            counter: AtomicU64::new(1),
            tasks: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket");
        let shared = Arc::clone(&house);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let house = Arc::clone(&shared);
                shared.spawn(house.connection(stream));
            }
        });
        Self { addr, house, listening: listening.abort_handle() }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where its endpoint is.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// What happened.
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.house.scene.journal)
    }

    /// Ends all that runs and forgets all sessions, as when the process is replaced.
    pub fn restart(&self) {
        self.house.sessions.lock().clear();
        self.house.tasks.lock().abort_all();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.listening.abort();
        self.house.tasks.lock().abort_all();
    }
}

impl House {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| {
            let house = Arc::clone(&self);
            async move { Ok::<_, Infallible>(house.serve(request).await) }
        });
        // Ends early when the other side goes, or at a restart.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let header = |name: &str| -> Option<String> {
            // Bytes beyond ASCII would be read in two ways.
            head.headers.get(name)?.to_str().ok().map(str::to_owned)
        };
        let modern = self.scene.is_modern();
        match head.method {
            Method::POST => {}
            Method::GET if !modern => return self.stream(header("mcp-session-id")),
            Method::DELETE if !modern => {
                let id = header("mcp-session-id").unwrap_or_default();
                self.sessions.lock().remove(&id);
                return empty(200);
            }
            _ => return empty(405),
        }
        let Ok(body) = body.collect().await else { return empty(400) };
        let Ok(message) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
            return error(400, &Value::Null, -32700, "no JSON");
        };
        let accept = header("accept").unwrap_or_default();
        let accepts = ["application/json", "text/event-stream"];
        let kind = header("content-type").unwrap_or_default();
        if !accepts.iter().all(|kind| accept.contains(kind)) || kind != "application/json" {
            self.scene.violation("wrong media types", &json!({"accept": accept, "type": kind}));
            return empty(406);
        }
        if modern {
            self.serve_modern(message, &header).await
        } else {
            self.serve_legacy(message, &header).await
        }
    }

    async fn serve_modern(self: Arc<Self>, message: Value, header: Header<'_>) -> Response<Body> {
        if let Err(refusal) = self.scene.check_modern(&message, Some(header)) {
            // Clients of either era may find out about it.
            if message["method"] != "initialize" {
                self.scene.violation(&refusal.message, &message);
            }
            return json_body(refusal.status, &refusal.answer(&message["id"]));
        }
        let request = message.get("id").is_some();
        let mute = self.answers == Answers::Json;
        let listens = message["method"] == "subscriptions/listen";
        let hop = Hop::request(mute && !listens);
        let mut messages = self.run(hop, message);
        if !request {
            return empty(202);
        }
        // The status is known with the first message.
        let Some(first) = messages.recv().await else { return empty(500) };
        match first["error"]["code"].as_i64() {
            Some(-32601) => json_body(404, &first),
            Some(-32602) | None if self.answers == Answers::Sse || listens => sse(first, messages),
            Some(-32602) | None => json_body(200, &first),
            Some(_) => json_body(400, &first),
        }
    }

    async fn serve_legacy(self: Arc<Self>, message: Value, header: Header<'_>) -> Response<Body> {
        let id = message["id"].clone();
        let (hop, opened) = if message["method"] == "initialize" {
            let session = format!("scene-{}", self.counter.fetch_add(1, Ordering::Relaxed));
            let hop = Hop::session(&session, self.answers == Answers::Json);
            self.sessions.lock().insert(session.clone(), Arc::clone(&hop));
            self.scene.announce(&hop);
            (hop, Some(session))
        } else {
            let Some(session) = header("mcp-session-id") else {
                return error(400, &id, -32000, "Mcp-Session-Id header is required");
            };
            let Some(hop) = self.sessions.lock().get(&session).cloned() else {
                return error(404, &id, -32001, "Session not found");
            };
            (hop, None)
        };
        let version = header("mcp-protocol-version");
        if opened.is_none()
            && version.as_deref() != Some(&self.scene.revision)
            && (self.scene.since("2025-06-18") || version.is_some())
        {
            self.scene.violation(&format!("version header {version:?}"), &message);
        }
        self.scene.check_legacy(&message);
        let request = message.get("id").is_some() && message.get("method").is_some();
        let messages = self.run(hop, message);
        let mut response = if !request {
            let mut messages = messages;
            // Its effect is there before it is acknowledged.
            let _ = messages.recv().await;
            empty(202)
        } else if self.answers == Answers::Sse {
            sse(Value::Null, messages)
        } else {
            let mut messages = messages;
            match messages.recv().await {
                Some(answer) => json_body(200, &answer),
                // Cancelled.
                None => sse(Value::Null, messages),
            }
        };
        if let Some(session) = opened {
            let session = session.parse().expect("it is a header value");
            response.headers_mut().insert("mcp-session-id", session);
        }
        response
    }

    /// Serves a message beside the connection: its end is not the end of a call, unless the era says so.
    fn run(&self, hop: Arc<Hop>, message: Value) -> Messages {
        let (out, messages) = mpsc::unbounded_channel();
        let scene = Arc::clone(&self.scene);
        self.spawn(async move { scene.take(&hop, message, out).await });
        messages
    }

    /// The stream of a session that belongs to no call.
    fn stream(&self, session: Option<String>) -> Response<Body> {
        let Some(session) = session else { return empty(400) };
        let Some(hop) = self.sessions.lock().get(&session).cloned() else { return empty(404) };
        let (side, messages) = mpsc::unbounded_channel();
        hop.set_side(side);
        self.scene.journal.write(&json!({"event": "stream", "session": session}));
        sse(Value::Null, messages)
    }
}

fn sse(first: Value, messages: Messages) -> Response<Body> {
    let rest = futures_util::stream::unfold(messages, |mut messages| async move {
        messages.recv().await.map(|message| (message, messages))
    });
    let first = futures_util::stream::iter((!first.is_null()).then_some(first));
    let frames = first.chain(rest).map(|message| {
        let text = format!("event: message\ndata: {message}\n\n");
        Ok::<_, Infallible>(Frame::data(Bytes::from(text)))
    });
    let body = BodyExt::boxed(StreamBody::new(frames));
    response(200, "text/event-stream", body)
}

fn json_body(status: u16, message: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(message.to_string())).boxed();
    response(status, "application/json", body)
}

fn error(status: u16, id: &Value, code: i64, message: &str) -> Response<Body> {
    let error = json!({"code": code, "message": message});
    json_body(status, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

fn empty(status: u16) -> Response<Body> {
    let mut response = Response::new(Full::default().boxed());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

fn response(status: u16, kind: &str, body: Body) -> Response<Body> {
    let response = Response::builder().status(status).header("content-type", kind).body(body);
    response.expect("a response")
}
