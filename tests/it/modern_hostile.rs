//! Clients and upstreams of 2026-07-28, and of sessions beside them, that want what is not theirs, or too much.

use serde_json::json;

use crate::fake::Fake;
use crate::gateway::Setup;
use crate::modern::Modern;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_session_share_what_is_kept_apart_for_sessions() {
    let up = Fake::mcp(["echo"]).start().await;
    let gateway =
        Setup::new().fake_with("up", &up, "isolation = \"session\"").mcp(&["up"]).start().await;
    let client = Modern::new(gateway.http(), json!({}));
    client.list("tools/list", "tools").await;
    client.call("echo", json!({})).await.result();
    let (opened, listed) = (up.count("initialize"), up.count("tools/list"));
    for _ in 0..10 {
        assert_eq!(client.list("tools/list", "tools").await.len(), 1);
        client.call("echo", json!({})).await.result();
    }
    let now = (up.count("initialize"), up.count("tools/list"));
    assert_eq!(now, (opened, listed), "each request costs its own");
}
