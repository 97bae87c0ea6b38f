//! Clients of HTTP that do not read what they asked for: what they hold is taken from them.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::patient;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::metrics::Metrics;
use crate::wire::{http2, post2};

/// Answers with more than the buffers of a connection take.
async fn flood(call: Call) {
    call.out
        .bytes("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    call.out.chunk(format!(r#"{{"jsonrpc":"2.0","id":{},"result":["#, call.id())).await;
    let piece = format!("\"{}\",", "x".repeat(64 << 10));
    for _ in 0..400 {
        call.out.chunk(&piece).await;
    }
    call.out.chunk("0]}").await;
    call.out.end().await;
}

async fn serve(server: &str, lines: &str) -> (Gateway, Fake) {
    let up = Fake::plain().on("flood", flood).start().await;
    let lines = format!("max_message = \"200MiB\"\n{lines}");
    let gateway =
        Setup::new().server(server).plain("up", &up, &lines).rpc(r#""*" = "up""#).start().await;
    (gateway, up)
}

fn ask(method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string()
}

/// Asks for the flood, and does not read.
async fn deaf(gateway: &Gateway, version: &str) -> TcpStream {
    let body = ask("flood");
    let request = format!(
        "POST /rpc HTTP/{version}\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        gateway.addr(),
        body.len()
    );
    let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn clients_that_never_read_do_not_keep_an_upstream_from_others() {
    let (gateway, up) = serve("write_timeout = \"1s\"", "max_concurrency = 2\nmax_queue = 0").await;
    let clients = [deaf(&gateway, "1.1").await, deaf(&gateway, "1.1").await];
    up.until_count("flood", 2).await;
    let begun = Instant::now();
    while gateway.http().post("/rpc", ask("echo")).await.status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the upstream is held");
    }
    gateway.until("both are gone", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0).await;
    drop(clients);
}

#[tokio::test]
async fn answers_that_nobody_reads_do_not_stay_in_memory() {
    let (gateway, _up) = serve("write_timeout = \"1s\"", "").await;
    // Before HTTP/1.1 answers are read whole.
    let client = deaf(&gateway, "1.0").await;
    gateway.until("it is held", |m| m.value("trunkline_bytes_in_flight", &[]) > 25e6).await;
    gateway.until("it is let go", |m| m.value("trunkline_bytes_in_flight", &[]) == 0.0).await;
    drop(client);
}

#[tokio::test]
async fn on_http_2_only_the_answer_that_is_not_taken_ends() {
    let lines = "max_concurrency = 2\nmax_queue = 0";
    let (gateway, up) = serve("write_timeout = \"1s\"", lines).await;
    let mut sender = http2(TcpStream::connect(gateway.addr()).await.unwrap()).await;
    let batch = format!("[{}]", ask("flood"));
    let mut held = Vec::new();
    for (count, body) in [ask("flood"), batch].into_iter().enumerate() {
        let answer = patient("a head", sender.send_request(post2("/rpc", body))).await.unwrap();
        held.push(answer);
        up.until_count("flood", count + 1).await;
    }
    let begun = Instant::now();
    let free = |m: &Metrics| {
        m.value("trunkline_exchanges_in_flight", &[]) == 0.0
            && m.value("trunkline_bytes_in_flight", &[]) == 0.0
    };
    gateway.until("both are let go", free).await;
    // The connection is as it was.
    let mut answer = sender.send_request(post2("/rpc", ask("echo"))).await;
    while answer.as_ref().is_ok_and(|answer| answer.status() != 200) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the upstream is held");
        answer = sender.send_request(post2("/rpc", ask("echo"))).await;
    }
    assert!(answer.is_ok(), "{answer:?}");
    drop(held);
}
