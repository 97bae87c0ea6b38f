//! Upstreams that take arrays (`batch = true`), also hostile ones: each element still gets one answer of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::{Call, Fake, answer_plain};
use crate::gateway::{Gateway, Setup};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn ask(id: &str, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": [id]})
}

/// Sends three elements of that method; the answers.
async fn three(gateway: &Gateway, method: &str) -> Vec<Value> {
    let body = json!([ask("a", method), ask("b", method), ask("c", method)]).to_string();
    let reply = gateway.http().post("/rpc", body).await;
    assert_eq!(reply.status, 200, "{method}: {:?}", reply.body);
    let items = reply.json().as_array().cloned().unwrap_or_default();
    let ids: Vec<_> = items.iter().map(|item| item["id"].clone()).collect();
    assert_eq!(ids, ["a", "b", "c"], "{method}: each is answered, in order: {items:?}");
    items
}

/// Answers an array as the method of its first element says. Ids are those that the gateway gave.
async fn arrays(call: Call) {
    let Value::Array(items) = call.req.json() else { return answer_plain(call).await };
    let ids: Vec<_> = items.iter().map(|item| item["id"].clone()).collect();
    let good = |n: usize| {
        json!({"jsonrpc": "2.0", "id": ids[n], "result": items[n]["params"]}).to_string()
    };
    let array = |texts: &[String]| format!("[{}]", texts.join(","));
    let error = r#"{"code":-9,"message":"m","data":{"b":1.10}}"#;
    let (status, body) = match items[0]["method"].as_str().unwrap_or_default() {
        "good" => (200, array(&[good(0), good(1), good(2)])),
        "reordered" => (200, array(&[good(2), good(0), good(1)])),
        "short" => (200, array(&[good(0), good(2)])),
        "twice" => (200, array(&[good(0), good(1), good(1), good(2), good(0)])),
        "second differs" => {
            let again = json!({"jsonrpc": "2.0", "id": ids[1], "result": "stolen"}).to_string();
            (200, array(&[good(0), good(1), again, good(2)]))
        }
        "foreign" => {
            let other = json!({"jsonrpc": "2.0", "id": 987_654, "result": "x"}).to_string();
            let text = json!({"jsonrpc": "2.0", "id": ids[1].to_string(), "result": "x"});
            (200, array(&[good(0), other, text.to_string(), good(2)]))
        }
        "rubbish" => {
            let rubbish = ["1", "null", "[]", "{}", r#"{"jsonrpc":"2.0"}"#].map(str::to_owned);
            (200, array(&[vec![good(0)], rubbish.to_vec(), vec![good(2)]].concat()))
        }
        "a request" => {
            let request = json!({"jsonrpc": "2.0", "id": ids[1], "method": "x"}).to_string();
            (200, array(&[good(0), request, good(2)]))
        }
        "neither" => {
            let empty = json!({"jsonrpc": "2.0", "id": ids[1]}).to_string();
            (200, array(&[good(0), empty, good(2)]))
        }
        "string error" => {
            let odd = json!({"jsonrpc": "2.0", "id": ids[1], "error": "no"}).to_string();
            (200, array(&[good(0), odd, good(2)]))
        }
        "no version" => {
            let bare = format!(r#"{{"id":{},"error":{error}}}"#, ids[1]);
            (200, array(&[good(0), bare, good(2)]))
        }
        "one error" => (200, format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#)),
        "one error of 400" => (400, format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#)),
        "errors of 500" => {
            let failed =
                |n: usize| format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, ids[n]);
            (500, array(&[failed(0), good(1), failed(2)]))
        }
        "one result" => (200, good(1)),
        "empty array" => (200, "[]".to_owned()),
        "too many" => (200, array(&vec!["{}".to_owned(); 1000])),
        "cut" => (200, format!("[{},", good(0))),
        "text" => (200, "no".to_owned()),
        "string" => (200, "\"no\"".to_owned()),
        "nothing" => (204, String::new()),
        "413" => (413, String::new()),
        "closed" => return call.out.close(),
        other => panic!("unknown mode {other}"),
    };
    call.out.full(status, &JSON, body).await;
}

#[tokio::test]
async fn whatever_an_array_is_answered_with_each_element_gets_what_is_its_own() {
    let up = Fake::plain().on("*", arrays).start().await;
    let gateway = Setup::new().plain("up", &up, "batch = true").rpc(r#""*" = "up""#).start().await;
    for mode in ["good", "reordered", "twice", "second differs"] {
        for item in three(&gateway, mode).await {
            assert_eq!(item["result"][0], item["id"], "{mode}: {item}");
        }
    }
    for (mode, code) in [
        ("short", -31006),
        ("foreign", -31006),
        ("rubbish", -31006),
        ("a request", -31006),
        ("neither", -31006),
        ("string error", -31006),
        ("no version", -9),
    ] {
        let items = three(&gateway, mode).await;
        assert_eq!(items[0]["result"][0], "a", "{mode}: {items:?}");
        assert_eq!(items[1]["error"]["code"], code, "{mode}: {items:?}");
        assert_eq!(items[2]["result"][0], "c", "{mode}: {items:?}");
        assert_eq!(items[1]["jsonrpc"], "2.0", "{mode}");
    }
    for (mode, code) in [
        ("one error", -9),
        ("one error of 400", -9),
        ("empty array", -31006),
        ("too many", -31006),
        ("cut", -31006),
        ("text", -31006),
        ("string", -31006),
        ("nothing", -31006),
        ("413", -31004),
        ("closed", -31005),
    ] {
        for item in three(&gateway, mode).await {
            assert_eq!(item["error"]["code"], code, "{mode}: {item}");
        }
    }
    let items = three(&gateway, "errors of 500").await;
    let codes: Vec<_> = items.iter().map(|item| item["error"]["code"].clone()).collect();
    assert_eq!(codes, [json!(-9), Value::Null, json!(-9)], "{items:?}");
    let items = three(&gateway, "one result").await;
    assert_eq!(items[1]["result"][0], "b", "{items:?}");
    assert_eq!(items[0]["error"]["code"], -31006, "{items:?}");
    assert!(three(&gateway, "good").await.iter().all(|item| item["error"].is_null()));
}

#[tokio::test]
async fn notifications_travel_too_and_nothing_is_answered_to_them() {
    for (status, body) in [(204, ""), (200, ""), (202, "queued"), (500, "")] {
        let up = Fake::plain()
            .on("*", move |call: Call| async move { call.out.full(status, &[], body).await })
            .start()
            .await;
        let gateway =
            Setup::new().plain("up", &up, "batch = true").rpc(r#""*" = "up""#).start().await;
        let note = |n: u64| json!({"jsonrpc": "2.0", "method": "tell", "params": [n]});
        let reply = gateway.http().post("/rpc", json!([note(1), note(2)]).to_string()).await;
        assert_eq!((reply.status, reply.text()), (204, ""), "{status}");
        let sent = up.requests()[0].json();
        assert_eq!(sent, json!([note(1), note(2)]), "they stay notifications");
    }
}

#[tokio::test]
async fn more_elements_than_an_upstream_takes_travel_in_several_arrays() {
    let up = Fake::plain().on("*", arrays).start().await;
    let gateway = Setup::new()
        .plain("up", &up, "batch = true\nmax_batch = 3")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let ids: Vec<_> = (0..7).map(|n| format!("id-{n}")).collect();
    let elements: Vec<_> = ids.iter().map(|id| ask(id, "good")).collect();
    let items = gateway.http().post("/rpc", json!(elements).to_string()).await.json();
    for (item, id) in items.as_array().unwrap().iter().zip(&ids) {
        assert_eq!((&item["id"], &item["result"][0]), (&json!(id), &json!(id)), "{items}");
    }
    let mut sizes: Vec<_> =
        up.requests().iter().map(|request| request.json().as_array().map_or(1, Vec::len)).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 3, 3], "one left over travels alone");
}

#[tokio::test]
async fn an_array_takes_one_slot_and_a_full_queue_refuses_each_of_its_elements() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let up = Fake::plain()
        .on("hang", |call: Call| async move { call.out.gone().await })
        .on("*", move |call: Call| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                arrays(call).await;
            }
        })
        .start()
        .await;
    let lines = "batch = true\nmax_batch = 3\nmax_concurrency = 1\nmax_queue = 5";
    let gateway = Setup::new()
        .plain("up", &up, lines)
        .plain("full", &up, "batch = true\nmax_concurrency = 1\nmax_queue = 0")
        .rpc(r#""good" = "up", "*" = "full""#)
        .start()
        .await;
    let elements: Vec<_> = (0..9).map(|n| ask(&n.to_string(), "good")).collect();
    let items = gateway.http().post("/rpc", json!(elements).to_string()).await.json();
    assert!(items.as_array().unwrap().iter().all(|item| item["error"].is_null()), "{items}");
    assert_eq!(most.load(Ordering::SeqCst), 1, "one slot, one array at a time");
    let http = gateway.http();
    let hanging =
        tokio::spawn(async move { http.post("/rpc", ask("x", "hang").to_string()).await });
    up.until_count("hang", 1).await;
    for item in three(&gateway, "text").await {
        assert_eq!(item["error"]["code"], -31002, "{item}");
    }
    hanging.abort();
}

#[tokio::test]
async fn an_array_that_still_runs_when_the_gateway_must_end_is_told_so() {
    let up = Fake::plain().on("*", |call: Call| async move { call.out.gone().await }).start().await;
    let mut gateway = Setup::new()
        .server("drain_timeout = \"200ms\"")
        .plain("up", &up, "batch = true")
        .rpc(r#""*" = "up""#)
        .start()
        .await;
    let http = gateway.http();
    let body = json!([ask("a", "x"), ask("b", "x")]).to_string();
    let waiting = tokio::spawn(async move { http.post("/rpc", body).await });
    up.until("the array", |core| !core.requests().is_empty()).await;
    gateway.terminate();
    let items = waiting.await.unwrap().json();
    assert_eq!((&items[0]["id"], &items[1]["id"]), (&json!("a"), &json!("b")));
    assert!(
        items.as_array().unwrap().iter().all(|item| item["error"]["code"] == -31005),
        "{items}"
    );
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn elements_of_an_array_go_on_elsewhere_only_where_that_is_safe() {
    let first = Fake::plain().on("*", arrays).start().await;
    let second = Fake::plain().on("*", |call: Call| async move { call.result("\"b\"").await });
    let second = second.start().await;
    let gateway = Setup::new()
        .plain("first", &first, "batch = true")
        .plain("second", &second, "")
        .rpc(
            r#""short" = { upstreams = ["first", "second"], idempotent = true }, "closed" = ["first", "second"]"#,
        )
        .start()
        .await;
    let items = three(&gateway, "short").await;
    assert_eq!(items[0]["result"][0], "a", "{items:?}");
    assert_eq!(items[1]["result"], "b", "what was left out is asked for elsewhere: {items:?}");
    assert_eq!(second.requests().len(), 1);
    for item in three(&gateway, "closed").await {
        assert_eq!(item["error"]["code"], -31005, "{item}");
    }
    assert_eq!(second.requests().len(), 1, "an unsafe call never runs twice");
}

#[tokio::test]
async fn an_element_with_little_time_does_not_end_those_that_have_more() {
    let up = Fake::plain()
        .on("*", |call: Call| async move {
            if call.req.text().contains("\"quick\"") {
                return call.out.gone().await;
            }
            arrays(call).await;
        })
        .start()
        .await;
    let gateway = Setup::new()
        .plain("up", &up, "batch = true")
        .rpc(r#""quick" = { upstreams = ["up"], timeout = "300ms" }, "*" = "up""#)
        .start()
        .await;
    let elements = [ask("a", "good"), ask("b", "quick"), ask("c", "good"), ask("d", "good")];
    let items = gateway.http().post("/rpc", json!(elements).to_string()).await.json();
    assert_eq!(items[1]["error"]["code"], -31003, "{items}");
    for place in [0, 2, 3] {
        assert_eq!(items[place]["result"][0], elements[place]["id"], "{items}");
    }
    assert_eq!(up.requests().len(), 2, "those that have the same time travel together");
}
