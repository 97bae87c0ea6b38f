//! Calls: bytes, ids, progress, cancellation, questions from upstreams.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::MCP_HEADERS;
use crate::fake::{self, Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::mcp::{Mcp, request};

const NUMBERS: &str = "[9223372036854775807,18446744073709551616,1.0,1e400,-0,0.1000000000000000055511151231257827,1E+2,1.10]";

async fn before(up: Fake) -> (Gateway, Fake) {
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

/// A tool that waits `ms` and says `tag`, as JSON or, with `sse`, on a stream.
async fn wait(call: Call) {
    let ms = call.arg("ms").as_u64().unwrap_or(0);
    if call.arg("sse") == true {
        call.out.sse().await;
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    let text = call.response(&fake::said(call.arg("tag").as_str().unwrap_or("")).to_string());
    if call.arg("sse") == true {
        call.out.event(text).await;
        call.out.end().await;
    } else {
        call.out.json(text).await;
    }
}

#[tokio::test]
async fn c101_arguments_and_results_pass_to_the_byte() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            if call.arg("fail") == true {
                let id = call.id();
                let error = format!(r#"{{"code":-5,"message":"m","data":{NUMBERS}}}"#);
                return call
                    .out
                    .json(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
                    .await;
            }
            call.result(&format!(r#"{{"structuredContent":{{"n":{NUMBERS}}},"content":[]}}"#))
                .await;
        })
        .start()
        .await;
    let other = Fake::mcp(["y"]).start().await;
    let gateway =
        Setup::new().fake("up", &up).fake("other", &other).mcp(&["up", "other"]).start().await;
    let client = gateway.mcp().await;
    let arguments = format!(r#"{{"z":{NUMBERS},"a":"\u00e4\/ö\ud800","":{{"b":[],"a":null}}}}"#);
    let body = format!(
        r#"{{"id":5,"params":{{"extra":1.0,"arguments":{arguments},"name":"up__\u0078"}},"method":"tools/call","jsonrpc":"2.0"}}"#
    );
    // As text: no JSON library of the test's own takes these numbers without harm.
    let answer = client.post(&body).await;
    let result = format!(r#"{{"structuredContent":{{"n":{NUMBERS}}},"content":[]}}"#);
    assert!(answer.text().contains(&result), "{}", answer.text());
    let seen = &up.of("tools/call")[0];
    assert!(seen.text().contains(&arguments), "{}", seen.text());
    assert!(seen.text().contains(r#""extra":1.0"#), "{}", seen.text());
    assert!(seen.text().contains(r#""name":"x""#), "{}", seen.text());
    let fail = request(6, "tools/call", &json!({"name": "up__x", "arguments": {"fail": true}}));
    let answer = client.post(&fail).await;
    let error = format!(r#"{{"code":-5,"message":"m","data":{NUMBERS}}}"#);
    assert!(answer.text().contains(&error), "{}", answer.text());
}

#[tokio::test]
async fn c103_results_pass_whole_whatever_they_hold() {
    const RESULT: &str = r#"{"isError":true,"content":[{"type":"text","text":"t","annotations":{"x":1}},{"type":"x-foo","y":[1,{}]},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"resource","resource":{"uri":"x://y","text":""}}],"structuredContent":[1,2],"_meta":{"a/b":1.0},"unknown":{"deep":[null]}}"#;
    let up = Fake::mcp([])
        .with(|lists| {
            let mut tool = fake::tool("x");
            tool["outputSchema"] = json!({"type": "object", "required": ["never"]});
            lists.tools = vec![tool];
        })
        .on("tools/call", |call: Call| async move { call.result(RESULT).await })
        .start()
        .await;
    let (gateway, _up) = before(up).await;
    let answer = gateway.mcp().await.call("x", json!({})).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text.contains(RESULT), "{}", answer.text);
    let metrics = gateway.metrics().await;
    let labels = [("upstream", "up"), ("tool", "x"), ("outcome", "tool_error")];
    assert_eq!(metrics.value("trunkline_tool_calls_total", &labels), 1.0);
}

#[tokio::test]
async fn c105_a_body_that_can_be_read_in_two_ways_is_refused() {
    let up = Fake::mcp(["a", "b"]).start().await;
    let lines = "[upstreams.up.tools]\ndeny = [\"b\"]";
    let gateway = Setup::new().fake_with("up", &up, lines).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("only a", |tools| tools == ["a"]).await;
    let call = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)
    };
    for body in [
        call(r#"{"name":"a","name":"b"}"#),
        call(r#"{"name":"b","name":"a"}"#),
        call(r#"{"name":"a","n\u0061me":"b"}"#),
        call(r#"{"name":"a","arguments":{},"arguments":{}}"#),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"b"}}"#.into(),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}"#.into(),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"b"}}"#.into(),
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"a"}}"#.into(),
    ] {
        let reply = client.post(&body).await;
        assert_eq!(reply.status, 400, "{body} gave {:?}", reply.body);
        assert!(matches!(reply.code(), -32600 | -32700 | -32602), "{body}");
    }
    assert_eq!(up.count("tools/call"), 0);
    let answer = client.exchange(&call(r#"{"name":"a","Name":"b"}"#)).await;
    if answer.json["error"].is_null() {
        assert_eq!(answer.said(), "a");
    }
    assert_eq!(client.call("b", json!({})).await.code(), -32602);
    assert!(up.of("tools/call").iter().all(|seen| seen.json()["params"]["name"] == "a"));
}

#[tokio::test]
async fn c039_ids_come_back_as_the_same_bytes() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    let long = format!("\"{}\"", "i".repeat(4096));
    let ids = [
        "1",
        "\"1\"",
        "0",
        "\"\"",
        "\"0\"",
        "-7",
        r#""a\u0000b""#,
        r#""\u0041""#,
        &long,
        "9007199254740993",
        "9007199254740992",
    ];
    let calls = ids.iter().enumerate().map(|(n, id)| {
        let params = json!({"name": "wait", "arguments": {"ms": 100, "tag": format!("t{n}")}});
        let body = request(id, "tools/call", &params);
        let client = &client;
        async move { client.exchange(&body).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    for (n, (id, answer)) in ids.iter().zip(&answers).enumerate() {
        assert!(answer.text.contains(&format!(r#""id":{id}"#)), "{id}: {}", answer.text);
        assert_eq!(answer.said(), format!("t{n}"), "{id}");
    }
    let minted: HashSet<_> = up.of("tools/call").iter().map(|seen| seen.id()).collect();
    assert_eq!(minted.len(), ids.len(), "ids towards the upstream are unique");
}

#[tokio::test]
async fn c041_ids_that_are_none_are_refused_and_forwarded_to_nobody() {
    let (gateway, up) = before(Fake::mcp(["x"]).start().await).await;
    let client = gateway.mcp().await;
    for id in ["null", "true", "1.5", "[1]", r#"{"a":1}"#] {
        for method in ["ping", "tools/call"] {
            let reply = client.post(&request(id, method, &json!({"name": "x"}))).await;
            assert_eq!((reply.status, reply.code()), (400, -32600), "{id}");
            assert!(reply.json()["id"].is_null(), "{id}: {}", reply.text());
        }
    }
    for params in ["[1]", "\"x\"", "5"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#);
        let reply = client.post(&body).await;
        assert_eq!((reply.status, reply.code()), (400, -32600), "{params}");
    }
    let reply = client.post("{").await;
    assert_eq!((reply.status, reply.code()), (400, -32700));
    assert_eq!(reply.json().get("id"), None, "none is spelt by absence: {}", reply.text());
    assert_eq!(up.count("tools/call"), 0);
}

#[tokio::test]
async fn c037_two_requests_with_one_id_each_get_their_own_answer() {
    let (gateway, _up) = before(Fake::mcp(["wait"]).on("tools/call", wait).start().await).await;
    let client = gateway.mcp().await;
    for round in 0..20u64 {
        let sse = round % 2 == 0;
        let call = |tag: &str, ms: u64| {
            let arguments = json!({"tag": tag, "ms": ms, "sse": sse});
            request(1, "tools/call", &json!({"name": "wait", "arguments": arguments}))
        };
        let (a, b) = (call("a", 60 + round % 3 * 20), call("b", 20 + round % 5 * 20));
        let (a, b) = tokio::join!(client.exchange(&a), client.exchange(&b));
        assert_eq!((a.said(), b.said()), ("a", "b"), "round {round}");
    }
}

#[tokio::test]
async fn fifty_clients_that_all_use_id_1_share_one_child() {
    let gateway = Setup::new().child("kid", &json!({}), "").mcp(&["kid"]).start().await;
    let clients: Vec<_> = futures_util::future::join_all((0..50).map(|_| gateway.mcp())).await;
    let calls = clients.iter().enumerate().map(|(n, client)| async move {
        let arguments = json!({"ms": 200 + n % 7 * 30, "tag": format!("tag-{n}")});
        let body = request(1, "tools/call", &json!({"name": "wait", "arguments": arguments}));
        client.exchange(&body).await
    });
    for (n, answer) in futures_util::future::join_all(calls).await.iter().enumerate() {
        assert_eq!((answer.said(), &answer.json["id"]), (format!("tag-{n}").as_str(), &json!(1)));
    }
    assert_eq!(gateway.metrics().await.value("trunkline_children", &[("upstream", "kid")]), 1.0);
    assert_eq!(gateway.children().len(), 1);
}

/// A tool that reports progress three times and then answers.
async fn report(call: Call) {
    call.out.sse().await;
    for n in 1..=3 {
        let tag = call.arg("tag").as_str().unwrap_or("").to_owned();
        call.out.event(call.progress(n, &tag)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    call.out.event(call.response(&fake::said("done").to_string())).await;
    call.out.end().await;
}

#[tokio::test]
async fn c045_progress_reaches_its_caller_alone_with_its_own_token() {
    let up = Fake::mcp(["report"]).on("tools/call", report).start().await;
    let lines = "isolation = \"shared\"";
    let gateway = Setup::new().fake_with("up", &up, lines).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    for token in [json!(1), json!("1"), json!("a\u{0}b")] {
        let call = |tag: &str| {
            let meta = json!({"progressToken": token, "x": 1});
            let arguments = json!({ "tag": tag });
            request(
                1,
                "tools/call",
                &json!({"name": "report", "arguments": arguments, "_meta": meta}),
            )
        };
        let (call_a, call_b) = (call("a"), call("b"));
        let (of_a, of_b) = tokio::join!(a.exchange(&call_a), b.exchange(&call_b));
        for (answer, tag) in [(of_a, "a"), (of_b, "b")] {
            let progress: Vec<_> = answer.before.iter().map(|m| &m["params"]).collect();
            assert_eq!(progress.len(), 3, "{answer:?}");
            for (n, params) in progress.iter().enumerate() {
                assert_eq!(params["progressToken"], token);
                assert_eq!((&params["message"], &params["progress"]), (&json!(tag), &json!(n + 1)));
            }
        }
    }
    let tokens: HashSet<_> = up
        .of("tools/call")
        .iter()
        .map(|seen| seen.json()["params"]["_meta"]["progressToken"].to_string())
        .collect();
    assert_eq!(tokens.len(), 6, "tokens towards the upstream are unique: {tokens:?}");
    assert!(up.of("tools/call").iter().all(|seen| seen.json()["params"]["_meta"]["x"] == 1));
}

#[tokio::test]
async fn progress_nobody_asked_for_is_not_passed_on() {
    let (gateway, _up) = before(Fake::mcp(["report"]).on("tools/call", report).start().await).await;
    let answer = gateway.mcp().await.call("report", json!({})).await;
    assert_eq!(answer.said(), "done");
    assert!(answer.before.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn c047_progress_after_the_answer_is_dropped() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            call.say("now").await;
            for n in 1..=5 {
                call.fake.push(&call.progress(n, "late"));
            }
        })
        .start()
        .await;
    let gateway = Setup::new()
        .fake("up", &up)
        .child("kid", &json!({}), "isolation = \"session\"")
        .mcp(&["up", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools.len() > 10).await;
    let mut stream = client.stream().await;
    for tool in ["up__x", "kid__progress"] {
        let meta = json!({"progressToken": "t"});
        let arguments = json!({"before": 2, "after": 5, "tag": "t"});
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let answer = client.request("tools/call", params).await;
        let expected = if tool == "up__x" { 0 } else { 2 };
        assert_eq!(answer.before.len(), expected, "{answer:?}");
        while let Some(message) = stream.message_within(Duration::from_millis(500)).await {
            assert_ne!(message["method"], "notifications/progress", "{tool}");
        }
        assert!(!client.call(tool, json!({})).await.said().is_empty(), "the next call works");
    }
}

#[tokio::test]
async fn cancelling_reaches_the_upstream_with_its_own_id_and_ends_the_exchange() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let gateway = Setup::new()
        .fake_with("up", &up, "isolation = \"shared\"")
        .child("kid", &json!({}), "")
        .mcp(&["up", "kid"])
        .start()
        .await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    a.until_tools("all", |tools| tools.len() > 10).await;
    for tool in ["up__wait", "kid__wait"] {
        let call = |tag: &str, ms: u64| {
            let arguments = json!({"tag": tag, "ms": ms});
            request("\"same\"", "tools/call", &json!({"name": tool, "arguments": arguments}))
        };
        let (of_a, of_b) = (call("a", 60_000), call("b", 1500));
        let cancelled = async { a.open_post(&of_a).await.whole().await };
        let cancel = async {
            let calls = |m: &crate::metrics::Metrics| {
                m.value("trunkline_exchanges_in_flight", &[("route", "/mcp")])
            };
            gateway.until("both run", |m| calls(m) == 2.0).await;
            a.cancel(json!("same")).await;
        };
        let (reply, other, ()) = tokio::join!(cancelled, b.exchange(&of_b), cancel);
        assert!(!reply.text().contains("\"id\""), "a cancelled call has no answer: {reply:?}");
        assert_eq!(other.said(), "b", "the other with that id goes on");
        gateway
            .until("nothing runs", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0)
            .await;
    }
    up.until_count("notifications/cancelled", 1).await;
    let calls = up.of("tools/call");
    let of_a = calls.iter().find(|seen| seen.text().contains("60000")).unwrap();
    let told = up.of("notifications/cancelled");
    assert_eq!(told.len(), 1, "only one was cancelled");
    assert_eq!(told[0].json()["params"]["requestId"].to_string(), of_a.id().unwrap());
    let stats = a.call("kid__stats", json!({})).await;
    let stats: Value = serde_json::from_str(stats.said()).unwrap();
    assert_eq!(stats["cancelled"].as_array().unwrap().len(), 1, "{stats}");
    a.cancel(json!("never-sent")).await;
    a.cancel(json!(987)).await;
    assert_eq!(up.count("notifications/cancelled"), 1, "unknown ids are ignored");
}

#[tokio::test]
async fn a_legacy_client_that_hangs_up_does_not_cancel() {
    let up = Fake::mcp(["wait"]).on("tools/call", wait).start().await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    let arguments = json!({"ms": 1000, "sse": true, "tag": "t"});
    let body = request(1, "tools/call", &json!({"name": "wait", "arguments": arguments}));
    let headers: String =
        client.headers().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let raw = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\n{headers}content-length: {}\r\n\r\n{body}",
        gateway.addr(),
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, raw.as_bytes()).await.unwrap();
    up.until_count("tools/call", 1).await;
    drop(socket);
    let labels = [("upstream", "up"), ("method", "tools/call"), ("outcome", "ok")];
    gateway
        .until("the call ends well", |m| m.value("trunkline_upstream_calls_total", &labels) == 1.0)
        .await;
    assert_eq!(up.count("notifications/cancelled"), 0);
}

fn asking() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}})
}

/// A tool that asks the client and says what came back.
async fn ask(call: Call) {
    call.out.sse().await;
    let method = call.arg("method").as_str().unwrap_or("elicitation/create").to_owned();
    let params = json!({"message": call.arg("tag"), "requestedSchema": {"type": "object"}});
    let answer = call.ask(&method, params).await;
    let text = call.response(&fake::said(&answer.to_string()).to_string());
    call.out.event(text).await;
    call.out.end().await;
}

/// Calls an asking tool and answers its question with the given result.
async fn call_and_answer(
    client: &Mcp,
    tool: &str,
    arguments: Value,
    result: Value,
) -> (Value, Value) {
    let mut stream = client.open_call(1, tool, arguments, json!({})).await;
    assert!(stream.is_sse(), "{:?}", stream.headers);
    let question = stream.next_message().await.expect("a question");
    client.answer(&question["id"], result).await;
    let answer = stream.next_message().await.expect("an answer");
    assert_eq!(stream.next_message().await, None, "the answer ends the stream");
    let said = answer["result"]["content"][0]["text"].as_str();
    let said = said.unwrap_or_else(|| panic!("no text in {answer}"));
    (question, serde_json::from_str(said).unwrap())
}

#[tokio::test]
async fn c052_questions_reach_the_client_whose_call_it_is() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let (gateway, up) = before(up).await;
    let (a, b) = (Mcp::open(&gateway, asking()).await, Mcp::open(&gateway, asking()).await);
    for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
        for _ in 0..7 {
            let one = async |client: &Mcp, tag: &str| {
                let arguments = json!({"tag": tag, "method": method});
                let result = json!({"action": "accept", "content": {"tag": tag}});
                let (question, heard) = call_and_answer(client, "ask", arguments, result).await;
                assert_eq!(question["method"], method);
                assert_eq!(question["params"]["message"], tag, "nobody sees a foreign question");
                assert_eq!(heard["result"]["content"]["tag"], tag, "{heard}");
            };
            tokio::join!(one(&a, "a"), one(&b, "b"));
        }
    }
    let declared = up.of("initialize");
    assert!(
        declared.iter().any(|r| r.json()["params"]["capabilities"]["elicitation"].is_object()),
        "what the client can do is declared upstream"
    );
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_is_not_asked() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    let answer = client.call("ask", json!({"tag": "t"})).await;
    assert!(answer.before.is_empty(), "{answer:?}");
    let heard: Value = serde_json::from_str(answer.said()).unwrap();
    assert!(heard["error"]["code"].is_number(), "the upstream is told so: {heard}");
    let hello = up.of("initialize").pop().unwrap().json();
    assert_eq!(hello["params"]["capabilities"].get("elicitation"), None, "{hello}");
}

#[tokio::test]
async fn the_clients_error_is_the_upstreams_answer() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let (gateway, _up) = before(up).await;
    let client = Mcp::open(&gateway, asking()).await;
    let mut stream = client.open_call(1, "ask", json!({"tag": "t"}), json!({})).await;
    let question = stream.next_message().await.unwrap();
    let error = json!({"code": -1, "message": "User rejected", "data": {"x": 1}});
    let body = json!({"jsonrpc": "2.0", "id": question["id"], "error": error}).to_string();
    assert_eq!(client.post(&body).await.status, 202);
    let answer = stream.next_message().await.unwrap();
    let heard: Value =
        serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(heard["error"], error);
    let reply = client.post(&body).await;
    assert!(matches!(reply.status, 202 | 400), "a second answer does no harm: {}", reply.status);
    assert_eq!(client.request("ping", json!({})).await.result(), &json!({}));
}

#[tokio::test]
async fn somebody_elses_answer_to_a_question_is_not_taken() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask).start().await;
    let (gateway, _up) = before(up).await;
    let (a, b) = (Mcp::open(&gateway, asking()).await, Mcp::open(&gateway, asking()).await);
    let mut stream = a.open_call(1, "ask", json!({"tag": "t"}), json!({})).await;
    let question = stream.next_message().await.unwrap();
    let stolen = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"from": "b"}});
    b.post(&stolen.to_string()).await;
    a.answer(&question["id"], json!({"from": "a"})).await;
    let answer = stream.next_message().await.unwrap().to_string();
    assert!(answer.contains(r#"\"a\""#) && !answer.contains(r#"\"b\""#), "{answer}");
}

#[tokio::test]
async fn c052_a_child_of_its_own_may_ask_and_a_shared_one_never_crosses() {
    let gateway = Setup::new()
        .child("own", &json!({}), "isolation = \"session\"")
        .child("shared", &json!({}), "isolation = \"shared\"")
        .mcp(&["own", "shared"])
        .start()
        .await;
    let (a, b) = (Mcp::open(&gateway, asking()).await, Mcp::open(&gateway, asking()).await);
    a.until_tools("both", |tools| tools.len() > 30).await;
    let one = async |client: &Mcp, tag: &str| {
        let params = json!({"message": tag, "requestedSchema": {"type": "object"}});
        let arguments = json!({"method": "elicitation/create", "params": params});
        let result = json!({"action": "accept", "content": {"tag": tag}});
        let (question, heard) = call_and_answer(client, "own__ask", arguments, result).await;
        assert_eq!(question["params"]["message"], tag);
        assert_eq!(heard["result"]["content"]["tag"], tag);
    };
    for _ in 0..5 {
        tokio::join!(one(&a, "a"), one(&b, "b"));
    }
    let params = json!({"message": "whose?", "requestedSchema": {"type": "object"}});
    let arguments = json!({"method": "elicitation/create", "params": params, "ms": 200});
    // While a third call runs, no question can be told from another.
    let third = a.call("shared__wait", json!({"ms": 5000, "tag": "third"}));
    let asks = async {
        let runs = |m: &crate::metrics::Metrics| m.value("trunkline_exchanges_in_flight", &[]);
        gateway.until("the third runs", |m| runs(m) >= 1.0).await;
        tokio::join!(
            a.call("shared__ask", arguments.clone()),
            b.call("shared__ask", arguments.clone())
        )
    };
    let (third, (of_a, of_b)) = tokio::join!(third, asks);
    assert_eq!(third.said(), "third");
    for answer in [of_a, of_b] {
        assert!(answer.before.is_empty(), "nobody is asked: {answer:?}");
        let heard: Value = serde_json::from_str(answer.said()).unwrap();
        assert!(heard["error"]["code"].is_number(), "{heard}");
    }
}

#[tokio::test]
async fn a_question_that_belongs_to_no_call_is_refused() {
    let up = Fake::mcp(["x"]).start().await;
    let (gateway, up) = before(up).await;
    let client = Mcp::open(&gateway, asking()).await;
    client.call("x", json!({})).await.said();
    let mut stream = client.stream().await;
    up.until("a stream for notices", |core| core.streams() > 0).await;
    up.push(r#"{"jsonrpc":"2.0","id":77,"method":"elicitation/create","params":{"message":"?"}}"#);
    up.push(r#"{"jsonrpc":"2.0","id":78,"method":"ping"}"#);
    let answered = |core: &fake::Core, id: u64, member: &str| {
        core.requests().iter().any(|r| r.json()["id"] == id && !r.json()[member].is_null())
    };
    up.until("the question is refused", |core| answered(core, 77, "error")).await;
    up.until("the ping is answered", |core| answered(core, 78, "result")).await;
    assert_eq!(stream.message_within(Duration::from_millis(300)).await, None);
}

#[tokio::test]
async fn the_answer_suits_what_the_client_accepts() {
    let up = Fake::mcp(["report"]).on("tools/call", report).start().await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    let meta = json!({"progressToken": 1});
    let call = request(1, "tools/call", &json!({"name": "report", "arguments": {}, "_meta": meta}));
    for (accept, fine, kind) in [
        (Some("*/*"), true, None),
        (Some("application/*, text/event-stream"), true, None),
        (Some("application/json"), true, Some("application/json")),
        (None, true, None),
        (Some("text/event-stream;q=0.5, application/json;q=0"), true, Some("text/event-stream")),
        (Some("text/event-stream"), true, Some("text/event-stream")),
        (Some("image/png"), false, None),
    ] {
        let mut headers = client.headers();
        headers.retain(|(name, _)| *name != "accept");
        headers.extend(accept.map(|accept| ("accept", accept)));
        let reply = gateway.http().send("POST", "/mcp", &headers, call.clone()).await;
        if !fine {
            assert_eq!(reply.status, 406, "C073: {accept:?}");
            assert!(
                reply.json()["error"]["message"].as_str().unwrap().contains("application/json")
            );
            continue;
        }
        assert_eq!(reply.status, 200, "C073: {accept:?}");
        assert!(reply.text().contains("done"), "{accept:?}: {}", reply.text());
        if let Some(kind) = kind {
            assert!(reply.header("content-type").starts_with(kind), "{accept:?}: {reply:?}");
        }
    }
    for seen in up.requests().iter().filter(|seen| seen.method == "POST") {
        let accept = seen.header("accept").unwrap_or_default();
        assert!(accept.contains("application/json") && accept.contains("text/event-stream"));
    }
}

#[tokio::test]
async fn the_upstream_sees_its_own_host_and_nothing_of_the_clients_headers() {
    let up = Fake::mcp(["x"]).start().await;
    let lines = "headers = { Authorization = \"Bearer ${TOKEN}\", X-Team = \"${TEAM:-core}\" }";
    let gateway =
        Setup::new().env("TOKEN", "t0p").fake_with("up", &up, lines).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let mut headers = client.headers();
    let origin = format!("http://{}", gateway.addr());
    headers.extend([
        ("origin", origin.as_str()),
        ("authorization", "Bearer clients"),
        ("cookie", "a=b"),
    ]);
    let body = request(1, "tools/call", &json!({"name": "x", "arguments": {}}));
    assert_eq!(gateway.http().send("POST", "/mcp", &headers, body).await.status, 200);
    let seen = &up.of("tools/call")[0];
    assert_eq!(seen.header("host"), Some(up.addr().to_string().as_str()), "C075");
    assert_eq!(seen.header("authorization"), Some("Bearer t0p"));
    assert_eq!(seen.header("x-team"), Some("core"));
    assert_eq!((seen.header("origin"), seen.header("cookie")), (None, None));
    assert_ne!(seen.header("mcp-session-id"), Some(client.session.as_str()));
    assert_eq!(seen.header("content-type"), Some(MCP_HEADERS[0].1));
}

#[tokio::test]
async fn a_change_of_roots_is_told_to_upstreams_by_clients_that_declared_it() {
    let up = Fake::mcp(["x"]).start().await;
    let (gateway, up) = before(up).await;
    let told = "notifications/roots/list_changed";
    for (capabilities, count) in
        [(json!({"roots": {}}), 0), (json!({"roots": {"listChanged": true}}), 1)]
    {
        let client = Mcp::open(&gateway, capabilities).await;
        client.call("x", json!({})).await;
        client.notify(told, json!({})).await;
        // A later call on the same link shows that an earlier message was not on its way.
        client.call("x", json!({})).await;
        up.until_count(told, count).await;
    }
    assert_eq!(up.count(told), 1);
}
