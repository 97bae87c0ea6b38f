//! Sessions without transport.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::Kind;
use super::super::content::Content;
use super::super::message::Piece;
use super::super::outbox::{Outbox, Outgoing, Standing};
use super::super::revision::Offered;
use super::super::service::Server;
use super::super::session::{Reply, Session};
use super::{hello, notification, parse, request, tool};

fn server(kind: Kind) -> Arc<Server> {
    Arc::new(Server::new(Content::new(kind), Offered::All, 50, true))
}

/// A client on a line to the server.
struct Client {
    session: Arc<Session>,
    queue: mpsc::Sender<Outgoing>,
    incoming: mpsc::Receiver<Outgoing>,
    ids: u64,
}

impl Client {
    fn new(server: &Arc<Server>) -> Self {
        let (queue, incoming) = mpsc::channel(64);
        let session = server.open(Standing::line(queue.clone()));
        Self { session, queue, incoming, ids: 0 }
    }

    /// A client that has been through `initialize`.
    fn ready(server: &Arc<Server>, revision: &str) -> Self {
        let mut client = Self::new(server);
        client.ask("initialize", hello(revision));
        client
    }

    fn send(&self, text: &str) -> Reply {
        let piece = Piece::read(text.as_bytes()).unwrap();
        self.session.take_piece(piece, &Outbox::into(self.queue.clone()))
    }

    /// Any request but `tools/call`: the whole response.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.ids += 1;
        match self.send(&request(self.ids, method, params)) {
            Reply::Now(text) => parse(&text),
            _ => panic!("{method} was not answered at once"),
        }
    }

    /// Starts a call; its answer comes last among what comes.
    fn start(&mut self, id: u64, params: Value) {
        self.begin(id, "tools/call", params);
    }

    /// Starts what may take its time.
    fn begin(&mut self, id: u64, method: &str, params: Value) {
        match self.send(&request(id, method, params)) {
            Reply::Later(answer) => {
                let queue = self.queue.clone();
                tokio::spawn(async move {
                    if let Some(text) = answer.await {
                        let _ = queue.send(Outgoing::Answer(text)).await;
                    }
                });
            }
            Reply::Now(text) => self.queue.try_send(Outgoing::Answer(text)).unwrap(),
            Reply::Nothing => panic!("a call needs an answer"),
        }
    }

    async fn next(&mut self) -> Value {
        parse(&self.incoming.recv().await.unwrap().into_text().unwrap())
    }

    /// Runs a call that sends nothing on its way.
    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ids += 1;
        self.start(self.ids, tool(name, arguments));
        self.next().await
    }

    /// The response to `prompts/get`.
    async fn prompt(&mut self, params: Value) -> Value {
        self.ids += 1;
        self.begin(self.ids, "prompts/get", params);
        self.next().await
    }

    /// The text of a call's result.
    async fn text(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.call(name, arguments).await;
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
    }

    /// All entries of a list, page by page.
    fn drain(&mut self, method: &str, member: &str) -> Vec<Value> {
        let (mut params, mut all) = (json!({}), Vec::new());
        loop {
            let page = self.ask(method, params);
            all.extend(page["result"][member].as_array().unwrap().clone());
            let Some(cursor) = page["result"].get("nextCursor") else { return all };
            params = json!({"cursor": cursor});
        }
    }
}

#[tokio::test]
async fn initialize_settles_the_revision_and_says_what_is_offered() {
    for (wish, granted) in [("2024-11-05", "2024-11-05"), ("2099-01-01", "2025-11-25")] {
        let mut client = Client::new(&server(Kind::Notes));
        let answer = client.ask("initialize", hello(wish));
        let result = &answer["result"];
        assert_eq!(result["protocolVersion"], granted);
        assert_eq!(result["serverInfo"]["name"], "trunkline-example-notes");
        assert_eq!(result["capabilities"]["resources"]["subscribe"], true);
        assert_eq!(result["capabilities"].get("completions").is_some(), wish == "2099-01-01");
        assert!(result["instructions"].as_str().unwrap().contains("note_list"));
    }
}

#[tokio::test]
async fn a_session_is_initialized_once_and_first() {
    let mut client = Client::new(&server(Kind::Notes));
    assert_eq!(client.ask("tools/list", json!({}))["error"]["code"], -32600);
    assert_eq!(client.ask("server/discover", json!({}))["error"]["code"], -32601);
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    assert_eq!(client.ask("initialize", json!({}))["error"]["code"], -32602);
    assert!(client.ask("initialize", hello("2025-11-25"))["error"].is_null());
    assert_eq!(client.ask("initialize", hello("2025-11-25"))["error"]["code"], -32600);
}

