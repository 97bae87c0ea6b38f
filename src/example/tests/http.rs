//! The server over loopback sockets.

mod modern;
mod rounds;
mod suite;
mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::super::content::Content;
use super::super::http::{self, Http};
use super::super::revision::Offered;
use super::super::service::Server;
use super::super::{Answers, Kind};
use super::{hello, notification, parse, request, tool};

/// A server on a port of its own.
struct Web {
    address: SocketAddr,
    http: Arc<Http>,
    tasks: JoinSet<()>,
}

/// A request in the making.
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: String,
}

impl<'a> Ask<'a> {
    fn post(path: &'a str, body: impl Into<String>) -> Self {
        let headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        Self { method: "POST", path, headers, body: body.into() }
    }

    fn of(method: &'a str, path: &'a str) -> Self {
        Self { method, path, headers: vec![("accept", "*/*")], body: String::new() }
    }

    /// Sets a header, in place of one of that name.
    fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }
}

impl Web {
    async fn start(answers: Answers, lasting: bool) -> Self {
        let server = Server::new(Content::new(Kind::Notes), Offered::All, 50, lasting);
        Self::serve(server, answers).await
    }

    async fn of(kind: Kind, offered: Offered) -> Self {
        Self::serve(Server::new(Content::new(kind), offered, 50, true), Answers::Auto).await
    }

    async fn serve(server: Server, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let http = Arc::new(Http::new(Arc::new(server), answers, address.ip()));
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(listener, Arc::clone(&http)));
        Self { address, http, tasks }
    }

    /// Sends a request on a connection of its own.
    async fn send(&mut self, ask: Ask<'_>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        self.tasks.spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder().method(ask.method).uri(ask.path);
        if !ask.headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(ask.body));
        sender.send_request(request.body(body).unwrap()).await.unwrap()
    }

    async fn status(&mut self, ask: Ask<'_>) -> StatusCode {
        self.send(ask).await.status()
    }

    /// Sends a request that is answered by a JSON body.
    async fn json(&mut self, ask: Ask<'_>) -> Value {
        let response = self.send(ask).await;
        assert_eq!(response.headers()["content-type"], "application/json");
        parse(&text(response).await)
    }

    /// Begins a session.
    async fn session(&mut self, revision: &str) -> String {
        let response =
            self.send(Ask::post("/mcp", request(0, "initialize", hello(revision)))).await;
        assert_eq!(response.status(), 200);
        response.headers()["mcp-session-id"].to_str().unwrap().to_owned()
    }
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The events of a response, one by one.
struct Events {
    body: Incoming,
    buffer: String,
}

impl Events {
    fn of(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), buffer: String::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).map(parse);
                self.buffer = rest.to_owned();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let frame = self.body.frame().await?.unwrap();
            self.buffer += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }
}

fn call(id: u64, name: &str, arguments: Value) -> String {
    request(id, "tools/call", tool(name, arguments))
}

fn slow_with_progress(id: u64, steps: u64, delay_ms: u64) -> String {
    let mut params = tool("slow", json!({"steps": steps, "delay_ms": delay_ms}));
    params["_meta"] = json!({"progressToken": 5});
    request(id, "tools/call", params)
}

#[tokio::test]
async fn a_session_lives_from_initialize_to_delete() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let ping = || Ask::post("/mcp", request(1, "ping", json!({})));
    let note = notification("notifications/initialized", json!({}));
    let accepted = web.send(Ask::post("/mcp", note).with("mcp-session-id", &id)).await;
    assert_eq!((accepted.status(), text(accepted).await), (StatusCode::ACCEPTED, String::new()));
    assert_eq!(web.json(ping().with("mcp-session-id", &id)).await["result"], json!({}));
    assert_eq!(web.status(ping()).await, 400);
    assert_eq!(web.status(ping().with("mcp-session-id", "unknown")).await, 404);
    let again = Ask::post("/mcp", request(2, "initialize", hello("2025-11-25")));
    let again = web.json(again.with("mcp-session-id", &id)).await;
    assert_eq!(again["error"]["code"], -32600);
    let delete = || Ask::of("DELETE", "/mcp").with("mcp-session-id", &id);
    assert_eq!(web.status(delete()).await, 204);
    assert_eq!(web.status(delete()).await, 404);
    assert_eq!(web.status(ping().with("mcp-session-id", &id)).await, 404);
}

