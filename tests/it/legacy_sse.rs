//! Clients of HTTP+SSE (MCP 2024-11-05): one stream is one session, and everything comes on it.

mod client;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub use self::client::Older;
use self::client::{EVENTS, JSON, resolve, said};
use crate::fake::{Call, Fake, tool};
use crate::gateway::{Gateway, Setup, until};
use crate::mcp::{NEWEST, hello, request};
use crate::metrics::Metrics;

const SESSIONS: [(&str, &str); 2] = [("route", "/mcp"), ("era", "legacy")];
const STREAMS: [(&str, &str); 2] = [("route", "/mcp"), ("kind", "sse")];

fn sessions(metrics: &Metrics) -> f64 {
    metrics.value("trunkline_sessions", &SESSIONS)
}

async fn one() -> (Gateway, Fake) {
    before(Fake::mcp(["do"]).start().await).await
}

/// A gateway before an upstream.
async fn before(up: Fake) -> (Gateway, Fake) {
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

/// An upstream whose tool waits for the gate.
async fn gated() -> (Arc<Semaphore>, Fake) {
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let up = Fake::mcp(["wait"])
        .on("tools/call", move |call: Call| {
            let gate = Arc::clone(&waits);
            async move {
                gate.acquire().await.expect("the gate stays").forget();
                call.say(call.arg("tag").as_str().unwrap_or("done")).await;
            }
        })
        .start()
        .await;
    (gate, up)
}

#[tokio::test]
async fn each_revision_that_opens_with_initialize_lists_and_calls() {
    let (gateway, _up) = one().await;
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut older = Older::open_with(&gateway, revision, json!({})).await;
        assert_eq!(older.hello["protocolVersion"], revision);
        assert_eq!(older.tools().await, ["do"]);
        assert_eq!(older.call("do", json!({})).await, "do");
        assert!(older.stream.header("cache-control").contains("no-cache"));
        assert_eq!(older.stream.header("x-accel-buffering"), "no");
        let metrics = gateway.metrics().await;
        assert_eq!(metrics.value("trunkline_streams", &STREAMS), 1.0);
        assert_eq!(sessions(&metrics), 1.0);
        drop(older);
        gateway.until("the session ends", |m| sessions(m) == 0.0).await;
    }
    gateway.until("no stream", |m| m.value("trunkline_streams", &STREAMS) == 0.0).await;
    let older = Older::open_with(&gateway, "2026-07-28", json!({})).await;
    assert_eq!(older.hello["protocolVersion"], NEWEST);
}

#[tokio::test]
async fn what_precedes_an_answer_comes_before_it() {
    let up = Fake::mcp(["steps"])
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            for n in 1..=40 {
                call.out.event(call.progress(n, "step")).await;
            }
            call.out.event(call.response(&crate::fake::said("done").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let (gateway, _up) = before(up).await;
    let mut older = Older::open(&gateway).await;
    let meta = json!({"progressToken": "t"});
    let params = json!({"name": "steps", "arguments": {}, "_meta": meta});
    let id = older.begin("tools/call", &params).await;
    for n in 1..=40 {
        let progress = older.next().await;
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!(progress["params"]["progress"], n);
    }
    let answer = older.next().await;
    assert_eq!((&answer["id"], said(&answer).as_str()), (&json!(id), "done"));
}

#[tokio::test]
async fn questions_come_on_the_stream_and_their_answers_by_post() {
    let up = Fake::mcp(["ask"])
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            let params = json!({"message": call.arg("tag"), "requestedSchema": {"type": "object"}});
            let method = call.arg("method").as_str().unwrap_or_default().to_owned();
            let heard = call.ask(&method, params).await;
            let text = call.response(&crate::fake::said(&heard["result"].to_string()).to_string());
            call.out.event(text).await;
            call.out.end().await;
        })
        .start()
        .await;
    let (gateway, _up) = before(up).await;
    let caps = json!({"sampling": {}, "elicitation": {}, "roots": {}});
    let mut a = Older::open_with(&gateway, "2025-06-18", caps.clone()).await;
    let mut b = Older::open_with(&gateway, "2024-11-05", caps).await;
    for method in ["sampling/createMessage", "roots/list"] {
        for (older, tag) in [(&mut a, "a"), (&mut b, "b")] {
            let id = older.begin_call("ask", json!({"method": method, "tag": tag})).await;
            let question = older.next().await;
            assert_eq!(
                (&question["method"], &question["params"]["message"]),
                (&json!(method), &json!(tag))
            );
            older.answer(&question["id"], json!({"heard": tag})).await;
            let answer = older.next().await;
            assert_eq!(answer["id"], id);
            assert_eq!(said(&answer), json!({"heard": tag}).to_string());
        }
    }
    a.begin_call("ask", json!({"method": "elicitation/create", "tag": "e"})).await;
    let question = a.next().await;
    b.answer(&question["id"], json!({"action": "accept"})).await;
    a.answer(&question["id"], json!({"action": "decline"})).await;
    assert_eq!(said(&a.next().await), json!({"action": "decline"}).to_string(), "of no other");
}

