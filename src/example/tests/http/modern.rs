//! Revision 2026-07-28: what every request must say and how it is answered.

use super::super::super::revision::Revision;
use super::super::modern;
use super::*;
use crate::mcp::meta;

/// A request with the headers that it needs, as text of the headers and of the body.
pub(super) struct Ready {
    method: String,
    name: Option<String>,
    body: String,
}

impl Ready {
    pub(super) fn new(id: u64, method: &str, params: Value) -> Self {
        let name = ["name", "uri", "taskId"].iter().find_map(|member| params[member].as_str());
        let name = name.map(str::to_owned);
        Self { method: method.to_owned(), name, body: request(id, method, params) }
    }

    pub(super) fn ask(&self) -> Ask<'_> {
        let ask = Ask::post("/mcp", self.body.as_str())
            .with("mcp-protocol-version", "2026-07-28")
            .with("mcp-method", &self.method);
        match &self.name {
            Some(name) => ask.with("mcp-name", name),
            None => ask,
        }
    }
}

impl Web {
    /// Sends a request of a client with these capabilities.
    pub(super) async fn modern(
        &mut self,
        method: &str,
        params: Value,
        capabilities: Value,
    ) -> Response<Incoming> {
        self.send(Ready::new(1, method, modern(params, capabilities)).ask()).await
    }

    /// The status and the body of its answer, which comes alone.
    pub(super) async fn answer(
        &mut self,
        method: &str,
        params: Value,
        capabilities: Value,
    ) -> (u16, Value) {
        let response = self.modern(method, params, capabilities).await;
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(!response.headers().contains_key("mcp-session-id"));
        (response.status().as_u16(), parse(&text(response).await))
    }
}

#[tokio::test]
async fn a_request_needs_no_session_and_its_result_says_who_answered() {
    let mut web = Web::start(Answers::Auto, true).await;
    let (status, answer) = web.answer("server/discover", json!({}), json!({})).await;
    let result = &answer["result"];
    assert_eq!((status, &result["resultType"]), (200, &json!("complete")));
    let versions = result["supportedVersions"].as_array().unwrap();
    assert_eq!(versions[..2], ["2026-07-28", "2025-11-25"]);
    assert_eq!(result["capabilities"]["resources"]["subscribe"], true);
    assert!(result["capabilities"]["extensions"].get("io.modelcontextprotocol/tasks").is_some());
    assert_eq!(result["_meta"][meta::SERVER_INFO]["name"], "trunkline-example-notes");

    let call = Ready::new(7, "tools/call", modern(tool("add", json!({"a": 1, "b": 2})), json!({})));
    let answer = web.json(call.ask().with("mcp-session-id", "unknown")).await;
    assert_eq!(answer["result"]["content"][0]["text"], "3");
    assert_eq!(answer["result"]["resultType"], "complete");
    assert!(answer["result"].get("ttlMs").is_none(), "nothing to be cached");
}

