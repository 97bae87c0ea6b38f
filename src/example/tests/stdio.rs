//! The server on a pair of byte streams.

mod modern;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, duplex};
use tokio::task::JoinHandle;

use super::super::content::Content;
use super::super::revision::Offered;
use super::super::service::Server;
use super::super::{Kind, stdio};
use super::{hello, notification, parse, request, tool};

/// A client at the other end of the streams.
struct Client {
    input: Option<DuplexStream>,
    output: Lines<BufReader<DuplexStream>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Client {
    async fn start() -> Self {
        let mut client = Self::connect(Offered::All);
        client.send(&request(0, "initialize", hello("2025-11-25"))).await;
        assert_eq!(client.next().await.unwrap()["id"], 0);
        client
    }

    fn connect(offered: Offered) -> Self {
        let server = Server::new(Content::new(Kind::Notes), offered, 50, true);
        let (input, server_input) = duplex(4096);
        let (server_output, output) = duplex(4096);
        let server = Arc::new(server);
        let server =
            tokio::spawn(async move { stdio::serve(&server, server_input, server_output).await });
        Self { input: Some(input), output: BufReader::new(output).lines(), server }
    }

    async fn send(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        self.output.next_line().await.unwrap().map(|line| parse(&line))
    }
}

#[tokio::test(start_paused = true)]
async fn many_requests_are_in_flight_and_answered_as_they_finish() {
    let mut client = Client::start().await;
    for (id, delay_ms) in [(1, 300), (2, 200), (3, 100)] {
        let params = tool("slow", json!({"steps": 1, "delay_ms": delay_ms}));
        client.send(&request(id, "tools/call", params)).await;
    }
    client.send(&request(4, "ping", json!({}))).await;
    for id in [4, 3, 2, 1] {
        assert_eq!(client.next().await.unwrap()["id"], id);
    }
}

#[tokio::test]
async fn noise_blank_lines_and_carriage_returns_do_no_harm() {
    let mut client = Client::start().await;
    client.send("Starting up ...").await;
    client.send("").await;
    client.send("{\"jsonrpc\":").await;
    client.send(&format!("{}\r", request(1, "ping", json!({})))).await;
    assert_eq!(client.next().await.unwrap()["id"], 1);
    client.send("5").await;
    assert_eq!(client.next().await.unwrap()["error"]["code"], -32600);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
    let mut client = Client::start().await;
    let chunk = "x".repeat(1024 * 1024);
    for _ in 0..17 {
        client.input.as_mut().unwrap().write_all(chunk.as_bytes()).await.unwrap();
    }
    client.send("").await;
    client.send(&request(1, "ping", json!({}))).await;
    assert_eq!(client.next().await.unwrap()["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_with_its_input_and_finishes_what_is_nearly_done() {
    let mut client = Client::start().await;
    client.send(&request(1, "tools/call", tool("slow", json!({"steps": 1, "delay_ms": 50})))).await;
    let endless = tool("slow", json!({"steps": 1000, "delay_ms": 60_000}));
    client.send(&request(2, "tools/call", endless)).await;
    client.send(&request(3, "tools/call", tool("ask_user", json!({})))).await;
    assert_eq!(client.next().await.unwrap()["method"], "elicitation/create");
    // The last line has no end, and counts all the same.
    let last = request(4, "ping", json!({}));
    client.input.as_mut().unwrap().write_all(last.as_bytes()).await.unwrap();
    client.input = None;
    let mut ids = Vec::new();
    while let Some(answer) = client.next().await {
        ids.push(answer["id"].clone());
    }
    assert_eq!(ids, [4, 3, 1]);
    client.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_server_ends_when_nobody_reads_its_output() {
    let client = Client::start().await;
    let Client { mut input, output, server } = client;
    drop(output);
    let ping = format!("{}\n", request(1, "ping", json!({})));
    input.as_mut().unwrap().write_all(ping.as_bytes()).await.unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_call_on_the_line_is_not_answered() {
    let mut client = Client::start().await;
    let endless = tool("slow", json!({"steps": 1000, "delay_ms": 60_000}));
    client.send(&request(1, "tools/call", endless)).await;
    client.send(&notification("notifications/cancelled", json!({"requestId": 1}))).await;
    client.send(&request(2, "tools/call", tool("echo", json!({"message": "x"})))).await;
    assert_eq!(client.next().await.unwrap()["id"], 2);
    client.input = None;
    assert_eq!(client.next().await, None);
}
