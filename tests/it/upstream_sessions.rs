//! Sessions towards HTTP upstreams: opened when needed, re-opened unseen, ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use crate::fake::{Call, Fake};
use crate::gateway::Setup;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Answers an unknown session in one of the ways seen in the field.
async fn refuse(call: &Call, how: &str) {
    let out = &call.out;
    match how {
        "404 with an error" => {
            out.full(404, &JSON, call.error_text(-32001, "Session not found")).await;
        }
        "404 empty" => out.full(404, &[], "").await,
        "400 about the session" => {
            let text = call.error_text(-32600, "Bad Request: No valid session ID provided");
            out.full(400, &JSON, text).await;
        }
        "400 about params" => {
            out.full(400, &JSON, call.error_text(-32602, "bad params: x is missing")).await;
        }
        "503" => out.full(503, &[], "").await,
        other => panic!("unknown way {other}"),
    }
}

#[tokio::test]
async fn c001_a_lost_upstream_session_is_reopened_once_and_unseen() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.call("x", json!({})).await.said();
    up.until_count("notifications/initialized", 1).await;
    let (calls, opened) = (up.count("tools/call"), up.count("initialize"));
    up.forget();
    assert_eq!(client.call("x", json!({})).await.said(), "x");
    assert_eq!(up.count("initialize"), opened + 1);
    assert_eq!(up.count("tools/call"), calls + 2, "refused once, served once");
    let last = up.of("initialize").pop().unwrap();
    assert_eq!(last.header("mcp-session-id"), None);
    up.forget();
    let opened = up.count("initialize");
    let five = (0..5).map(|_| client.call("x", json!({})));
    for answer in futures_util::future::join_all(five).await {
        assert_eq!(answer.said(), "x");
    }
    assert_eq!(up.count("initialize"), opened + 1, "five calls re-open it once");
}