#[tokio::test]
async fn what_may_be_cached_says_for_how_long_and_by_whom() {
    let mut web = Web::start(Answers::Auto, true).await;
    for (method, params) in [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": "notes://1"})),
    ] {
        let (_, answer) = web.answer(method, params, json!({})).await;
        assert!(answer["result"]["ttlMs"].as_u64().is_some_and(|ttl| ttl > 0), "{answer}");
        assert_eq!(answer["result"]["cacheScope"], "public");
    }
    let (status, answer) = web.answer("resources/read", json!({"uri": "no:x"}), json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
    assert_eq!(answer["error"]["data"]["uri"], "no:x");
}

#[tokio::test]
async fn a_request_that_says_too_little_or_contradicts_itself_is_refused() {
    let mut web = Web::start(Answers::Auto, true).await;
    let list = Ready::new(4, "tools/list", modern(json!({}), json!({})));
    let poor = Ready::new(4, "tools/list", json!({}));
    let poorer = json!({"_meta": {meta::PROTOCOL_VERSION: "2026-07-28"}});
    let poorer = Ready::new(4, "tools/list", poorer);
    let rows = [
        (poor.ask(), 400, -32602),
        (poorer.ask(), 400, -32602),
        (list.ask().without("mcp-protocol-version"), 400, -32020),
        (list.ask().with("mcp-protocol-version", "2025-11-25"), 400, -32020),
        (list.ask().without("mcp-method"), 400, -32020),
        (list.ask().with("mcp-method", "Tools/list"), 400, -32020),
        (list.ask().with("mcp-method", " tools/list\t"), 200, 0),
        (list.ask().with("accept", "text/html"), 406, -32600),
    ];
    for (ask, status, code) in rows {
        let shown = format!("{:?}", ask.headers);
        let response = web.send(ask).await;
        assert_eq!(response.status(), status, "{shown}");
        let answer = parse(&text(response).await);
        assert_eq!(answer["error"]["code"].as_i64().unwrap_or(0), code, "{shown}");
    }
}

#[tokio::test]
async fn a_revision_that_is_not_offered_is_answered_by_those_that_are() {
    let mut web = Web::of(Kind::Files, Offered::Modern).await;
    for named in ["2031-01-01", "2025-11-25"] {
        let mut params = modern(json!({}), json!({}));
        params["_meta"][meta::PROTOCOL_VERSION] = json!(named);
        let list = Ready::new(4, "tools/list", params);
        let response = web.send(list.ask().with("mcp-protocol-version", named)).await;
        assert_eq!(response.status(), 400);
        let error = parse(&text(response).await)["error"].clone();
        assert_eq!(error["code"], -32022);
        assert_eq!(error["data"], json!({"supported": ["2026-07-28"], "requested": named}));
    }
}

#[tokio::test]
async fn methods_that_there_are_not_are_not_found() {
    let mut web = Web::start(Answers::Auto, true).await;
    for method in [
        "ping",
        "initialize",
        "logging/setLevel",
        "resources/subscribe",
        "tasks/list",
        "tasks/result",
        "x",
    ] {
        let (status, answer) = web.answer(method, json!({"uri": "notes://1"}), json!({})).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!(-32601)), "{method}");
        assert_eq!(answer["id"], 1);
    }
    let mut files = Web::of(Kind::Files, Offered::All).await;
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let (status, _) = files.answer("tasks/get", json!({"taskId": "x"}), tasks).await;
    assert_eq!(status, 404, "files has no jobs");
}

#[tokio::test]
async fn one_post_carries_one_request_or_notification() {
    let mut web = Web::start(Answers::Auto, true).await;
    let list = request(1, "tools/list", modern(json!({}), json!({})));
    let post = |body: String| Ask::post("/mcp", body).with("mcp-protocol-version", "2026-07-28");
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    for body in [format!("[{list}]"), response.to_owned(), "{".to_owned(), "{}".to_owned()] {
        let response = web.send(post(body.clone())).await;
        assert_eq!(response.status(), 400, "{body}");
        let answer = parse(&text(response).await);
        assert!(answer["error"]["code"].is_i64() && answer.get("id").is_none(), "{answer}");
    }
    let note = notification("notifications/cancelled", json!({"requestId": 1}));
    assert_eq!(web.status(post(note)).await, 202);
    for method in ["GET", "DELETE"] {
        let ask = Ask::of(method, "/mcp").with("mcp-protocol-version", "2026-07-28");
        let response = web.send(ask).await;
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "POST, OPTIONS");
    }
}

#[tokio::test]
async fn a_server_of_one_era_refuses_the_other() {
    let mut web = Web::of(Kind::Notes, Offered::Modern).await;
    let hello = request(0, "initialize", hello("2025-11-25"));
    let response = web.send(Ask::post("/mcp", hello)).await;
    assert_eq!(response.status(), 400);
    let error = parse(&text(response).await)["error"].clone();
    assert_eq!(
        (&error["code"], &error["data"]["requested"]),
        (&json!(-32022), &json!("2025-11-25"))
    );
    assert!(error["message"].as_str().unwrap().contains("2026-07-28"));
    let response = web.send(Ask::post("/mcp", request(1, "tools/list", json!({})))).await;
    assert_eq!(parse(&text(response).await)["error"]["code"], -32020);
    assert_eq!(web.status(Ask::of("GET", "/mcp")).await, 405);

    let mut web = Web::of(Kind::Notes, Offered::UpTo(Revision::V2025_06_18)).await;
    assert_eq!(web.modern("server/discover", json!({}), json!({})).await.status(), 400);
    let id = web.session("2025-11-25").await;
    let list = Ask::post("/mcp", request(1, "tools/list", json!({}))).with("mcp-session-id", &id);
    assert!(web.json(list).await["result"].get("resultType").is_none());
}

