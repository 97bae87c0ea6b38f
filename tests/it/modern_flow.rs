//! What goes on between requests of 2026-07-28: what is handed back with a retry, subscriptions, places in lists, and
//! ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Streaming;
use crate::fake::scene::{META, MODERN};
use crate::fake::stage::{Answers, Stage};
use crate::fake::{Call, Fake, said};
use crate::gateway::{Gateway, Setup, until};
use crate::mcp::{Answer, Mcp, NEWEST};
use crate::modern::Modern;

fn caps() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}}})
}

async fn before(revision: &str) -> (Gateway, Stage, Modern) {
    before_with(revision, "").await
}

async fn before_with(revision: &str, server: &str) -> (Gateway, Stage, Modern) {
    let up = Stage::start(revision, Answers::Sse).await;
    let setup = Setup::new().server(server).upstream("up", &format!("url = \"{}\"", up.url()));
    let gateway = setup.mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), caps());
    client.list("tools/list", "tools").await;
    (gateway, up, client)
}

/// A call that asks for a name, its key, and what is handed back with the retry.
async fn asked(client: &Modern, tool: &str, key: &str) -> (String, String) {
    let answer = client.call(tool, json!({ "key": key })).await;
    let result = answer.result();
    assert_eq!(result["resultType"], "input_required", "{}", answer.text);
    let requests = result["inputRequests"].as_object().expect("something is asked");
    assert_eq!(requests.len(), 1, "{}", answer.text);
    let state = result["requestState"].as_str().expect("there is a state").to_owned();
    (requests.keys().next().expect("one").clone(), state)
}

