//! Cases from the field about revision 2026-07-28 and what lies between it and the older ones. The table is in `cases`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fake::modern::modern;
use crate::fake::scene::{Journal, META};
use crate::fake::{self, Call, Fake, tool};
use crate::gateway::{Gateway, Setup, until};
use crate::mcp::{Mcp, request};
use crate::metrics::Metrics;
use crate::modern::{Modern, read};

const PARAMS: [(&str, &str); 3] = [("zone", "zone"), ("n", "count"), ("flag", "flag")];

/// A tool of which three arguments are repeated as headers.
fn annotated(name: &str) -> Value {
    let mut tool = tool(name);
    tool["inputSchema"]["properties"] = json!({
        "zone": {"type": "string", "x-mcp-header": "Zone"},
        "n": {"type": "integer", "x-mcp-header": "Count"},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
        "free": {"type": "string"},
    });
    tool
}

/// A server that refuses what a strict one refuses.
async fn strict() -> Fake {
    let serve = |call: Call| async move {
        let wrong = call.mismatches(&PARAMS);
        if !wrong.is_empty() {
            return call.refuse(400, -32020, &wrong.join(", ")).await;
        }
        let mut result = fake::said("fine");
        result["resultType"] = json!("complete");
        if call.req.rpc().as_deref() == Some("resources/read") {
            result = json!({
                "resultType": "complete", "contents": [], "ttlMs": 0, "cacheScope": "private",
            });
        }
        call.result(&result.to_string()).await;
    };
    modern(vec![annotated("Wetter_ä")])
        .on("tools/call", serve)
        .on("prompts/get", serve)
        .on("resources/read", serve)
        .start()
        .await
}

#[tokio::test]
async fn c067_headers_are_made_anew_from_what_goes_out() {
    let (up, other) = (strict().await, Fake::mcp(["x"]).start().await);
    let gateway =
        Setup::new().fake("u1", &up).fake("other", &other).mcp(&["u1", "other"]).start().await;
    let (modern, legacy) = (Modern::new(gateway.http(), json!({})), gateway.mcp().await);
    legacy.until_tools("both", |tools| tools == ["u1__Wetter_ä", "other__x"]).await;
    modern.list("tools/list", "tools").await;
    let arguments = json!({"zone": "Zürich", "n": 7, "flag": true, "free": "f"});
    let params = json!({"name": "u1__Wetter_ä", "arguments": arguments});
    for of in ["modern", "legacy"] {
        let answer = match of {
            "modern" => modern.request("tools/call", params.clone()).await,
            _ => legacy.request("tools/call", params.clone()).await,
        };
        assert_eq!(answer.said(), "fine", "{of}");
        let seen = up.of("tools/call").pop().unwrap();
        assert_eq!(seen.json()["params"]["name"], "Wetter_ä");
        assert_eq!(seen.header("mcp-name"), Some("=?base64?V2V0dGVyX8Ok?="), "{of}");
        assert_eq!(seen.header("mcp-param-zone"), Some("=?base64?WsO8cmljaA==?="), "{of}");
        assert_eq!(seen.header("mcp-param-count"), Some("7"), "{of}");
        for (method, params) in [
            ("prompts/get", json!({"name": "u1__p"})),
            ("resources/read", json!({"uri": "x://ä r"})),
        ] {
            let answer = match of {
                "modern" => modern.request(method, params).await,
                _ => legacy.request(method, params).await,
            };
            assert!(answer.json["error"].is_null(), "{of}: {method}: {}", answer.text);
        }
    }
    let runs = up.count("tools/call");
    let body = modern.body(&json!(1), "tools/call", params);
    let right = modern.headers(&body);
    for wrong in ["Mcp-Method", "Mcp-Name", "MCP-Protocol-Version", "Mcp-Param-Zone"] {
        for given in [None, Some("other__x")] {
            let mut headers = right.clone();
            headers.retain(|(name, _)| name != wrong);
            headers.extend(given.map(|value| (wrong.to_owned(), value.to_owned())));
            let reply = modern.send(&headers, &body.to_string()).await.whole().await;
            // Without a version it is no request of this revision at all.
            let codes: &[i64] =
                if wrong == "MCP-Protocol-Version" { &[-32020, -32022, -32600] } else { &[-32020] };
            assert_eq!(reply.status, 400, "{wrong} {given:?}: {}", reply.text());
            assert!(codes.contains(&reply.code()), "{wrong} {given:?}: {}", reply.text());
        }
    }
    assert_eq!(up.count("tools/call"), runs, "none of them was forwarded");
}

