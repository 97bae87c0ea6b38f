//! Cases from the field: fidelity of JSON, schemas, ids, and answers that are none. The table is in `cases`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake::{self, Call, Fake, tool};
use crate::gateway::{Gateway, Setup};
use crate::mcp::request;
use crate::modern::{Modern, read};

/// Numbers that a double does not hold, or not in this spelling.
const NUMBERS: &str = "[9223372036854775807,18446744073709551616,1.0,1e400,-0,0.1000000000000000055511151231257827,1E+2,9007199254740993]";

async fn before(up: Fake) -> (Gateway, Fake) {
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

#[tokio::test]
async fn c041_an_id_with_a_fraction_of_nothing_is_refused_and_not_made_another() {
    let (gateway, up) = before(Fake::mcp(["x"]).start().await).await;
    let client = gateway.mcp().await;
    for id in ["1.0", "1e0", "-0.0", "1E+2"] {
        let reply = client.post(&request(id, "tools/call", &json!({"name": "x"}))).await;
        assert_eq!((reply.status, reply.code()), (400, -32600), "{id}");
    }
    assert_eq!(up.count("tools/call"), 0);
    let upstream = Fake::plain().start().await;
    let gateway = Setup::new().plain("up", &upstream, "").rpc(r#""*" = "up""#).start().await;
    for id in ["1.0", "1e0", "null", "-0.0"] {
        let reply = gateway.http().post("/rpc", request(id, "echo", &json!([1]))).await;
        assert!(reply.text().contains(&format!("\"id\":{id}")), "{id}: {}", reply.text());
    }
}

#[tokio::test]
async fn c101_numbers_pass_in_every_list_and_between_the_eras() {
    let page = |member: &str, item: &str| {
        format!(r#"{{"{member}":[{{{item},"_meta":{{"n":{NUMBERS}}}}}],"x":{NUMBERS}}}"#)
    };
    let tools = page("tools", r#""name":"x","inputSchema":{"type":"object"}"#);
    let prompts = page("prompts", r#""name":"p""#);
    let resources = page("resources", r#""name":"r","uri":"x://r""#);
    let templates = page("resourceTemplates", r#""name":"t","uriTemplate":"x://t/{id}""#);
    let up = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "prompts": {}, "resources": {}});
        })
        .on("tools/list", move |call: Call| {
            let page = tools.clone();
            async move { call.result(&page).await }
        })
        .on("prompts/list", move |call: Call| {
            let page = prompts.clone();
            async move { call.result(&page).await }
        })
        .on("resources/list", move |call: Call| {
            let page = resources.clone();
            async move { call.result(&page).await }
        })
        .on("resources/templates/list", move |call: Call| {
            let page = templates.clone();
            async move { call.result(&page).await }
        })
        .on("tools/call", |call: Call| async move {
            let sent = call.req.params().unwrap_or_default();
            let fine = sent.contains(&format!(r#""arguments":{{"n":{NUMBERS}}}"#));
            if !fine {
                return call.error(-1, &sent).await;
            }
            let meta = format!(r#"{{"n":{NUMBERS}}}"#);
            call.result(&format!(
                r#"{{"content":[],"structuredContent":{{"n":{NUMBERS}}},"_meta":{meta}}}"#
            ))
            .await;
        })
        .start()
        .await;
    let other = Fake::mcp(["y"]).start().await;
    let gateway =
        Setup::new().fake("up", &up).fake("other", &other).mcp(&["up", "other"]).start().await;
    let (legacy, modern) = (gateway.mcp().await, Modern::new(gateway.http(), json!({})));
    gateway.until("both are up", |m| m.value("trunkline_upstream_up", &[]) == 2.0).await;
    // As text: no JSON library of the test's own takes these numbers without harm.
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        let of_legacy = legacy.post(&request(1, method, &json!({}))).await;
        let body = modern.body(&json!(1), method, json!({}));
        let of_modern = modern.send(&modern.headers(&body), &body.to_string()).await.whole().await;
        for reply in [of_legacy, of_modern] {
            let text = reply.text();
            assert!(text.contains(&format!(r#""_meta":{{"n":{NUMBERS}}}"#)), "{method}: {text}");
        }
    }
    let params = json!({"name": "up__x", "arguments": {"n": "#"}});
    let with = |body: String| body.replace("\"#\"", NUMBERS);
    let of_legacy = legacy.post(&with(request(1, "tools/call", &params))).await;
    let body = modern.body(&json!(1), "tools/call", params);
    let of_modern = modern.send(&modern.headers(&body), &with(body.to_string())).await;
    let of_modern = of_modern.whole().await;
    for reply in [of_legacy, of_modern] {
        let found = reply.text().matches(&format!(r#"{{"n":{NUMBERS}}}"#)).count();
        assert_eq!(found, 2, "{}", reply.text());
    }
}

#[tokio::test]
async fn c103_every_kind_of_content_passes_whole_and_so_do_errors() {
    const RESULT: &str = r#"{"content":[{"type":"text","text":"t"},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},{"type":"resource","resource":{"uri":"x://y","blob":"AA=="}},{"type":"resource_link","uri":"x://z","name":"z","size":1.0},{"type":"x-foo","y":[1,{}]}],"structuredContent":#,"_meta":{"a/b":1.0},"isError":true,"unknown":{"deep":[null]}}"#;
    const ERROR: &str =
        r#"{"code":-32050,"message":"own","data":{"n":1.0,"list":[null,"x"]},"more":{}}"#;
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            match call.arg("structured").as_str() {
                Some(structured) => call.result(&RESULT.replace('#', structured)).await,
                None => {
                    let id = call.id();
                    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{ERROR}}}"#);
                    call.out.json(text).await;
                }
            }
        })
        .start()
        .await;
    let (gateway, _up) = before(up).await;
    let client = gateway.mcp().await;
    for structured in [r#"{"a":{"b":1.0}}"#, r#"[1,{"x":2.0}]"#, r#""text""#, "7.0", "null", "true"]
    {
        let answer = client.call("x", json!({ "structured": structured })).await;
        let expected = RESULT.replace('#', structured);
        assert!(answer.text.contains(&expected), "{structured}: {}", answer.text);
    }
    let answer = client.call("x", json!({})).await;
    assert_eq!(answer.status, 200);
    let expected: Value = serde_json::from_str(ERROR).unwrap();
    for member in ["code", "message", "data"] {
        assert_eq!(answer.json["error"][member], expected[member], "{}", answer.text);
    }
    assert!(answer.text.contains(r#""data":{"n":1.0,"#), "{}", answer.text);
}

#[tokio::test]
async fn c105_one_reading_decides_in_either_era_and_no_depth_does_harm() {
    let up = Fake::mcp(["a", "b"]).start().await;
    let lines = "[upstreams.up.tools]\ndeny = [\"b\"]";
    let gateway = Setup::new().fake_with("up", &up, lines).mcp(&["up"]).start().await;
    let (legacy, modern) = (gateway.mcp().await, Modern::new(gateway.http(), json!({})));
    legacy.until_tools("only a", |tools| tools == ["a"]).await;
    let body = modern.body(&json!(1), "tools/call", json!({"name": "a"}));
    let meta = body["params"]["_meta"].to_string();
    let headers = modern.headers(&body);
    let call = |params: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{params},"_meta":{meta}}}}}"#
        )
    };
    let deep = |levels: usize| {
        let nested = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        call(&format!(r#""name":"a","arguments":{{"x":{nested}}}"#))
    };
    for (body, codes) in [
        (call(r#""name":"a","name":"b""#), &[-32600][..]),
        (call(r#""name":"b","name":"a""#), &[-32600]),
        (call(r#""name":"a","n\u0061me":"b""#), &[-32600]),
        (call(r#""name":"a","_meta":{}"#), &[-32600]),
        (call(r#""name":"a""#).replacen("2.0\",", "2.0\",\"jsonrpc\":\"2.0\",", 1), &[-32600]),
        (call(r#""name":"a","arguments":{"x":NaN}"#), &[-32700]),
        (call(r#""name":"a","arguments":{"x":Infinity}"#), &[-32700]),
        (deep(10_000), &[-31010]),
    ] {
        let of_legacy = legacy.post(&body).await;
        let of_modern = modern.send(&headers, &body).await.whole().await;
        for reply in [of_legacy, of_modern] {
            let shown: String = body.chars().take(300).collect();
            assert_eq!(reply.status, 400, "{shown} gave {}", reply.text());
            assert!(codes.contains(&reply.code()), "{shown} gave {}", reply.text());
        }
    }
    assert_eq!(up.count("tools/call"), 0);
    let answer = read(modern.send(&headers, &deep(100)).await).await;
    assert_eq!(answer.said(), "a");
    // The header of another tool does not open it either.
    let body = modern.body(&json!(1), "tools/call", json!({"name": "b"}));
    let reply = modern.send(&headers, &body.to_string()).await.whole().await;
    assert_eq!((reply.status, reply.code()), (400, -32020));
    assert!(up.of("tools/call").iter().all(|seen| seen.json()["params"]["name"] == "a"));
}

#[tokio::test]
async fn c107_schemas_pass_untouched_however_large_and_recursive() {
    let definition = |fill: usize| {
        let text = "d".repeat(fill);
        format!(
            r##"{{"name":"x","inputSchema":{{"type":"object","properties":{{"n":{{"$ref":"#/$defs/node"}},"m":{{"$ref":"#/properties/n"}}}},"$defs":{{"node":{{"type":"object","properties":{{"next":{{"$ref":"#/$defs/node"}},"deep":{{"$defs":{{"in":{{"const":1.0}}}},"$ref":"#/$defs/node/properties/deep/$defs/in"}}}}}},"unused":{{"description":"{text}"}}}}}},"outputSchema":{{"type":"object","$defs":{{"n":{{}}}},"$ref":"#/$defs/n"}}}}"##
        )
    };
    for fill in [0, 2 << 20] {
        let shown = definition(fill);
        let page = format!(r#"{{"tools":[{shown}]}}"#);
        let up = Fake::mcp([])
            .on("tools/list", move |call: Call| {
                let page = page.clone();
                async move { call.result(&page).await }
            })
            .start()
            .await;
        let (gateway, _up) = before(up).await;
        let (legacy, modern) = (gateway.mcp().await, Modern::new(gateway.http(), json!({})));
        legacy.until_tools("its tool", |tools| tools == ["x"]).await;
        let begun = Instant::now();
        let of_legacy = legacy.request("tools/list", json!({})).await.text;
        let of_modern = modern.request("tools/list", json!({})).await.text;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert!(of_legacy.contains(&shown), "{fill}: {of_legacy:.900}");
        assert!(of_modern.contains(&shown), "{fill}: {of_modern:.900}");
    }
}

#[tokio::test]
async fn c091_a_call_that_is_answered_by_no_answer_gets_one_error() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            let id = call.id();
            let with = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},{rest}}}"#);
            let text = match call.arg("mode").as_str() {
                Some("both") => {
                    with(r#""result":{"content":[]},"error":{"code":-5,"message":"m"}"#)
                }
                Some("error as text") => with(r#""error":"too bad""#),
                Some("error without code") => with(r#""error":{"message":"m"}"#),
                Some("result as text") => with(r#""result":"ok""#),
                Some("a request") => with(r#""method":"ping""#),
                Some("a notice") => r#"{"jsonrpc":"2.0","method":"notifications/message"}"#.into(),
                _ => call.response(&fake::said("fine").to_string()),
            };
            if call.arg("sse") != true {
                return call.out.json(text).await;
            }
            call.out.sse().await;
            call.out.event(text).await;
            call.out.end().await;
        })
        .start()
        .await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    client.call("x", json!({})).await.said();
    for sse in [false, true] {
        for (mode, codes) in [
            ("both", &[-5, -31006][..]),
            ("error as text", &[-31006]),
            ("error without code", &[-31006]),
            ("result as text", &[-31006]),
            ("a request", &[-31006, -31005]),
            ("a notice", &[-31006, -31005]),
        ] {
            let runs = up.count("tools/call");
            let begun = Instant::now();
            let answer = client.call("x", json!({"mode": mode, "sse": sse})).await;
            assert!(begun.elapsed() < Duration::from_secs(3), "{mode}: {:?}", begun.elapsed());
            assert!(codes.contains(&answer.code()), "{mode}, {sse}: {}", answer.text);
            assert!(answer.json.get("result").is_none(), "{mode}: {}", answer.text);
            assert_eq!(up.count("tools/call"), runs + 1, "{mode}: once");
        }
        assert_eq!(client.call("x", json!({"sse": sse})).await.said(), "fine");
    }
}

#[tokio::test]
async fn c083_a_refusing_status_is_told_in_the_error_and_the_next_call_works() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            match call.arg("status").as_u64() {
                Some(status) => {
                    let kind = [("content-type", "text/html")];
                    let status = u16::try_from(status).unwrap();
                    call.out.full(status, &kind, "<h1>Bearer s3cret</h1>").await;
                }
                None => call.say("fine").await,
            }
        })
        .stateless()
        .start()
        .await;
    let (gateway, up) = before(up).await;
    let client = gateway.mcp().await;
    for status in [400, 401, 403, 404, 405, 413, 415, 429, 500, 502, 503, 504] {
        let runs = up.count("tools/call");
        let answer = client.call("x", json!({ "status": status })).await;
        let data = &answer.json["error"]["data"];
        assert!((-31006..=-31001).contains(&answer.code()), "{status}: {}", answer.text);
        assert_eq!(data["upstreamStatus"], status, "{}", answer.text);
        assert!(!answer.text.contains("s3cret"), "{}", answer.text);
        assert_eq!(up.count("tools/call"), runs + 1, "{status}: not tried again");
        assert_eq!(client.call("x", json!({})).await.said(), "fine", "after {status}");
    }
}

#[tokio::test]
async fn c087_a_call_that_is_answered_in_an_encoding_nobody_asked_for_names_it() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move {
            let headers = [("content-type", "application/json"), ("content-encoding", "br")];
            call.out.full(200, &headers, [0x0b, 0x02, 0x80, 1, 2, 3]).await;
        })
        .start()
        .await;
    let good = Fake::mcp(["y"]).with(|lists| lists.tools.push(tool("z"))).start().await;
    let gateway =
        Setup::new().fake("up", &up).fake("good", &good).mcp(&["up", "good"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools == ["up__x", "good__y", "good__z"]).await;
    let answer = client.call("up__x", json!({})).await;
    assert_eq!(answer.code(), -31006);
    assert!(answer.text.contains("encoding br"), "{}", answer.text);
    assert_eq!(client.call("good__y", json!({})).await.said(), "y");
    let labels = [("upstream", "up"), ("method", "tools/call"), ("outcome", "protocol")];
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_upstream_calls_total", &labels), 1.0);
}
