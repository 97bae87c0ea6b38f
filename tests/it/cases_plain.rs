//! Cases from the field on plain routes: ids, batches, fidelity of JSON. The table is in `cases`.

use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup, closed_port};

/// Numbers that a double does not hold, or not in this spelling.
const NUMBERS: &str = "[9223372036854775807,18446744073709551616,1.0,1e400,-0,0.1000000000000000055511151231257827,1E+2]";

/// Waits `params[0]` milliseconds and answers with `params[1]` as it was written.
async fn tagged(call: Call) {
    let params = call.req.params().unwrap_or_default();
    let params: Vec<Box<RawValue>> = serde_json::from_str(&params).unwrap_or_default();
    let wait = params.first().and_then(|wait| wait.get().parse().ok()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(wait)).await;
    call.result(params.get(1).map_or("null", |tag| tag.get())).await;
}

async fn before() -> (Gateway, Fake) {
    let up = Fake::plain().on("*", tagged).start().await;
    let gateway = Setup::new()
        .server("batch_concurrency = 50\nmax_batch = 100")
        .plain("up", &up, "max_concurrency = 200")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    (gateway, up)
}

fn message(id: &str, wait: u64, tag: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":[{wait},{tag}]}}"#)
}

#[tokio::test]
async fn c037_c043_one_id_of_many_clients_at_once_is_never_mixed_up() {
    let (gateway, _up) = before().await;
    let mut calls = Vec::new();
    for n in 0..100_u64 {
        let http = gateway.http();
        calls.push(tokio::spawn(async move {
            // The later ones are ready first.
            let reply = http.post("/rpc", message("1", 200 - 2 * n, &format!("\"{n}\""))).await;
            (n, reply.json())
        }));
    }
    for call in calls {
        let (n, answer) = call.await.unwrap();
        assert_eq!((&answer["id"], &answer["result"]), (&json!(1), &json!(n.to_string())));
    }
}

#[tokio::test]
async fn c039_ids_of_every_spelling_come_back_as_the_same_bytes_side_by_side() {
    let (gateway, _up) = before().await;
    let long = format!("\"{}\"", "x".repeat(4096));
    let ids = [
        "1",
        "\"1\"",
        "0",
        "\"\"",
        "\"0\"",
        "-7",
        r#""a\u0000b""#,
        &long,
        "9007199254740993",
        "1.0",
        "null",
        "1e0",
        r#""\u0031""#,
        "-0",
    ];
    let elements: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(n, id)| message(id, 40 - 2 * n as u64, &n.to_string()))
        .collect();
    let reply = gateway.http().post("/rpc", format!("[{}]", elements.join(","))).await;
    let items: Vec<Box<RawValue>> = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(items.len(), ids.len());
    for (n, (id, item)) in ids.iter().zip(&items).enumerate() {
        assert!(item.get().contains(&format!("\"id\":{id},")), "{id}: {}", item.get());
        assert!(item.get().contains(&format!("\"result\":{n}}}")), "{id}: {}", item.get());
    }
}

#[tokio::test]
async fn c110_a_batch_keeps_its_order_and_takes_as_long_as_its_slowest_element() {
    let (a, b) = (Fake::plain().on("*", tagged), Fake::plain().on("*", tagged));
    let (a, b) = (a.start().await, b.start().await);
    let (addr, _held) = closed_port();
    let gateway = Setup::new()
        .server("batch_concurrency = 100\nmax_batch = 100")
        .plain("a", &a, "max_concurrency = 100")
        .plain("b", &b, "max_concurrency = 100")
        .upstream("dead", &format!("protocol = \"jsonrpc\"\nurl = \"http://{addr}/\""))
        .rpc(r#""a*" = "a", "b*" = "b", "dead" = "dead""#)
        .start()
        .await;
    let methods = ["a1", "b1", "dead", "a2"];
    let element = |n: usize| {
        let params = json!([(100 - n) * 10, n]);
        json!({"jsonrpc": "2.0", "id": n, "method": methods[n % 4], "params": params})
    };
    let body = json!((0..100).map(element).collect::<Vec<_>>()).to_string();
    let begun = Instant::now();
    let items = gateway.http().post("/rpc", body).await.json();
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "51 s of waiting took {:?}",
        begun.elapsed()
    );
    for (n, item) in items.as_array().unwrap().iter().enumerate() {
        assert_eq!(item["id"], n, "{item}");
        match methods[n % 4] {
            "dead" => assert_eq!(item["error"]["code"], -31004, "{item}"),
            _ => assert_eq!(item["result"], n, "{item}"),
        }
    }
}

#[tokio::test]
async fn row_31_what_does_not_fit_in_the_answer_to_a_batch_is_an_error_and_the_rest_stays() {
    let up = Fake::plain().start().await;
    let gateway = Setup::new()
        .server("max_batch_answer = \"8KiB\"")
        .plain("up", &up, "")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let element = |id: u64, length: usize| json!({"jsonrpc": "2.0", "id": id, "method": "echo", "params": ["x".repeat(length)]});
    let body = json!([element(1, 100), element(2, 20_000), element(3, 100)]).to_string();
    let reply = gateway.http().post("/rpc", body).await;
    let items = reply.json();
    assert!(reply.body.len() < 8 << 10, "{}", reply.body.len());
    assert_eq!((reply.status, items.as_array().map(Vec::len)), (200, Some(3)));
    assert_eq!(items[0]["result"][0].as_str().map(str::len), Some(100));
    assert_eq!((&items[1]["id"], &items[1]["error"]["code"]), (&json!(2), &json!(-31010)));
    assert_eq!(items[2]["result"][0].as_str().map(str::len), Some(100));
}

