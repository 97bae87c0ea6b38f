//! WebSocket clients of MCP routes: a session that lives as long as its connection, requests of 2026-07-28 that stand
//! alone beside it, questions, changes, and ends.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fake::scene::{META, MODERN};
use crate::fake::stage::{Answers, Stage};
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup, until};
use crate::mcp::{NEWEST, hello, request};
use crate::metrics::Metrics;
use crate::ws_client::{Raw, Ws, handshake};

const SESSIONS: [(&str, &str); 2] = [("route", "/mcp"), ("era", "legacy")];

fn sessions(metrics: &Metrics) -> f64 {
    metrics.value("trunkline_sessions", &SESSIONS)
}

fn caps() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}}})
}

/// A client of both eras on one connection, and a user who answers.
struct Peer {
    ws: Ws,
    next: u64,
}

impl Peer {
    async fn open(gateway: &Gateway) -> Self {
        Self { ws: Ws::open(gateway, "/mcp").await, next: 1 }
    }

    /// With a session.
    async fn legacy(gateway: &Gateway, revision: &str) -> Self {
        let mut peer = Self::open(gateway).await;
        let answer = peer.ws.ask(request(0, "initialize", &hello(revision, &caps()))).await;
        assert_eq!(answer["result"]["protocolVersion"], revision, "{answer}");
        peer.notify("notifications/initialized", json!({})).await;
        peer
    }

    async fn notify(&mut self, method: &str, params: Value) {
        let note = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.ws.say(note.to_string()).await;
    }

    async fn cancel(&mut self, id: u64) {
        self.notify("notifications/cancelled", json!({"requestId": id})).await;
    }

    /// Sends a request of the session; its id.
    async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.ws.say(request(self.next, method, &params)).await;
        self.next
    }

    /// Sends a request of the modern era; its id.
    async fn begin_modern(&mut self, method: &str, mut params: Value) -> u64 {
        params["_meta"][format!("{META}protocolVersion")] = MODERN.into();
        params["_meta"][format!("{META}clientCapabilities")] = caps();
        self.begin(method, params).await
    }

    /// The answer to a request, and what came before; what is asked meanwhile is answered.
    async fn end(&mut self, id: u64) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.ws.json().await;
            match (message["method"].as_str(), message.get("id")) {
                (Some(method), Some(ask)) => {
                    let answer = json!({"jsonrpc": "2.0", "id": ask, "result": reply(method)});
                    self.ws.say(answer.to_string()).await;
                    before.push(message);
                }
                (None, Some(of)) if *of == id => return (message, before),
                _ => before.push(message),
            }
        }
    }

    async fn request(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let id = self.begin(method, params).await;
        self.end(id).await
    }

    async fn modern(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let id = self.begin_modern(method, params).await;
        self.end(id).await
    }
}

fn reply(method: &str) -> Value {
    match method {
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"})
        }
        "roots/list" => json!({"roots": [{"uri": "file:///work"}]}),
        _ => json!({"action": "accept", "content": {"name": "Ann"}}),
    }
}

fn said(answer: &Value) -> &str {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {answer}"))
}