#[tokio::test]
async fn a_cancelled_request_is_cancelled_upstream_and_not_answered() {
    let (_gate, up) = gated().await;
    let (gateway, up) = before(up).await;
    let mut older = Older::open(&gateway).await;
    let id = older.begin_call("wait", json!({})).await;
    up.until_count("tools/call", 1).await;
    older.notify("notifications/cancelled", json!({"requestId": id})).await;
    up.until_count("notifications/cancelled", 1).await;
    older.nothing_but_a_ping().await;
    // At once: wherever the request is by then, it ends.
    for _ in 0..20 {
        let id = older.begin_call("wait", json!({})).await;
        older.notify("notifications/cancelled", json!({"requestId": id})).await;
    }
    gateway.until("nothing runs", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0).await;
    older.nothing_but_a_ping().await;
    let cancelled = [("method", "tools/call"), ("outcome", "cancelled")];
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_exchanges_total", &cancelled), 21.0);
}

#[tokio::test]
async fn changed_lists_and_log_messages_reach_the_sessions_that_they_concern() {
    let (gateway, up) = one().await;
    let mut a = Older::open(&gateway).await;
    let mut b = Older::open(&gateway).await;
    a.call("do", json!({})).await;
    // The gateway's own and the session's.
    up.until("both links listen", |up| up.streams() == 2).await;
    up.push(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}"#);
    let log = a.next().await;
    assert_eq!(log["method"], "notifications/message");
    b.nothing_but_a_ping().await;
    up.edit(|lists| lists.tools.push(tool("more")));
    up.push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    for older in [&mut a, &mut b] {
        assert_eq!(older.next().await["method"], "notifications/tools/list_changed");
        assert_eq!(older.tools().await, ["do", "more"]);
    }
}

#[tokio::test]
async fn a_subscription_is_told_to_its_session_and_ends_with_it() {
    let up = Fake::mcp(["do"])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "resources": {"subscribe": true}});
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .start()
        .await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let (mut a, mut b) = (Older::open(&gateway).await, Older::open(&gateway).await);
    let listed = a.request("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"][0]["uri"], "x://r");
    let subscribed = a.request("resources/subscribe", json!({"uri": "x://r"})).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    up.until("a stream for notices", |core| core.streams() > 0).await;
    up.push(
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x://r"}}"#,
    );
    let told = a.next().await;
    assert_eq!(told["method"], "notifications/resources/updated");
    assert_eq!(told["params"]["uri"], "x://r");
    b.nothing_but_a_ping().await;
    drop(a);
    up.until_count("resources/unsubscribe", 1).await;
}

#[tokio::test]
async fn two_sessions_with_the_same_ids_never_see_each_other() {
    let (gate, up) = gated().await;
    let (gateway, up) = before(up).await;
    let mut clients = Vec::new();
    for n in 0..6 {
        let mut older = Older::open(&gateway).await;
        assert!(clients.iter().all(|(other, _): &(Older, _)| other.said != older.said));
        let id = older.begin_call("wait", json!({"tag": format!("tag {n}")})).await;
        clients.push((older, id));
    }
    up.until_count("tools/call", 6).await;
    gate.add_permits(6);
    for (n, (older, id)) in clients.iter_mut().enumerate() {
        let answer = older.next().await;
        assert_eq!((&answer["id"], said(&answer)), (&json!(*id), format!("tag {n}")));
        older.nothing_but_a_ping().await;
    }
}

