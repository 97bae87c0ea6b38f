//! WebSocket below the messages: the upgrade, frames as no library sends them, pings, and readers that do not read.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::metrics::Metrics;
use crate::ws_client::{ACCEPT, KEY, Raw, Ws, frame, handshake};

async fn serve(server: &str) -> (Gateway, Fake) {
    let node = Fake::plain().on("large", |call: Call| async move {
        let bytes = call.req.json()["params"][0].as_u64().unwrap_or(0);
        call.result(&format!("\"{}\"", "x".repeat(usize::try_from(bytes).unwrap()))).await;
    });
    let node = node.on("never", |call: Call| async move { call.out.gone().await }).start().await;
    let gateway =
        Setup::new().server(server).plain("node", &node, "").rpc(r#""*" = "node""#).start().await;
    (gateway, node)
}

fn echo(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":["€"]}}"#)
}

fn answer(id: u64) -> String {
    format!(r#"{{"id":{id},"jsonrpc":"2.0","result":["€"]}}"#)
}

fn same(text: &str, expected: &str) {
    let parse = |text| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(parse(text), parse(expected));
}

#[tokio::test]
async fn an_upgrade_must_be_asked_for_rightly() {
    let (gateway, _node) = serve("").await;
    let good = handshake(&gateway, "/rpc");
    let opened =
        Ws::try_open(&gateway, "/rpc", &[]).await.unwrap_or_else(|status| panic!("{status}"));
    assert_eq!(opened.headers["sec-websocket-accept"], ACCEPT);
    let key = format!("sec-websocket-key: {KEY}\r\n");
    for (what, from, to, status) in [
        ("no key", key.as_str(), "", "400"),
        ("two keys", &key, &key.repeat(2), "400"),
        ("a short key", KEY, "dGhlIHNhbXBsZQ==", "400"),
        ("a key that is none", KEY, "!GhlIHNhbXBsZSBub25jZQ==", "400"),
        ("another version", "version: 13", "version: 8", "426"),
        ("no version", "sec-websocket-version: 13\r\n", "", "426"),
        ("no upgrade", "upgrade: WebSocket\r\n", "", "426"),
        ("no connection", "keep-alive, Upgrade", "keep-alive", "426"),
        ("HTTP/1.0", "HTTP/1.1", "HTTP/1.0", "400"),
        ("a body", "upgrade: ", "content-length: 1\r\nupgrade: ", "400"),
        ("another path", "/rpc", "/nowhere", "404"),
        ("another host", &format!("host: {}", gateway.addr()), "host: evil.example", "403"),
        ("a foreign origin", "upgrade: ", "origin: https://evil.example\r\nupgrade: ", "403"),
    ] {
        assert!(good.contains(from), "{what}");
        let request = format!("{}connection: close\r\n\r\n", good.replace(from, to));
        let answer = gateway.http().raw(request.as_bytes()).await;
        assert!(answer[8..].starts_with(&format!(" {status} ")), "{what}: {answer}");
        if status == "426" {
            assert!(
                answer.to_lowercase().contains("sec-websocket-version: 13"),
                "{what}: {answer}"
            );
        }
    }
    let own = format!("http://{}", gateway.addr());
    assert!(Ws::try_open(&gateway, "/rpc", &[("origin", &own)]).await.is_ok());
    assert_eq!(gateway.http().send("GET", "/rpc", &[], "").await.status, 405);
}

#[tokio::test]
async fn what_is_offered_beside_is_taken_or_left() {
    let (gateway, _node) = serve("").await;
    let offer = [("sec-websocket-extensions", "permessage-deflate; client_max_window_bits")];
    let opened = Ws::try_open(&gateway, "/rpc", &offer).await;
    let mut ws = opened.unwrap_or_else(|status| panic!("{status}"));
    assert!(ws.headers.get("sec-websocket-extensions").is_none());
    ws.say(echo(1)).await;
    same(&ws.hear().await, &answer(1));
}

#[tokio::test]
async fn fragments_pings_and_masks_are_read_as_the_rules_have_it() {
    let (gateway, _node) = serve("").await;
    let mut raw = Raw::open(&gateway, "/rpc").await;
    let text = echo(1);
    let euro = text.find('€').unwrap();
    // The first fragment ends inside a character; a ping stands between the fragments.
    raw.write(&frame(0x01, &text.as_bytes()[..euro + 1])).await;
    raw.write(&frame(0x89, b"still there?")).await;
    assert_eq!(raw.frame().await, Some((0x8a, b"still there?".to_vec())));
    raw.write(&frame(0x00, b"")).await;
    let last = frame(0x80, &text.as_bytes()[euro + 1..]);
    // Byte by byte, then several frames in one write.
    for byte in &last {
        raw.write(&[*byte]).await;
    }
    same(&raw.text().await, &answer(1));
    raw.write(&[frame(0x8a, b"unasked"), frame(0x82, echo(2).as_bytes())].concat()).await;
    same(&raw.text().await, &answer(2));
    raw.write(&frame(0x88, b"\x03\xe8bye")).await;
    assert_eq!(raw.closed().await, 1000);
}

#[tokio::test]
async fn what_breaks_the_rules_closes_with_the_code_that_says_so() {
    let (gateway, node) = serve("max_body = \"1KiB\"").await;
    let long =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":["{}"]}}"#, "x".repeat(2000));
    let halves = [frame(0x01, &long.as_bytes()[..900]), frame(0x80, &long.as_bytes()[900..])];
    let unmasked = [&[0x81, 2][..], b"{}"].concat();
    for (what, bytes, code) in [
        ("not masked", unmasked, 1002),
        ("a reserved opcode", frame(0x83, b"{}"), 1002),
        ("a reserved bit", frame(0xc1, b"{}"), 1002),
        ("a continuation of nothing", frame(0x80, b"{}"), 1002),
        ("a fragmented ping", frame(0x09, b""), 1002),
        ("a text that is not UTF-8", frame(0x81, b"\"\xc3\x28\""), 1007),
        ("a long message", frame(0x81, long.as_bytes()), 1009),
        ("a long message in fragments", halves.concat(), 1009),
    ] {
        let mut raw = Raw::open(&gateway, "/rpc").await;
        raw.write(&bytes).await;
        if code == 1009 {
            let refused: Value = serde_json::from_str(&raw.text().await).unwrap();
            assert_eq!(refused["error"]["code"], -31010, "{what}");
            assert_eq!(refused["error"]["data"]["reason"], "message_too_large", "{what}");
        }
        assert_eq!(raw.closed().await, code, "{what}");
    }
    gateway.until("all have ended", |m| m.value("trunkline_streams", &[]) == 0.0).await;
    assert_eq!(node.requests().len(), 0);
}

#[tokio::test]
async fn c116_a_silent_client_is_asked_and_one_that_does_not_answer_is_dropped() {
    let (gateway, node) = serve("ws_ping_interval = \"300ms\"\nws_ping_timeout = \"500ms\"").await;
    let mut dead = Raw::open(&gateway, "/rpc").await;
    let never = br#"{"jsonrpc":"2.0","id":1,"method":"never"}"#;
    dead.write(&frame(0x81, never)).await;
    node.until_count("never", 1).await;
    let mut alive = Ws::open(&gateway, "/rpc").await;
    let begun = Instant::now();
    let answers = async {
        let mut pings = 0;
        while pings < 5 {
            pings += usize::from(matches!(alive.next().await, Message::Ping(_)));
        }
        assert!(begun.elapsed() >= Duration::from_millis(1_200), "once in each silence");
    };
    let is_silent = async {
        assert_eq!(dead.frame().await, Some((0x89, Vec::new())));
        assert_eq!(dead.closed().await, 1008);
    };
    tokio::join!(answers, is_silent);
    gateway
        .until("the call of the dead one is cancelled", |m| {
            m.value("trunkline_exchanges_in_flight", &[]) == 0.0
                && m.value("trunkline_streams", &[]) == 1.0
        })
        .await;
    alive.say(echo(1)).await;
    same(&alive.hear().await, &answer(1));
}

#[tokio::test]
async fn c125_a_client_that_does_not_read_is_bounded_in_bytes_and_closed_with_the_reason() {
    let (gateway, node) = serve("ws_write_timeout = \"1s\"").await;
    let before = gateway.memory();
    let mut ws = Ws::open(&gateway, "/rpc").await;
    let large = |id: u64| {
        json!({"jsonrpc": "2.0", "id": id, "method": "large", "params": [1 << 20]}).to_string()
    };
    // As much as the gateway takes: it stops reading a client that does not read.
    for id in 0..60 {
        ws.say(large(id)).await;
    }
    node.until("many have run", |core| core.count("large") >= 20).await;
    // Meanwhile others are served.
    let mut other = Ws::open(&gateway, "/rpc").await;
    for id in 0..50 {
        other.say(echo(id)).await;
        same(&other.hear().await, &answer(id));
    }
    gateway
        .until("its calls are over", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0)
        .await;
    let grown = gateway.memory().saturating_sub(before);
    assert!(grown < 160 << 20, "{} MiB for one client", grown >> 20);
    // Read from before, it would be a client that does read.
    gateway.until_log("it is given up", |log| log.count("client is disconnected") == 1).await;
    assert_eq!(ws.closed().await.0, 1013);
    drop(other);
    gateway.until("both are gone", |m| m.value("trunkline_streams", &[]) == 0.0).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_may_ask_no_more_is_noticed() {
    let settings =
        "ws_max_in_flight = 1\nws_ping_interval = \"300ms\"\nws_ping_timeout = \"500ms\"";
    let (gateway, node) = serve(settings).await;
    let never = frame(0x81, br#"{"jsonrpc":"2.0","id":1,"method":"never"}"#);
    let waits = frame(0x81, echo(2).as_bytes());
    let none = |m: &Metrics| {
        m.value("trunkline_exchanges_in_flight", &[]) == 0.0
            && m.value("trunkline_streams", &[]) == 0.0
    };
    for (count, behind, how) in [
        (1, Vec::new(), "is gone"),
        (2, waits.clone(), "is gone"),
        (3, [waits, frame(0x88, b"\x03\xe8")].concat(), "closes"),
        (4, Vec::new(), "is silent"),
    ] {
        let mut client = Raw::open(&gateway, "/rpc").await;
        client.write(&never).await;
        node.until_count("never", count).await;
        client.write(&behind).await;
        match how {
            "is gone" => drop(client),
            "closes" => {
                assert_eq!(client.closed().await, 1000);
                drop(client);
            }
            _ => {
                assert_eq!(client.frame().await, Some((0x89, Vec::new())));
                assert_eq!(client.closed().await, 1008);
                drop(client);
            }
        }
        gateway.until(&format!("the one that {how} has left nothing"), none).await;
    }
    assert_eq!(node.count("echo"), 0);
}

#[tokio::test]
async fn a_message_that_does_not_end_counts_and_is_not_waited_for_without_end() {
    let limits = "max_body = \"1MiB\"\nmax_bytes_in_flight = \"2MiB\"\nbody_timeout = \"1s\"";
    let (gateway, node) = serve(limits).await;
    let text = vec![b'x'; 900 << 10];
    let whole = frame(0x81, &text);
    let mut in_frame = Raw::open(&gateway, "/rpc").await;
    in_frame.write(&whole[..whole.len() - 1]).await;
    let mut in_fragments = Raw::open(&gateway, "/rpc").await;
    in_fragments.write(&frame(0x01, &text)).await;
    let counted = |m: &Metrics| m.value("trunkline_bytes_in_flight", &[]) > f64::from(1700 << 10);
    gateway.until("both are counted", counted).await;
    // Pings are no progress.
    in_fragments.write(&frame(0x89, b"")).await;
    assert_eq!(in_fragments.frame().await, Some((0x8a, Vec::new())));
    assert_eq!(in_frame.closed().await, 1008);
    assert_eq!(in_fragments.closed().await, 1008);
    drop((in_frame, in_fragments));
    let none = |m: &Metrics| m.value("trunkline_bytes_in_flight", &[]) == 0.0;
    gateway.until("nothing is left", none).await;
    assert_eq!(node.requests().len(), 0);
}