#[tokio::test]
async fn c101_numbers_and_errors_pass_both_ways_as_they_were_written() {
    let up = Fake::plain()
        .on("result", |call: Call| async move {
            let params = call.req.params().unwrap_or_default();
            call.result(&params).await;
        })
        .on("error", |call: Call| async move {
            let params = call.req.params().unwrap_or_default();
            let error = format!(r#"{{"code":-5.0e0,"message":"\u00e4","data":{params},"x":1.0}}"#);
            let id = call.id();
            call.out
                .json(format!(r#"{{"jsonrpc":"2.0","error":{error},"id":{id},"y":1e2}}"#))
                .await;
        })
        .start()
        .await;
    for lines in ["", "batch = true"] {
        let gateway = Setup::new().plain("up", &up, lines).rpc(r#""*" = "up""#).start().await;
        for method in ["result", "error"] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{NUMBERS}}}"#);
            for body in [body.clone(), format!("[{body}]")] {
                let reply = gateway.http().post("/rpc", body).await;
                assert!(reply.text().contains(NUMBERS), "{method}: {}", reply.text());
                if method == "error" {
                    for piece in
                        [r#""code":-5.0e0"#, r#""message":"\u00e4""#, r#""x":1.0"#, r#""y":1e2"#]
                    {
                        assert!(reply.text().contains(piece), "{piece}: {}", reply.text());
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn c105_what_is_denied_never_runs_whichever_of_two_readings_an_upstream_has() {
    let up = Fake::plain().on("*", tagged).start().await;
    let gateway = Setup::new()
        .plain("up", &up, "")
        .toml(
            "[[routes]]\npath = \"/rpc\"\nprotocol = \"jsonrpc\"\nmethods = { \"*\" = \"up\" }\n\
             deny = [\"b\"]",
        )
        .start()
        .await;
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"b","method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"METHOD":"b","method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","m\u0065thod":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[],"params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"1.0","id":1,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[NaN]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[Infinity]}"#,
    ] {
        let reply = gateway.http().post("/rpc", body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(matches!(reply.code(), -32600 | -32700), "{body}: {}", reply.text());
    }
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"\u0062"}"#,
    ] {
        assert_eq!(gateway.http().post("/rpc", body).await.code(), -32601, "{body}");
    }
    assert_eq!(up.requests().len(), 0, "nothing of it arrives");
    let reply = gateway.http().post("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"a"}"#).await;
    assert_eq!(reply.json()["result"], Value::Null);
    assert_eq!(up.requests().len(), 1);
}

/// How people write services: one handler, what goes wrong under any status and media type, and no `jsonrpc` beside an
/// error. Every row is what such a service sends, and what the client gets.
#[tokio::test]
async fn services_as_people_write_them_are_understood() {
    let up = Fake::plain()
        .on("*", |call: Call| async move {
            let (id, method) = (call.id(), call.req.rpc().unwrap_or_default());
            let error = r#"{"code":-32001,"message":"no","data":null}"#;
            let bare = format!(r#"{{"id":{id},"error":{error}}}"#);
            let full = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            let text = [("content-type", "text/plain; charset=utf-8")];
            let json = [("content-type", "application/json")];
            match method.as_str() {
                "200 text" => call.out.full(200, &text, full).await,
                "200 bare" => call.out.full(200, &json, bare).await,
                "400 text" => call.out.full(400, &text, full).await,
                "400 bare" => call.out.full(400, &json, bare).await,
                "404 json" => call.out.full(404, &json, full).await,
                "500 text bare" => call.out.full(500, &text, bare).await,
                "500 unnamed" => call.out.full(500, &[], full).await,
                "500 null id" => {
                    let text = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#);
                    call.out.full(500, &json, text).await;
                }
                "200 null result" => {
                    let text = format!(r#"{{"id":{id},"result":null,"error":{error}}}"#);
                    call.out.full(200, &json, text).await;
                }
                other => panic!("unknown mode {other}"),
            }
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    for method in [
        "200 text",
        "200 bare",
        "400 text",
        "400 bare",
        "404 json",
        "500 text bare",
        "500 unnamed",
        "500 null id",
        "200 null result",
    ] {
        let body = json!({"jsonrpc": "2.0", "id": "mine", "method": method}).to_string();
        for batch in [false, true] {
            let sent = if batch { format!("[{body}]") } else { body.clone() };
            let reply = gateway.http().post("/rpc", sent).await;
            assert_eq!(reply.status, 200, "{method}: {}", reply.text());
            let json = if batch { reply.json()[0].clone() } else { reply.json() };
            let right = json!({
                "jsonrpc": "2.0", "id": "mine",
                "error": {"code": -32001, "message": "no", "data": null},
            });
            assert_eq!(json, right, "{method}");
        }
    }
}