#[tokio::test]
async fn a_token_that_is_dead_foreign_or_missing_leads_nowhere() {
    let (a, b) = (Fake::mcp(["a"]).start().await, Fake::mcp(["b"]).start().await);
    let gateway = Setup::new()
        .fake("a", &a)
        .fake("b", &b)
        .mcp(&["a"])
        .toml("[[routes]]\npath = \"/other\"\nprotocol = \"mcp\"\nupstreams = [\"b\"]")
        .start()
        .await;
    let older = Older::open(&gateway).await;
    let token = older.endpoint.split_once("session=").expect("a token").1.to_owned();
    assert!(token.len() >= 22, "128 random bits: {token}");
    let ping = request(1, "ping", &json!({}));
    let http = gateway.http();
    let post = async |path: &str| {
        let reply = http.send("POST", path, &JSON, ping.clone()).await;
        (reply.status, reply.code())
    };
    assert_eq!(post(&format!("/other/message?session={token}")).await, (404, -32600));
    assert_eq!(post("/mcp/message?session=0123456789abcdef0123456789abcdef").await, (404, -32600));
    assert_eq!(post("/mcp/message?session=").await, (404, -32600));
    assert_eq!(post("/mcp/message").await, (400, -32600));
    let headers = [JSON[0], ("accept", "application/json"), ("mcp-session-id", token.as_str())];
    let reply = http.send("POST", "/mcp", &headers, ping.clone()).await;
    assert_eq!(reply.status, 404, "it is no session id");
    let endpoint = older.endpoint.clone();
    drop(older);
    gateway.until("the session ends", |m| sessions(m) == 0.0).await;
    assert_eq!(post(&endpoint).await, (404, -32600));
}

#[tokio::test]
async fn the_endpoint_is_right_below_whatever_a_proxy_puts_before_the_path() {
    let up = Fake::mcp(["do"]).start().await;
    let plain = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let root = "[[routes]]\npath = \"/\"\nprotocol = \"mcp\"\nupstreams = [\"up\"]";
    let at_root = Setup::new().fake("up", &up).toml(root).start().await;
    for (gateway, path, own) in [
        (&plain, "/mcp/sse", "/mcp/message"),
        (&plain, "/mcp/sse/", "/mcp/message"),
        (&at_root, "/sse", "/message"),
    ] {
        let mut older = Older::connect(gateway.http(), path).await;
        assert_eq!(older.endpoint.split('?').next(), Some(own), "{path}");
        let seen = resolve(&format!("/some/prefix{path}"), &older.said);
        assert_eq!(seen, format!("/some/prefix{}", older.endpoint), "{path}");
        older.initialize("2024-11-05", &json!({})).await;
        assert_eq!(older.call("do", json!({})).await, "do");
    }
    for (public, prefix) in [("https://example.com/tools/", "/tools"), ("https://example.com", "")]
    {
        let gateway = Setup::new()
            .server(&format!("public_url = \"{public}\""))
            .fake("up", &up)
            .mcp(&["up"])
            .start()
            .await;
        let mut older = Older::connect(gateway.http(), "/mcp/sse").await;
        assert!(older.said.starts_with(&format!("{prefix}/mcp/message?")), "{}", older.said);
        // The proxy takes its prefix off.
        older.endpoint = older.said[prefix.len()..].to_owned();
        older.initialize("2024-11-05", &json!({})).await;
        assert_eq!(older.call("do", json!({})).await, "do");
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_takes_its_session_and_calls_with_it() {
    let (_gate, up) = gated().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    up.until("the gateway's own session", |core| core.sessions() == 1).await;
    let mut older = Older::open(&gateway).await;
    older.begin_call("wait", json!({})).await;
    up.until_count("tools/call", 1).await;
    let used = up.of("tools/call")[0].header("mcp-session-id").expect("a session").to_owned();
    drop(older);
    up.until_count("notifications/cancelled", 1).await;
    up.until("DELETE of its session upstream", |core| {
        let mut ended = core.requests().into_iter().filter(|r| r.method == "DELETE");
        ended.any(|r| r.header("mcp-session-id") == Some(&used))
    })
    .await;
    let metrics = gateway.until("the session ends", |m| sessions(m) == 0.0).await;
    assert_eq!(metrics.value("trunkline_streams", &STREAMS), 0.0);
    gateway.until("nothing runs", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0).await;
}

#[tokio::test]
async fn a_second_request_under_an_id_in_flight_is_refused_at_once() {
    let (gate, up) = gated().await;
    let (gateway, up) = before(up).await;
    let mut older = Older::open(&gateway).await;
    let call = |id: &str| request(id, "tools/call", &json!({"name": "wait", "arguments": {}}));
    older.send(&call("7")).await;
    up.until_count("tools/call", 1).await;
    older.send(&call("7")).await;
    let refused = older.next().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)));
    older.send(&call("\"7\"")).await;
    up.until_count("tools/call", 2).await;
    gate.add_permits(2);
    let mut ids = vec![older.next().await["id"].clone(), older.next().await["id"].clone()];
    ids.sort_by_key(Value::to_string);
    assert_eq!(ids, [json!("7"), json!(7)], "a number is no text");
    assert_eq!(up.count("tools/call"), 2);
    gate.add_permits(1);
    older.send(&call("7")).await;
    assert_eq!(said(&older.next().await), "done", "it is free again");
}

