//! HTTP/2 with clients and with upstreams.

use serde_json::json;

use crate::client::patient;
use crate::fake::{Call, Fake};
use crate::gateway::Setup;
use crate::wire::{http2, post2, whole};

#[tokio::test]
async fn requests_share_a_connection_and_a_slow_one_delays_no_other() {
    let up = Fake::plain()
        .on("slow", |call: Call| async move {
            while call.fake.count("fast") < 20 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            call.result("\"slow\"").await;
        })
        .start()
        .await;
    let gateway = Setup::new().plain("node", &up, "").rpc("\"*\" = \"node\"").start().await;
    let line = tokio::net::TcpStream::connect(gateway.addr()).await.unwrap();
    let sender = http2(line).await;
    let ask = |method: &str, id: usize| {
        let mut sender = sender.clone();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[{id}]}}"#);
        async move { whole(sender.send_request(post2("/rpc", body)).await.unwrap()).await }
    };
    let slow = tokio::spawn(ask("slow", 0));
    for id in 1..=20 {
        let answer = ask("fast", id).await;
        assert_eq!(answer.json(), json!({"jsonrpc": "2.0", "id": id, "result": [id]}));
    }
    assert_eq!(patient("the slow one", slow).await.unwrap().json()["result"], "slow");
    let mut foreign = post2("/rpc", "{}");
    *foreign.uri_mut() = "http://evil.example/rpc".parse().unwrap();
    let refused = whole(sender.clone().send_request(foreign).await.unwrap()).await;
    assert_eq!(refused.status, 403, "the authority is the host");
}
