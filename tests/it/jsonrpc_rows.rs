//! The corner cases of JSON-RPC 2.0 on a plain route: one table, each row alone and inside a batch, over HTTP and over WebSocket.

mod page;
mod websocket;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::Reply;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};

/// What comes back for one message.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// A response with this id and result, to the byte.
    Result(&'static str, &'static str),
    /// An error with this id, to the byte, and code.
    Error(&'static str, i64),
    /// Nothing.
    Nothing,
}
use Want::{Error, Nothing, Result};

/// Number of the row, message, what comes back. The upstream answers with the params.
#[rustfmt::skip]
const MESSAGES: &[(&str, &str, Want)] = &[
    ("6", r#"{"jsonrpc":"2.0","method":"echo","params":[1]}"#, Nothing),
    ("7", r#"{"jsonrpc":"2.0","method":"rpc.nothing_knows_this"}"#, Nothing),
    ("8", r#"{"jsonrpc":"2.0","id":null,"method":"echo","params":[1]}"#, Result("null", "[1]")),
    ("9", r#"{"jsonrpc":"2.0","id":1.5,"method":"echo","params":[1]}"#, Result("1.5", "[1]")),
    ("10", r#"{"jsonrpc":"2.0","id":1.0,"method":"echo","params":[1]}"#, Result("1.0", "[1]")),
    ("10", r#"{"jsonrpc":"2.0","id":1e3,"method":"echo","params":[1]}"#, Result("1e3", "[1]")),
    ("11", r#"{"jsonrpc":"2.0","id":-1,"method":"echo","params":[1]}"#, Result("-1", "[1]")),
    ("12", r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"echo","params":[1]}"#, Result("9007199254740993", "[1]")),
    ("12", r#"{"jsonrpc":"2.0","id":9223372036854775808,"method":"echo","params":[1]}"#, Result("9223372036854775808", "[1]")),
    ("12", r#"{"jsonrpc":"2.0","id":18446744073709551616,"method":"echo","params":[1]}"#, Result("18446744073709551616", "[1]")),
    ("12", r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"echo","params":[1]}"#, Result("123456789012345678901234567890", "[1]")),
    ("13", r#"{"jsonrpc":"2.0","id":"","method":"echo","params":[1]}"#, Result(r#""""#, "[1]")),
    ("14", r#"{"jsonrpc":"2.0","id":"\u0041","method":"echo","params":[1]}"#, Result(r#""\u0041""#, "[1]")),
    ("15", r#"{"jsonrpc":"2.0","id":true,"method":"echo","params":[1]}"#, Error("null", -32600)),
    ("15", r#"{"jsonrpc":"2.0","id":{},"method":"echo","params":[1]}"#, Error("null", -32600)),
    ("15", r#"{"jsonrpc":"2.0","id":[],"method":"echo","params":[1]}"#, Error("null", -32600)),
    ("17", r#"{"id":7,"method":"echo","params":[1]}"#, Error("7", -32600)),
    ("17", r#"{"jsonrpc":"1.0","id":"x","method":"echo","params":[1]}"#, Error(r#""x""#, -32600)),
    ("17", r#"{"jsonrpc":2.0,"id":7,"method":"echo","params":[1]}"#, Error("7", -32600)),
    ("17", r#"{"jsonrpc":"1.0","id":{},"method":"echo","params":[1]}"#, Error("null", -32600)),
    ("18", r#"{"jsonrpc":"2.0","id":7}"#, Error("7", -32600)),
    ("18", r#"{"jsonrpc":"2.0","id":7,"method":5}"#, Error("7", -32600)),
    ("18", r#"{"jsonrpc":"2.0","id":7,"method":""}"#, Error("7", -32600)),
    ("18", r#"{"foo":"boo"}"#, Error("null", -32600)),
    ("19", r#"{"jsonrpc":"2.0","id":7,"method":"rpc.discover"}"#, Error("7", -32601)),
    ("20", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":"bar"}"#, Error("7", -32600)),
    ("20", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":5}"#, Error("7", -32600)),
    ("20", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":false}"#, Error("7", -32600)),
    ("21", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"b":1,"a":2}}"#, Result("7", r#"{"b":1,"a":2}"#)),
    ("22", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":null}"#, Result("7", "null")),
    ("23", r#"{"x":1,"jsonrpc":"2.0","id":7,"method":"echo","y":{"id":9},"params":[1],"z":[]}"#, Result("7", "[1]")),
    ("36", " \t\r\n {\r\"jsonrpc\" : \"2.0\" ,\r\n \"id\"\t:7 , \"method\":\"echo\",\"params\":[1]\r}\r\n\t ", Result("7", "[1]")),
    ("39", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":["\ud800"]}"#, Result("7", r#"["\ud800"]"#)),
    ("40", r#"{"jsonrpc":"2.0","id":7,"method":"ec\ud800ho","params":[1]}"#, Error("7", -32600)),
    ("40", r#"{"jsonrpc":"2.0","id":"\udc00x","method":"echo","params":[1]}"#, Result(r#""\udc00x""#, "[1]")),
    ("41", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":["a\u0000b"]}"#, Result("7", r#"["a\u0000b"]"#)),
    ("41", r#"{"jsonrpc":"2.0","\u0069d":7,"m\u0065thod":"echo","p\u0061rams":[1]}"#, Result("7", "[1]")),
    ("41", r#"{"jsonrpc":"2.0","id":7,"method":"\u006fther\u005fx","params":[1]}"#, Result("7", r#""other""#)),
    ("42", r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"echo"}"#, Error("null", -32600)),
    ("42", r#"{"jsonrpc":"2.0","id":7,"method":"echo","method":"other_x"}"#, Error("7", -32600)),
    ("42", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":[1],"par\u0061ms":[2]}"#, Error("7", -32600)),
    ("42", r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":7,"method":"echo"}"#, Error("7", -32600)),
    ("44", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":[9007199254740993,18446744073709551616,1.10,1e2,-0,1e400,1E+2,0.1000000000000000055511151231257827]}"#,
        Result("7", "[9007199254740993,18446744073709551616,1.10,1e2,-0,1e400,1E+2,0.1000000000000000055511151231257827]")),
    ("45", r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"z":1,"a":{"y":2,"b":"\u00e4ö\/"},"":[]}}"#,
        Result("7", r#"{"z":1,"a":{"y":2,"b":"\u00e4ö\/"},"":[]}"#)),
];

/// Number of the row, bytes that hold no message at all.
const TEXTS: &[(&str, &[u8], i64)] = &[
    ("1", b"[]", -32600),
    ("1", b" [ \r\n ] ", -32600),
    ("33", b"", -32700),
    ("33", b"   ", -32700),
    ("33", br#"{"jsonrpc":"2.0","id":1,"method"#, -32700),
    ("33", br#"{"jsonrpc":"2.0","method":"foobar, "params":"bar","baz]"#, -32700),
    ("33", br#"[{"jsonrpc":"2.0","id":1,"method":"echo"},{"jsonrpc":"2.0","method"]"#, -32700),
    ("33", br#"[{"jsonrpc":"2.0","id":1,"method":"echo"}"#, -32700),
    ("33", br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[NaN]}"#, -32700),
    ("33", br#"{"jsonrpc":"2.0","id":01,"method":"echo"}"#, -32700),
    ("33", br#"{"jsonrpc":"2.0","id":1,"method":"echo",}"#, -32700),
    ("34", b"5", -32600),
    ("34", b"null", -32600),
    ("34", b"\"a\"", -32600),
    ("34", b"true", -32600),
    ("35", br#"{"jsonrpc":"2.0","id":1,"method":"echo"} x"#, -32700),
    (
        "35",
        br#"{"jsonrpc":"2.0","id":1,"method":"echo"}{"jsonrpc":"2.0","id":2,"method":"echo"}"#,
        -32700,
    ),
    ("35", b"[] []", -32700),
    ("38", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"\xc3\x28\"]}", -32700),
    (
        "38",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"\xed\xa0\x80\"]}",
        -32700,
    ),
    ("38", b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"echo\"}", -32700),
    ("38", b"\xff\xfe{\x00}\x00", -32700),
];

const GOOD: &str = r#"{"jsonrpc":"2.0","id":"good","method":"echo","params":["fine"]}"#;

#[derive(Debug, serde::Deserialize)]
struct Response<'a> {
    jsonrpc: String,
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

impl Want {
    fn check(self, row: &str, message: &str, text: &str) {
        let got: Response<'_> = serde_json::from_str(text)
            .unwrap_or_else(|error| panic!("row {row}, {message}: {error} in {text}"));
        let told = format!("row {row}: {message}\ngave {text}\nwanted {self:?}");
        assert_eq!(got.jsonrpc, "2.0", "{told}");
        match self {
            Result(id, result) => {
                assert_eq!(got.id.get(), id, "{told}");
                assert_eq!(got.result.map(RawValue::get), nullable(result), "{told}");
                assert!(got.error.is_none(), "{told}");
            }
            Error(id, code) => {
                assert_eq!(got.id.get(), id, "{told}");
                assert_eq!(
                    got.error.map(|error| error["code"].clone()),
                    Some(json!(code)),
                    "{told}"
                );
                assert!(got.result.is_none(), "{told}");
            }
            Nothing => panic!("{told}"),
        }
    }
}

/// What an optional raw value becomes when it is null.
fn nullable(text: &str) -> Option<&str> {
    (text != "null").then_some(text)
}

async fn serve() -> (Gateway, Fake, Fake) {
    let node = Fake::plain()
        .on("fail", |call: Call| async move {
            let error = r#"{"message":"no\u0020luck","code":-5,"data":{"b":1.10,"a":[1e2]},"x":1}"#;
            let text = format!(r#"{{"id":{},"error":{error},"jsonrpc":"2.0"}}"#, call.id());
            call.out.json(text).await;
        })
        .on("known", |call: Call| async move { call.result("19").await })
        .on("unknown", |call: Call| async move { call.error(-32601, "Method not found").await })
        .start()
        .await;
    let other = Fake::plain()
        .on("*", |call: Call| async move { call.result("\"other\"").await })
        .start()
        .await;
    let gateway = Setup::new()
        .plain("node", &node, "")
        .plain("b", &other, "")
        .rpc(r#""*" = "node", "other_*" = "b""#)
        .start()
        .await;
    (gateway, node, other)
}

fn array(reply: &Reply) -> Vec<String> {
    let items: Vec<Box<RawValue>> = serde_json::from_slice(&reply.body)
        .unwrap_or_else(|error| panic!("no array ({error}): {:?}", reply.body));
    items.into_iter().map(|item| item.get().to_owned()).collect()
}

#[tokio::test]
async fn every_row_gets_its_answer_alone() {
    let (gateway, _node, _other) = serve().await;
    for (row, message, want) in MESSAGES {
        let reply = gateway.http().post("/rpc", *message).await;
        let told = format!("row {row}: {message} gave {} {:?}", reply.status, reply.body);
        match want {
            Nothing => assert_eq!((reply.status, reply.text()), (204, ""), "{told}"),
            Result(..) | Error(_, -32601) => assert_eq!(reply.status, 200, "{told}"),
            Error("null", _) => assert_eq!(reply.status, 400, "{told}"),
            Error(..) => assert!(matches!(reply.status, 200 | 400), "{told}"),
        }
        if !matches!(want, Nothing) {
            assert_eq!(reply.header("content-type"), "application/json", "{told}");
            want.check(row, message, reply.text());
        }
    }
}

#[tokio::test]
async fn every_row_gets_its_answer_inside_a_batch() {
    let (gateway, _node, _other) = serve().await;
    for (row, message, want) in MESSAGES {
        let reply = gateway.http().post("/rpc", format!("[{message},{GOOD}]")).await;
        assert_eq!(reply.status, 200, "row {row}: {message}");
        let mut items = array(&reply);
        let good = items.pop().unwrap();
        Result("\"good\"", "[\"fine\"]").check(row, GOOD, &good);
        match want {
            Nothing => assert!(items.is_empty(), "row {row}: {message} gave {items:?}"),
            _ => {
                assert_eq!(items.len(), 1, "row {row}: {message} gave {items:?}");
                want.check(row, message, &items[0]);
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_message_at_all_is_one_error_with_a_null_id() {
    let (gateway, node, _other) = serve().await;
    for (row, text, code) in TEXTS {
        let reply = gateway.http().post("/rpc", *text).await;
        let shown = String::from_utf8_lossy(text);
        assert_eq!(reply.status, 400, "row {row}: {shown} gave {:?}", reply.body);
        Error("null", *code).check(row, &shown, reply.text());
    }
    assert_eq!(node.requests().len(), 0, "nothing of it reaches an upstream");
}

#[tokio::test]
async fn rows_2_and_3_each_wrong_element_has_an_error_of_its_own() {
    let (gateway, _node, _other) = serve().await;
    for (body, errors) in [
        ("[1]", 1),
        ("[1,2,3]", 3),
        ("[null,\"a\",true,1.5]", 4),
        (r#"[[{"jsonrpc":"2.0","id":1,"method":"echo"}]]"#, 1),
        ("[[]]", 1),
        ("[{}]", 1),
    ] {
        let reply = gateway.http().post("/rpc", body).await;
        let items = array(&reply);
        assert_eq!((reply.status, items.len()), (200, errors), "{body} gave {items:?}");
        items.iter().for_each(|item| Error("null", -32600).check("2", body, item));
    }
}

#[tokio::test]
async fn row_4_a_mixed_batch_is_answered_in_its_order() {
    let (gateway, _node, _other) = serve().await;
    let body = r#"[
        {"jsonrpc":"2.0","method":"known","params":[1,2,4],"id":"1"},
        {"jsonrpc":"2.0","method":"notify_hello","params":[7]},
        {"jsonrpc":"2.0","method":"known","params":[42,23],"id":"2"},
        {"foo":"boo"},
        {"jsonrpc":"2.0","method":"unknown","params":{"name":"myself"},"id":"5"},
        {"jsonrpc":"2.0","method":"known","id":"9"}
    ]"#;
    let items = array(&gateway.http().post("/rpc", body).await);
    let wants = [
        Result("\"1\"", "19"),
        Result("\"2\"", "19"),
        Error("null", -32600),
        Error("\"5\"", -32601),
        Result("\"9\"", "19"),
    ];
    assert_eq!(items.len(), wants.len(), "{items:?}");
    items.iter().zip(wants).for_each(|(item, want)| want.check("4", body, item));
}

#[tokio::test]
async fn row_5_a_batch_of_notifications_has_no_body() {
    let (gateway, node, _other) = serve().await;
    let note = r#"{"jsonrpc":"2.0","method":"tell","params":[1]}"#;
    let reply = gateway.http().post("/rpc", format!("[{note},{note}]")).await;
    assert_eq!((reply.status, reply.text()), (204, ""));
    node.until_count("tell", 2).await;
}

#[tokio::test]
async fn row_6_a_notification_reaches_the_upstream_as_one() {
    let (gateway, node, _other) = serve().await;
    let note = r#"{"jsonrpc":"2.0","method":"tell","params":{"a":1.0}}"#;
    assert_eq!(gateway.http().post("/rpc", note).await.status, 204);
    node.until_count("tell", 1).await;
    let seen = &node.of("tell")[0];
    assert_eq!((seen.id(), seen.params()), (None, Some(r#"{"a":1.0}"#.into())));
}

#[tokio::test]
async fn row_16_elements_with_one_id_are_both_answered() {
    let (gateway, _node, _other) = serve().await;
    let body = r#"[{"jsonrpc":"2.0","id":1,"method":"echo","params":["a"]},
                   {"jsonrpc":"2.0","id":1,"method":"echo","params":["b"]},
                   {"jsonrpc":"2.0","id":"1","method":"echo","params":["c"]}]"#;
    let items = array(&gateway.http().post("/rpc", body).await);
    let wants = [Result("1", r#"["a"]"#), Result("1", r#"["b"]"#), Result("\"1\"", r#"["c"]"#)];
    assert_eq!(items.len(), 3, "{items:?}");
    items.iter().zip(wants).for_each(|(item, want)| want.check("16", body, item));
}

#[tokio::test]
async fn row_23_unknown_members_reach_the_upstream() {
    let (gateway, node, _other) = serve().await;
    let body = r#"{"x":{"b":1.10,"a":2},"jsonrpc":"2.0","id":"mine","method":"echo","params":[1]}"#;
    gateway.http().post("/rpc", body).await;
    assert!(node.of("echo")[0].text().contains(r#""x":{"b":1.10,"a":2}"#));
}

#[tokio::test]
async fn row_37_a_byte_order_mark_is_skipped() {
    let (gateway, _node, _other) = serve().await;
    let reply = gateway.http().post("/rpc", format!("\u{feff}{GOOD}")).await;
    Result("\"good\"", "[\"fine\"]").check("37", GOOD, reply.text());
}

#[tokio::test]
async fn row_43_nesting_is_limited_without_harm() {
    let (gateway, node, _other) = serve().await;
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"echo","params":{open}{close}}}"#)
    };
    let reply = gateway.http().post("/rpc", nested(100)).await;
    assert_eq!(reply.json()["id"], 7, "{:?}", reply.body);
    assert!(reply.json()["error"].is_null());
    for depth in [200, 100_000, 1_000_000] {
        let reply = gateway.http().post("/rpc", nested(depth)).await;
        assert_eq!((reply.status, reply.code()), (400, -31010), "{depth}");
        let error = reply.json()["error"].clone();
        assert_eq!(error["data"]["reason"], "too_deep");
        assert!(error["message"].as_str().unwrap().contains("128"), "{error}");
    }
    let open_only = "[".repeat(1_000_000);
    assert_eq!(gateway.http().post("/rpc", open_only).await.status, 400);
    assert_eq!(node.count("echo"), 1);
}

#[tokio::test]
async fn row_46_an_upstreams_error_passes_to_the_byte() {
    let (gateway, _node, _other) = serve().await;
    let fail = r#"{"jsonrpc":"2.0","id":7,"method":"fail"}"#;
    let error = r#"{"message":"no\u0020luck","code":-5,"data":{"b":1.10,"a":[1e2]},"x":1}"#;
    let reply = gateway.http().post("/rpc", fail).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains(error), "{}", reply.text());
    let reply = gateway.http().post("/rpc", format!("[{fail}]")).await;
    assert!(reply.text().contains(error), "{}", reply.text());
}

#[tokio::test]
async fn row_48_the_media_type_is_read_by_its_rules() {
    let (gateway, _node, _other) = serve().await;
    for accepted in [
        "application/json",
        "Application/JSON",
        "application/json;  charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/json; foo=bar; charset=utf-8",
        "application/json-rpc",
        "application/jsonrequest",
    ] {
        let headers = [("content-type", accepted)];
        let reply = gateway.http().send("POST", "/rpc", &headers, GOOD).await;
        assert_eq!(reply.status, 200, "{accepted}");
    }
}

#[tokio::test]
async fn row_49_other_media_types_are_refused() {
    let (gateway, node, _other) = serve().await;
    for refused in ["text/plain", "application/x-www-form-urlencoded", "text/json", "json"] {
        let headers = [("content-type", refused)];
        let reply = gateway.http().send("POST", "/rpc", &headers, GOOD).await;
        assert_eq!(reply.status, 415, "{refused}");
    }
    assert_eq!(gateway.http().send("POST", "/rpc", &[], GOOD).await.status, 415);
    assert_eq!(node.requests().len(), 0);
}

#[tokio::test]
async fn row_50_other_http_methods_are_refused_with_the_right_ones() {
    let (gateway, _node, _other) = serve().await;
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        let reply = gateway.http().send(method, "/rpc", &[], "").await;
        assert_eq!(reply.status, 405, "{method}");
        assert!(reply.header("allow").contains("POST"), "{method}: {:?}", reply.headers);
    }
    let origin = format!("http://{}", gateway.addr());
    let preflight = [("origin", origin.as_str()), ("access-control-request-method", "POST")];
    let reply = gateway.http().send("OPTIONS", "/rpc", &preflight, "").await;
    assert!(matches!(reply.status, 200 | 204), "{}", reply.status);
    assert!(reply.header("access-control-allow-methods").contains("POST"), "{:?}", reply.headers);
}

#[tokio::test]
async fn row_51_a_compressed_body_is_inflated_or_refused() {
    let (gateway, _node, _other) = serve().await;
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let reply = gateway.http().send("POST", "/rpc", &headers, stored_gzip(GOOD.as_bytes())).await;
    match reply.status {
        200 => Result("\"good\"", "[\"fine\"]").check("51", GOOD, reply.text()),
        status => assert_eq!(status, 415),
    }
}

/// A gzip member that stores its content (RFC 1951 §3.2.4, RFC 1952).
fn stored_gzip(content: &[u8]) -> Vec<u8> {
    let mut crc = !0u32;
    for byte in content {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1));
        }
    }
    let length = u16::try_from(content.len()).unwrap();
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(content);
    out.extend((!crc).to_le_bytes());
    out.extend(u32::from(length).to_le_bytes());
    out
}

#[tokio::test]
async fn row_52_a_chunked_body_is_read() {
    let (gateway, _node, _other) = serve().await;
    let (head, tail) = GOOD.split_at(20);
    let request = format!(
        "POST /rpc HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{head}\r\n{:x}\r\n{tail}\r\n0\r\n\r\n",
        gateway.addr(),
        head.len(),
        tail.len(),
    );
    let answer = gateway.http().raw(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#"["fine"]"#), "{answer}");
}

#[tokio::test]
async fn row_53_an_oversize_body_is_refused_readably() {
    let node = Fake::plain().start().await;
    let gateway = Setup::new()
        .server("max_body = \"1KiB\"")
        .plain("node", &node, "")
        .rpc(r#""*" = "node""#)
        .start()
        .await;
    let big = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"echo","params":["{}"]}}"#,
        "x".repeat(1 << 20)
    );
    let reply = gateway.http().post("/rpc", big).await;
    assert_eq!((reply.status, reply.code()), (413, -31010));
    assert_eq!(reply.json()["error"]["data"]["reason"], "message_too_large");
    assert_eq!(node.requests().len(), 0);
}

#[tokio::test]
async fn an_unknown_path_is_404() {
    let (gateway, _node, _other) = serve().await;
    assert_eq!(gateway.http().post("/nowhere", GOOD).await.status, 404);
    assert_eq!(gateway.http().post("/rpc/x", GOOD).await.status, 404);
}

#[tokio::test]
async fn the_longest_pattern_decides_and_what_matches_none_is_not_found() {
    let node = Fake::plain().on("*", |call: Call| async move { call.result("\"node\"").await });
    let exact = Fake::plain().on("*", |call: Call| async move { call.result("\"exact\"").await });
    let (node, exact) = (node.start().await, exact.start().await);
    let gateway = Setup::new()
        .plain("node", &node, "")
        .plain("exact", &exact, "")
        .rpc(r#""eth_*" = "node", "eth_call" = "exact""#)
        .start()
        .await;
    let ask = async |method: &str| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        gateway.http().post("/rpc", body).await
    };
    assert_eq!(ask("eth_chainId").await.json()["result"], "node");
    assert_eq!(ask("eth_call").await.json()["result"], "exact");
    assert_eq!(ask("eth_calls").await.json()["result"], "node");
    let reply = ask("net_version").await;
    assert_eq!((reply.status, reply.code()), (200, -32601));
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("method", "eth_*")]), 2.0);
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("method", "eth_call")]), 1.0);
    assert_eq!(metrics.value("trunkline_exchanges_total", &[("method", "other")]), 1.0);
}
