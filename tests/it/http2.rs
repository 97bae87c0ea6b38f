//! HTTP/2 with clients and with upstreams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::client::patient;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup, until};
use crate::mcp::{NEWEST, hello, request};
use crate::tls::{self, Authority};
use crate::wire::{Tls, http2, post2, whole};

#[tokio::test]
async fn requests_share_a_connection_and_a_slow_one_delays_no_other() {
    let up = Fake::plain()
        .on("slow", |call: Call| async move {
            while call.fake.count("fast") < 20 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            call.result("\"slow\"").await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("node", &up, "").rpc("\"*\" = \"node\"").start().await;
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let sender = http2(line).await;
    let ask = |method: &str, id: usize| {
        let mut sender = sender.clone();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[{id}]}}"#);
        async move { whole(sender.send_request(post2("/rpc", body)).await.unwrap()).await }
    };
    let slow = tokio::spawn(ask("slow", 0));
    for id in 1..=20 {
        let answer = ask("fast", id).await;
        assert_eq!(answer.json(), json!({"jsonrpc": "2.0", "id": id, "result": [id]}));
    }
    assert_eq!(patient("the slow one", slow).await.unwrap().json()["result"], "slow");
    let mut foreign = post2("/rpc", "{}");
    *foreign.uri_mut() = "http://evil.example/rpc".parse().unwrap();
    let refused = whole(sender.clone().send_request(foreign).await.unwrap()).await;
    assert_eq!(refused.status, 403, "the authority is the host");
}

/// A JSON-RPC server that speaks nothing but HTTP/2: answers with the method, and counts.
struct Far {
    addr: std::net::SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// Connections are told to end.
    end: Arc<Notify>,
    /// Requests are answered while there are permits.
    go: Arc<Semaphore>,
}

impl Far {
    async fn start(streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = Self {
            addr: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
            end: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
        };
        let (connections, requests) = (Arc::clone(&far.connections), Arc::clone(&far.requests));
        let (end, go) = (Arc::clone(&far.end), Arc::clone(&far.go));
        tokio::spawn(async move {
            while let Ok((line, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (requests, go, end) =
                    (Arc::clone(&requests), Arc::clone(&go), Arc::clone(&end));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (requests, go) = (Arc::clone(&requests), Arc::clone(&go));
                    async move {
                        assert!(request.uri().authority().is_some());
                        assert!(!request.headers().contains_key("host"));
                        requests.fetch_add(1, Ordering::SeqCst);
                        let body = request.into_body().collect().await?.to_bytes();
                        go.acquire().await.unwrap().forget();
                        let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
                        let answer =
                            json!({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]});
                        let answer = Full::new(Bytes::from(answer.to_string()));
                        let answer = Response::builder()
                            .header("content-type", "application/json")
                            .body(answer);
                        Ok::<_, hyper::Error>(answer.unwrap())
                    }
                });
                tokio::spawn(async move {
                    let mut builder =
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    builder.max_concurrent_streams(streams);
                    let serving = builder.serve_connection(TokioIo::new(line), service);
                    let mut serving = std::pin::pin!(serving);
                    tokio::select! {
                        _ = serving.as_mut() => return,
                        () = end.notified() => serving.as_mut().graceful_shutdown(),
                    }
                    let _ = serving.await;
                });
            }
        });
        far
    }

    async fn until_asked(&self, count: usize) {
        until("requests upstream", || self.requests.load(Ordering::SeqCst) >= count).await;
    }

    /// A gateway in front.
    async fn gateway(&self) -> Gateway {
        let lines = format!(
            "protocol = \"jsonrpc\"\nhttp2 = true\nurl = \"http://{}/\"\ntimeout = \"10s\"",
            self.addr
        );
        let setup = Setup::new().server("workers = 1").upstream("far", &lines);
        setup.rpc("\"*\" = \"far\"").start().await
    }
}

/// A call with its number as its params.
async fn call(gateway: &Gateway, id: usize) -> crate::client::Reply {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":[{id}]}}"#);
    gateway.http().post("/rpc", body).await
}

