//! Large answers: forwarded while they come, never completed when they are not right, and bounded in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::client::patient;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::ws_client::Ws;

const LINES: &str = "stream_above = \"64KiB\"\nmax_message = \"1MiB\"";
/// More than is read at once.
const LARGE: usize = 300 << 10;
const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";

fn ask(method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": "mine", "method": method}).to_string()
}

/// The request as bytes, for a connection that ends with its answer.
fn raw(gateway: &Gateway, method: &str, version: &str) -> String {
    let body = ask(method);
    format!(
        "POST /rpc HTTP/{version}\r\nhost: {}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        gateway.addr(),
        body.len()
    )
}

async fn serve(up: &Fake, lines: &str) -> Gateway {
    Setup::new().plain("up", up, lines).rpc(r#""*" = "up""#).start().await
}

/// Sends a text in chunks of an odd length.
async fn chunked(call: &Call, text: &[u8]) {
    call.out.bytes(HEAD).await;
    for piece in text.chunks(7001) {
        call.out.chunk(piece).await;
    }
}

#[tokio::test]
async fn members_may_stand_in_any_order_and_all_but_the_id_goes_through() {
    let string = "ä\\u00e4 1.10 ".repeat(LARGE / 14);
    let text = Arc::new(string.clone());
    let up = Fake::plain()
        .on("*", move |call: Call| {
            let text = Arc::clone(&text);
            async move {
                let (id, method) = (call.id(), call.req.rpc().unwrap_or_default());
                let body = match method.as_str() {
                    "usual" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":["{text}"]}}"#),
                    "id last" => format!(r#"{{"jsonrpc":"2.0","result":["{text}"],"id":{id}}}"#),
                    "bare" => format!(r#"{{"id":{id},"result":["{text}"]}}"#),
                    "old" => format!(r#"{{"result":["{text}"],"error":null,"id":{id}}}"#),
                    "old with id first" => {
                        format!(r#"{{"id":{id},"error":null,"result":["{text}"]}}"#)
                    }
                    "more" => format!(
                        "\u{feff} {{ \"a\" : 1.0 ,\"jsonrpc\":\"2.0\", \"id\":{id},\n\"result\":[\"{text}\"],\"z\":{{\"id\":1e2}} }} \n"
                    ),
                    other => panic!("unknown mode {other}"),
                };
                let length = body.len();
                if length % 2 == 0 {
                    call.out.json(&body).await;
                } else {
                    chunked(&call, body.as_bytes()).await;
                    call.out.end().await;
                }
            }
        })
        .start()
        .await;
    let gateway = serve(&up, LINES).await;
    let result = format!(r#""result":["{string}"]"#);
    for method in ["usual", "id last", "bare", "old", "old with id first", "more"] {
        for batch in [false, true] {
            let body = if batch { format!("[{}]", ask(method)) } else { ask(method) };
            let reply = gateway.http().post("/rpc", body).await;
            assert_eq!(reply.status, 200, "{method}");
            assert_eq!(reply.header("content-type"), "application/json");
            assert!(reply.text().contains(&result), "{method}: the text is the same");
            let json = if batch { reply.json()[0].clone() } else { reply.json() };
            assert_eq!(
                (&json["jsonrpc"], &json["id"]),
                (&json!("2.0"), &json!("mine")),
                "{method}"
            );
            assert!(json.get("error").is_none(), "{method}");
            if method == "more" {
                assert!(reply.text().contains(r#""a" : 1.0"#), "unknown members stay");
                assert!(reply.text().contains(r#""z":{"id":1e2}"#), "unknown members stay");
            }
        }
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("outcome", "ok")]), 12.0);
    assert_eq!(metrics.value("trunkline_upstream_calls_total", &[("outcome", "ok")]), 12.0);
    let served = metrics.value("trunkline_bytes_total", &[("direction", "out")]);
    assert!(served > 12.0 * LARGE as f64, "{served}");
}

#[tokio::test]
async fn an_answer_goes_out_before_its_end_is_known_once_it_is_known_whose_it_is() {
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let up = Fake::plain()
        .on("large", move |call: Call| {
            let gate = Arc::clone(&gate);
            async move {
                let half = "x".repeat(LARGE / 2);
                call.out.bytes(HEAD).await;
                let id = call.id();
                let begin = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":["{half}"#);
                call.out.chunk(begin).await;
                gate.notified().await;
                call.out.chunk(format!(r#"{half}"]}}"#)).await;
                call.out.end().await;
            }
        })
        .start()
        .await;
    let gateway = serve(&up, LINES).await;
    let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
    stream.write_all(raw(&gateway, "large", "1.1").as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < LARGE / 2 {
        let read = patient("the first half", stream.read_buf(&mut seen)).await.unwrap();
        assert!(read > 0, "it ended early");
    }
    let begin = String::from_utf8_lossy(&seen[..400]).into_owned();
    assert!(begin.contains(r#""id":"mine""#), "{begin}");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_in_flight", &[]), 1.0);
    go_on.notify_one();
    patient("the rest", stream.read_to_end(&mut seen)).await.unwrap();
    assert!(seen.ends_with(b"\r\n0\r\n\r\n"), "it is whole");
    gateway.until("it has ended", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0).await;
}

/// Answers with a large text that goes wrong, as the method says.
async fn go_wrong(call: Call) {
    let (id, method) = (call.id(), call.req.rpc().unwrap_or_default());
    let text = "x".repeat(LARGE);
    let good = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":["{text}"]"#);
    let deep = format!(",\"d\":{}", "[".repeat(2000));
    let tail: &[u8] = match method.as_str() {
        "syntax" => b",}",
        "cut text" => b"",
        "trailing" => b"} {}",
        "utf-8" => b",\"a\":\"\xff\"}",
        "twice" => b",\"result\":1}",
        "alias" => b",\"Result\":1}",
        "error too" => b",\"error\":{\"code\":1,\"message\":\"m\"}}",
        "method" => b",\"method\":\"x\"}",
        "deep" => deep.as_bytes(),
        "reset" | "silent" | "too large" | "no end" => b"",
        other => panic!("unknown mode {other}"),
    };
    chunked(&call, &[good.as_bytes(), tail].concat()).await;
    match method.as_str() {
        "reset" => call.out.reset().await,
        "silent" => call.out.gone().await,
        "no end" => call.out.close(),
        "too large" => {
            call.out.chunk(format!(r#","more":["{}"]}}"#, "x".repeat(1 << 20))).await;
            call.out.end().await;
        }
        _ => call.out.end().await,
    }
}

const WRONG: [(&str, &str); 13] = [
    ("syntax", "protocol"),
    ("cut text", "protocol"),
    ("trailing", "protocol"),
    ("utf-8", "protocol"),
    ("twice", "protocol"),
    ("alias", "protocol"),
    ("error too", "protocol"),
    ("method", "protocol"),
    ("deep", "protocol"),
    ("too large", "protocol"),
    ("reset", "unavailable"),
    ("no end", "unavailable"),
    ("silent", "timeout"),
];

#[tokio::test]
async fn what_goes_wrong_in_the_middle_can_never_be_taken_as_whole() {
    let up = Fake::plain().on("*", go_wrong).on("good", |call: Call| async move {
        call.result("1").await;
    });
    let up = up.start().await;
    let gateway = serve(&up, &format!("{LINES}\ntimeout = \"700ms\"")).await;
    let mut outcomes = std::collections::BTreeMap::new();
    for (method, outcome) in WRONG {
        let answer = gateway.http().raw(raw(&gateway, method, "1.1").as_bytes()).await;
        // A reset takes with it what was not read yet.
        if method != "reset" {
            assert!(answer.starts_with("HTTP/1.1 200"), "{method}: {:.300}", answer);
            assert!(answer.len() > LARGE / 2, "{method}: it had begun");
        }
        assert!(!answer.ends_with("\r\n0\r\n\r\n"), "{method}: it is not completed");
        *outcomes.entry(outcome).or_insert(0.0) += 1.0;
        // Where it is not known in time what a connection does, the answer is told whole or as an error.
        let answer = gateway.http().raw(raw(&gateway, method, "1.0").as_bytes()).await;
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let error: Value = serde_json::from_str(body).unwrap_or_default();
        // Whoever reads it whole knows better what is meant: an error beside a result wins.
        let code = error["error"]["code"].as_i64().unwrap_or_default();
        let right = if method == "error too" { 1..=1 } else { -31006..=-31003 };
        assert!(right.contains(&code), "{method}: {:.300}", answer);
        let reply = gateway.http().post("/rpc", format!("[{},{}]", ask(method), ask("good"))).await;
        let items = reply.json();
        assert_eq!(items[0]["error"]["code"], code, "{method}");
        assert_eq!(items[1]["result"], 1, "{method}");
    }
    let metrics = gateway.metrics().await;
    for (outcome, count) in outcomes {
        let told = metrics.value("trunkline_exchanges_total", &[("outcome", outcome)]);
        assert!(told >= count, "{outcome}: {told} of {count}");
    }
    let idle = |m: &crate::metrics::Metrics| {
        m.value("trunkline_upstream_connections", &[("state", "active")]) == 0.0
            && m.value("trunkline_exchanges_in_flight", &[]) == 0.0
            && m.value("trunkline_bytes_in_flight", &[]) == 0.0
    };
    gateway.until("nothing is left", idle).await;
}

#[tokio::test]
async fn a_foreign_answer_is_never_begun_wherever_its_id_stands() {
    let up = Fake::plain()
        .on("*", |call: Call| async move {
            let text = format!("secret {}", "x".repeat(LARGE));
            let body = match call.req.rpc().unwrap_or_default().as_str() {
                "first" => format!(r#"{{"jsonrpc":"2.0","id":987654,"result":"{text}"}}"#),
                "last" => format!(r#"{{"jsonrpc":"2.0","result":"{text}","id":987654}}"#),
                _ => format!(r#"{{"jsonrpc":"2.0","result":"{text}"}}"#),
            };
            chunked(&call, body.as_bytes()).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = serve(&up, LINES).await;
    for method in ["first", "last", "none"] {
        let reply = gateway.http().post("/rpc", ask(method)).await;
        assert_eq!((reply.status, reply.code()), (502, -31006), "{method}");
        assert!(!reply.text().contains("secret"), "{method}");
        assert_eq!(reply.json()["id"], "mine", "{method}");
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_that_says_so_is_refused_before_it_begins() {
    let up = Fake::plain()
        .on("large", |call: Call| async move {
            call.result(&format!("\"{}\"", "x".repeat(2 << 20))).await;
        })
        .start()
        .await;
    let gateway = serve(&up, LINES).await;
    let reply = gateway.http().post("/rpc", ask("large")).await;
    assert_eq!((reply.status, reply.code()), (502, -31006));
    assert!(reply.text().contains("max_message"), "{}", reply.text());
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_frees_its_slot_and_ends_the_call() {
    let left = Arc::new(Notify::new());
    let told = Arc::clone(&left);
    let up = Fake::plain()
        .on("large", move |call: Call| {
            let told = Arc::clone(&told);
            async move {
                let text = "x".repeat(LARGE);
                let begin = format!(r#"{{"jsonrpc":"2.0","id":{},"result":["{text}"#, call.id());
                chunked(&call, begin.as_bytes()).await;
                call.out.gone().await;
                told.notify_one();
            }
        })
        .start()
        .await;
    let gateway = serve(&up, &format!("{LINES}\nmax_concurrency = 1\nmax_queue = 0")).await;
    let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
    stream.write_all(raw(&gateway, "large", "1.1").as_bytes()).await.unwrap();
    let mut seen = vec![0; 1 << 10];
    patient("the beginning", stream.read_exact(&mut seen)).await.unwrap();
    let reply = gateway.http().post("/rpc", ask("echo")).await;
    assert_eq!(reply.code(), -31002, "its slot is taken as long as it comes");
    drop(stream);
    patient("the upstream to be told", left.notified()).await;
    let begun = Instant::now();
    while gateway.http().post("/rpc", ask("echo")).await.status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the slot is not freed");
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("outcome", "cancelled")]), 1.0);
}

#[tokio::test]
async fn a_large_answer_that_still_comes_when_the_gateway_must_end_is_cut_short() {
    let up = Fake::plain()
        .on("large", |call: Call| async move {
            let text = "x".repeat(LARGE);
            let begin = format!(r#"{{"jsonrpc":"2.0","id":{},"result":["{text}"#, call.id());
            chunked(&call, begin.as_bytes()).await;
            call.out.gone().await;
        })
        .start()
        .await;
    let mut gateway = Setup::new()
        .server("drain_timeout = \"200ms\"")
        .plain("up", &up, LINES)
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
    stream.write_all(raw(&gateway, "large", "1.1").as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < LARGE / 2 {
        patient("the beginning", stream.read_buf(&mut seen)).await.unwrap();
    }
    gateway.terminate();
    // How it ends is for the kernel to say; what counts is that it is not completed.
    let _ = patient("the end", stream.read_to_end(&mut seen)).await;
    assert!(!seen.ends_with(b"\r\n0\r\n\r\n"));
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn c125_clients_that_do_not_read_hold_little_of_what_is_large() {
    let up = Fake::plain()
        .on("flood", |call: Call| async move {
            call.out.bytes(HEAD).await;
            let begin = format!(r#"{{"jsonrpc":"2.0","id":{},"result":["#, call.id());
            call.out.chunk(begin).await;
            let piece = format!("\"{}\",", "x".repeat(64 << 10));
            for _ in 0..400 {
                call.out.chunk(&piece).await;
            }
            call.out.chunk("0]}").await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = serve(&up, "max_message = \"200MiB\"").await;
    assert_eq!(gateway.http().post("/rpc", ask("echo")).await.status, 200);
    let before = gateway.memory();
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(gateway.addr()).await.unwrap();
        stream.write_all(raw(&gateway, "flood", "1.1").as_bytes()).await.unwrap();
        let mut seen = vec![0; 1 << 10];
        patient("the beginning", stream.read_exact(&mut seen)).await.unwrap();
        deaf.push(stream);
    }
    // One that reads gets all of it meanwhile.
    let mut reader = TcpStream::connect(gateway.addr()).await.unwrap();
    reader.write_all(raw(&gateway, "flood", "1.1").as_bytes()).await.unwrap();
    let (mut last, mut total, mut buffer) = (Vec::new(), 0, vec![0; 256 << 10]);
    let read_all = async {
        loop {
            let read = reader.read(&mut buffer).await.unwrap();
            if read == 0 {
                return;
            }
            total += read;
            last.extend_from_slice(&buffer[..read]);
            let old = last.len().saturating_sub(64);
            last.drain(..old);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read_all).await.expect("it is read to its end");
    assert!(total > 25 << 20 && last.ends_with(b"}\r\n0\r\n\r\n"), "{total}");
    let grown = gateway.memory().saturating_sub(before) >> 20;
    assert!(grown < 48, "125 MiB on their way take {grown} MiB");
    drop(deaf);
    gateway
        .until("nothing is left", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0)
        .await;
}

#[tokio::test]
async fn bodies_beyond_what_may_be_in_flight_are_refused_until_there_is_room() {
    let up = Fake::plain().on("hang", |call: Call| async move { call.out.gone().await });
    let up = up.start().await;
    let gateway = Setup::new()
        .server("max_body = \"1MiB\"\nmax_bytes_in_flight = \"2MiB\"")
        .plain("up", &up, "")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let body = |method: &str| {
        let params = json!(["x".repeat(900 << 10)]);
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    let mut held = Vec::new();
    for count in 1..=2 {
        let (http, body) = (gateway.http(), body("hang"));
        held.push(tokio::spawn(async move { http.post("/rpc", body).await }));
        up.until_count("hang", count).await;
    }
    let reply = gateway.http().post("/rpc", body("echo")).await;
    assert_eq!((reply.status, reply.code()), (503, -31002), "{}", reply.text());
    assert_eq!(reply.header("retry-after"), "1");
    assert_eq!(reply.json()["error"]["data"]["reason"], "overloaded");
    assert_eq!(gateway.http().post("/rpc", ask("echo")).await.status, 200, "small ones pass");
    let metrics = gateway.metrics().await;
    let used = metrics.value("trunkline_bytes_in_flight", &[]);
    assert!((1_843_200.0..2_097_152.0).contains(&used), "{used}");
    held.iter().for_each(tokio::task::JoinHandle::abort);
    gateway.until("room again", |m| m.value("trunkline_bytes_in_flight", &[]) == 0.0).await;
    let reply = gateway.http().post("/rpc", body("echo")).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_room_is_told_as_that() {
    let up = Fake::plain()
        .on("large", |call: Call| async move {
            call.result(&format!("\"{}\"", "x".repeat(2 << 20))).await;
        })
        .start()
        .await;
    let gateway = Setup::new()
        .server("max_body = \"64KiB\"\nmax_bytes_in_flight = \"1MiB\"")
        .plain("up", &up, "")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let items = gateway.http().post("/rpc", format!("[{},{}]", ask("large"), ask("echo"))).await;
    let items = items.json();
    assert_eq!(items[0]["error"]["code"], -31002, "{items}");
    assert_eq!(items[0]["error"]["data"]["retryable"], false, "the call has run");
    assert_eq!(items[1]["result"], Value::Null);
    let reply = gateway.http().post("/rpc", ask("large")).await;
    assert_eq!(reply.json()["result"].as_str().map(str::len), Some(2 << 20), "it is not held");
    gateway.until("nothing is left", |m| m.value("trunkline_bytes_in_flight", &[]) == 0.0).await;
}

#[tokio::test]
async fn what_came_over_a_socket_beyond_the_limit_is_refused_there() {
    let up = Fake::plain().on("hang", |call: Call| async move { call.out.gone().await });
    let up = up.start().await;
    let gateway = Setup::new()
        .server("max_body = \"1MiB\"\nmax_bytes_in_flight = \"2MiB\"")
        .plain("up", &up, "")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let message = |id: u64, method: &str| {
        let params = json!(["x".repeat(900 << 10)]);
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let mut socket = Ws::open(&gateway, "/rpc").await;
    for count in 1..=2 {
        socket.say(message(count, "hang")).await;
        up.until_count("hang", usize::try_from(count).unwrap()).await;
    }
    let answer = socket.ask(message(3, "echo")).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-31002)), "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "overloaded");
    assert_eq!(socket.ask(ask("echo")).await["result"], Value::Null, "small ones pass");
    drop(socket);
    gateway.until("nothing is left", |m| m.value("trunkline_bytes_in_flight", &[]) == 0.0).await;
}
