//! Cases from the field: upstreams of HTTP+SSE (2024-11-05) and how their streams begin. The table is in `cases`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::fake::{self, Call, Fake, tool};
use crate::gateway::Setup;
use crate::legacy_sse::Older;

/// How events are written.
type Write = fn(kind: &str, data: &str) -> String;

fn usual(kind: &str, data: &str) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}

/// The data before the name, lines that end in CRLF.
fn turned(kind: &str, data: &str) -> String {
    format!("data: {data}\r\nevent: {kind}\r\n\r\n")
}

/// A server of that binding: GET opens the stream, POSTs go to `/messages?s=1`. `hello` comes before `endpoint`, piece
/// by piece with a pause after each.
async fn older(hello: &'static [&'static str], pause: Duration, write: Write) -> Fake {
    let stream = Arc::new(Mutex::new(None::<UnboundedSender<String>>));
    let said = Arc::clone(&stream);
    Fake::plain()
        .on("GET", move |call: Call| {
            let (say, mut messages) = unbounded_channel();
            *stream.lock() = Some(say);
            async move {
                call.out.sse().await;
                for piece in hello {
                    call.out.chunk(piece).await;
                    tokio::time::sleep(pause).await;
                }
                call.out.chunk(write("endpoint", "/messages?s=1")).await;
                while let Some(text) = messages.recv().await {
                    call.out.chunk(write("message", &text)).await;
                }
            }
        })
        .on("*", move |call: Call| {
            let say = said.lock().clone();
            async move {
                if call.req.path != "/messages?s=1" {
                    return call.out.full(405, &[("allow", "GET")], "").await;
                }
                call.out.full(202, &[], "Accepted").await;
                let result = match call.req.rpc().as_deref() {
                    Some("initialize") => fake::hello(&call).0,
                    Some("tools/list") => json!({"tools": [tool("x")]}),
                    _ => fake::said("x"),
                };
                if call.req.id().is_some() {
                    let _ = say.expect("a stream").send(call.response(&result.to_string()));
                }
            }
        })
        .with(|lists| lists.revision = Some("2024-11-05".into()))
        .start()
        .await
}

#[tokio::test]
async fn c023_the_endpoint_is_found_by_its_name_wherever_it_stands() {
    const HELLO: &[&str] = &[
        ": keep-alive\n\n",
        ": once more\n\n",
        "event: ping\ndata: 1\n\n",
        "event: message\ndata:\n\n",
        "retry: 5\nid: 4\n\n",
    ];
    let up = older(HELLO, Duration::from_millis(400), usual).await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its list", |tools| tools == ["x"]).await;
    assert_eq!(client.call("x", json!({})).await.said(), "x");
    let mut older = Older::open(&gateway).await;
    let port = up.addr().port().to_string();
    assert!(!older.said.contains("/messages") && !older.said.contains(&port), "{}", older.said);
    assert!(older.endpoint.starts_with("/mcp/"), "it is the gateway's own: {}", older.endpoint);
    assert_eq!(older.tools().await, ["x"]);
    assert_eq!(older.call("x", json!({})).await, "x");
}

#[tokio::test]
async fn c025_fields_of_an_event_may_come_in_any_order() {
    let up = older(&[], Duration::ZERO, turned).await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let begun = Instant::now();
    let client = gateway.mcp().await;
    client.until_tools("its list", |tools| tools == ["x"]).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(client.call("x", json!({})).await.said(), "x");
}