#[tokio::test]
async fn a_batch_is_answered_by_one_array_in_order() {
    let (gate, up) = gated().await;
    let (gateway, up) = before(up).await;
    let mut older = Older::open(&gateway).await;
    let wait = request(1, "tools/call", &json!({"name": "wait", "arguments": {}}));
    let ping = |id: u64| request(id, "ping", &json!({}));
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}});
    older.send(&format!("[{},{wait},5,{notice},{}]", ping(2), ping(3))).await;
    up.until_count("tools/call", 1).await;
    older.send(&format!("[{},{}]", ping(3), ping(4))).await;
    let answers = older.next().await;
    assert_eq!(answers[0]["error"]["code"], -32600, "its id is in use: {answers}");
    assert_eq!((&answers[0]["id"], &answers[1]["result"]), (&json!(3), &json!({})), "{answers}");
    gate.add_permits(1);
    let answers = older.next().await;
    let ids: Vec<_> =
        answers.as_array().expect("an array").iter().map(|a| a["id"].clone()).collect();
    assert_eq!(ids, [json!(2), json!(1), Value::Null, json!(3)], "{answers}");
    assert_eq!(answers[2]["error"]["code"], -32600);
    older.send(&format!("[{notice}]")).await;
    older.nothing_but_a_ping().await;
    for (body, code) in [
        ("[]".to_owned(), -32600),
        (format!("[{}]", vec![ping(1); 51].join(",")), -31007),
        (format!("[{},{}]", ping(1), r#"{"jsonrpc":"2.0","id":9,"result":{}}"#), -32600),
    ] {
        let reply = older.post(&body).await;
        assert_eq!((reply.status, reply.code()), (400, code), "{body}");
    }
    let none = Setup::new().fake("up", &up).mcp_with(&["up"], "batches = false").start().await;
    let older = Older::open(&none).await;
    let reply = older.post(&format!("[{}]", ping(1))).await;
    assert_eq!((reply.status, reply.code()), (400, -32600));
}

#[tokio::test]
async fn nothing_but_a_ping_is_served_before_initialize_and_no_second_one_after_it() {
    let (gateway, _up) = one().await;
    let mut older = Older::connect(gateway.http(), "/mcp/sse").await;
    older.nothing_but_a_ping().await;
    let refused = older.request("tools/list", json!({})).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    older.notify("notifications/initialized", json!({})).await;
    older.answer(&json!(1), json!({})).await;
    let list = request(5, "tools/list", &json!({}));
    let open = request(6, "initialize", &hello(NEWEST, &json!({})));
    older.send(&format!("[{list},{open}]")).await;
    let refused = older.next().await;
    assert_eq!((&refused[0]["id"], &refused[0]["error"]["code"]), (&json!(5), &json!(-32600)));
    assert_eq!((&refused[1]["id"], &refused[1]["error"]["code"]), (&json!(6), &json!(-32600)));
    older.send(&request(7, "initialize", &json!({"protocolVersion": 1}))).await;
    let refused = older.next().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32602)));
    older.initialize("2024-11-05", &json!({})).await;
    let again = older.request("initialize", hello(NEWEST, &json!({}))).await;
    assert_eq!(again["error"]["code"], -32600, "{again}");
    assert_eq!(older.tools().await, ["do"]);
    assert_eq!(sessions(&gateway.metrics().await), 1.0);
}