#[tokio::test]
async fn initialize_under_a_dead_id_begins_anew_and_a_failed_one_leaves_no_session() {
    let mut web = Web::start(Answers::Auto, true).await;
    let ask = Ask::post("/mcp", request(0, "initialize", hello("2025-06-18")));
    let response = web.send(ask.with("mcp-session-id", "dead")).await;
    assert_ne!(response.headers()["mcp-session-id"], "dead");
    let response = web.send(Ask::post("/mcp", request(0, "initialize", json!({})))).await;
    assert!(!response.headers().contains_key("mcp-session-id"));
    assert_eq!(parse(&text(response).await)["error"]["code"], -32602);
}

#[tokio::test]
async fn an_answer_is_json_unless_something_precedes_it() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let quiet = Ask::post("/mcp", call(1, "slow", json!({"steps": 1, "delay_ms": 1})));
    assert_eq!(web.json(quiet.with("mcp-session-id", &id)).await["id"], 1);
    let loud = Ask::post("/mcp", slow_with_progress(2, 2, 1)).with("mcp-session-id", &id);
    let mut events = Events::of(web.send(loud).await);
    assert_eq!(events.next().await.unwrap()["params"]["progress"], 1);
    assert_eq!(events.next().await.unwrap()["params"]["progress"], 2);
    assert_eq!(events.next().await.unwrap()["id"], 2);
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn answers_can_be_set_to_sse_or_json() {
    let mut web = Web::start(Answers::Sse, true).await;
    let id = web.session("2025-11-25").await;
    for body in [request(1, "ping", json!({})), call(1, "echo", json!({"message": "x"}))] {
        let ask = Ask::post("/mcp", body).with("mcp-session-id", &id);
        let mut events = Events::of(web.send(ask).await);
        assert_eq!(events.next().await.unwrap()["id"], 1);
        assert_eq!(events.next().await, None);
    }
    let mut web = Web::start(Answers::Json, true).await;
    let id = web.session("2025-11-25").await;
    let loud = Ask::post("/mcp", slow_with_progress(2, 2, 1)).with("mcp-session-id", &id);
    assert_eq!(web.json(loud).await["id"], 2);
    let asks = Ask::post("/mcp", call(3, "ask_user", json!({}))).with("mcp-session-id", &id);
    assert_eq!(web.json(asks).await["result"]["isError"], true);
}

#[tokio::test]
async fn the_accept_header_narrows_the_answer_and_can_be_unacceptable() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let ask = |accept| {
        Ask::post("/mcp", slow_with_progress(2, 1, 1))
            .with("mcp-session-id", &id)
            .with("accept", accept)
    };
    assert_eq!(web.json(ask("application/json")).await["id"], 2);
    let mut events = Events::of(web.send(ask("text/event-stream")).await);
    assert_eq!(events.next().await.unwrap()["params"]["progress"], 1);
    assert_eq!(web.status(ask("text/html")).await, 406);
}