fn tool(name: &str, key: &str) -> Value {
    json!({"name": name, "arguments": {"key": key, "text": key}})
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

async fn before(revision: &str, server: &str) -> (Gateway, Stage) {
    let up = Stage::start(revision, Answers::Sse).await;
    let setup = Setup::new().server(server).upstream("up", &format!("url = \"{}\"", up.url()));
    (setup.mcp(&["up"]).start().await, up)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_eras_are_served_on_one_connection_before_upstreams_of_both() {
    for upstream in [NEWEST, MODERN] {
        let (gateway, up) = before(upstream, "").await;
        let mut peer = Peer::legacy(&gateway, NEWEST).await;
        for (name, expected) in [
            ("echo", "grüße"),
            ("ask_sampling", "sampled hi"),
            ("ask_elicit", "accept Ann"),
            ("ask_roots", "rooted file:///work"),
            ("ask_twice", "sampled hi, rooted file:///work"),
        ] {
            let (answer, asked) = peer.request("tools/call", tool(name, "grüße")).await;
            assert_eq!(said(&answer), expected, "{name} of {upstream}");
            assert_eq!(asked.is_empty(), name == "echo", "{name} of {upstream}: {asked:?}");
        }
        // Progress comes before its answer, also of two calls at once.
        let params = |token: &str| {
            let meta = json!({"progressToken": token});
            json!({"name": "progress", "arguments": {"key": token}, "_meta": meta})
        };
        let first = peer.begin("tools/call", params("a")).await;
        let (_, before) = peer.modern("tools/call", params("b")).await;
        let steps = |before: &[Value], token: &str| -> Vec<Value> {
            let params = before.iter().map(|note| &note["params"]);
            let own = params.filter(|params| params["progressToken"] == token);
            own.map(|params| params["progress"].clone()).collect()
        };
        assert_eq!(steps(&before, "b"), [1, 2, 3], "of {upstream}");
        if !before.iter().any(|message| message["id"] == first) {
            peer.end(first).await;
        }
        // Requests of the modern era have no headers to repeat anything in, and ask in rounds.
        let (found, _) = peer.modern("server/discover", json!({})).await;
        assert_eq!(found["result"]["supportedVersions"][0], MODERN, "{found}");
        let (asked, _) = peer.modern("tools/call", tool("ask_elicit", "rounds")).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        let requests = asked["result"]["inputRequests"].as_object().unwrap();
        let mut retry = tool("ask_elicit", "rounds");
        retry["inputResponses"] = json!({ requests.keys().next().unwrap(): reply("form") });
        retry["requestState"] = asked["result"]["requestState"].clone();
        let (answer, _) = peer.modern("tools/call", retry).await;
        assert_eq!(said(&answer), "accept Ann", "of {upstream}");
        let metrics = gateway.metrics().await;
        assert_eq!(sessions(&metrics), 1.0);
        assert_eq!(metrics.value("trunkline_streams", &[("kind", "ws")]), 1.0);
        drop(peer);
        gateway.until("the session ends with it", |m| sessions(m) == 0.0).await;
        assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_has_no_answer_and_is_cancelled_upstream_in_both_eras() {
    for upstream in [NEWEST, MODERN] {
        let (gateway, up) = before(upstream, "").await;
        let mut peer = Peer::legacy(&gateway, NEWEST).await;
        let ran = |event: &str, key: &str| {
            up.journal().of(event).iter().filter(|entry| entry["key"] == key).count()
        };
        let legacy = peer.begin("tools/call", tool("slow", "legacy")).await;
        let modern = peer.begin_modern("tools/call", tool("slow", "modern")).await;
        for (id, key) in [(legacy, "legacy"), (modern, "modern")] {
            until("it runs", || ran("ran", key) == 1).await;
            peer.cancel(id).await;
            until("it is cancelled upstream", || ran("cancelled", key) == 1).await;
        }
        // Nothing is owed, and the ids are free: what comes next is the answer to what is asked next.
        peer.ws.say(request(legacy, "ping", &json!({}))).await;
        let (_, before) = peer.end(legacy).await;
        assert_eq!(before, Vec::<Value>::new());
        // Closing cancels what is left.
        peer.begin("tools/call", tool("slow", "left")).await;
        peer.begin_modern("tools/call", tool("slow", "left")).await;
        until("they run", || ran("ran", "left") == 2).await;
        drop(peer);
        until("they are cancelled upstream", || ran("cancelled", "left") == 2).await;
        let idle = |m: &Metrics| m.value("trunkline_exchanges_in_flight", &[]) == 0.0;
        gateway.until("nothing is left", |m| idle(m) && sessions(m) == 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_come_to_sessions_and_to_those_who_listen_until_they_cancel_or_all_ends() {
    let (mut gateway, _up) = before(MODERN, "drain_timeout = \"5s\"").await;
    let mut peer = Peer::legacy(&gateway, NEWEST).await;
    peer.request("tools/list", json!({})).await;
    let wants = json!({"notifications": {"toolsListChanged": true}});
    let mut listening = Vec::new();
    for _ in 0..2 {
        let id = peer.begin_modern("subscriptions/listen", wants.clone()).await;
        let acknowledged = peer.ws.json().await;
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(acknowledged["params"]["_meta"][format!("{META}subscriptionId")], id);
        listening.push(id);
    }
    // Whether anybody is told of a change, and for which subscription.
    let told = async |peer: &mut Peer, key: &str, count: usize| -> Vec<Value> {
        let id = peer.begin("tools/call", tool("change", key)).await;
        let (_, mut seen) = peer.end(id).await;
        let is_change = |m: &Value| m["method"] == "notifications/tools/list_changed";
        while seen.iter().filter(|m| is_change(m)).count() < count {
            seen.push(peer.ws.json().await);
        }
        let of = |m: &Value| m["params"]["_meta"][format!("{META}subscriptionId")].clone();
        let mut subscriptions: Vec<_> = seen.iter().filter(|m| is_change(m)).map(of).collect();
        subscriptions.sort_by_key(|id| id.as_u64());
        subscriptions
    };
    let all = told(&mut peer, "one", 3).await;
    assert_eq!(all, [Value::Null, json!(listening[0]), json!(listening[1])]);
    peer.cancel(listening[0]).await;
    gateway.until("one less", |m| m.value("trunkline_streams", &[("kind", "listen")]) == 1.0).await;
    let rest = told(&mut peer, "two", 2).await;
    assert_eq!(rest, [Value::Null, json!(listening[1])]);
    gateway.terminate();
    let (end, _) = peer.end(listening[1]).await;
    assert_eq!(end["result"]["resultType"], "complete", "{end}");
    assert_eq!(peer.ws.closed().await.0, 1001);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn without_a_session_it_is_said_what_is_wrong_and_how_to_begin() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new()
        .fake("up", &up)
        .mcp(&["up"])
        .toml("[[routes]]\npath = \"/free\"\nprotocol = \"mcp\"\nupstreams = [\"up\"]\nsessions = \"optional\"\nbatches = false")
        .start()
        .await;
    let mut peer = Peer::open(&gateway).await;
    let (refused, _) = peer.request("tools/list", json!({})).await;
    assert_eq!(code(&refused), -32600);
    assert!(refused["error"]["message"].as_str().unwrap().contains("initialize"), "{refused}");
    assert_eq!(peer.request("ping", json!({})).await.0["result"], json!({}));
    // A modern request that names no revision that is served so, or does not say what it must.
    let old = json!({"_meta": {format!("{META}protocolVersion"): "2025-11-25", format!("{META}clientCapabilities"): {}}});
    let (refused, _) = peer.request("tools/list", old).await;
    assert_eq!(
        (code(&refused), &refused["error"]["data"]["supported"][0]),
        (-32022, &json!(MODERN))
    );
    let bare = json!({"_meta": {format!("{META}protocolVersion"): MODERN}});
    assert_eq!(code(&peer.request("tools/list", bare).await.0), -32602);
    for wrong in [
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        "[]",
    ] {
        assert_eq!(code(&peer.ws.ask(wrong).await), -32600, "{wrong}");
    }
    assert_eq!(code(&peer.ws.ask("{").await), -32700);
    // Notifications are answered by nothing, however wrong.
    peer.ws.say(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":[]}"#).await;
    let (opened, before) = peer.request("initialize", hello(NEWEST, &caps())).await;
    assert_eq!((&opened["result"]["protocolVersion"], before), (&json!(NEWEST), vec![]));
    let (again, _) = peer.request("initialize", hello(NEWEST, &caps())).await;
    assert_eq!(code(&again), -32600);
    let batch = [request(91, "ping", &json!({})), request(92, "tools/list", &json!({}))].join(",");
    let answers = peer.ws.ask(format!("[{batch}]")).await;
    assert_eq!((&answers[0]["id"], &answers[1]["id"]), (&json!(91), &json!(92)));
    assert_eq!(answers[1]["result"]["tools"][0]["name"], "do");
    // Where sessions are optional, one call needs none.
    let mut free = Ws::open(&gateway, "/free").await;
    let answer = free.ask(request(1, "tools/call", &json!({"name": "do", "arguments": {}}))).await;
    assert!(answer["error"].is_null(), "{answer}");
    let refused = free.ask(format!("[{}]", request(1, "ping", &json!({})))).await;
    assert_eq!(code(&refused), -32600, "batches are off there");
}

#[tokio::test]
async fn over_its_limit_a_client_is_refused_and_its_answers_and_cancellations_are_still_read() {
    let up = Fake::mcp(["ask", "wait"]).on("tools/call", |call: Call| async move {
        if call.tool() == "wait" {
            return call.out.gone().await;
        }
        call.out.sse().await;
        let answer = call.ask("roots/list", json!({})).await;
        let uri = answer["result"]["roots"][0]["uri"].as_str().unwrap_or("none").to_owned();
        call.out.event(call.response(&crate::fake::said(&uri).to_string())).await;
        call.out.end().await;
    });
    let up = up.start().await;
    let gateway =
        Setup::new().server("ws_max_in_flight = 2").fake("up", &up).mcp(&["up"]).start().await;
    let mut peer = Peer::legacy(&gateway, NEWEST).await;
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let ask = peer.begin("tools/call", call("ask")).await;
    let question = peer.ws.json().await;
    assert_eq!(question["method"], "roots/list", "{question}");
    let wait = peer.begin("tools/call", call("wait")).await;
    let (refused, _) = peer.request("tools/call", call("wait")).await;
    assert_eq!(code(&refused), -31002);
    assert_eq!(refused["error"]["data"]["reason"], "overloaded");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": reply("roots/list")});
    peer.ws.say(answer.to_string()).await;
    assert_eq!(said(&peer.end(ask).await.0), "file:///work");
    // An id in flight is refused at once, also across eras.
    peer.ws.say(request(wait, "ping", &json!({}))).await;
    assert_eq!(code(&peer.end(wait).await.0), -32600);
    peer.cancel(wait).await;
    up.until_count("notifications/cancelled", 1).await;
    let (pong, _) = peer.request("ping", json!({})).await;
    assert_eq!(pong["result"], json!({}));
}

#[tokio::test]
async fn c114_the_subprotocol_is_echoed_only_if_it_was_offered() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let protocol = "sec-websocket-protocol";
    for (offers, expected) in [
        (&[][..], None),
        (&["mcp"][..], Some("mcp")),
        (&["foo, mcp"][..], Some("mcp")),
        (&["foo", "mcp"][..], Some("mcp")),
        (&["foo"][..], None),
        (&["MCP"][..], None),
    ] {
        let headers: Vec<_> = offers.iter().map(|offer| (protocol, *offer)).collect();
        let mut head = handshake(&gateway, "/mcp");
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let (_raw, answer) = Raw::upgrade(&gateway, &head).await;
        let lines = answer.lines().filter_map(|line| line.split_once(": "));
        let chosen = lines.filter(|(name, _)| name.eq_ignore_ascii_case(protocol));
        let chosen: Vec<_> = chosen.map(|(_, value)| value).collect();
        assert_eq!(chosen, Vec::from_iter(expected), "{offers:?}");
    }
    let foreign = [("origin", "https://evil.example"), (protocol, "mcp")];
    assert_eq!(Ws::try_open(&gateway, "/mcp", &foreign).await.err(), Some(403));
}

#[tokio::test]
async fn c125_what_belongs_to_no_request_ends_a_client_that_does_not_read_and_nobody_else() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().server("ws_write_timeout = \"1s\"").fake("up", &up).mcp(&["up"]).start().await;
    let mut slow = Peer::legacy(&gateway, NEWEST).await;
    let mut other = Peer::legacy(&gateway, NEWEST).await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"?"}}"#;
    for peer in [&mut slow, &mut other] {
        peer.request("tools/call", tool("do", "x")).await;
        // Until its upstream session has a stream for what belongs to no request.
        while timeout(Duration::from_millis(50), peer.ws.json()).await.is_err() {
            up.push(note);
        }
    }
    let before = gateway.memory();
    let text = "x".repeat(64 << 10);
    let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}});
    let mut count = 0;
    while sessions(&gateway.metrics().await) == 2.0 {
        for _ in 0..8 {
            up.push(&message.to_string());
            assert_eq!(other.ws.json().await["params"]["data"], text.as_str());
            count += 1;
        }
        assert!(count < 2_000, "the one that does not read is never closed");
    }
    assert!(gateway.memory().saturating_sub(before) < 64 << 20);
    assert_eq!(slow.ws.closed().await.0, 1013);
    assert_eq!(other.request("ping", json!({})).await.0["result"], json!({}));
}