#[tokio::test]
async fn pages_give_every_resource_once_and_bad_cursors_are_refused() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let first = client.ask("resources/list", json!({}));
    assert_eq!(first["result"]["resources"].as_array().unwrap().len(), 50);
    let cursor = first["result"]["nextCursor"].as_str().unwrap();
    assert!(cursor.contains('=') && cursor.contains('+'));
    let all = client.drain("resources/list", "resources");
    let mut uris: Vec<_> = all.iter().map(|one| one["uri"].as_str().unwrap()).collect();
    uris.sort_unstable();
    uris.dedup();
    assert_eq!((all.len(), uris.len()), (122, 122));
    let answer = client.ask("resources/list", json!({"cursor": "nonsense"}));
    assert_eq!(answer["error"]["code"], -32602);
}

#[tokio::test]
async fn definitions_hold_only_what_the_revision_knows() {
    let server = server(Kind::Notes);
    let rows =
        [("2024-11-05", false, false), ("2025-03-26", true, false), ("2025-06-18", true, true)];
    for (revision, annotations, title) in rows {
        let mut client = Client::ready(&server, revision);
        for tool in client.drain("tools/list", "tools") {
            assert_eq!(tool.get("annotations").is_some(), annotations, "{tool}");
            assert_eq!(tool.get("title").is_some(), title, "{tool}");
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            let has_output = title && tool["name"] == "stats";
            assert_eq!(tool.get("outputSchema").is_some(), has_output, "{tool}");
        }
        let stats = client.call("stats", json!({})).await;
        assert_eq!(stats["result"].get("structuredContent").is_some(), title);
        let media = client.call("media", json!({})).await;
        let blocks = media["result"]["content"].as_array().unwrap().len();
        assert_eq!(blocks, 3 + usize::from(annotations) + usize::from(title));
    }
}

#[tokio::test]
async fn every_listed_tool_can_be_called() {
    for kind in [Kind::Notes, Kind::Files] {
        let mut client = Client::ready(&server(kind), "2025-06-18");
        for tool in client.drain("tools/list", "tools") {
            let name = tool["name"].as_str().unwrap();
            if ["slow", "summarize", "ask_user", "list_roots", "log_something"].contains(&name) {
                continue;
            }
            let answer = client.call(name, json!({})).await;
            let unknown = answer["error"]["message"].to_string().contains("unknown tool");
            assert!(!unknown && answer["error"]["code"] != -32601, "{name}: {answer}");
            while client.incoming.try_recv().is_ok() {}
        }
        let answer = client.call("no_such_tool", json!({})).await;
        assert_eq!(answer["error"]["code"], -32602);
    }
}

#[tokio::test]
async fn simple_tools_do_what_they_say() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    assert_eq!(client.text("echo", json!({"message": "häl\nlo"})).await, "häl\nlo");
    assert_eq!(client.text("add", json!({"a": 2, "b": 40})).await, "42");
    assert_eq!(client.text("add", json!({"a": 0.5, "b": 1})).await, "1.5");
    assert_eq!(client.text("payload", json!({"bytes": 1000})).await.len(), 1000);
    let failed = client.call("fail", json!({"message": "no luck"})).await;
    assert_eq!(failed["result"]["isError"], true);
    assert_eq!(failed["result"]["content"][0]["text"], "no luck");
    assert!(client.text("note_get", json!({"id": 7})).await.contains("Note 7"));
    assert!(client.text("note_list", json!({"find": "ferry"})).await.contains("10\tferry"));
}

#[tokio::test]
async fn bad_arguments_are_the_models_to_see_since_2025_11_25_and_an_error_before() {
    let server = server(Kind::Notes);
    let mut client = Client::ready(&server, "2025-11-25");
    let answer = client.call("add", json!({"a": "two"})).await;
    assert_eq!(answer["result"]["isError"], true);
    let mut client = Client::ready(&server, "2025-06-18");
    assert_eq!(client.call("add", json!({"a": "two"})).await["error"]["code"], -32602);
}