#[tokio::test]
async fn a_question_travels_on_the_calls_stream_and_its_answer_is_accepted() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let text = call(1, "summarize", json!({"text": "story"}));
    let ask = Ask::post("/mcp", text).with("mcp-session-id", &id);
    let mut events = Events::of(web.send(ask).await);
    let question = events.next().await.unwrap();
    assert_eq!(question["method"], "sampling/createMessage");
    let content = json!({"type": "text", "text": "short"});
    let result = json!({"role": "assistant", "model": "m", "content": content});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result}).to_string();
    let ask = Ask::post("/mcp", answer).with("mcp-session-id", &id);
    assert_eq!(web.status(ask).await, 202);
    let answer = events.next().await.unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "short");
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_cancelled_post_ends_without_an_answer() {
    let mut web = Web::start(Answers::Sse, true).await;
    let id = web.session("2025-11-25").await;
    let ask = Ask::post("/mcp", call(1, "slow", json!({"steps": 1000, "delay_ms": 60_000})));
    let mut events = Events::of(web.send(ask.with("mcp-session-id", &id)).await);
    let cancel = notification("notifications/cancelled", json!({"requestId": 1}));
    let ask = Ask::post("/mcp", cancel).with("mcp-session-id", &id);
    assert_eq!(web.status(ask).await, 202);
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn the_get_stream_carries_what_belongs_to_no_call_and_has_one_reader_at_a_time() {
    let mut web = Web::start(Answers::Auto, true).await;
    let (one, other) = (web.session("2025-11-25").await, web.session("2025-11-25").await);
    let listen = || Ask::of("GET", "/mcp").with("mcp-session-id", &one);
    let mut stream = Events::of(web.send(listen()).await);
    assert_eq!(web.status(listen()).await, 409);

    let grow = Ask::post("/mcp", call(1, "grow", json!({}))).with("mcp-session-id", &one);
    assert_eq!(web.json(grow).await["id"], 1, "the GET stream takes what would precede this");
    for list in ["tools", "prompts", "resources"] {
        let method = format!("notifications/{list}/list_changed");
        assert_eq!(stream.next().await.unwrap()["method"], method);
    }
    // Without a GET stream, the caller hears of it on the call's own.
    let grow = Ask::post("/mcp", call(1, "grow", json!({}))).with("mcp-session-id", &other);
    let mut events = Events::of(web.send(grow).await);
    assert_eq!(events.next().await.unwrap()["method"], "notifications/tools/list_changed");

    let delete = Ask::of("DELETE", "/mcp").with("mcp-session-id", &one);
    assert_eq!(web.status(delete).await, 204);
    while stream.next().await.is_some() {}
}

#[tokio::test]
async fn a_get_stream_whose_reader_left_can_be_opened_again() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let listen = || Ask::of("GET", "/mcp").with("mcp-session-id", &id);
    let stream = web.send(listen()).await;
    assert_eq!(stream.status(), 200);
    drop(stream);
    let reopened = async {
        while web.status(listen()).await != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), reopened).await.unwrap();
}

#[tokio::test]
async fn a_call_goes_on_when_its_connection_is_lost() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let ask = Ask::post("/mcp", slow_with_progress(1, 2, 20)).with("mcp-session-id", &id);
    let mut events = Events::of(web.send(ask).await);
    events.next().await.unwrap();
    drop(events);
    let entry = web.http.sessions.find(&id).unwrap();
    assert!(entry.session.is_busy(), "legacy clients cancel by message, not by leaving");
    let finished = async {
        while entry.session.is_busy() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), finished).await.unwrap();
}

#[tokio::test]
async fn without_sessions_every_request_stands_alone() {
    let mut web = Web::start(Answers::Auto, false).await;
    let init = Ask::post("/mcp", request(0, "initialize", hello("2025-06-18")));
    let response = web.send(init).await;
    assert!(!response.headers().contains_key("mcp-session-id"));
    let answer = parse(&text(response).await);
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(answer["result"]["capabilities"]["tools"]["listChanged"], false);
    let echo = || Ask::post("/mcp", call(1, "echo", json!({"message": "x"})));
    let answer = web.json(echo().with("mcp-protocol-version", "2025-06-18")).await;
    assert_eq!(answer["result"]["content"][0]["text"], "x");
    assert_eq!(web.json(echo()).await["id"], 1);
    let subscribe = request(2, "resources/subscribe", json!({"uri": "notes://1"}));
    assert_eq!(web.json(Ask::post("/mcp", subscribe)).await["error"]["code"], -32601);
    let list = || Ask::post("/mcp", request(3, "tools/list", json!({})));
    let answer = web.json(list().with("mcp-protocol-version", "2025-11-25")).await;
    assert!(answer["result"]["tools"][0].get("title").is_some());
    assert!(web.json(list()).await["result"]["tools"][0].get("title").is_none());
    for method in ["GET", "DELETE"] {
        let response = web.send(Ask::of(method, "/mcp")).await;
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "POST, OPTIONS");
    }
}

#[tokio::test]
async fn foreign_origins_and_hosts_are_turned_away() {
    let mut web = Web::start(Answers::Auto, true).await;
    for path in ["/mcp", "/rpc"] {
        let ask = || Ask::post(path, request(0, "initialize", hello("2025-11-25")));
        assert_eq!(web.status(ask().with("origin", "http://evil.example")).await, 403);
        assert_eq!(web.status(ask().with("origin", "null")).await, 403);
        assert_eq!(web.status(ask().with("host", "evil.example:80")).await, 403);
        let response = web.send(ask().with("origin", "http://localhost:6274")).await;
        assert_eq!(response.status(), 200);
        let allowed = &response.headers()["access-control-allow-origin"];
        assert_eq!(allowed, "http://localhost:6274");
    }
}