#[tokio::test]
async fn c003_only_what_speaks_of_the_session_reopens_it() {
    for (how, recovers) in [
        ("404 with an error", true),
        ("404 empty", true),
        ("400 about the session", true),
        ("400 about params", false),
        ("503", false),
    ] {
        let broken = std::sync::Arc::new(parking_lot::Mutex::new(HashSet::<String>::new()));
        let seen = broken.clone();
        let up = Fake::mcp(["x"])
            .on("tools/call", move |call: Call| {
                let id = call.req.header("mcp-session-id").unwrap_or_default().to_owned();
                let refused = seen.lock().contains(&id);
                async move {
                    match refused {
                        true => refuse(&call, how).await,
                        false => call.say(&id).await,
                    }
                }
            })
            .start()
            .await;
        let gateway =
            Setup::new().fake_with("up", &up, "isolation = \"shared\"").mcp(&["up"]).start().await;
        let client = gateway.mcp().await;
        let first = client.call("x", json!({})).await.said().to_owned();
        broken.lock().insert(first.clone());
        let opened = up.count("initialize");
        let answer = client.call("x", json!({})).await;
        if recovers {
            assert_ne!(answer.said(), first, "{how}");
            assert_eq!(up.count("initialize"), opened + 1, "{how}");
        } else {
            assert_eq!(up.count("initialize"), opened, "{how}");
            let code = answer.code();
            let fine =
                if how == "503" { (-31006..=-31001).contains(&code) } else { code == -32602 };
            assert!(fine, "{how}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn an_upstream_that_never_takes_its_own_sessions_is_not_asked_for_ever() {
    let up = Fake::mcp(["x"])
        .on("tools/call", |call: Call| async move { call.out.full(404, &[], "").await })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its list", |tools| tools == ["x"]).await;
    let opened = up.count("initialize");
    let answer = client.call("x", json!({})).await;
    assert!((-31006..=-31004).contains(&answer.code()), "{}", answer.text);
    assert!(up.count("initialize") <= opened + 2, "{}", up.count("initialize"));
    assert!(up.count("tools/call") <= 2, "tried again at most once");
}

#[tokio::test]
async fn isolation_decides_who_shares_an_upstream_session() {
    let session = |call: Call| async move {
        let id = call.req.header("mcp-session-id").unwrap_or_default().to_owned();
        call.say(&id).await;
    };
    for (isolation, distinct) in
        [("isolation = \"shared\"", 1), ("isolation = \"session\"", 3), ("", 3)]
    {
        let up = Fake::mcp(["x"]).on("tools/call", session).start().await;
        let gateway = Setup::new().fake_with("up", &up, isolation).mcp(&["up"]).start().await;
        let mut clients = Vec::new();
        let mut ids = HashSet::new();
        for _ in 0..3 {
            let client = gateway.mcp().await;
            let first = client.call("x", json!({})).await.said().to_owned();
            assert_eq!(client.call("x", json!({})).await.said(), first, "it stays the same");
            ids.insert(first);
            clients.push(client);
        }
        assert_eq!(ids.len(), distinct, "{isolation:?}: anonymous clients share only when told");
    }
}

#[tokio::test]
async fn an_upstream_session_ends_with_the_last_client_session_that_used_it() {
    let up = Fake::mcp(["x"]).start().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.call("x", json!({})).await.said();
    let used = up.of("tools/call")[0].header("mcp-session-id").unwrap().to_owned();
    client.delete().await;
    up.until("DELETE of that session", |core| {
        let mut ended = core.requests().into_iter().filter(|r| r.method == "DELETE");
        ended.any(|r| r.header("mcp-session-id") == Some(&used))
    })
    .await;
}

#[tokio::test]
async fn a_list_that_is_fetched_while_its_session_ends_leaves_no_upstream_session() {
    // One for the gateway's own session; what is opened after it waits.
    let gate = Arc::new(Semaphore::new(1));
    let waits = Arc::clone(&gate);
    let up = Fake::mcp(["x"])
        .on("notifications/initialized", move |call: Call| {
            let gate = Arc::clone(&waits);
            async move {
                gate.acquire().await.unwrap().forget();
                call.out.full(202, &[], "").await;
            }
        })
        .start()
        .await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    up.until_count("tools/list", 1).await;
    let client = gateway.mcp().await;
    let list = client.request("tools/list", json!({}));
    let end = async {
        up.until_count("notifications/initialized", 2).await;
        client.delete().await;
        gate.add_permits(100);
    };
    tokio::join!(list, end);
    up.until("one session: the gateway's own", |core| core.sessions() == 1).await;
}

#[tokio::test]
async fn an_older_upstream_is_spoken_to_in_its_own_revision() {
    let up =
        Fake::mcp(["x"]).with(|lists| lists.revision = Some("2025-06-18".into())).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    assert_eq!(client.call("x", json!({})).await.said(), "x");
    assert_eq!(client.revision, "2025-11-25", "the client is not dragged down");
    let hello = &up.of("initialize")[0];
    assert_eq!(hello.json()["params"]["protocolVersion"], "2025-11-25");
    assert_eq!(up.of("tools/call")[0].header("mcp-protocol-version"), Some("2025-06-18"));
}

#[tokio::test]
async fn an_upstream_without_session_ids_gets_none() {
    let up = Fake::mcp(["x"]).stateless().start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    assert_eq!(gateway.mcp().await.call("x", json!({})).await.said(), "x");
    assert!(up.requests().iter().all(|seen| seen.header("mcp-session-id").is_none()));
}

#[tokio::test]
async fn an_upstream_without_a_get_stream_is_left_alone() {
    let up = Fake::mcp(["x"])
        .on("GET", |call: Call| async move {
            call.out.full(405, &[("allow", "POST")], "").await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    for _ in 0..5 {
        assert_eq!(client.call("x", json!({})).await.said(), "x");
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let tries = up.requests().iter().filter(|seen| seen.method == "GET").count();
    assert!(tries <= 3, "{tries} tries");
}