#[tokio::test]
async fn what_is_no_request_is_refused_as_anywhere_and_a_bad_request_on_the_stream() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().server("max_body = \"1KiB\"").fake("up", &up).mcp(&["up"]).start().await;
    let mut older = Older::open(&gateway).await;
    for body in ["{", "", "x", "[1", "5", r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#] {
        let reply = older.post(body).await;
        let right = if body.starts_with('5') || body.len() > 10 { -32600 } else { -32700 };
        assert_eq!((reply.status, reply.code()), (400, right), "{body}");
    }
    assert_eq!(older.post(&"x".repeat(2048)).await.status, 413);
    let ping = request(1, "ping", &json!({}));
    let http = gateway.http();
    for headers in [&[][..], &[("content-type", "text/plain")]] {
        let reply = http.send("POST", &older.endpoint, headers, ping.clone()).await;
        assert_eq!(reply.status, 415, "{headers:?}");
    }
    let odd = [JSON[0], ("accept", "text/html"), ("mcp-protocol-version", "x")];
    let reply = http.send("POST", &older.endpoint, &odd, ping).await;
    assert_eq!(reply.status, 202, "nothing is sent back, so nothing need be accepted");
    assert_eq!(older.next().await["result"], json!({}));
    let modern = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    for params in [json!([1]), json!({ "_meta": modern })] {
        let refused = older.request("ping", params).await;
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
    }
    older.nothing_but_a_ping().await;
    let log = [("route", "/mcp"), ("method", "ping"), ("outcome", "rpc_error")];
    assert_eq!(gateway.metrics().await.value("trunkline_exchanges_total", &log), 3.0);
}

#[tokio::test]
async fn each_of_the_two_paths_takes_its_one_method() {
    let (gateway, _up) = one().await;
    let http = gateway.http();
    for (path, right) in [("/mcp/sse", "GET"), ("/mcp/message", "POST")] {
        for method in ["GET", "POST", "PUT", "DELETE", "HEAD"] {
            if method == right {
                continue;
            }
            let reply = http.send(method, path, &EVENTS, "").await;
            assert_eq!(reply.status, 405, "{method} {path}");
            assert!(reply.header("allow").starts_with(right), "{:?}", reply.headers);
        }
        let origin =
            [("origin", "http://localhost:5173"), ("access-control-request-method", right)];
        let reply = http.send("OPTIONS", path, &origin, "").await;
        assert_eq!(reply.status, 204);
        assert!(reply.header("access-control-allow-methods").contains(right));
        assert_eq!(reply.header("access-control-allow-origin"), "http://localhost:5173");
        for bad in [("origin", "https://evil.example"), ("host", "evil.example")] {
            let reply = http.send(right, path, &[EVENTS[0], JSON[0], bad], "").await;
            assert_eq!(reply.status, 403, "{bad:?} {path}");
        }
    }
    let reply = http.send("GET", "/mcp/sse", &[("accept", "application/json")], "").await;
    assert_eq!(reply.status, 406);
    assert_eq!(http.get("/rpc/sse").await.status, 404);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_streams", &[]), 0.0);
}

#[tokio::test]
async fn the_limit_of_sessions_holds_for_streams_too() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().server("max_sessions = 2").fake("up", &up).mcp(&["up"]).start().await;
    let open = async || gateway.http().open("GET", "/mcp/sse", &EVENTS, "").await;
    let a = Older::open(&gateway).await;
    let waiting = Older::connect(gateway.http(), "/mcp/sse").await;
    let refused = open().await;
    assert_eq!(refused.status, 503, "one that has no session yet takes a place, too");
    assert_eq!(refused.header("retry-after"), "1");
    let other = gateway.mcp().await;
    waiting.send(&request(0, "initialize", &hello(NEWEST, &json!({})))).await;
    let mut waiting = waiting;
    assert_eq!(waiting.next().await["error"]["code"], -31002);
    drop(waiting);
    other.delete().await;
    drop(a);
    gateway.until("the sessions end", |m| sessions(m) == 0.0).await;
    let mut older = Older::open(&gateway).await;
    assert_eq!(older.call("do", json!({})).await, "do");
}

#[tokio::test]
async fn an_idle_stream_gets_comments_and_one_without_initialize_ends() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new()
        .server("keep_alive = \"200ms\"\nsession_idle_timeout = \"1s\"")
        .fake("up", &up)
        .mcp(&["up"])
        .start()
        .await;
    let mut silent = Older::connect(gateway.http(), "/mcp/sse").await;
    let mut older = Older::open(&gateway).await;
    silent.ended().await;
    for _ in 0..3 {
        assert!(older.stream.next_block().await.expect("it goes on").comment, "C014");
    }
    assert_eq!(silent.post(&request(1, "ping", &json!({}))).await.status, 404);
    assert_eq!(older.call("do", json!({})).await, "do", "an open stream counts as use");
}