#[tokio::test]
async fn bodies_and_headers_that_do_not_fit_are_refused() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let ping = || Ask::post("/mcp", request(1, "ping", json!({}))).with("mcp-session-id", &id);
    assert_eq!(web.status(ping().with("content-type", "text/plain")).await, 415);
    assert_eq!(web.status(ping().without("content-type")).await, 415);
    assert_eq!(web.status(ping().with("content-encoding", "gzip")).await, 415);
    let charset = "Application/JSON;  charset=\"utf-8\"";
    assert_eq!(web.status(ping().with("content-type", charset)).await, 200);
    assert_eq!(web.status(ping().with("mcp-protocol-version", "2026-07-28")).await, 400);
    assert_eq!(web.status(ping().with("mcp-protocol-version", "2025-06-18")).await, 200);
    let raw = |body: &str| Ask::post("/mcp", body).with("mcp-session-id", &id);
    let response = web.send(raw("{")).await;
    assert_eq!(response.status(), 400);
    let answer = parse(&text(response).await);
    assert_eq!(answer["error"]["code"], -32700);
    assert_eq!(answer.get("id"), None, "2025-11-25 leaves the id out");
    let response = web.send(raw(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#)).await;
    assert_eq!(response.status(), 400);
    assert_eq!(parse(&text(response).await)["error"]["code"], -32600);
    assert_eq!(web.status(raw(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#)).await, 400);
    assert_eq!(web.status(Ask::of("PUT", "/mcp")).await, 405);
    assert_eq!(web.status(Ask::of("OPTIONS", "/mcp")).await, 204);
    assert_eq!(web.status(Ask::of("GET", "/other")).await, 404);
    let large = " ".repeat(16 * 1024 * 1024) + &request(1, "ping", json!({}));
    assert_eq!(web.status(Ask::post("/mcp", large)).await, 413);
}

#[tokio::test]
async fn batches_of_2025_03_26_are_answered_by_an_array() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-03-26").await;
    let batch =
        format!("[{},{}]", request(1, "ping", json!({})), call(2, "echo", json!({"message": "x"})));
    let answers = web.json(Ask::post("/mcp", batch).with("mcp-session-id", &id)).await;
    assert_eq!(answers[0]["id"], 1);
    assert_eq!(answers[1]["result"]["content"][0]["text"], "x");
    let notes = format!("[{}]", notification("notifications/initialized", json!({})));
    assert_eq!(web.status(Ask::post("/mcp", notes).with("mcp-session-id", &id)).await, 202);
}

#[tokio::test]
async fn plain_json_rpc_has_the_statuses_of_its_answers() {
    let mut web = Web::start(Answers::Auto, true).await;
    let ask = |body: &str| Ask::post("/rpc", body);
    let answer = web.json(ask(&request(1, "sum", json!([1, 2])))).await;
    assert_eq!(answer["result"], 3);
    assert_eq!(web.status(ask(&request(1, "unknown", json!([])))).await, 200);
    assert_eq!(web.status(ask(r#"{"jsonrpc":"1.0","id":1,"method":"sum"}"#)).await, 200);
    assert_eq!(web.status(ask(r#"{"jsonrpc":"1.0","method":"sum"}"#)).await, 400);
    assert_eq!(web.status(ask("[1]")).await, 200);
    assert_eq!(web.status(ask("[]")).await, 400);
    assert_eq!(web.status(ask("{")).await, 400);
    let note = notification("x", json!([]));
    let response = web.send(ask(&note)).await;
    assert_eq!((response.status(), text(response).await), (StatusCode::NO_CONTENT, String::new()));
    assert_eq!(web.status(ask(&format!("[{note}]"))).await, 204);
    let seen = web.json(ask(&request(1, "notifications_seen", json!([])))).await;
    assert_eq!(seen["result"], 2);
    assert_eq!(web.status(ask("{}").with("content-type", "text/plain")).await, 415);
    let typed = ask("[1]").with("content-type", "application/json-rpc");
    assert_eq!(web.status(typed).await, 200);
    let response = web.send(Ask::of("GET", "/rpc")).await;
    assert_eq!(
        (response.status(), &response.headers()["allow"] == "POST, OPTIONS"),
        (StatusCode::METHOD_NOT_ALLOWED, true)
    );
}
