//! What clients of 2026-07-28 must say with each request, and what the gateway answers when they do not.

use serde_json::{Value, json};

use crate::client::Reply;
use crate::fake::Fake;
use crate::fake::scene::{META, MODERN};
use crate::fake::stage::{Answers, Stage};
use crate::gateway::{Gateway, Setup};
use crate::mcp::NEWEST;
use crate::modern::{CACHEABLE, Headers, Modern};

/// A gateway in front of a strict upstream, and a client that knows its tools.
async fn before() -> (Gateway, Stage, Modern) {
    let up = Stage::start(MODERN, Answers::Json).await;
    let gateway =
        Setup::new().upstream("up", &format!("url = \"{}\"", up.url())).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({"sampling": {}}));
    client.list("tools/list", "tools").await;
    (gateway, up, client)
}

fn echo(client: &Modern, id: Value, arguments: Value) -> Value {
    client.body(&id, "tools/call", json!({"name": "echo", "arguments": arguments}))
}

fn without(mut headers: Headers, name: &str) -> Headers {
    headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    headers
}

fn with(headers: Headers, name: &str, value: &str) -> Headers {
    let mut headers = without(headers, name);
    headers.push((name.to_owned(), value.to_owned()));
    headers
}

async fn send(client: &Modern, headers: &Headers, body: &Value) -> Reply {
    client.send(headers, &body.to_string()).await.whole().await
}