#[tokio::test(start_paused = true)]
async fn slow_reports_each_step_with_the_callers_token() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let mut params = tool("slow", json!({"steps": 3, "delay_ms": 1000}));
    params["_meta"] = json!({"progressToken": "p-1"});
    client.start(9, params);
    for step in 1..=3 {
        let message = client.next().await;
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(message["params"]["progressToken"], "p-1");
        assert_eq!(message["params"]["progress"], step);
        assert_eq!(message["params"]["total"], 3);
    }
    assert_eq!(client.next().await["id"], 9);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_not_answered_and_leaves_nothing() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    client.start(9, tool("slow", json!({"steps": 1000, "delay_ms": 60_000})));
    client.start(10, tool("slow", json!({"steps": 1, "delay_ms": 1})));
    client.send(&notification("notifications/cancelled", json!({"requestId": 9})));
    assert_eq!(client.next().await["id"], 10);
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert!(client.incoming.try_recv().is_err());
    assert!(!client.session.is_busy());
}

/// Starts a tool that asks, answers its question, and gives the question and the final answer.
async fn ask_back(client: &mut Client, params: Value, reply: Value) -> (Value, Value) {
    client.start(9, params);
    let question = client.next().await;
    let mut response = json!({"jsonrpc": "2.0", "id": question["id"]});
    for (member, value) in reply.as_object().unwrap() {
        response[member] = value.clone();
    }
    client.send(&response.to_string());
    (question, client.next().await)
}

#[tokio::test]
async fn summarize_uses_the_clients_model() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let content = json!({"type": "text", "text": "short"});
    let reply = json!({"result": {"role": "assistant", "model": "m", "content": content}});
    let params = tool("summarize", json!({"text": "a long story"}));
    let (question, answer) = ask_back(&mut client, params.clone(), reply).await;
    assert_eq!(question["method"], "sampling/createMessage");
    assert!(question["params"].to_string().contains("a long story"));
    assert_eq!(answer["result"]["content"][0]["text"], "short");
    let refusal = json!({"error": {"code": -1, "message": "user said no"}});
    let (_, answer) = ask_back(&mut client, params, refusal).await;
    assert_eq!(answer["result"]["isError"], true);
    assert!(answer["result"].to_string().contains("user said no"));
}

#[tokio::test]
async fn ask_user_reports_every_action() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let accept = json!({"action": "accept", "content": {"title": "Tea"}});
    let rows = [
        (accept, r#"accept: {"title":"Tea"}"#),
        (json!({"action": "decline"}), "decline"),
        (json!({"action": "cancel"}), "cancel"),
    ];
    for (result, text) in rows {
        let params = tool("ask_user", json!({"message": "Which?"}));
        let (question, answer) = ask_back(&mut client, params, json!({"result": result})).await;
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["message"], "Which?");
        assert_eq!(answer["result"]["content"][0]["text"], text);
    }
}

#[tokio::test]
async fn list_roots_lists_the_clients_roots() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let roots = json!([{"uri": "file:///a"}, {"uri": "file:///b"}]);
    let reply = json!({"result": {"roots": roots}});
    let (question, answer) = ask_back(&mut client, tool("list_roots", json!({})), reply).await;
    assert_eq!(question["method"], "roots/list");
    assert_eq!(answer["result"]["content"][0]["text"], "file:///a\nfile:///b");
}

#[tokio::test]
async fn tools_that_ask_tell_a_client_that_cannot_be_asked() {
    let mut client = Client::new(&server(Kind::Notes));
    let mut params = hello("2025-11-25");
    params["capabilities"] = json!({});
    client.ask("initialize", params);
    for name in ["summarize", "ask_user", "list_roots"] {
        let answer = client.call(name, json!({"text": "x"})).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"].to_string().contains("does not support"), "{answer}");
    }
}

#[tokio::test]
async fn a_cancelled_call_withdraws_its_question() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    client.start(9, tool("ask_user", json!({})));
    let question = client.next().await;
    client.send(&notification("notifications/cancelled", json!({"requestId": 9})));
    let withdrawn = client.next().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
}

#[tokio::test]
async fn grow_changes_all_lists_and_tells_every_session() {
    let server = server(Kind::Notes);
    let mut one = Client::ready(&server, "2025-11-25");
    let mut other = Client::ready(&server, "2025-06-18");
    let before = one.drain("tools/list", "tools").len();
    other.ask("resources/subscribe", json!({"uri": "notes://1"}));
    one.start(9, tool("grow", json!({})));
    for method in ["tools", "prompts", "resources"] {
        let expected = format!("notifications/{method}/list_changed");
        assert_eq!(one.next().await["method"], expected);
        assert_eq!(other.next().await["method"], expected);
    }
    assert_eq!(one.next().await["id"], 9, "not subscribed, so not told of notes://1");
    let updated = other.next().await;
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"]["uri"], "notes://1");
    assert_eq!(one.drain("tools/list", "tools").len(), before + 1);
    assert!(one.drain("prompts/list", "prompts").iter().any(|p| p["name"] == "grown_1"));
    assert_eq!(one.text("grown_1", json!({})).await, "grown_1 says hello");
    assert_eq!(one.call("grown_2", json!({})).await["error"]["code"], -32602);
    other.ask("resources/unsubscribe", json!({"uri": "notes://1"}));
    one.start(10, tool("grow", json!({})));
    for _ in 0..3 {
        other.next().await;
    }
    while one.next().await["id"] != 10 {}
    assert!(other.incoming.try_recv().is_err(), "unsubscribed, so not told of notes://1");
}