/// The retry of such a call.
async fn retried(client: &Modern, tool: &str, key: &str, ask: &str, state: &str) -> Answer {
    let accept = json!({"action": "accept", "content": {"name": "Ann"}});
    let params = json!({
        "name": tool, "arguments": {"key": key}, "inputResponses": {ask: accept}, "requestState": state,
    });
    client.request("tools/call", params).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_good_for_its_call_alone() {
    for revision in [MODERN, NEWEST] {
        let (_gateway, up, client) = before(revision).await;
        let (ask, state) = asked(&client, "ask_elicit", "one").await;
        let (_other, stranger, other_client) = before(revision).await;
        // Of another gateway, cut, changed, made up.
        let (_, foreign) = asked(&other_client, "ask_elicit", "one").await;
        let mut wrong =
            vec![foreign, String::new(), "x".into(), state[1..].into(), format!("{state}A")];
        for at in (0..state.len()).step_by(7) {
            let mut changed = state.clone();
            let letter = if &state[at..=at] == "A" { "B" } else { "A" };
            changed.replace_range(at..=at, letter);
            wrong.push(changed);
        }
        for state in &wrong {
            let answer = retried(&client, "ask_elicit", "one", &ask, state).await;
            assert_eq!(answer.code(), -32602, "{revision}: {state}: {}", answer.text);
        }
        // For another tool, with other arguments, with another method.
        for (tool, key) in [("echo", "one"), ("ask_elicit", "two")] {
            let answer = retried(&client, tool, key, &ask, &state).await;
            assert_eq!(answer.code(), -32602, "{revision}: {tool} {key}: {}", answer.text);
        }
        let params = json!({"name": "greet", "inputResponses": {}, "requestState": state});
        let answer = client.request("prompts/get", params).await;
        assert_eq!(answer.code(), -32602, "{revision}: {}", answer.text);
        // None of that spoilt it.
        let answer = retried(&client, "ask_elicit", "one", &ask, &state).await;
        assert_eq!(answer.said(), "accept Ann", "{revision}");
        let ran = |stage: &Stage| stage.journal().of("ran").len();
        assert_eq!((ran(&up), ran(&stranger)), (1, 1), "{revision}");
        assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_reads_its_own_state_and_no_client_does() {
    let (_gateway, _up, client) = before(MODERN).await;
    let (_, state) = asked(&client, "ask_elicit", "sealed").await;
    // The fake's state names the call in clear.
    assert!(!state.contains("ask_elicit") && state.is_ascii() && !state.contains(' '), "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_goes_on_once() {
    let (gateway, up, client) = before(NEWEST).await;
    let (ask, state) = asked(&client, "ask_elicit", "once").await;
    let answer = retried(&client, "ask_elicit", "once", &ask, &state).await;
    assert_eq!(answer.said(), "accept Ann");
    let again = retried(&client, "ask_elicit", "once", &ask, &state).await;
    assert_eq!(again.code(), -32602, "{}", again.text);
    assert_eq!(up.journal().of("ran").len(), 1, "it never runs twice");
    gateway.until("nothing is parked", |m| m.value("trunkline_parked_calls", &[]) == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_that_nobody_comes_back_for_is_cancelled() {
    let (gateway, up, client) = before_with(NEWEST, "park_timeout = \"1s\"").await;
    let (ask, state) = asked(&client, "ask_elicit", "late").await;
    let journal = up.journal();
    until("the upstream is told that nobody answers", || !journal.of("told").is_empty()).await;
    let told = &journal.of("told")[0];
    assert!(told["result"]["action"] == "cancel" || told["error"].is_object(), "{told}");
    gateway.until("nothing is parked", |m| m.value("trunkline_parked_calls", &[]) == 0.0).await;
    let answer = retried(&client, "ask_elicit", "late", &ask, &state).await;
    assert_eq!(answer.code(), -32602, "{}", answer.text);
    assert_eq!(journal.of("ran").len(), 1, "it is not run again");
}

/// Asks for two things at once and says what came.
async fn ask_both(call: Call) {
    call.out.sse().await;
    let sampling = json!({"messages": [], "maxTokens": 1});
    let (first, second) = tokio::join!(
        call.ask("sampling/createMessage", sampling),
        call.ask("roots/list", json!({})),
    );
    let text = format!("{} {}", first["result"]["model"], second["result"]["roots"]);
    call.out.event(call.response(&said(&text).to_string())).await;
    call.out.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_may_come_in_parts_and_others_are_ignored() {
    let up = Fake::mcp(["both"]).on("tools/call", ask_both).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), caps());
    let params = json!({"name": "both", "arguments": {}});
    let mut sent = params.clone();
    let mut keys = Vec::<String>::new();
    let answer = loop {
        let answer = client.request("tools/call", sent).await;
        let result = answer.result();
        if result["resultType"] == "complete" {
            break answer;
        }
        let requests = result["inputRequests"].as_object().expect("something is asked");
        let (key, ask) = requests.iter().next().expect("one");
        assert!(!keys.contains(key), "it is not asked for twice: {}", answer.text);
        keys.push(key.clone());
        // One at a time, and one that nobody wants.
        let response = match ask["method"].as_str() {
            Some("roots/list") => json!({"roots": []}),
            _ => {
                json!({"role": "assistant", "content": {"type": "text", "text": "t"}, "model": "m"})
            }
        };
        sent = params.clone();
        sent["requestState"] = result["requestState"].clone();
        sent["inputResponses"] = json!({key: response, "other": {"action": "accept"}});
        assert!(keys.len() < 4, "it goes on for ever");
    };
    assert_eq!(answer.said(), "\"m\" []");
    assert_eq!((up.count("tools/call"), keys.len()), (1, 2));
}

/// Asks with its tag and says what came.
async fn ask_tag(call: Call) {
    let tag = call.arg("tag");
    call.out.sse().await;
    let schema = json!({"type": "object", "properties": {"tag": {"type": "string"}}});
    let params = json!({"message": tag, "requestedSchema": schema});
    let answer = call.ask("elicitation/create", params).await;
    let text = format!("{tag} {}", answer["result"]["content"]["tag"]);
    call.out.event(call.response(&said(&text).to_string())).await;
    call.out.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c052_questions_reach_the_call_that_caused_them() {
    let up = Fake::mcp(["ask"]).on("tools/call", ask_tag).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let clients = (0..8).map(|n| {
        let client = Modern::new(gateway.http(), caps());
        async move {
            for round in 0..5 {
                let tag = format!("{n}.{round}");
                let params = json!({"name": "ask", "arguments": {"tag": tag}});
                let answer = client.request("tools/call", params.clone()).await;
                let result = answer.result();
                let requests = result["inputRequests"].as_object().expect("something is asked");
                let (key, ask) = requests.iter().next().expect("one");
                let message = ask["params"]["message"].as_str().expect("a text");
                assert!(message.ends_with(&tag), "{tag}: {message}");
                let mut retry = params;
                let response = json!({"action": "accept", "content": {"tag": tag}});
                retry["inputResponses"] = json!({ key: response });
                retry["requestState"] = result["requestState"].clone();
                let answer = client.request("tools/call", retry).await;
                assert_eq!(answer.said(), format!("\"{tag}\" \"{tag}\""));
            }
        }
    });
    futures_util::future::join_all(clients).await;
    assert_eq!(up.count("tools/call"), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_come_to_an_end() {
    let (gateway, up, client) = before(MODERN).await;
    let params = json!({"name": "endless", "arguments": {"key": "modern"}});
    let text = json!({"type": "text", "text": "hi"});
    let response = json!({"role": "assistant", "content": text, "model": "m"});
    let (mut sent, mut rounds) = (params.clone(), 0);
    let end = loop {
        let answer = client.request("tools/call", sent).await;
        let result = &answer.json["result"];
        if result["resultType"] != "input_required" {
            break answer;
        }
        rounds += 1;
        assert!(rounds < 40, "it goes on for ever");
        sent = params.clone();
        sent["requestState"] = result["requestState"].clone();
        let keys = result["inputRequests"].as_object().expect("something is asked").keys();
        sent["inputResponses"] = keys.map(|key| (key.clone(), response.clone())).collect();
    };
    let failed = end.json["error"].is_object() || end.json["result"]["isError"] == true;
    assert!(failed && rounds >= 8, "{rounds}: {}", end.text);
    // A client with a session is asked as often.
    let session = Mcp::open(&gateway, json!({"sampling": {}})).await;
    let body = crate::mcp::request(5, "tools/call", &params);
    let mut stream = session.open_post(&body).await;
    let mut asked = 0;
    let end = loop {
        let message = stream.next_message().await.expect("an answer");
        if message.get("method").is_none() {
            break message;
        }
        asked += 1;
        assert!(asked < 40, "it goes on for ever");
        session.answer(&message["id"], response.clone()).await;
    };
    assert!(end["error"].is_object() || end["result"]["isError"] == true, "{end}");
    assert!(asked >= 8, "{asked}: {end}");
    assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
}

/// The next message of a subscription is this notification, under its id.
async fn expect(stream: &mut Streaming, id: &Value, method: &str) -> Value {
    let message = stream.next_message().await.expect("a message");
    assert_eq!(message["method"], method, "{message}");
    assert_eq!(message["params"]["_meta"][format!("{META}subscriptionId")], *id, "{message}");
    message
}

async fn update(client: &Modern, uri: &str) {
    client.call("update", json!({ "uri": uri })).await;
}

/// Waits until the upstream was asked to watch that many resources.
async fn until_watched(up: &Stage, count: usize) {
    let journal = up.journal();
    until("the upstream watches", || {
        let streams = journal.of("stream");
        let watched = journal.of("resources/subscribe");
        let heard = watched
            .iter()
            .filter(|entry| streams.iter().any(|stream| stream["session"] == entry["session"]));
        heard.count() >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_gets_what_it_asked_for_under_its_own_id() {
    let (_gateway, up, client) = before(NEWEST).await;
    let (one, two) = ("memo://2024-11-05", "memo://2025-03-26");
    let filter = json!({"resourceSubscriptions": [one]});
    // Ids as they are, of either type.
    let mut streams = Vec::new();
    for id in [json!(41), json!("41"), json!("")] {
        let params = json!({"notifications": filter});
        let mut stream = client.open(&id, "subscriptions/listen", params).await;
        assert_eq!((stream.status, stream.is_sse()), (200, true));
        let note = expect(&mut stream, &id, "notifications/subscriptions/acknowledged").await;
        assert_eq!(note["params"]["notifications"], filter);
        streams.push((stream, id));
    }
    let both = json!({"toolsListChanged": true, "resourceSubscriptions": [two]});
    let (mut other, other_id, honoured) = client.listen(both.clone()).await;
    assert_eq!(honoured, both);
    until_watched(&up, 2).await;
    client.call("change", json!({"key": "listen"})).await;
    expect(&mut other, &other_id, "notifications/tools/list_changed").await;
    update(&client, two).await;
    let note = expect(&mut other, &other_id, "notifications/resources/updated").await;
    assert_eq!(note["params"]["uri"], two);
    update(&client, one).await;
    for (stream, id) in &mut streams {
        // Nothing of what the other one heard came before.
        let note = expect(stream, id, "notifications/resources/updated").await;
        assert_eq!(note["params"]["uri"], one);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_will_tell_is_not_acknowledged() {
    let up = Stage::start(NEWEST, Answers::Sse).await;
    let other = Fake::mcp(["x"]).start().await;
    let setup = Setup::new().upstream("up", &format!("url = \"{}\"", up.url()));
    let gateway = setup.fake("other", &other).mcp(&["up", "other"]).start().await;
    let client = Modern::new(gateway.http(), caps());
    client.list("resources/list", "resources").await;
    let filter = json!({
        "toolsListChanged": true, "promptsListChanged": false, "nobodyKnows": true,
        "resourceSubscriptions": ["memo://2024-11-05", "nowhere://x"],
    });
    let (_stream, _, honoured) = client.listen(filter).await;
    assert_eq!(
        honoured,
        json!({"toolsListChanged": true, "resourceSubscriptions": ["memo://2024-11-05"]})
    );
    let (_stream, _, honoured) = client.listen(json!({})).await;
    assert_eq!(honoured, json!({}));
    for params in [json!({}), json!({"notifications": null}), json!({"notifications": []})] {
        let answer = client.request("subscriptions/listen", params).await;
        assert_eq!(answer.code(), -32602, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_end_with_a_result_when_the_gateway_does() {
    let (mut gateway, _up, client) = before(NEWEST).await;
    let (mut stream, id, _) = client.listen(json!({"toolsListChanged": true})).await;
    gateway.terminate();
    let last = stream.next_message().await.expect("a result");
    assert_eq!(last["id"], id, "{last}");
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
    assert_eq!(last["result"]["_meta"][format!("{META}subscriptionId")], id, "{last}");
    assert_eq!(stream.next_message().await, None);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_subscription_whose_client_went() {
    let (gateway, up, client) = before(NEWEST).await;
    let listens = |count: f64| {
        move |m: &crate::metrics::Metrics| {
            m.value("trunkline_streams", &[("kind", "listen")]) == count
        }
    };
    let uri = "memo://2024-11-05";
    let (one, ..) = client.listen(json!({"resourceSubscriptions": [uri]})).await;
    let (two, ..) = client.listen(json!({"resourceSubscriptions": [uri]})).await;
    gateway.until("two subscriptions", listens(2.0)).await;
    until_watched(&up, 1).await;
    drop(one);
    gateway.until("one subscription", listens(1.0)).await;
    assert_eq!(up.journal().of("resources/unsubscribe").len(), 0, "somebody still listens");
    drop(two);
    gateway.until("no subscription", listens(0.0)).await;
    let journal = up.journal();
    until("the upstream need not watch", || journal.of("resources/unsubscribe").len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c069_hanging_up_cancels_within_half_a_second_whoever_is_upstream() {
    for revision in [MODERN, NEWEST] {
        let (gateway, up, client) = before(revision).await;
        let body = client.body(&json!(1), "tools/call", json!({"name": "slow", "arguments": {}}));
        let headers = client.headers(&body);
        let journal = up.journal();
        let text = body.to_string();
        let call = client.send(&headers, &text);
        tokio::select! {
            _ = call => panic!("{revision}: it answers nothing"),
            () = until("the tool runs", || journal.of("ran").len() == 1) => {}
        }
        let hung_up = Instant::now();
        until("it is cancelled", || journal.of("cancelled").len() == 1).await;
        assert!(hung_up.elapsed() < Duration::from_millis(500), "{:?}", hung_up.elapsed());
        gateway
            .until("nothing runs", |m| m.value("trunkline_exchanges_in_flight", &[]) == 0.0)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_open_only_where_they_were_given() {
    let many = |lists: &mut crate::fake::Lists| {
        lists.capabilities = json!({"tools": {}, "prompts": {}});
        lists.tools = (0..1200).map(|n| crate::fake::tool(&format!("t{n}"))).collect();
        lists.prompts = (0..1200).map(|n| json!({"name": format!("p{n}")})).collect();
    };
    let up = Fake::mcp([]).with(many).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    assert_eq!(client.list("tools/list", "tools").await.len(), 1200);
    let first = client.request("tools/list", json!({})).await;
    let cursor = first.result()["nextCursor"].as_str().expect("more pages").to_owned();
    let session = gateway.mcp().await;
    let theirs = session.request("tools/list", json!({})).await;
    let theirs = theirs.result()["nextCursor"].as_str().expect("more pages").to_owned();
    let list = |method: &'static str, cursor: &str| {
        let params = json!({ "cursor": cursor });
        let client = &client;
        async move { client.request(method, params).await }
    };
    for wrong in ["", "x", &cursor[1..], &format!("{cursor}A"), &theirs] {
        let answer = list("tools/list", wrong).await;
        assert_eq!(answer.code(), -32602, "{wrong}: {}", answer.text);
    }
    assert_eq!(list("prompts/list", &cursor).await.code(), -32602);
    let answer = session.request("tools/list", json!({"cursor": cursor})).await;
    assert_eq!(answer.code(), -32602, "{}", answer.text);
    assert!(list("tools/list", &cursor).await.result()["tools"].is_array());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_call_whose_upstream_went_is_not_made_again() {
    let (gateway, up, client) = before(NEWEST).await;
    let (ask, state) = asked(&client, "ask_elicit", "gone").await;
    up.restart();
    let answer = retried(&client, "ask_elicit", "gone", &ask, &state).await;
    assert!(answer.reason() == "upstream_closed" || answer.code() == -32602, "{}", answer.text);
    let again = retried(&client, "ask_elicit", "gone", &ask, &state).await;
    assert_eq!(again.code(), -32602, "{}", again.text);
    assert_eq!(up.journal().of("ran").len(), 1);
    gateway.until("nothing is parked", |m| m.value("trunkline_parked_calls", &[]) == 0.0).await;
    // The next call finds its way.
    asked(&client, "ask_elicit", "anew").await;
}

/// A client with a session whose user refuses whatever is asked; what the call comes to.
async fn refused_by_user(gateway: &Gateway, tool: &str) -> Value {
    let client = Mcp::open(gateway, caps()).await;
    let params = json!({"name": tool, "arguments": {"key": tool}});
    let mut stream = client.open_post(&crate::mcp::request(1, "tools/call", &params)).await;
    loop {
        let message = stream.next_message().await.expect("an answer");
        if message.get("method").is_none() {
            return message;
        }
        let error = json!({"code": -1, "message": "User rejected"});
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
        assert_eq!(client.post(&body.to_string()).await.status, 202);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_instead_of_an_answer_ends_the_call_or_is_a_refusal() {
    // Over there an error can be said as it is; here only forms can be refused.
    let (gateway, up, _client) = before(NEWEST).await;
    for tool in ["ask_sampling", "ask_roots", "ask_elicit"] {
        let answer = refused_by_user(&gateway, tool).await;
        assert_eq!(answer["result"]["content"][0]["text"], "refused -1", "{tool}: {answer}");
    }
    assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
    let (gateway, up, _client) = before(MODERN).await;
    for tool in ["ask_sampling", "ask_roots"] {
        let answer = refused_by_user(&gateway, tool).await;
        assert_eq!(answer["result"]["isError"], true, "{tool}: {answer}");
    }
    let answer = refused_by_user(&gateway, "ask_elicit").await;
    let text = answer["result"]["content"][0]["text"].as_str();
    assert!(matches!(text, Some("cancel" | "decline")), "{answer}");
    assert_eq!(up.journal().of("resumed").len(), 1, "two were abandoned");
    assert_eq!(up.journal().of("violation"), Vec::<Value>::new());
}

const WEB: &str = "https://example.org/a?b=%2f&c";

/// Fails until the user has been at two pages (2025-11-25); says so when the call comes again.
async fn wants_urls(call: Call) {
    if call.fake.count("tools/call") > 1 {
        return call.say("been there").await;
    }
    let page =
        |id: &str| json!({"mode": "url", "message": "Log in.", "url": WEB, "elicitationId": id});
    let data = json!({"elicitations": [page("e1"), page("e2")]});
    let error = json!({"code": -32042, "message": "URL needed", "data": data});
    call.out.json(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, call.id())).await;
}

async fn before_urls() -> (Gateway, Fake) {
    let up = Fake::mcp(["login"]).on("tools/call", wants_urls).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    (gateway, up)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_that_an_upstream_wants_visited_are_asked_for() {
    let caps = json!({"elicitation": {"form": {}, "url": {}}});
    let params = json!({"name": "login", "arguments": {}});
    for action in ["accept", "decline", "cancel"] {
        let (gateway, up) = before_urls().await;
        let client = Modern::new(gateway.http(), caps.clone());
        let answer = client.request("tools/call", params.clone()).await;
        let result = answer.result();
        assert_eq!(result["resultType"], "input_required", "{}", answer.text);
        let requests = result["inputRequests"].as_object().expect("something is asked");
        assert_eq!(requests.len(), 2, "{}", answer.text);
        for ask in requests.values() {
            assert_eq!(ask["method"], "elicitation/create", "{}", answer.text);
            assert_eq!(
                (&ask["params"]["mode"], &ask["params"]["url"]),
                (&json!("url"), &json!(WEB))
            );
            assert_eq!(ask["params"].get("elicitationId"), None, "{}", answer.text);
        }
        let mut retry = params.clone();
        retry["requestState"] = result["requestState"].clone();
        let response = json!({ "action": action });
        retry["inputResponses"] = requests.keys().map(|k| (k.clone(), response.clone())).collect();
        let again = retry.clone();
        let answer = client.request("tools/call", retry).await;
        if action == "accept" {
            assert_eq!((answer.said(), up.count("tools/call")), ("been there", 2));
            let again = client.request("tools/call", again).await;
            assert_eq!((again.code(), up.count("tools/call")), (-32602, 2), "{}", again.text);
        } else {
            assert_eq!(answer.result()["isError"], true, "{}", answer.text);
            assert_eq!(up.count("tools/call"), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_that_a_client_cannot_open_are_told_in_its_own_way() {
    let (gateway, _up) = before_urls().await;
    let client = Modern::new(gateway.http(), json!({"elicitation": {"form": {}}}));
    let answer = client.call("login", json!({})).await;
    assert_eq!((answer.status, answer.code()), (400, -32021), "{}", answer.text);
    let needed = json!({"elicitation": {"url": {}}});
    assert_eq!(answer.json["error"]["data"]["requiredCapabilities"], needed);
    // One that knows the error gets it, with ids of ours; an older one a text.
    let (gateway, _up) = before_urls().await;
    let client = Mcp::open(&gateway, json!({"elicitation": {"url": {}}})).await;
    let answer = client.call("login", json!({})).await;
    assert_eq!(answer.code(), -32042, "{}", answer.text);
    let pages = answer.json["error"]["data"]["elicitations"].as_array().expect("pages").clone();
    assert!(pages.iter().all(|page| page["url"] == WEB && page["elicitationId"].is_string()));
    let (gateway, _up) = before_urls().await;
    let caps = json!({"elicitation": {}});
    let client = Mcp::open_at(gateway.http(), "/mcp", "2025-06-18", caps).await;
    let answer = client.call("login", json!({})).await;
    assert_eq!(answer.result()["isError"], true, "{}", answer.text);
    assert!(answer.said().contains(WEB), "{}", answer.text);
}