#[tokio::test]
async fn progress_and_wanted_log_messages_precede_the_answer_on_its_stream() {
    let mut web = Web::start(Answers::Auto, true).await;
    let mut params = tool("slow", json!({"steps": 2, "delay_ms": 1}));
    params["_meta"] = json!({"progressToken": "x"});
    let mut events = Events::of(web.modern("tools/call", params, json!({})).await);
    for step in 1..=2 {
        let progress = events.next().await.unwrap();
        assert_eq!(progress["params"]["progressToken"], "x");
        assert_eq!(progress["params"]["progress"], step);
    }
    assert_eq!(events.next().await.unwrap()["id"], 1);
    assert_eq!(events.next().await, None);

    let (_, quiet) = web.answer("tools/call", tool("log_something", json!({})), json!({})).await;
    assert_eq!(quiet["id"], 1, "no level, no log messages");
    let mut params = tool("log_something", json!({}));
    params["_meta"] = json!({meta::LOG_LEVEL: "warning"});
    let mut events = Events::of(web.modern("tools/call", params.clone(), json!({})).await);
    for level in ["warning", "error"] {
        assert_eq!(events.next().await.unwrap()["params"]["level"], level);
    }
    assert_eq!(events.next().await.unwrap()["id"], 1);
    params["_meta"] = json!({meta::LOG_LEVEL: "loud"});
    let (status, answer) = web.answer("tools/call", params, json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let mut web = Web::start(Answers::Sse, true).await;
    let idle = Arc::strong_count(&web.http.server);
    let mut params = tool("slow", json!({"steps": 1000, "delay_ms": 20}));
    params["_meta"] = json!({"progressToken": 5});
    let mut events = Events::of(web.modern("tools/call", params, json!({})).await);
    events.next().await.unwrap();
    assert!(Arc::strong_count(&web.http.server) > idle, "it runs");
    drop(events);
    let over = async {
        while Arc::strong_count(&web.http.server) > idle {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), over).await.unwrap();
}

#[tokio::test]
async fn a_listener_hears_what_it_asked_for_and_nothing_else_until_the_server_ends() {
    let mut web = Web::start(Answers::Json, true).await;
    let wish = json!({"toolsListChanged": true, "promptsListChanged": false,
        "resourceSubscriptions": ["notes://1", "no:x"]});
    let response =
        web.modern("subscriptions/listen", json!({"notifications": wish}), json!({})).await;
    let mut events = Events::of(response);
    let first = events.next().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": ["notes://1"]});
    assert_eq!(first["params"]["notifications"], honoured);
    assert_eq!(first["params"]["_meta"][meta::SUBSCRIPTION_ID], 1);

    let (_, grown) = web.answer("tools/call", tool("grow", json!({})), json!({})).await;
    assert_eq!(grown["id"], 1, "changes are told to who listens, not to who calls");
    let changed = events.next().await.unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"][meta::SUBSCRIPTION_ID], 1);
    let updated = events.next().await.unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"]["uri"], "notes://1");

    web.http.server.ending.cancel();
    let last = events.next().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(1), &json!("complete")));
    assert_eq!(last["result"]["_meta"][meta::SUBSCRIPTION_ID], 1);
    assert_eq!(events.next().await, None);
    let over = async { while web.tasks.join_next().await.is_some() {} };
    tokio::time::timeout(std::time::Duration::from_secs(10), over).await.unwrap();
}

#[tokio::test]
async fn sessions_and_listeners_hear_of_each_others_changes() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.session("2025-11-25").await;
    let listen = Ask::of("GET", "/mcp").with("mcp-session-id", &id);
    let mut session = Events::of(web.send(listen).await);
    let wish = json!({"notifications": {"toolsListChanged": true}});
    let mut listener = Events::of(web.modern("subscriptions/listen", wish, json!({})).await);
    listener.next().await.unwrap();
    let grow = Ask::post("/mcp", call(1, "grow", json!({}))).with("mcp-session-id", &id);
    web.json(grow).await;
    web.answer("tools/call", tool("grow", json!({})), json!({})).await;
    let method = "notifications/tools/list_changed";
    for _ in 0..2 {
        assert_eq!(listener.next().await.unwrap()["method"], method);
        assert_eq!(session.next().await.unwrap()["method"], method);
        session.next().await.unwrap();
        session.next().await.unwrap();
    }
}

#[tokio::test]
async fn listening_takes_a_filter_and_a_client_that_takes_events() {
    let mut web = Web::start(Answers::Auto, true).await;
    let (status, answer) = web.answer("subscriptions/listen", json!({}), json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
    let wish = json!({"notifications": {"taskIds": ["x"]}});
    let (status, answer) = web.answer("subscriptions/listen", wish, json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)));
    let params = modern(json!({"notifications": {}}), json!({}));
    let listen = Ready::new(1, "subscriptions/listen", params);
    assert_eq!(web.status(listen.ask().with("accept", "application/json")).await, 406);
}