/// Nothing that was refused reached the upstream, and nothing wrong did.
fn assert_untouched(up: &Stage) {
    let journal = up.journal();
    assert_eq!(journal.of("ran"), Vec::<Value>::new());
    assert_eq!(journal.of("violation"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_what_meta_must_say_is_refused() {
    let (_gateway, up, client) = before().await;
    let whole = echo(&client, json!("m"), json!({}));
    let headers = client.headers(&whole);
    let meta = |key: &str| format!("{META}{key}");
    let mut lacking = vec![];
    for key in ["protocolVersion", "clientCapabilities"] {
        let mut body = whole.clone();
        body["params"]["_meta"].as_object_mut().expect("an object").remove(&meta(key));
        lacking.push(body);
        for value in [json!(null), json!(7), json!([])] {
            let mut body = whole.clone();
            body["params"]["_meta"][meta(key)] = value;
            lacking.push(body);
        }
    }
    let mut body = whole.clone();
    body["params"].as_object_mut().expect("an object").remove("_meta");
    lacking.push(body);
    let mut body = client.body(&json!("m"), "tools/list", json!({}));
    body.as_object_mut().expect("an object").remove("params");
    let headers_of_list = with(with(headers.clone(), "Mcp-Method", "tools/list"), "x-list", "1");
    let reply = send(&client, &headers_of_list, &body).await;
    assert_eq!((reply.status, reply.code()), (400, -32602), "{}", reply.text());
    for body in lacking {
        let reply = send(&client, &headers, &body).await;
        assert_eq!((reply.status, reply.code()), (400, -32602), "{body}: {}", reply.text());
        assert_eq!(reply.json()["id"], "m", "{body}");
    }
    assert_untouched(&up);
    // Who it is, it need not say.
    let mut body = whole.clone();
    body["params"]["_meta"].as_object_mut().expect("an object").remove(&meta("clientInfo"));
    let reply = send(&client, &headers, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["result"]["resultType"], "complete");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c065_a_version_that_is_not_served_is_refused_with_those_that_are() {
    let (_gateway, up, client) = before().await;
    for version in ["2099-01-01", "1", "", NEWEST, "2024-11-05"] {
        let mut body = echo(&client, json!(4), json!({}));
        body["params"]["_meta"][format!("{META}protocolVersion")] = json!(version);
        let reply = client.post(&body).await;
        assert_eq!((reply.status, reply.code()), (400, -32022), "{version}: {}", reply.text());
        let answer = reply.json();
        assert_eq!(answer["id"], 4);
        assert_eq!(answer["error"]["data"]["requested"], version);
        let supported = answer["error"]["data"]["supported"].as_array().expect("a list").clone();
        assert_eq!(supported.first(), Some(&json!(MODERN)), "{version}");
        assert!(supported.contains(&json!(NEWEST)), "{version}");
    }
    assert_untouched(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_do_not_repeat_the_body_are_refused() {
    let (_gateway, up, client) = before().await;
    let body = echo(&client, json!("h"), json!({"zone": "Zürich", "n": 42}));
    let right = client.headers(&body);
    assert!(right.iter().any(|(name, _)| name == "Mcp-Param-Zone"), "{right:?}");
    let cases: [(&str, &[&str]); 5] = [
        ("MCP-Protocol-Version", &["2025-11-25", "2099-01-01", "x", ""]),
        (
            "Mcp-Method",
            &["tools/list", "Tools/Call", "tools/call2", "", "=?base64?dG9vbHMvY2FsbA==?="],
        ),
        (
            "Mcp-Name",
            &[
                "Echo",
                "progress",
                "",
                "=?base64?ZWNobw?=",
                "=?base64?!!!!?=",
                "=?BASE64?ZWNobw==?=",
            ],
        ),
        ("Mcp-Param-Zone", &["zürich", "Zurich", "", "=?base64?WsO8cmljaA?=", "=?base64?/w==?="]),
        ("Mcp-Param-N", &["43", "", "x", "42x", "0x2a"]),
    ];
    for (name, values) in cases {
        let wrong = values.iter().map(|value| with(right.clone(), name, value));
        let all = wrong.chain([without(right.clone(), name)]);
        for headers in all {
            let reply = send(&client, &headers, &body).await;
            let text = reply.text();
            assert_eq!((reply.status, reply.code()), (400, -32020), "{name}: {headers:?}: {text}");
            assert_eq!(reply.json()["id"], "h", "{name}");
        }
    }
    // Which of the two counts is not for us to say.
    let mut twice = right.clone();
    twice.push(("mcp-name".into(), "progress".into()));
    assert_eq!(send(&client, &twice, &body).await.code(), -32020);
    for (method, params) in [
        ("prompts/get", json!({"name": "greet"})),
        ("resources/read", json!({"uri": "memo://2024-11-05"})),
    ] {
        let body = client.body(&json!(1), method, params);
        let right = client.headers(&body);
        for headers in [without(right.clone(), "mcp-name"), with(right, "mcp-name", "other")] {
            let reply = send(&client, &headers, &body).await;
            assert_eq!((reply.status, reply.code()), (400, -32020), "{method}");
        }
    }
    assert_untouched(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_may_be_spelt_in_every_way_that_means_the_same() {
    let (gateway, up, client) = before().await;
    let body = echo(&client, json!(1), json!({"text": "t", "zone": "eu", "n": 42}));
    let right = client.headers(&body);
    for (name, value) in [
        ("Mcp-Name", "=?base64?ZWNobw==?="),
        ("Mcp-Param-Zone", "=?base64?ZXU=?="),
        ("Mcp-Param-N", "42.0"),
        // Nobody declares it.
        ("Mcp-Param-Other", "x"),
    ] {
        let reply = send(&client, &with(right.clone(), name, value), &body).await;
        assert_eq!(reply.status, 200, "{name}: {value}: {}", reply.text());
    }
    // Absent and null are not repeated, and an empty text is in two ways.
    for zone in [json!({}), json!({"zone": null})] {
        let body = echo(&client, json!(1), zone);
        assert_eq!(client.post(&body).await.status, 200, "{body}");
    }
    let body_of_empty = echo(&client, json!(1), json!({"zone": ""}));
    for value in ["", "=?base64??="] {
        let headers = with(client.headers(&body_of_empty), "Mcp-Param-Zone", value);
        let reply = send(&client, &headers, &body_of_empty).await;
        assert_eq!(reply.status, 200, "{value:?}: {}", reply.text());
    }
    let text = body.to_string();
    for spell in [str::to_ascii_lowercase, str::to_ascii_uppercase] {
        let mut raw = format!("{}: {}\r\n", spell("Host"), gateway.addr());
        for (name, value) in &right {
            raw.push_str(&format!("{}: \t {value} \t \r\n", spell(name)));
        }
        let length = text.len();
        let raw = format!(
            "POST /mcp HTTP/1.1\r\n{raw}content-length: {length}\r\nconnection: close\r\n\r\n{text}"
        );
        let answer = gateway.http().raw(raw.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_that_went_with_sessions_are_not_found() {
    let (_gateway, up, client) = before().await;
    for (method, params) in [
        ("ping", json!({})),
        ("initialize", crate::mcp::hello(NEWEST, &json!({}))),
        ("logging/setLevel", json!({"level": "info"})),
        ("resources/subscribe", json!({"uri": "memo://2024-11-05"})),
        ("resources/unsubscribe", json!({"uri": "memo://2024-11-05"})),
        ("tasks/list", json!({})),
        ("tasks/result", json!({"taskId": "t"})),
        ("roots/list", json!({})),
        ("sampling/createMessage", json!({})),
        ("tools/Call", json!({"name": "echo"})),
    ] {
        let reply = client.post(&client.body(&json!("x"), method, params)).await;
        assert_eq!((reply.status, reply.code()), (404, -32601), "{method}: {}", reply.text());
        assert_eq!(reply.json()["id"], "x", "{method}");
        assert_eq!(reply.header("mcp-session-id"), "", "{method}");
    }
    assert_eq!(up.journal().of("ran"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_no_single_request_is_refused() {
    let (_gateway, up, client) = before().await;
    let request = echo(&client, json!(1), json!({}));
    let headers = client.headers(&request);
    for (body, code) in [
        (format!("[{request}]"), -32600),
        (format!("[{request},{request}]"), -32600),
        ("[]".to_owned(), -32600),
        ("{".to_owned(), -32700),
        ("7".to_owned(), -32600),
    ] {
        let reply = client.send(&headers, &body).await.whole().await;
        assert_eq!((reply.status, reply.code()), (400, code), "{body}: {}", reply.text());
        assert_eq!(reply.json().get("id"), None, "{body}: {}", reply.text());
    }
    for response in [
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}),
    ] {
        let reply = client.send(&headers, &response.to_string()).await.whole().await;
        assert_eq!(reply.status, 400, "{response}: {}", reply.text());
    }
    assert_untouched(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_post_is_allowed_and_sessions_mean_nothing() {
    let (gateway, _up, client) = before().await;
    for method in ["GET", "DELETE", "PUT"] {
        let headers = [("mcp-protocol-version", MODERN), ("accept", "text/event-stream")];
        let reply = gateway.http().send(method, "/mcp", &headers, "").await;
        assert_eq!(reply.status, 405, "{method}");
        assert!(reply.header("allow").contains("POST"), "{method}: {:?}", reply.headers);
    }
    let body = echo(&client, json!(1), json!({"text": "t"}));
    let session = gateway.mcp().await;
    for id in ["nobody's", session.session.as_str()] {
        let headers = with(client.headers(&body), "Mcp-Session-Id", id);
        let headers = with(headers, "Last-Event-ID", "7");
        let reply = send(&client, &headers, &body).await;
        assert_eq!((reply.status, reply.header("mcp-session-id")), (200, ""), "{id}");
    }
    // The session is as it was.
    assert_eq!(session.request("ping", json!({})).await.result(), &json!({}));
    // Notifications are taken, and that is all.
    for method in ["notifications/cancelled", "notifications/nobody/knows"] {
        let mut note = client.body(&json!(1), method, json!({"requestId": 1}));
        note.as_object_mut().expect("an object").remove("id");
        let reply = client.post(&note).await;
        assert_eq!((reply.status, reply.text()), (202, ""), "{method}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_come_back_as_the_same_bytes_with_errors_and_with_results() {
    let (_gateway, _up, client) = before().await;
    let call = |name: &str| client.body(&json!("ID"), "tools/call", json!({ "name": name }));
    let unknown = client.body(&json!("ID"), "nobody/knows", json!({}));
    let mut old = call("echo");
    old["params"]["_meta"][format!("{META}protocolVersion")] = json!("2000-01-01");
    let other = with(client.headers(&call("echo")), "Mcp-Name", "other");
    let requests = [
        (client.headers(&call("echo")), call("echo")),
        (client.headers(&call("nobody")), call("nobody")),
        (client.headers(&unknown), unknown),
        (client.headers(&old), old),
        (other, call("echo")),
    ];
    for id in ["7", "\"7\"", "0", "\"\"", "-3", r#""\u0041\/""#, "9007199254740993"] {
        for (headers, body) in &requests {
            let body = body.to_string().replace("\"ID\"", id);
            let reply = client.send(headers, &body).await.whole().await;
            assert!(reply.text().contains(&format!("\"id\":{id}")), "{id}: {}", reply.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_say_how_long_they_may_be_kept() {
    let (_gateway, _up, client) = before().await;
    for method in CACHEABLE {
        let params = match method {
            "resources/read" => json!({"uri": "memo://2024-11-05"}),
            _ => json!({}),
        };
        // The client looks at the hints.
        client.request(method, params).await.result();
    }
    // A server of the other era gives none.
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    let answer = client.request("tools/list", json!({})).await;
    let hints = (&answer.result()["ttlMs"], &answer.result()["cacheScope"]);
    assert_eq!(hints, (&json!(0), &json!("private")), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_tells_what_is_served() {
    let (_gateway, _up, client) = before().await;
    let answer = client.request("server/discover", json!({})).await;
    let result = answer.result();
    assert_eq!(result["supportedVersions"][0], MODERN, "{}", answer.text);
    assert!(result["supportedVersions"].as_array().is_some_and(|all| all.len() == 5));
    let capabilities = &result["capabilities"];
    for name in ["tools", "prompts", "resources", "completions", "logging"] {
        assert!(capabilities[name].is_object(), "{name}: {}", answer.text);
    }
    assert_eq!(capabilities["resources"]["subscribe"], true);
    assert_eq!(capabilities["tools"]["listChanged"], true);
    assert_eq!(capabilities.get("tasks"), None);
    let info = &result["_meta"][format!("{META}serverInfo")];
    assert_eq!(info["name"], "trunkline", "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_level_of_logs_is_refused() {
    let (_gateway, up, client) = before().await;
    for level in [json!("loud"), json!("Warning"), json!(3)] {
        let meta = json!({ format!("{META}logLevel"): level });
        let params = json!({"name": "logs", "arguments": {}, "_meta": meta});
        let answer = client.request("tools/call", params).await;
        assert_eq!(answer.code(), -32602, "{level}: {}", answer.text);
    }
    assert_untouched(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c067_headers_towards_an_upstream_are_made_from_what_it_gets() {
    let up = Stage::start(MODERN, Answers::Sse).await;
    let other = Fake::mcp(["echo"]).start().await;
    let gateway = Setup::new()
        .upstream("u1", &format!("url = \"{}\"", up.url()))
        .fake("u2", &other)
        .mcp(&["u1", "u2"])
        .start()
        .await;
    let client = Modern::new(gateway.http(), json!({}));
    let weather = "u1__Wetter_ä";
    let names = || async {
        let tools = client.list("tools/list", "tools").await;
        tools
            .iter()
            .map(|tool| tool["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert!(names().await.iter().any(|name| name == weather), "{:?}", names().await);
    assert_eq!(client.call(weather, json!({})).await.said(), "Wetter_ä");
    let zone = json!({"text": "t", "zone": "Zürich", "n": -7});
    assert_eq!(client.call("u1__echo", zone.clone()).await.said(), "t");
    let session = gateway.mcp().await;
    assert_eq!(session.call("u1__echo", zone).await.said(), "t");
    assert_eq!(session.call(weather, json!({})).await.said(), "Wetter_ä");
    // The name that the client is shown is the one that counts here.
    let body = client.body(&json!(1), "tools/call", json!({"name": weather}));
    let ran = up.journal().of("ran").len();
    for headers in [
        with(client.headers(&body), "Mcp-Name", "=?base64?V2V0dGVyX8Ok?="),
        without(client.headers(&body), "Mcp-Method"),
    ] {
        let reply = send(&client, &headers, &body).await;
        assert_eq!((reply.status, reply.code()), (400, -32020), "{}", reply.text());
    }
    assert_eq!(up.journal().of("ran").len(), ran, "nothing was forwarded");
    assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
}