#[tokio::test]
async fn a_drain_lets_calls_finish_and_then_ends_their_streams() {
    let (gate, up) = gated().await;
    let mut gateway =
        Setup::new().server("drain_timeout = \"20s\"").fake("up", &up).mcp(&["up"]).start().await;
    let mut idle = Older::open(&gateway).await;
    let mut silent = Older::connect(gateway.http(), "/mcp/sse").await;
    let mut busy = Older::open(&gateway).await;
    busy.begin_call("wait", json!({})).await;
    up.until_count("tools/call", 1).await;
    gateway.terminate();
    idle.ended().await;
    silent.ended().await;
    gate.add_permits(1);
    assert_eq!(said(&busy.next().await), "done");
    busy.ended().await;
    assert_eq!(gateway.ended().await, Some(0));
    up.until("its sessions were ended", |core| core.sessions() == 0).await;
}

#[tokio::test]
async fn at_the_deadline_of_a_drain_calls_are_answered_with_an_error() {
    let (_gate, up) = gated().await;
    let mut gateway =
        Setup::new().server("drain_timeout = \"300ms\"").fake("up", &up).mcp(&["up"]).start().await;
    let mut older = Older::open(&gateway).await;
    let id = older.begin_call("wait", json!({})).await;
    up.until_count("tools/call", 1).await;
    gateway.terminate();
    let answer = older.next().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-31005)), "{answer}");
    older.ended().await;
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn a_slow_reader_is_bounded_and_delays_nobody_else() {
    const SIZE: usize = 4 << 20;
    let up = Fake::mcp(["big"])
        .on("tools/call", |call: Call| async move {
            let size = call.arg("size").as_u64().unwrap_or(1);
            call.say(&"x".repeat(usize::try_from(size).unwrap())).await;
        })
        .start()
        .await;
    let (gateway, up) = before(up).await;
    let mut slow = Older::open(&gateway).await;
    let mut quick = Older::open(&gateway).await;
    for _ in 0..8 {
        slow.begin_call("big", json!({ "size": SIZE })).await;
    }
    up.until_count("tools/call", 8).await;
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(quick.call("big", json!({"size": 3})).await, "xxx");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let mut ids = Vec::new();
    for _ in 0..8 {
        let answer = slow.next().await;
        assert_eq!(said(&answer).len(), SIZE);
        ids.push(answer["id"].as_u64());
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=8).map(Some).collect::<Vec<_>>(), "each is answered once");
    // What nobody can hold back is bounded by taking the stream away.
    for _ in 0..8 {
        slow.begin_call("big", json!({ "size": SIZE })).await;
    }
    let mut lost = false;
    let id = format!("\"{}\"", "x".repeat(64 << 10));
    for _ in 0..100 {
        let reply = slow.post(&request(&id, "initialize", &json!({}))).await;
        if reply.status == 404 {
            lost = true;
            break;
        }
        assert_eq!(reply.status, 202);
    }
    assert!(lost, "refusals do not pile up");
    gateway.until("its session has ended", |m| sessions(m) == 1.0).await;
    assert_eq!(quick.call("big", json!({"size": 3})).await, "xxx");
}

#[tokio::test]
async fn a_client_has_only_so_many_requests_in_flight() {
    let (gate, up) = gated().await;
    let gateway = Setup::new().fake_with("up", &up, "max_queue = 1000").mcp(&["up"]).start().await;
    let mut older = Older::open(&gateway).await;
    for _ in 0..256 {
        older.begin_call("wait", json!({})).await;
    }
    let id = older.begin_call("wait", json!({})).await;
    let refused = older.next().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(id), &json!(-31002)));
    gate.add_permits(1000);
    for _ in 0..256 {
        assert_eq!(said(&older.next().await), "done");
    }
    assert_eq!(older.call("wait", json!({})).await, "done");
}

#[tokio::test]
async fn exchanges_leave_access_lines_with_a_session_that_nobody_can_use() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().fake("up", &up).mcp(&["up"]).toml("[telemetry]\nlog = \"json\"").start().await;
    let mut older = Older::open(&gateway).await;
    older.call("do", json!({})).await;
    let line = || gateway.output().lines().into_iter().find(|line| line.contains("tools/call"));
    until("the access line", || line().is_some()).await;
    let line: Value = serde_json::from_str(&line().expect("it was there")).expect("JSON");
    assert!(line["session"].is_string(), "{line}");
    let token = older.endpoint.split_once("session=").expect("a token").1;
    assert!(gateway.output().lines().iter().all(|line| !line.contains(token)));
}