#[tokio::test]
async fn c065_an_unknown_revision_is_refused_with_those_that_are_served() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    for version in ["2099-01-01", "2025-11-25", "x"] {
        let meta = json!({ format!("{META}protocolVersion"): version });
        let params = json!({"name": "x", "_meta": meta});
        let body = client.body(&json!("id"), "tools/call", params);
        let reply = client.send(&client.headers(&body), &body.to_string()).await.whole().await;
        let error = &reply.json()["error"];
        // A legacy revision says that the request belongs to a session.
        if version == "2025-11-25" {
            assert_eq!(reply.status, 400, "{version}: {}", reply.text());
            continue;
        }
        assert_eq!((reply.status, reply.code()), (400, -32022), "{version}: {}", reply.text());
        assert_eq!(error["data"]["requested"], version);
        let supported = error["data"]["supported"].as_array().expect("a list");
        assert!(supported.contains(&json!("2026-07-28")), "{error}");
        assert_eq!(reply.json()["id"], "id");
    }
    assert_eq!(up.count("tools/call"), 0);
}

#[tokio::test]
async fn c043_what_a_request_says_of_its_client_stays_with_it() {
    let up = modern(vec![annotated("who")])
        .on("tools/call", |call: Call| async move {
            tokio::time::sleep(Duration::from_millis(call.arg("n").as_u64().unwrap_or(0))).await;
            let told = json!([
                call.meta("clientInfo")["name"],
                call.meta("clientCapabilities"),
                call.req.header("mcp-param-zone"),
                call.req.json()["params"]["_meta"]["vendor/mark"],
            ]);
            call.say(&told.to_string()).await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let first = Modern::new(gateway.http(), json!({}));
    first.list("tools/list", "tools").await;
    let calls = (0..100).map(|n| {
        let first = &first;
        async move {
            let caps = if n % 2 == 0 { json!({"sampling": {}}) } else { json!({}) };
            let meta = json!({
                format!("{META}clientInfo"): {"name": format!("client-{n}"), "version": "1"},
                format!("{META}clientCapabilities"): caps,
                "vendor/mark": n,
            });
            let zone = format!("zone-{n}");
            let arguments = json!({"zone": zone, "n": n * 7 % 50});
            let params = json!({"name": "who", "arguments": arguments, "_meta": meta});
            // All with one id.
            let answer = read(first.open(&json!(1), "tools/call", params).await).await;
            assert_eq!(answer.json["id"], 1);
            let told: Value = serde_json::from_str(answer.said()).unwrap();
            assert_eq!(told, json!([format!("client-{n}"), caps, zone, n]));
        }
    });
    join_all(calls).await;
}

#[tokio::test]
async fn c045_one_token_of_clients_of_both_eras_is_told_apart() {
    async fn report(call: Call) {
        call.out.sse().await;
        for n in 1..=3 {
            let tag = call.arg("tag").as_str().unwrap_or_default().to_owned();
            call.out.event(call.progress(n, &tag)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut result = fake::said("done");
        if call.req.header("mcp-method").is_some() {
            result["resultType"] = json!("complete");
        }
        call.out.event(call.response(&result.to_string())).await;
        call.out.end().await;
    }
    let old = Fake::mcp(["report"]).on("tools/call", report).start().await;
    let new = modern(vec![tool("report")]).on("tools/call", report).start().await;
    let gateway = Setup::new()
        .fake_with("old", &old, "isolation = \"shared\"")
        .fake("new", &new)
        .mcp(&["old", "new"])
        .start()
        .await;
    let (legacy, other) = (gateway.mcp().await, gateway.mcp().await);
    legacy.until_tools("both", |tools| tools.len() == 2).await;
    let modern = Modern::new(gateway.http(), json!({}));
    for name in ["old__report", "new__report"] {
        let params = |tag: &str| json!({"name": name, "arguments": {"tag": tag}, "_meta": {"progressToken": 1}});
        let (a, b, c, d) = tokio::join!(
            legacy.request("tools/call", params("a")),
            other.request("tools/call", params("b")),
            modern.request("tools/call", params("c")),
            modern.request("tools/call", params("d")),
        );
        for (answer, tag) in [(a, "a"), (b, "b"), (c, "c"), (d, "d")] {
            assert_eq!((answer.said(), answer.before.len()), ("done", 3), "{name}: {answer:?}");
            for note in &answer.before {
                assert_eq!(note["params"]["progressToken"], 1, "{note}");
                assert_eq!(note["params"]["message"], tag, "{note}");
            }
        }
    }
    for up in [old, new] {
        let calls = up.of("tools/call");
        let tokens = calls.iter().map(|r| r.json()["params"]["_meta"]["progressToken"].to_string());
        assert_eq!(tokens.collect::<HashSet<_>>().len(), 4, "they are unique upstream");
    }
}

/// How an upstream noticed that a call is over.
#[derive(Clone, Default)]
struct Noticed(Arc<Mutex<Vec<(String, Instant)>>>);

impl Noticed {
    fn note(&self, what: String) {
        self.0.lock().push((what, Instant::now()));
    }

    fn of(&self, key: &str) -> Vec<(String, Instant)> {
        let all = self.0.lock().clone();
        all.into_iter().filter(|(what, _)| what.contains(key)).collect()
    }
}

/// A tool that never answers; what ends its calls is noted.
fn slow(
    noticed: &Noticed,
) -> impl Fn(Call) -> futures_util::future::BoxFuture<'static, ()> + use<> {
    let noticed = noticed.clone();
    move |call: Call| {
        let noticed = noticed.clone();
        Box::pin(async move {
            let key = call.arg("key").as_str().unwrap_or_default().to_owned();
            noticed.note(format!("ran {key}"));
            call.out.sse().await;
            call.out.gone().await;
            noticed.note(format!("closed {key}"));
        })
    }
}

/// Whose calls there are, and how they are cancelled.
async fn cancelled(gateway: &Gateway, era: &str, tool: &str, key: &str, ran: impl Fn() -> bool) {
    let params = json!({"name": tool, "arguments": {"key": key}});
    if era == "legacy" {
        let client = gateway.mcp().await;
        let call = request(format!("\"{key}\""), "tools/call", &params);
        let cancel = async {
            until("it runs", &ran).await;
            client.cancel(json!(key)).await;
        };
        let (reply, ()) =
            tokio::join!(async { client.open_post(&call).await.whole().await }, cancel);
        assert!(!reply.text().contains("\"id\":\""), "{tool}: an answer: {}", reply.text());
    } else {
        let client = Modern::new(gateway.http(), json!({}));
        let call =
            tokio::spawn(
                async move { read(client.open(&json!(1), "tools/call", params).await).await },
            );
        until("it runs", &ran).await;
        call.abort();
        assert!(call.await.is_err(), "{tool}: there was an answer");
    }
}

fn in_flight(metrics: &Metrics) -> f64 {
    metrics.value("trunkline_exchanges_in_flight", &[])
}

#[tokio::test]
async fn c069_a_cancelled_call_ends_upstream_by_the_means_of_its_era_over_http() {
    let (of_old, of_new) = (Noticed::default(), Noticed::default());
    let old = Fake::mcp(["slow"]).on("tools/call", slow(&of_old)).start().await;
    let new = modern(vec![tool("slow")]).on("tools/call", slow(&of_new)).start().await;
    let gateway =
        Setup::new().fake("old", &old).fake("new", &new).mcp(&["old", "new"]).start().await;
    let watching: Mcp = gateway.mcp().await;
    watching.until_tools("both", |tools| tools == ["old__slow", "new__slow"]).await;
    for era in ["legacy", "modern"] {
        let key = format!("{era}-to-old");
        let ran = || !of_old.of(&format!("ran {key}")).is_empty();
        cancelled(&gateway, era, "old__slow", &key, ran).await;
        let told = || old.of("notifications/cancelled");
        let calls = old.of("tools/call");
        let call = calls.iter().find(|call| call.text().contains(&key)).unwrap();
        let call: Value = serde_json::from_str(&call.id().unwrap()).unwrap();
        until("it is told", || {
            told().iter().any(|note| note.json()["params"]["requestId"] == call)
        })
        .await;
        let key = format!("{era}-to-new");
        let ran = || !of_new.of(&format!("ran {key}")).is_empty();
        let begun = Instant::now();
        cancelled(&gateway, era, "new__slow", &key, ran).await;
        until("the stream is closed", || !of_new.of(&format!("closed {key}")).is_empty()).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        gateway.until("nothing runs", |m| in_flight(m) == 0.0).await;
    }
    assert_eq!(old.count("notifications/cancelled"), 2, "each call once");
    assert_eq!(new.count("notifications/cancelled"), 0, "there it is no message over HTTP");
    assert_eq!((old.count("tools/call"), new.count("tools/call")), (2, 2), "each ran once");
}

#[tokio::test]
async fn c069_a_cancelled_call_ends_at_a_child_of_either_era() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let child = |revision: &str, name: &str| json!({"revision": revision, "journal": file(name)});
    let gateway = Setup::new()
        .child("old", &child("2025-11-25", "old"), "")
        .child("new", &child("2026-07-28", "new"), "")
        .mcp(&["old", "new"])
        .start()
        .await;
    let watching: Mcp = gateway.mcp().await;
    let slow = |tools: &[String]| tools.iter().filter(|name| name.ends_with("slow")).count();
    watching.until_tools("both", |tools| slow(tools) == 2).await;
    for upstream in ["old", "new"] {
        let journal = Journal::in_file(&file(upstream));
        let count = |event: &str, key: &str| {
            journal.of(event).iter().filter(|entry| entry["key"] == key).count()
        };
        for era in ["legacy", "modern"] {
            let key = format!("{era}_to_{upstream}");
            let tool = format!("{upstream}__slow");
            cancelled(&gateway, era, &tool, &key, || count("ran", &key) > 0).await;
            until("it is told", || count("cancelled", &key) > 0).await;
            gateway.until("nothing runs", |m| in_flight(m) == 0.0).await;
            assert_eq!((count("ran", &key), count("cancelled", &key)), (1, 1), "{key}");
        }
        assert_eq!(journal.of("violation"), Vec::<Value>::new(), "{upstream}");
    }
}
