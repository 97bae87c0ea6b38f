//! Streams whose connection breaks: the exchange goes on, and the client sees the rest when it comes back.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use crate::client::Streaming;
use crate::fake::{Call, Fake};
use crate::gateway::{Gateway, Setup};
use crate::mcp::Mcp;

/// A tool that reports progress three times, waits for the gate, reports three times more and answers; every
/// message carries its tag.
async fn marks(gate: Arc<Semaphore>) -> Fake {
    Fake::mcp(["marks"])
        .on("tools/call", move |call: Call| {
            let gate = Arc::clone(&gate);
            async move {
                let tag = call.arg("tag").as_str().unwrap_or_default().to_owned();
                call.out.sse().await;
                for n in 1..=6 {
                    if n == 4 {
                        gate.acquire().await.expect("the gate stays").forget();
                    }
                    call.out.event(call.progress(n, &format!("{tag}{n}"))).await;
                }
                call.out.event(call.response(&crate::fake::said(&tag).to_string())).await;
                call.out.end().await;
            }
        })
        .start()
        .await
}

async fn begin(client: &Mcp, tag: &str) -> Streaming {
    let meta = json!({"progressToken": tag});
    client.open_call(1, "marks", json!({ "tag": tag }), meta).await
}

/// The id and the text of the next progress.
async fn progress(stream: &mut Streaming) -> (String, String) {
    let event = stream.next_event().await.expect("progress comes");
    let json: serde_json::Value = serde_json::from_str(&event.data).expect("JSON");
    let said = json["params"]["message"].as_str().expect("it is progress").to_owned();
    (event.id.expect("every event has an id"), said)
}

async fn resume(gateway: &Gateway, client: &Mcp, id: &str) -> Streaming {
    let mut headers = client.headers();
    headers.push(("last-event-id", id));
    let stream = gateway.http().open("GET", "/mcp", &headers, "").await;
    assert_eq!(stream.status, 200);
    stream
}

async fn until_alone(gateway: &Gateway) {
    let posts = [("route", "/mcp"), ("kind", "post")];
    gateway.until("the stream is gone", |m| m.value("trunkline_streams", &posts) == 0.0).await;
}

#[tokio::test]
async fn a_call_goes_on_without_its_client_and_the_rest_waits_for_it() {
    let gate = Arc::new(Semaphore::new(0));
    let up = marks(Arc::clone(&gate)).await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let mut stream = begin(&client, "a").await;
    assert_eq!(progress(&mut stream).await.1, "a1");
    let (seen, said) = progress(&mut stream).await;
    assert_eq!(said, "a2");
    drop(stream);
    until_alone(&gateway).await;
    gate.add_permits(1);
    let route = [("route", "/mcp")];
    gateway
        .until("the call ends", |m| m.value("trunkline_exchanges_in_flight", &route) == 0.0)
        .await;
    let mut rest = resume(&gateway, &client, &seen).await;
    for expected in ["a3", "a4", "a5", "a6"] {
        assert_eq!(progress(&mut rest).await.1, expected);
    }
    let answer = rest.next_message().await.expect("the answer");
    assert_eq!(answer["result"]["content"][0]["text"], "a");
    assert_eq!(answer["id"], 1);
    assert!(rest.next_event().await.is_none(), "the stream ends with its answer");
    assert_eq!(up.count("tools/call"), 1);
}

#[tokio::test]
async fn a_stream_is_resumed_while_its_call_runs() {
    let gate = Arc::new(Semaphore::new(0));
    let up = marks(Arc::clone(&gate)).await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let mut stream = begin(&client, "a").await;
    let (seen, _) = progress(&mut stream).await;
    drop(stream);
    until_alone(&gateway).await;
    let mut rest = resume(&gateway, &client, &seen).await;
    assert_eq!(progress(&mut rest).await.1, "a2");
    assert_eq!(progress(&mut rest).await.1, "a3");
    gate.add_permits(1);
    for expected in ["a4", "a5", "a6"] {
        assert_eq!(progress(&mut rest).await.1, expected);
    }
    assert!(rest.next_message().await.expect("the answer").get("result").is_some());
}