#[tokio::test]
async fn an_added_note_is_a_resource_until_it_is_deleted() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    client.start(1, tool("note_add", json!({"title": "Tea", "text": "Buy some"})));
    assert_eq!(client.next().await["method"], "notifications/resources/list_changed");
    assert!(client.next().await["result"].to_string().contains("121"));
    let read = client.ask("resources/read", json!({"uri": "notes://121"}));
    assert_eq!(read["result"]["contents"][0]["text"], "Buy some");
    client.start(2, tool("note_delete", json!({"id": 121})));
    client.next().await;
    client.next().await;
    let read = client.ask("resources/read", json!({"uri": "notes://121"}));
    assert_eq!(read["error"]["code"], -32002);
    assert_eq!(read["error"]["data"]["uri"], "notes://121");
}

#[tokio::test]
async fn the_log_level_decides_what_is_sent() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    for (level, count) in [("debug", 3), ("warning", 2), ("error", 1), ("emergency", 0)] {
        let answer = client.ask("logging/setLevel", json!({"level": level}));
        assert_eq!(answer["result"], json!({}));
        client.start(9, tool("log_something", json!({})));
        for _ in 0..count {
            assert_eq!(client.next().await["method"], "notifications/message");
        }
        assert_eq!(client.next().await["id"], 9, "{level}");
    }
    let answer = client.ask("logging/setLevel", json!({"level": "loud"}));
    assert_eq!(answer["error"]["code"], -32602);
}

#[tokio::test]
async fn prompts_check_their_arguments_and_embed_resources() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let draft = json!({"name": "draft_note", "arguments": {"topic": "tea", "tone": "formal"}});
    let answer = client.prompt(draft).await;
    let text = answer["result"]["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains("tea") && text.contains("formal"));
    for params in [
        json!({"name": "draft_note"}),
        json!({"name": "draft_note", "arguments": {"topic": 5}}),
        json!({"name": "review_note", "arguments": {"id": "9999"}}),
        json!({"name": "nothing"}),
    ] {
        assert_eq!(client.prompt(params).await["error"]["code"], -32602);
    }
    let review = json!({"name": "review_note", "arguments": {"id": "3"}});
    let answer = client.prompt(review).await;
    let content = &answer["result"]["messages"][0]["content"];
    assert_eq!(content["resource"]["uri"], "notes://3");
}

#[tokio::test]
async fn completion_fills_prompt_arguments_and_template_variables() {
    let mut client = Client::ready(&server(Kind::Notes), "2025-11-25");
    let mut values = |reference: Value, name: &str, begun: &str| {
        let argument = json!({"name": name, "value": begun});
        let params = json!({"ref": reference, "argument": argument});
        client.ask("completion/complete", params)
    };
    let draft = json!({"type": "ref/prompt", "name": "draft_note"});
    let answer = values(draft.clone(), "tone", "f");
    assert_eq!(answer["result"]["completion"]["values"], json!(["formal", "friendly"]));
    assert_eq!(values(draft, "other", "")["result"]["completion"]["values"], json!([]));
    let template = json!({"type": "ref/resource", "uri": "notes://{id}"});
    let answer = values(template.clone(), "id", "11");
    assert_eq!(answer["result"]["completion"]["total"], 11);
    let answer = values(template, "id", "");
    assert_eq!(answer["result"]["completion"]["values"].as_array().unwrap().len(), 100);
    assert_eq!(answer["result"]["completion"]["hasMore"], true);
    let unknown = json!({"type": "ref/prompt", "name": "nothing"});
    assert_eq!(values(unknown, "tone", "")["error"]["code"], -32602);
}

