//! Upstreams that answer wrongly: every request still ends with exactly one answer of its own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::patient;
use crate::fake::{self, Call, Fake};
use crate::gateway::{Gateway, Setup, closed_port};
use crate::mcp::Mcp;

const HTML: [(&str, &str); 1] = [("content-type", "text/html")];
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const SECRET: &str = "secret-of-the-upstream";

/// Answers as `mode` says; every mode is a fault.
async fn misbehave(call: Call, mode: &str) {
    let out = &call.out;
    let ok = call.response(&fake::said("fine").to_string());
    match mode {
        "400" => out.full(400, &HTML, SECRET).await,
        "401" => out.full(401, &[("www-authenticate", "Bearer realm=\"x\"")], SECRET).await,
        "403" => out.full(403, &[], "").await,
        "413" => out.full(413, &HTML, SECRET).await,
        "429" => out.full(429, &[], "").await,
        "500" => out.full(500, &HTML, format!("<html>{SECRET}</html>")).await,
        "502" => out.full(502, &[], "").await,
        "200 html" => out.full(200, &HTML, format!("<html>{SECRET}</html>")).await,
        "200 text" => out.full(200, &[("content-type", "text/plain")], &ok).await,
        "202" => out.full(202, &[], "").await,
        "204" => out.full(204, &[], "").await,
        "301" => out.full(301, &[("location", "/elsewhere")], "").await,
        "302" => out.full(302, &[("location", "http://10.0.0.1/elsewhere")], "").await,
        "reset" => out.reset().await,
        "half" => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            out.bytes(format!("{head}content-length: 5000\r\n\r\n{{\"jsonrpc\"")).await;
            out.close();
        }
        "half chunk" => {
            out.sse().await;
            out.bytes("fff\r\ndata: {\"json").await;
            out.close();
        }
        "no http" => {
            out.bytes("SSH-2.0-OpenSSH_9.9\r\n").await;
            out.close();
        }
        "sse end" => {
            out.sse().await;
            out.event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#)
                .await;
            out.end().await;
        }
        "sse garbage" => {
            out.sse().await;
            out.event("not json").await;
            out.end().await;
        }
        "own envelope" => out.full(200, &JSON, r#"{"Output":1}"#).await,
        "array" => out.full(200, &JSON, "[]").await,
        "string" => out.full(200, &JSON, "\"ok\"").await,
        "empty" => out.full(200, &JSON, "").await,
        "syntax" => out.full(200, &JSON, &ok[..ok.len() - 1]).await,
        "two values" => out.full(200, &JSON, format!("{ok}{ok}")).await,
        "other id" => out.json(r#"{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}"#).await,
        "id as string" => {
            let id = call.id();
            out.json(format!(
                r#"{{"jsonrpc":"2.0","id":"{}","result":{{}}}}"#,
                id.trim_matches('"')
            ))
            .await;
        }
        "no id" => out.json(r#"{"jsonrpc":"2.0","result":{"content":[]}}"#).await,
        "no jsonrpc" => out.json(format!(r#"{{"id":{},"result":{{}}}}"#, call.id())).await,
        "neither" => out.json(format!(r#"{{"jsonrpc":"2.0","id":{}}}"#, call.id())).await,
        "bad utf-8" => {
            let (before, after) = ok.split_once("fine").unwrap();
            out.json([before.as_bytes(), &[0xc3, 0x28], after.as_bytes()].concat()).await;
        }
        "br unasked" => {
            let headers = [("content-type", "application/json"), ("content-encoding", "br")];
            out.full(200, &headers, [0x0b, 0x02, 0x80, 1, 2, 3]).await;
        }
        other => panic!("unknown mode {other}"),
    }
}

/// Modes with the codes that are right for them.
const MODES: [(&str, &[i64]); 31] = [
    ("400", &[-31006, -31004]),
    ("401", &[-31006, -31004]),
    ("403", &[-31006, -31004]),
    ("413", &[-31006, -31004]),
    ("429", &[-31006, -31004, -31002, -31001]),
    ("500", &[-31006, -31004]),
    ("502", &[-31006, -31004]),
    ("200 html", &[-31006]),
    ("200 text", &[-31006]),
    ("202", &[-31006]),
    ("204", &[-31006]),
    ("301", &[-31006, -31004]),
    ("302", &[-31006, -31004]),
    ("reset", &[-31005]),
    ("half", &[-31005]),
    ("half chunk", &[-31005]),
    ("no http", &[-31005, -31006]),
    ("sse end", &[-31005, -31006]),
    ("sse garbage", &[-31005, -31006]),
    ("own envelope", &[-31006]),
    ("array", &[-31006]),
    ("string", &[-31006]),
    ("empty", &[-31006]),
    ("syntax", &[-31006]),
    ("two values", &[-31006]),
    ("other id", &[-31006]),
    ("id as string", &[-31006]),
    ("no id", &[-31006]),
    ("no jsonrpc", &[-31006]),
    ("neither", &[-31006]),
    ("bad utf-8", &[-31006]),
];

async fn hostile() -> (Gateway, Fake) {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            match call.arg("mode").as_str() {
                Some(mode) => misbehave(call.clone(), mode).await,
                None => call.say("fine").await,
            }
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

fn check_error(told: &str, error: &Value, codes: &[i64]) {
    let code = error["code"].as_i64().unwrap_or(0);
    assert!(codes.contains(&code), "{told} gave {error}");
    let data = &error["data"];
    assert_eq!(data["upstream"], "up", "{told} gave {error}");
    assert!(data["retryable"].is_boolean(), "{told} gave {error}");
    let reason = match code {
        -31004 => "upstream_unavailable",
        -31005 => "upstream_closed",
        -31006 => "upstream_protocol",
        _ => data["reason"].as_str().unwrap_or_default(),
    };
    assert_eq!(data["reason"], reason, "{told} gave {error}");
    let text = error["message"].to_string();
    assert!(!text.contains(SECRET) && !text.contains("10.0.0.1"), "{told} gave {error}");
}

#[tokio::test]
async fn every_wrong_answer_to_a_call_becomes_one_error_and_the_next_call_works() {
    let (gateway, up) = hostile().await;
    let client = gateway.mcp().await;
    let mut count = 0;
    for (mode, codes) in MODES {
        let begun = Instant::now();
        let answer = client.call("do", json!({ "mode": mode })).await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{mode} took {:?}", begun.elapsed());
        assert_eq!(answer.status, 200, "a legacy client gets {mode} in band");
        check_error(mode, &answer.json["error"], codes);
        assert_eq!(client.call("do", json!({})).await.said(), "fine", "after {mode}");
        count += 2;
        assert_eq!(up.count("tools/call"), count, "{mode} was not tried again");
    }
}

#[tokio::test]
async fn every_wrong_answer_on_a_plain_route_becomes_502_with_one_error() {
    let up = Fake::plain()
        .on("do", |call: Call| async move {
            let mode = call.req.json()["params"]["mode"].as_str().unwrap_or_default().to_owned();
            misbehave(call, &mode).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    // Plain services know no streams; some of them call their JSON text or leave `jsonrpc` out, and are mended.
    let odd = ["sse end", "sse garbage", "half chunk", "200 text", "no jsonrpc"];
    let modes = MODES.iter().filter(|(mode, _)| !odd.contains(mode));
    for (mode, codes) in modes {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"x","method":"do","params":{{"mode":"{mode}"}}}}"#);
        let reply = gateway.http().post("/rpc", body.clone()).await;
        assert_eq!(reply.json()["id"], "x", "{mode}");
        check_error(mode, &reply.json()["error"], codes);
        if (-31006..=-31004).contains(&reply.code()) {
            assert_eq!(reply.status, 502, "{mode}");
        }
        let good = r#"{"jsonrpc":"2.0","id":"good","method":"echo","params":["fine"]}"#;
        let reply = gateway.http().post("/rpc", format!("[{body},{good}]")).await;
        let items = reply.json();
        assert_eq!(items[0]["id"], "x", "{mode}: {items}");
        check_error(mode, &items[0]["error"], codes);
        assert_eq!(items[1]["result"][0], "fine", "{mode}: {items}");
    }
}

#[tokio::test]
async fn row_24_a_null_error_beside_a_result_is_a_success_and_a_real_one_wins() {
    let up = Fake::plain()
        .on("null", |call: Call| async move {
            let id = call.id();
            call.out
                .json(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":5,"error":null}}"#))
                .await;
        })
        .on("both", |call: Call| async move {
            let (id, error) = (call.id(), r#"{"code":-7,"message":"m"}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":5,"error":{error}}}"#);
            call.out.json(text).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    let ask = |method| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
    let reply = gateway.http().post("/rpc", ask("null")).await.json();
    assert_eq!(reply["result"], 5, "{reply}");
    assert!(reply.get("error").is_none(), "{reply}");
    let reply = gateway.http().post("/rpc", ask("both")).await.json();
    assert!(matches!(reply["error"]["code"].as_i64(), Some(-7 | -31006)), "{reply}");
    assert!(reply.get("result").is_none(), "{reply}");
    let metrics = gateway.metrics().await;
    let name = "trunkline_upstream_stray_messages_total";
    assert_eq!(metrics.value(name, &[("upstream", "up")]), 1.0, "it is counted");
}

#[tokio::test]
async fn a_plain_answer_without_its_version_or_media_type_is_mended() {
    let up = Fake::plain()
        .on("do", |call: Call| async move {
            let text = format!(r#"{{"id":{},"result":1.0}}"#, call.id());
            call.out.full(200, &[("content-type", "text/plain")], text).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    let reply = gateway.http().post("/rpc", r#"{"jsonrpc":"2.0","id":"x","method":"do"}"#).await;
    assert_eq!((reply.status, &reply.json()["jsonrpc"]), (200, &json!("2.0")));
    assert!(reply.text().contains(r#""result":1.0"#), "{}", reply.text());
    assert_eq!(reply.header("content-type"), "application/json");
}

#[tokio::test]
async fn rows_27_and_28_a_batching_upstream_that_answers_short_costs_only_what_it_left_out() {
    let up = Fake::plain()
        .on("*", |call: Call| async move {
            let Value::Array(items) = call.req.json() else {
                return fake::answer_plain(call).await;
            };
            if items.iter().any(|item| item["method"] == "refuse") {
                let error = r#"{"code":-9,"message":"no batches today"}"#;
                let text = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#);
                return call.out.json(text).await;
            }
            let answers: Vec<_> = items
                .iter()
                .rev()
                .filter(|item| item["method"] != "omit")
                .map(|item| json!({"jsonrpc": "2.0", "id": item["id"], "result": item["params"]}))
                .collect();
            call.out.json(json!(answers).to_string()).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "batch = true").rpc(r#""*" = "up""#).start().await;
    let ask = |id: &str, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": [id]});
    let body = json!([ask("a", "echo"), ask("b", "omit"), ask("c", "echo")]).to_string();
    let items = gateway.http().post("/rpc", body).await.json();
    assert_eq!(up.requests().len(), 1, "they travel together");
    assert_eq!((&items[0]["id"], &items[0]["result"][0]), (&json!("a"), &json!("a")), "{items}");
    assert_eq!(
        (&items[1]["id"], &items[1]["error"]["code"]),
        (&json!("b"), &json!(-31006)),
        "{items}"
    );
    assert_eq!((&items[2]["id"], &items[2]["result"][0]), (&json!("c"), &json!("c")), "{items}");
    let body = json!([ask("a", "refuse"), ask("b", "echo")]).to_string();
    let items = gateway.http().post("/rpc", body).await.json();
    assert_eq!((&items[0]["id"], &items[1]["id"]), (&json!("a"), &json!("b")), "{items}");
    assert_eq!(items[0]["error"]["code"], -9, "{items}");
    assert_eq!(items[1]["error"]["code"], -9, "{items}");
}

#[tokio::test]
async fn row_29_a_json_rpc_error_under_another_status_is_delivered() {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            call.out.full(400, &JSON, call.error_text(-32602, "bad arguments")).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let answer = gateway.mcp().await.call("do", json!({})).await;
    assert_eq!((answer.status, answer.code()), (200, -32602));
    assert_eq!(answer.json["error"]["message"], "bad arguments");

    let up = Fake::plain()
        .on("do", |call: Call| async move {
            call.out.full(500, &JSON, call.error_text(-5, "own error")).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    let reply = gateway.http().post("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"do"}"#).await;
    assert_eq!((reply.status, reply.code()), (200, -5));
}

#[tokio::test]
async fn row_47_an_error_that_is_a_string_is_wrapped() {
    let up = Fake::plain()
        .on("do", |call: Call| async move {
            let id = call.id();
            call.out.json(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"too bad"}}"#)).await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &up, "").rpc(r#""*" = "up""#).start().await;
    let reply = gateway.http().post("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"do"}"#).await;
    assert_eq!(reply.code(), -31006);
    assert_eq!(reply.json()["error"]["data"]["upstreamError"], "too bad", "{}", reply.text());
}

#[tokio::test]
async fn the_first_of_two_answers_on_a_stream_counts_and_foreign_ones_are_dropped() {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            call.out.event(r#"{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}"#).await;
            call.out.event(call.response(&fake::said("first").to_string())).await;
            call.out.event(call.response(&fake::said("second").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    for _ in 0..3 {
        let answer = client.call("do", json!({})).await;
        assert_eq!((answer.said(), answer.before.len()), ("first", 0));
    }
}

#[tokio::test]
async fn c083_an_upstream_that_refuses_connections_is_unavailable_at_once() {
    let (addr, _held) = closed_port();
    let gateway = Setup::new()
        .upstream("up", &format!("protocol = \"jsonrpc\"\nurl = \"http://{addr}/\""))
        .upstream("dns", "protocol = \"jsonrpc\"\nurl = \"http://no-such-host.invalid/\"")
        .rpc(r#""*" = "up", "dns" = "dns""#)
        .start()
        .await;
    for (method, upstream) in [("x", "up"), ("dns", "dns")] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let reply = gateway.http().post("/rpc", body).await;
        assert_eq!((reply.status, reply.code()), (502, -31004));
        let error = reply.json()["error"].clone();
        assert_eq!(error["data"]["upstream"], upstream);
        assert_eq!(error["data"]["retryable"], true);
        assert!(!error.to_string().contains("127.0.0.1"), "{error}");
        assert!(!error.to_string().contains("invalid/"), "{error}");
    }
}

#[tokio::test]
async fn c010_characters_cut_anywhere_arrive_whole() {
    const TEXT: &str = "aä語🚂z";
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            let event = format!("data: {}\n\n", call.response(&fake::said(TEXT).to_string()));
            let cut = usize::try_from(call.arg("cut").as_u64().unwrap()).unwrap();
            let start = event.find('ä').unwrap() - 1;
            let (head, tail) = event.as_bytes().split_at(start + cut);
            call.out.sse().await;
            call.out.chunk(head).await;
            call.out.chunk(tail).await;
            call.out.end().await;
        })
        .on("prompts/get", |call: Call| async move {
            let event = format!("data: {}\r\n\r\n", call.response(&json!({"d": TEXT}).to_string()));
            call.out.sse().await;
            for byte in event.as_bytes() {
                call.out.chunk([*byte]).await;
            }
            call.out.end().await;
        })
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "prompts": {}});
            lists.prompts = vec![json!({"name": "p"})];
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    for cut in 0..=TEXT.len() {
        assert_eq!(client.call("do", json!({ "cut": cut })).await.said(), TEXT, "cut at {cut}");
    }
    let answer = client.request("prompts/get", json!({"name": "p"})).await;
    assert_eq!(answer.result()["d"], TEXT);
}

#[tokio::test]
async fn c012_an_initialize_stream_may_begin_with_an_empty_event() {
    let up = Fake::mcp(["do"])
        .on("initialize", |call: Call| async move {
            let (hello, session) = fake::hello(&call);
            let session = session.unwrap();
            call.out
                .bytes(format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                     mcp-session-id: {session}\r\ntransfer-encoding: chunked\r\n\r\n"
                ))
                .await;
            call.out.chunk("id: 1\ndata:\n\n").await;
            call.out.chunk(": comment\n\n").await;
            call.out
                .event(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hi"}}"#)
                .await;
            call.out.event(call.response(&hello.to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    assert_eq!(client.tools().await, ["do"]);
    assert_eq!(client.call("do", json!({})).await.said(), "do");
}

async fn redirecting(status: u16, absolute: bool) -> Fake {
    let redirect = move |call: Call| async move {
        if call.req.path == "/mcp/" {
            let key = call.req.rpc().unwrap_or_else(|| call.req.method.clone());
            return fake::answer_mcp(call, &key).await;
        }
        let host = call.req.header("host").unwrap().to_owned();
        let location = if absolute { format!("http://{host}/mcp/") } else { "/mcp/".to_owned() };
        call.out.full(status, &[("location", &location)], "").await;
    };
    Fake::mcp(["do"])
        .on("*", redirect)
        .on("GET", redirect)
        .on("DELETE", redirect)
        .stateless()
        .start()
        .await
}

#[tokio::test]
async fn c085_redirects_of_the_same_origin_are_followed_with_the_whole_body() {
    for (status, absolute) in [(307, false), (308, true)] {
        let up = redirecting(status, absolute).await;
        let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
        let client = gateway.mcp().await;
        let big = "x".repeat(1 << 20);
        assert_eq!(client.call("do", json!({ "big": big })).await.said(), "do", "{status}");
        let calls = up.of("tools/call");
        let last = calls.last().unwrap();
        assert_eq!(last.path, "/mcp/");
        assert_eq!(last.json()["params"]["arguments"]["big"].as_str().unwrap().len(), 1 << 20);
        // Of calls alone: lists may be fetched beside.
        let before = up.count("tools/call");
        client.call("do", json!({})).await.said();
        assert_eq!(up.count("tools/call"), before + 1, "the new place is remembered");
    }
}

#[tokio::test]
async fn c085_a_redirect_loop_ends_in_an_error_that_names_no_place() {
    let up = Fake::plain()
        .on("*", |call: Call| async move {
            call.out.full(307, &[("location", "/mcp")], "").await;
        })
        .start()
        .await;
    let away = Fake::plain()
        .on("*", |call: Call| async move {
            call.out.full(307, &[("location", "http://198.51.100.7:9/internal")], "").await;
        })
        .start()
        .await;
    let gateway = Setup::new()
        .plain("up", &up, "")
        .plain("away", &away, "")
        .rpc(r#""*" = "up", "away" = "away""#)
        .start()
        .await;
    for method in ["loop", "away"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let reply = patient("an end", gateway.http().post("/rpc", body)).await;
        assert_eq!(reply.status, 502, "{method}");
        assert!(!reply.text().contains("198.51.100.7"), "{}", reply.text());
        assert!(!reply.text().contains("internal"), "{}", reply.text());
    }
    assert!(up.requests().len() <= 20, "a few hops, not {}", up.requests().len());
}

#[tokio::test]
async fn c087_an_encoding_nobody_asked_for_costs_only_that_upstream() {
    let good = Fake::mcp(["fine"]).start().await;
    let brotli = Fake::mcp(["never"])
        .on("tools/list", |call: Call| async move { misbehave(call, "br unasked").await })
        .on("tools/call", |call: Call| async move { misbehave(call, "br unasked").await })
        .start()
        .await;
    let gateway = Setup::new().fake("good", &good).fake("br", &brotli).mcp(&["good", "br"]);
    let gateway = gateway.start().await;
    let client = gateway.mcp().await;
    client.until_tools("the good one is listed", |tools| tools == ["good__fine"]).await;
    let asked = good.of("tools/call");
    assert!(asked.iter().all(|r| !r.header("accept-encoding").unwrap_or("").contains("br")));

    let plain = Fake::plain()
        .on("*", |call: Call| async move { misbehave(call, "br unasked").await })
        .start()
        .await;
    let gateway = Setup::new().plain("up", &plain, "").rpc(r#""*" = "up""#).start().await;
    let reply = gateway.http().post("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#).await;
    assert_eq!(reply.code(), -31006);
    assert!(reply.text().contains("br"), "the error names the encoding: {}", reply.text());
    let asked = plain.requests()[0].header("accept-encoding").unwrap_or("").to_owned();
    assert!(!asked.contains("br") && !asked.contains("zstd"), "{asked}");
}

#[tokio::test]
async fn media_types_of_answers_are_read_by_their_rules() {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            let text = call.response(&fake::said("fine").to_string());
            let kind = call.arg("type").as_str().unwrap().to_owned();
            let sse = kind.to_lowercase().starts_with("text/event-stream");
            let body = if sse { format!("data:{text}\r\r") } else { text };
            call.out.full(200, &[("content-type", &kind)], body).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    for kind in [
        "application/json;charset=UTF-8",
        "Application/JSON; charset=\"utf-8\"",
        "text/event-stream; charset=utf-8",
        "TEXT/EVENT-STREAM",
    ] {
        assert_eq!(client.call("do", json!({ "type": kind })).await.said(), "fine", "{kind}");
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_an_error_and_the_next_one_is_not() {
    let up = Fake::mcp(["do"])
        .on("tools/call", |call: Call| async move {
            let size = usize::try_from(call.arg("size").as_u64().unwrap()).unwrap();
            let text = call.response(&fake::said(&"x".repeat(size)).to_string());
            if call.arg("sse") == true {
                call.out.sse().await;
                call.out.event(text).await;
                call.out.end().await;
            } else {
                call.out.json(text).await;
            }
        })
        .start()
        .await;
    let gateway = Setup::new().fake_with("up", &up, "max_message = \"64KiB\"").mcp(&["up"]);
    let gateway = gateway.start().await;
    let client: Mcp = gateway.mcp().await;
    for sse in [false, true] {
        let answer = client.call("do", json!({"size": 200_000, "sse": sse})).await;
        assert_eq!((answer.code(), answer.reason()), (-31006, "upstream_protocol"));
        let answer = client.call("do", json!({"size": 60_000, "sse": sse})).await;
        assert_eq!(answer.said().len(), 60_000);
    }
}
