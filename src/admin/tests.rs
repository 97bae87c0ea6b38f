//! Over real sockets on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{AdminSources, Readiness, UpstreamReadiness, UpstreamState, serve};
use crate::telemetry::Metrics;

struct Admin {
    address: SocketAddr,
    draining: Arc<AtomicBool>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Admin {
    async fn start() -> Self {
        Self::start_with(upstreams()).await
    }

    async fn start_with(upstreams: Vec<UpstreamReadiness>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let draining = Arc::new(AtomicBool::new(false));
        let stop = CancellationToken::new();
        let seen = Arc::clone(&draining);
        let readiness = Arc::new(move || Readiness {
            draining: seen.load(Ordering::Relaxed),
            upstreams: upstreams.clone(),
        });
        let sources = AdminSources { metrics: Metrics::new(&[]), readiness };
        let serving = tokio::spawn(serve(listener, sources, stop.clone()));
        Self { address, draining, stop, serving }
    }

    /// Sends bytes; everything that comes back until the connection ends.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn request(&self, method: &str, path: &str, host: &str) -> String {
        let close = "Connection: close\r\n\r\n";
        self.exchange(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{close}")).await
    }

    async fn get(&self, path: &str) -> String {
        self.request("GET", path, "localhost:9808").await
    }
}

fn upstreams() -> Vec<UpstreamReadiness> {
    let upstream = |name: &str, state, detail: Option<&str>, tools| UpstreamReadiness {
        name: name.to_owned(),
        state,
        detail: detail.map(str::to_owned),
        tools,
    };
    vec![
        upstream("notes", UpstreamState::Up, None, Some(7)),
        upstream("search", UpstreamState::Down, Some("connection \"refused\""), None),
        upstream("files", UpstreamState::Starting, None, None),
        upstream("calc", UpstreamState::Idle, None, None),
    ]
}

fn head(answer: &str) -> String {
    answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn livez_says_ok_and_metrics_are_in_the_text_format() {
    let admin = Admin::start().await;
    let live = admin.get("/livez").await;
    assert!(live.starts_with("HTTP/1.1 200 ") && body(&live).trim() == "ok", "{live}");
    let metrics = admin.get("/metrics?x=1").await;
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert!(head(&metrics).contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(body(&metrics).contains("\ntrunkline_build_info{"), "{metrics}");
}

#[tokio::test]
async fn readyz_is_200_whatever_the_upstreams_do_and_503_while_draining() {
    let admin = Admin::start().await;
    let ready = admin.get("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert!(head(&ready).contains("content-type: application/json"), "{ready}");
    let upstreams = serde_json::json!({
        "notes": { "state": "up", "tools": 7 },
        "search": { "state": "down", "detail": "connection \"refused\"" },
        "files": { "state": "starting" },
        "calc": { "state": "idle" },
    });
    let value: serde_json::Value = serde_json::from_str(body(&ready)).unwrap();
    assert_eq!(value, serde_json::json!({ "status": "ready", "upstreams": upstreams }));

    admin.draining.store(true, Ordering::Relaxed);
    let draining = admin.get("/readyz").await;
    assert!(draining.starts_with("HTTP/1.1 503 "), "{draining}");
    let value: serde_json::Value = serde_json::from_str(body(&draining)).unwrap();
    assert_eq!(value["status"], "draining");
    assert!(admin.get("/livez").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_and_the_index_lists_the_paths() {
    let admin = Admin::start().await;
    assert!(admin.get("/nothing").await.starts_with("HTTP/1.1 404 "));
    assert!(admin.get("/metrics/").await.starts_with("HTTP/1.1 404 "));
    let refused = admin.request("POST", "/metrics", "localhost").await;
    assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
    assert!(head(&refused).contains("allow: get, head"), "{refused}");
    let index = admin.get("/").await;
    for path in ["/metrics", "/livez", "/readyz"] {
        assert!(body(&index).contains(path), "{index}");
    }
    let no_body = admin.request("HEAD", "/livez", "localhost").await;
    assert!(no_body.starts_with("HTTP/1.1 200 ") && body(&no_body).is_empty(), "{no_body}");
}

#[tokio::test]
async fn a_foreign_host_is_refused_on_loopback() {
    let admin = Admin::start().await;
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:9808", "127.1.2.3", "[::1]:9808"] {
        let answer = admin.request("GET", "/readyz", host).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for host in ["evil.example", "localhost.evil.example:9808", "10.0.0.1", "", "[::2]", "a b"] {
        let answer = admin.request("GET", "/readyz", host).await;
        assert!(answer.starts_with("HTTP/1.1 40") && !answer.contains("upstreams"), "{host}");
    }
    let proxied = admin.request("GET", "http://evil.example/readyz", "localhost").await;
    assert!(proxied.starts_with("HTTP/1.1 403 "), "{proxied}");
    let twice = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(admin.exchange(twice).await.starts_with("HTTP/1.1 40"));
    let probe = admin.exchange("GET /livez HTTP/1.0\r\n\r\n").await;
    assert!(probe.starts_with("HTTP/1.0 200 "), "{probe}");
}

// Time is paused: it jumps to the next timer as soon as everybody waits.
#[tokio::test(start_paused = true)]
async fn clients_that_send_nothing_or_half_a_head_are_let_go() {
    let admin = Admin::start().await;
    let begun = tokio::time::Instant::now();
    for sent in ["", "GET /livez HT", "GET /livez HTTP/1.1\r\nHost: localhost\r\n"] {
        let answer = admin.exchange(sent).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // An idle connection too.
    let idle = admin.exchange("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(idle.starts_with("HTTP/1.1 200 "), "{idle}");
    assert!(begun.elapsed() < 5 * super::HEADER_TIMEOUT);
}

#[tokio::test]
async fn heads_over_the_limit_are_refused() {
    let admin = Admin::start().await;
    let long = "x".repeat(super::MAX_HEADER);
    let answer = admin
        .exchange(&format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_the_listener() {
    let admin = Admin::start().await;
    let mut idle = TcpStream::connect(admin.address).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    admin.stop.cancel();
    admin.serving.await.unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(admin.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_full_house_waits_and_is_served_once_others_have_left() {
    let admin = Admin::start().await;
    let mut silent = Vec::new();
    for _ in 0..super::MAX_CONNECTIONS {
        silent.push(TcpStream::connect(admin.address).await.unwrap());
    }
    let answer = admin.get("/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_stuck_in_an_answer_is_let_go() {
    let large = UpstreamReadiness {
        name: "large".to_owned(),
        state: UpstreamState::Up,
        detail: Some("x".repeat(32 << 20)),
        tools: None,
    };
    let admin = Admin::start_with(vec![large]).await;
    let mut stuck = TcpStream::connect(admin.address).await.unwrap();
    stuck.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    stuck.read_exact(&mut first).await.unwrap();
    tokio::time::sleep(super::MAX_AGE + 2 * super::GRACE).await;
    let mut rest = Vec::new();
    // Cut off: with an end or a reset, but without the rest of the answer.
    let _ = stuck.read_to_end(&mut rest).await;
    assert!(rest.len() < 32 << 20, "{}", rest.len());
}