#[tokio::test]
async fn files_can_be_listed_read_searched_written_and_deleted() {
    let mut client = Client::ready(&server(Kind::Files), "2025-11-25");
    assert!(client.text("list_directory", json!({})).await.contains("docs/\n"));
    assert!(client.text("read_file", json!({"path": "docs/faq.md"})).await.contains("Wind"));
    let hits = client.text("search_files", json!({"text": "Gullhaven"})).await;
    assert_eq!(hits, "data/harbours.csv:3: Gullhaven,53.8,8.2");
    let info = client.call("file_info", json!({"path": "/images//logo.png"})).await;
    let structured =
        json!({"path": "images/logo.png", "kind": "file", "bytes": 74, "mimeType": "image/png"});
    assert_eq!(info["result"]["structuredContent"], structured);
    let image = client.call("read_file", json!({"path": "images/logo.png"})).await;
    assert_eq!(image["result"]["content"][0]["type"], "image");
    let outside = client.call("read_file", json!({"path": "../etc/passwd"})).await;
    assert_eq!(outside["result"]["isError"], true);

    client.start(1, tool("write_file", json!({"path": "a b.txt", "text": "hi"})));
    assert_eq!(client.next().await["method"], "notifications/resources/list_changed");
    client.next().await;
    let uri = json!({"uri": "file:///a%20b.txt"});
    let read = client.ask("resources/read", uri.clone());
    assert_eq!(read["result"]["contents"][0]["text"], "hi");
    client.ask("resources/subscribe", uri);
    client.start(2, tool("write_file", json!({"path": "a b.txt", "text": "ho"})));
    assert_eq!(client.next().await["method"], "notifications/resources/updated");
    client.next().await;
    client.start(3, tool("delete_file", json!({"path": "a b.txt"})));
    assert_eq!(client.next().await["method"], "notifications/resources/list_changed");
}

#[tokio::test]
async fn every_listed_resource_can_be_read() {
    for kind in [Kind::Notes, Kind::Files] {
        let mut client = Client::ready(&server(kind), "2025-11-25");
        for resource in client.drain("resources/list", "resources") {
            let read = client.ask("resources/read", json!({"uri": resource["uri"]}));
            let contents = &read["result"]["contents"][0];
            assert_eq!(contents["uri"], resource["uri"]);
            assert_eq!(contents["mimeType"], resource["mimeType"]);
            assert!(contents["text"].is_string() || contents["blob"].is_string());
        }
    }
}

#[tokio::test]
async fn only_old_revisions_have_batches() {
    let server = server(Kind::Notes);
    let ping = request(1, "ping", json!({}));
    let call = request(2, "tools/call", tool("echo", json!({"message": "x"})));
    let init = request(3, "initialize", hello("2025-03-26"));
    let note = notification("notifications/initialized", json!({}));
    let batch = format!("[{ping},{note},{call},7,{init}]");

    let client = Client::ready(&server, "2025-03-26");
    let Reply::Later(answer) = client.send(&batch) else { panic!("not a batch's answer") };
    let answers = parse(&answer.await.unwrap());
    let ids: Vec<_> = answers.as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(2), Value::Null, json!(3)]);
    assert_eq!(answers[1]["result"]["content"][0]["text"], "x");
    assert_eq!(answers[3]["error"]["code"], -32600);
    assert!(matches!(client.send(&format!("[{note}]")), Reply::Nothing));

    let client = Client::ready(&server, "2025-06-18");
    let Reply::Now(answer) = client.send(&batch) else { panic!("not refused at once") };
    assert_eq!(parse(&answer)["error"]["code"], -32600);
}

#[tokio::test]
async fn ids_come_back_as_they_were_written() {
    let client = Client::ready(&server(Kind::Notes), "2025-11-25");
    for id in ["7", "\"7\"", "-1", "\"\\u0041\"", "123456789012345678901234567890", "\"\""] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let Reply::Now(answer) = client.send(&text) else { panic!("no answer") };
        assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    }
}

#[tokio::test]
async fn an_ended_session_is_told_nothing_and_stops_its_calls() {
    let server = server(Kind::Notes);
    let mut gone = Client::ready(&server, "2025-11-25");
    gone.start(1, tool("slow", json!({"steps": 1000, "delay_ms": 60_000})));
    gone.session.closing().cancel();
    let weak = Arc::downgrade(&gone.session);
    let Client { mut incoming, session, queue, .. } = gone;
    drop((session, queue));
    assert_eq!(incoming.recv().await, None, "the call ended without an answer");
    assert_eq!(weak.strong_count(), 0);
    let mut client = Client::ready(&server, "2025-11-25");
    client.start(1, tool("grow", json!({})));
    while client.next().await["id"] != 1 {}
}