#[tokio::test]
async fn c016_only_the_events_of_that_stream_are_replayed() {
    let gate = Arc::new(Semaphore::new(0));
    let up = marks(Arc::clone(&gate)).await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    let (mut first, mut second) = (begin(&a, "first").await, begin(&a, "second").await);
    let mut other = begin(&b, "other").await;
    for _ in 0..3 {
        progress(&mut second).await;
        progress(&mut other).await;
    }
    let (seen, _) = progress(&mut first).await;
    drop(first);
    let lost = [("route", "/mcp")];
    for id in [seen.as_str(), "zzz"] {
        let mut fresh = resume(&gateway, &b, id).await;
        assert_eq!(fresh.message_within(Duration::from_millis(200)).await, None, "{id}");
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_streams_unreplayable_total", &lost), 2.0);
    gate.add_permits(3);
    let mut rest = resume(&gateway, &a, &seen).await;
    for n in 2..=6 {
        assert_eq!(progress(&mut rest).await.1, format!("first{n}"));
    }
    assert_eq!(progress(&mut second).await.1, "second4");
}

fn log(n: usize, size: usize) -> String {
    let params = json!({"level": "info", "data": format!("{n}{}", "-".repeat(size))});
    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).to_string()
}

/// A session with a standing stream of its own, upstream and downstream.
async fn listening() -> (Gateway, Fake, Mcp, Streaming) {
    let up = Fake::mcp(["do"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.call("do", json!({})).await;
    // The gateway's own and the session's.
    up.until("both links listen", |up| up.streams() == 2).await;
    let stream = client.stream().await;
    (gateway, up, client, stream)
}

async fn number(stream: &mut Streaming) -> (String, String) {
    let event = stream.next_event().await.expect("a log message");
    let json: serde_json::Value = serde_json::from_str(&event.data).expect("JSON");
    let data = json["params"]["data"].as_str().expect("data");
    (event.id.expect("every event has an id"), data.trim_end_matches('-').to_owned())
}

#[tokio::test]
async fn c018_a_standing_stream_is_resumed_with_what_came_meanwhile_and_nothing_twice() {
    let (gateway, up, client, mut stream) = listening().await;
    for n in 1..=2 {
        up.push(&log(n, 0));
    }
    number(&mut stream).await;
    let (seen, said) = number(&mut stream).await;
    assert_eq!(said, "2");
    drop(stream);
    let gets = [("route", "/mcp"), ("kind", "get")];
    gateway.until("the stream is gone", |m| m.value("trunkline_streams", &gets) == 0.0).await;
    for n in 3..=5 {
        up.push(&log(n, 0));
    }
    let mut rest = resume(&gateway, &client, &seen).await;
    for n in 3..=5 {
        assert_eq!(number(&mut rest).await.1, n.to_string());
    }
    up.push(&log(6, 0));
    assert_eq!(number(&mut rest).await.1, "6");
}

#[tokio::test]
async fn c020_an_id_that_is_not_kept_any_more_gives_live_events_at_once() {
    let (gateway, up, client, mut stream) = listening().await;
    up.push(&log(1, 0));
    let (seen, _) = number(&mut stream).await;
    for n in 2..=60 {
        up.push(&log(n, 8 << 10));
        number(&mut stream).await;
    }
    drop(stream);
    let mut fresh = resume(&gateway, &client, &seen).await;
    up.push(&log(61, 0));
    assert_eq!(number(&mut fresh).await.1, "61");
    assert_eq!(client.tools().await, ["do"]);
}

#[tokio::test]
async fn only_clients_that_know_them_get_events_without_data() {
    let up = Fake::mcp(["do"]).start().await;
    let gateway =
        Setup::new().server("keep_alive = \"200ms\"").fake("up", &up).mcp(&["up"]).start().await;
    for (revision, primed) in [("2025-11-25", true), ("2025-06-18", false), ("2025-03-26", false)] {
        let client = Mcp::open_at(gateway.http(), "/mcp", revision, json!({})).await;
        let first = client.stream().await.next_block().await.expect("something comes");
        assert_eq!(!first.comment, primed, "{revision}: {first:?}");
        assert!(first.data.is_empty());
        assert_eq!(first.id.is_some(), primed, "{revision}");
    }
}
