//! Compressed request bodies, and what browsers are told.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::fake::Fake;
use crate::gateway::Setup;
use crate::metrics::Metrics;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn raw(text: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn compressed_bodies_are_inflated_within_the_limit_of_their_content() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .server("max_body = \"1MiB\"")
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let send = async |coding: &str, body: Vec<u8>| {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        gateway.http().send("POST", "/rpc", &headers, body).await
    };
    let long = "x".repeat(700_000);
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":["{long}"]}}"#);
    for (coding, body) in [
        ("gzip", gzip(text.as_bytes())),
        ("X-GZIP", gzip(text.as_bytes())),
        ("deflate", zlib(text.as_bytes())),
        ("deflate", raw(text.as_bytes())),
        ("identity", text.clone().into_bytes()),
    ] {
        let reply = send(coding, body).await;
        assert_eq!(reply.status, 200, "{coding}: {}", reply.text());
        assert_eq!(reply.json()["result"], json!([long]), "{coding}");
    }
    let sent = &up.of("echo")[0];
    assert_eq!(sent.header("content-encoding"), None);
    assert_eq!(sent.params(), Some(format!("[\"{long}\"]")), "byte for byte");

    let before = gateway.memory();
    for (coding, bomb) in
        [("gzip", gzip(&vec![b' '; 256 << 20])), ("deflate", zlib(&vec![b' '; 64 << 20]))]
    {
        let reply = send(coding, bomb).await;
        assert_eq!((reply.status, reply.code()), (413, -31010), "{coding}");
        assert!(reply.text().contains("max_body"), "{}", reply.text());
    }
    let grown = gateway.memory().saturating_sub(before);
    assert!(grown < 32 << 20, "a bomb is not inflated: {grown} bytes more");

    let mut cut = gzip(text.as_bytes());
    cut.truncate(cut.len() - 3);
    for (what, body) in
        [("cut short", cut), ("not gzip", text.clone().into_bytes()), ("nothing", Vec::new())]
    {
        let reply = send("gzip", body).await;
        assert_eq!(reply.status, 400, "{what}");
        assert_eq!(reply.code(), -32600, "{what}");
    }
    for coding in ["br", "zstd", "gzip, gzip", "compress"] {
        let reply = send(coding, gzip(text.as_bytes())).await;
        assert_eq!(reply.status, 415, "{coding}");
        assert_eq!(reply.header("accept-encoding"), "gzip, deflate", "{coding}");
    }
    assert_eq!(up.count("echo"), 5);
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call_without_credentials_and_read_what_they_need() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .server("allowed_origins = [\"https://app.example\"]")
        .fake("up", &up)
        .mcp(&["up"])
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let origin = ("origin", "https://app.example");
    for path in ["/mcp", "/mcp/sse", "/rpc"] {
        let asked = [
            origin,
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type,mcp-param-region,x-other"),
            ("access-control-request-private-network", "true"),
        ];
        let reply = gateway.http().send("OPTIONS", path, &asked, "").await;
        assert_eq!(reply.status, 204, "{path}");
        assert_eq!(reply.header("access-control-allow-origin"), origin.1);
        assert_eq!(reply.header("access-control-allow-private-network"), "true");
        assert!(reply.header("access-control-max-age").parse::<u32>().unwrap() > 0);
        let allowed = reply.header("access-control-allow-headers");
        assert!(allowed.contains("content-encoding") && allowed.ends_with("mcp-param-region"));
        let vary: Vec<_> = reply.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["access-control-request-headers", "origin"], "{path}");
        assert_eq!(reply.header("access-control-allow-credentials"), "");
    }
    let typed = ("content-type", "application/json");
    let good = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    // A page is told why, too, when something is wrong with what it sent.
    for (method, path, kind, body, status) in [
        ("POST", "/rpc", typed, good, 200),
        ("POST", "/rpc", typed, "{", 400),
        ("POST", "/rpc", ("content-type", "text/plain"), good, 415),
        ("PUT", "/rpc", typed, good, 405),
        ("POST", "/nowhere", typed, good, 404),
        ("POST", "/mcp", typed, good, 400),
    ] {
        let reply = gateway.http().send(method, path, &[origin, kind], body).await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.header("access-control-allow-origin"), origin.1, "{method} {path}");
        assert_eq!(reply.header("access-control-allow-credentials"), "");
        let exposed = reply.header("access-control-expose-headers");
        for name in ["mcp-session-id", "www-authenticate", "retry-after"] {
            assert!(exposed.contains(name), "{name}");
        }
    }
    let evil = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    for method in ["OPTIONS", "POST"] {
        let reply = gateway.http().send(method, "/rpc", &evil, "").await;
        assert_eq!(reply.status, 403, "{method}");
        assert_eq!(reply.header("access-control-allow-origin"), "", "{method}");
        assert_eq!(reply.header("access-control-allow-methods"), "", "{method}");
    }
    let quiet = gateway.http().post("/rpc", good).await;
    assert_eq!(quiet.header("access-control-allow-origin"), "", "nobody asked");
}

#[tokio::test]
async fn what_a_compressed_body_holds_counts_while_it_comes() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .server("max_body = \"1MiB\"\nmax_bytes_in_flight = \"2MiB\"")
        .plain("node", &up, "")
        .rpc("\"*\" = \"node\"")
        .start()
        .await;
    let long = "x".repeat(900 << 10);
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":["{long}"]}}"#);
    let mut held = Vec::new();
    for (coding, body) in [("gzip", gzip(text.as_bytes())), ("deflate", zlib(text.as_bytes()))] {
        let head = format!(
            "POST /rpc HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-encoding: {coding}\r\ncontent-length: {}\r\n\r\n",
            gateway.addr(),
            body.len()
        );
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        // All but the last byte.
        let part = [head.as_bytes(), &body[..body.len() - 1]].concat();
        stream.write_all(&part).await.unwrap();
        held.push(stream);
    }
    let full = |m: &Metrics| m.value("trunkline_bytes_in_flight", &[]) > f64::from(1700 << 10);
    gateway.until("both are counted", full).await;
    let reply = gateway.http().post("/rpc", text).await;
    assert_eq!((reply.status, reply.code()), (503, -31002), "{}", reply.text());
    drop(held);
    gateway.until("nothing is left", |m| m.value("trunkline_bytes_in_flight", &[]) == 0.0).await;
    assert_eq!(up.requests().len(), 0);
}