#[tokio::test]
async fn requests_to_an_upstream_share_a_connection_and_open_another_when_it_is_full() {
    let far = Far::start(20).await;
    let gateway = far.gateway().await;
    far.go.add_permits(1);
    assert_eq!(call(&gateway, 0).await.status, 200);
    let calls = (0..20).map(|id| call(&gateway, id));
    let calls = futures_util::future::join_all(calls);
    let release = async {
        far.until_asked(21).await;
        assert_eq!(far.connections.load(Ordering::SeqCst), 1);
        let metrics = gateway.metrics().await;
        let active = [("upstream", "far"), ("state", "active")];
        assert_eq!(metrics.value("trunkline_upstream_connections", &active), 1.0);
        let more = tokio::spawn({
            let http = gateway.http();
            async move { http.post("/rpc", r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#).await }
        });
        far.until_asked(22).await;
        assert_eq!(far.connections.load(Ordering::SeqCst), 2, "the first takes no more at once");
        far.go.add_permits(21);
        assert_eq!(patient("one more", more).await.unwrap().status, 200);
    };
    let (answers, ()) = tokio::join!(calls, release);
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!(answer.json()["result"], json!([id]));
    }
}

#[tokio::test]
async fn an_upstream_that_says_goodbye_finishes_what_it_has_and_gets_the_rest_anew() {
    let far = Far::start(100).await;
    let gateway = far.gateway().await;
    let first = call(&gateway, 1);
    let rest = async {
        far.until_asked(1).await;
        far.end.notify_waiters();
        far.go.add_permits(2);
        // Whether it meets the goodbye or comes after it, it is answered.
        assert_eq!(call(&gateway, 2).await.json()["result"], json!([2]));
    };
    let (first, ()) = tokio::join!(first, rest);
    assert_eq!(first.json()["result"], json!([1]));
    far.go.add_permits(1);
    assert_eq!(call(&gateway, 3).await.json()["result"], json!([3]));
    assert!(far.connections.load(Ordering::SeqCst) >= 2);
    assert_eq!(far.requests.load(Ordering::SeqCst), 3, "each ran once");
}

#[tokio::test]
async fn mcp_works_whole_over_http_2_and_tls_on_both_sides() {
    let ca = Authority::new("ca");
    let folder = tempfile::tempdir().unwrap();
    tls::write(folder.path(), "tls", &ca.sign("localhost"));
    std::fs::write(folder.path().join("ca.pem"), &ca.pem).unwrap();
    let path = folder.path().display();
    let keys = format!("tls = {{ cert = \"{path}/tls.pem\", key = \"{path}/tls.key\" }}");
    let up = Fake::mcp(["x", "steps"])
        .on("tools/call", |call: Call| async move {
            if call.tool() != "steps" {
                return call.say("x").await;
            }
            call.out.sse().await;
            for step in 1..=3 {
                call.out.event(call.progress(step, "step")).await;
            }
            call.out.event(call.response(&crate::fake::said("done").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let far = Setup::new().server(&keys).fake("up", &up).mcp(&["up"]).start().await;
    let lines = format!(
        "url = \"https://localhost:{}/mcp\"\ntls = {{ ca = \"{path}/ca.pem\" }}",
        far.addr().port()
    );
    let near = Setup::new().server(&keys).upstream("far", &lines).mcp(&["far"]).start().await;
    let alpn = vec!["h2", "http/1.1"];
    let tls = Tls { ca: ca.pem.clone(), alpn, ..Tls::default() };
    let line = tls.connect(near.addr()).await.unwrap();
    assert_eq!(line.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut sender = http2(line).await;
    let opened = request(0, "initialize", &hello(NEWEST, &json!({})));
    let opened = whole(sender.send_request(post2("/mcp", opened)).await.unwrap()).await;
    let session = opened.header("mcp-session-id").to_owned();
    let mut send = |body: String| {
        let mut request = post2("/mcp", body);
        request.headers_mut().insert("mcp-session-id", session.parse().unwrap());
        sender.send_request(request)
    };
    let told = request("null", "notifications/initialized", &json!({})).replace("\"id\":null,", "");
    assert_eq!(patient("202", send(told)).await.unwrap().status(), 202);
    let listed = loop {
        let list = send(request(1, "tools/list", &json!({})));
        let list = whole(patient("a list", list).await.unwrap()).await.json();
        if list["result"]["tools"].as_array().is_some_and(|tools| tools.len() == 2) {
            break list;
        }
    };
    assert_eq!(listed["result"]["tools"][0]["name"], "x");
    let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "p"}});
    let stream = patient("a stream", send(request(2, "tools/call", &params))).await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let text = whole(stream).await;
    assert_eq!(text.text().matches("notifications/progress").count(), 3, "{}", text.text());
    assert!(text.text().contains("done"));
    let idle = [("upstream", "far"), ("state", "idle")];
    let active = [("upstream", "far"), ("state", "active")];
    let count = |m: &crate::metrics::Metrics| {
        m.value("trunkline_upstream_connections", &idle)
            + m.value("trunkline_upstream_connections", &active)
    };
    // One for each worker thread at most, though calls and streams go over them.
    let workers = std::thread::available_parallelism().unwrap().get();
    let metrics = near.metrics().await;
    assert!(count(&metrics) <= workers as f64 + 1.0, "{}", count(&metrics));
}

#[tokio::test]
async fn a_reset_stream_is_a_client_that_went_away_and_the_others_go_on() {
    let up = Fake::mcp(["wait"])
        .on("tools/call", |call: Call| async move {
            tokio::time::sleep(crate::gateway::PATIENCE).await;
            call.say("late").await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let mut sender = http2(line).await;
    // A client of 2026-07-28 that goes away cancels.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let modern = |id: u32, method: &'static str, params: serde_json::Value| {
        let mut request = post2("/mcp", request(id, method, &params));
        let headers = request.headers_mut();
        headers.insert("mcp-protocol-version", "2026-07-28".parse().unwrap());
        headers.insert("mcp-method", method.parse().unwrap());
        if let Some(name) = params["name"].as_str() {
            headers.insert("mcp-name", name.parse().unwrap());
        }
        request
    };
    let params = json!({"name": "wait", "arguments": {}, "_meta": meta});
    let waiting = tokio::spawn(sender.send_request(modern(1, "tools/call", params)));
    up.until_count("tools/call", 1).await;
    waiting.abort();
    up.until_count("notifications/cancelled", 1).await;
    let listed = modern(2, "tools/list", json!({"_meta": meta}));
    let listed = whole(sender.send_request(listed).await.unwrap()).await;
    assert_eq!(listed.status, 200, "{}", listed.text());
}

#[tokio::test]
async fn at_a_drain_what_runs_finishes_and_the_connection_is_told_to_end() {
    let far = Far::start(100).await;
    let mut gateway = far.gateway().await;
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
        TokioExecutor::new(),
        TokioIo::new(line),
    )
    .await
    .unwrap();
    let connection = tokio::spawn(connection);
    let asked = tokio::spawn(
        sender.send_request(post2("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#)),
    );
    far.until_asked(1).await;
    gateway.terminate();
    gateway.until_log("the drain", |log| log.count("draining") > 0).await;
    far.go.add_permits(1);
    let answer = whole(patient("the answer", asked).await.unwrap().unwrap()).await;
    assert_eq!(answer.json()["result"], json!([1]));
    patient("the end of the connection", connection).await.unwrap().unwrap();
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn a_client_that_gives_up_all_it_asks_is_cut_off() {
    let far = Far::start(100).await;
    let gateway = far.gateway().await;
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let sender = http2(line).await;
    let flood = async {
        for id in 0..2000 {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let mut own = sender.clone();
            let asked = tokio::spawn(async move { own.send_request(post2("/rpc", body)).await });
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            if sender.is_closed() {
                return id;
            }
            asked.abort();
        }
        panic!("nobody minds")
    };
    patient("the end of the flood", flood).await;
    gateway.until_log("why", |log| log.count("gives up nearly all") == 1).await;
    gateway.until("nothing runs", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0).await;
}

#[tokio::test]
async fn who_begins_half_or_asks_nothing_more_is_not_kept() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .server("header_timeout = \"500ms\"")
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    for begun in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
        line.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _ = patient("its end", line.read_to_end(&mut rest)).await;
    }
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
        TokioExecutor::new(),
        TokioIo::new(line),
    )
    .await
    .unwrap();
    let connection = tokio::spawn(connection);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#;
    let answer = whole(sender.send_request(post2("/rpc", body)).await.unwrap()).await;
    assert_eq!(answer.json()["result"], json!([1]));
    patient("a goodbye", connection).await.unwrap().unwrap();
}
