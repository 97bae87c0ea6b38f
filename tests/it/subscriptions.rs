//! Subscriptions on plain routes, from clients on WebSockets to an upstream on one.

use serde_json::{Value, json};

use crate::fake::ws::{ExampleWs, FakeWs, Peer};
use crate::gateway::{Gateway, Setup, until};
use crate::ws_client::Ws;

const KIND: &str = r#"notification = "eth_subscription", unsubscribe = "eth_unsubscribe", id = "params.subscription""#;

/// A gateway whose `/rpc` leads to that upstream, with that kind of subscriptions and more lines of the route.
async fn gateway(up: &FakeWs, kind: &str, lines: &str) -> Gateway {
    let upstream = format!("protocol = \"jsonrpc\"\nurl = \"{}\"", up.url());
    Setup::new()
        .upstream("node", &upstream)
        .rpc("\"*\" = \"node\"")
        .toml(&format!("subscriptions = {{ \"eth_subscribe\" = {{ {kind} }} }}\n{lines}"))
        .start()
        .await
}

/// A client on a WebSocket.
struct Client(Ws);

impl Client {
    async fn to(gateway: &Gateway) -> Self {
        Self(Ws::open(gateway, "/rpc").await)
    }

    async fn json(&mut self) -> Value {
        self.0.json().await
    }

    async fn ask(&mut self, id: u64, method: &str, params: &str) {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.0.say(text).await;
    }

    /// Subscribes while the upstream answers with that id; the client's own.
    async fn subscribe(&mut self, peer: &mut Peer, params: &str, given: &str) -> String {
        self.ask(1, "eth_subscribe", params).await;
        let id = peer.asked("eth_subscribe").await;
        peer.answer(id, given).await;
        let answer = self.json().await;
        assert_eq!(answer["id"], 1, "{answer}");
        assert_ne!(answer["result"].to_string(), given, "the upstream's ids are for the gateway");
        answer["result"].to_string()
    }

    /// The id and value of the next notification.
    async fn heard(&mut self) -> (String, Value) {
        let news = self.json().await;
        assert_eq!(news["method"], "eth_subscription", "{news}");
        (news["params"]["subscription"].to_string(), news["params"]["result"].clone())
    }
}

impl Peer {
    async fn tell(&mut self, id: &str, value: &str) {
        self.write(format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":{id},"result":{value}}}}}"#
        ))
        .await;
    }

    /// Reads a call that ends a subscription; its own id and the subscription's.
    async fn ended_one(&mut self) -> (u64, String) {
        let call = self.json().await;
        assert_eq!(call["method"], "eth_unsubscribe", "{call}");
        (call["id"].as_u64().expect("an id"), call["params"][0].to_string())
    }
}

#[tokio::test]
async fn each_client_hears_its_own_under_ids_of_its_own_and_ends_only_its_own() {
    let up = FakeWs::start().await;
    let gateway = gateway(&up, KIND, "").await;
    let (mut one, mut two) = (Client::to(&gateway).await, Client::to(&gateway).await);
    one.ask(1, "eth_subscribe", r#"["newHeads"]"#).await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    // Before the answer that says whose they are.
    peer.tell("\"0xa\"", "1.0").await;
    peer.tell("\"0xa\"", "{\"b\":1,\"a\":2e1}").await;
    peer.answer(id, "\"0xa\"").await;
    let answer = one.json().await;
    let first = answer["result"].to_string();
    assert!(first.starts_with("\"0x") && first.len() == 36, "{answer}");
    assert_eq!(
        one.0.hear().await,
        format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":{first},"result":1.0}}}}"#
        )
    );
    assert!(one.0.hear().await.contains(r#""result":{"b":1,"a":2e1}"#));
    let second = two.subscribe(&mut peer, r#"["newHeads"]"#, "\"0xb\"").await;
    assert_ne!(first, second);
    peer.tell("\"0xb\"", "3").await;
    peer.tell("\"0xa\"", "4").await;
    assert_eq!(two.heard().await, (second.clone(), json!(3)));
    assert_eq!(one.heard().await, (first.clone(), json!(4)));
    // Neither another client's id nor the upstream's own means anything.
    for foreign in [&first, "\"0xa\"", "\"0xb\"", "7"] {
        two.ask(2, "eth_unsubscribe", &format!("[{foreign}]")).await;
        assert_eq!(two.json().await, json!({"jsonrpc": "2.0", "id": 2, "result": false}));
    }
    two.ask(3, "eth_unsubscribe", "[]").await;
    assert_eq!(two.json().await["error"]["code"], -32602);
    peer.tell("\"0xa\"", "5").await;
    assert_eq!(one.heard().await, (first.clone(), json!(5)));
    one.ask(4, "eth_unsubscribe", &format!("[{first}]")).await;
    let (id, ended) = peer.ended_one().await;
    assert_eq!(ended, "\"0xa\"");
    peer.answer(id, "true").await;
    assert_eq!(one.json().await, json!({"jsonrpc": "2.0", "id": 4, "result": true}));
    one.ask(5, "eth_unsubscribe", &format!("[{first}]")).await;
    assert_eq!(one.json().await["result"], false);
    // What a client leaves behind is ended for it.
    drop(two);
    assert_eq!(peer.ended_one().await.1, "\"0xb\"");
    gateway
        .until("nothing is left", |m| {
            m.value("trunkline_streams", &[("route", "/rpc"), ("kind", "subscription")]) == 0.0
        })
        .await;
}

#[tokio::test]
async fn an_id_that_the_upstream_gives_anew_brings_its_next_client_nothing_of_the_one_before() {
    let up = FakeWs::start().await;
    let gateway = gateway(&up, KIND, "").await;
    let mut one = Client::to(&gateway).await;
    one.ask(1, "eth_subscribe", r#"["a"]"#).await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.answer(id, "1").await;
    let mut mine = one.json().await["result"].to_string();
    // Once it is ended by its client, once by the gateway since its client is gone.
    for goes in [false, true] {
        let mut two = Client::to(&gateway).await;
        two.ask(1, "eth_subscribe", r#"["b"]"#).await;
        let asked = peer.asked("eth_subscribe").await;
        if !goes {
            one.ask(2, "eth_unsubscribe", &format!("[{mine}]")).await;
        }
        let before = std::mem::replace(&mut one, two);
        let mut before = (!goes).then_some(before);
        let (ending, ended) = peer.ended_one().await;
        assert_eq!(ended, "1");
        peer.tell("1", "\"of the one before\"").await;
        peer.answer(ending, "true").await;
        peer.answer(asked, "1").await;
        peer.tell("1", "\"of the next\"").await;
        mine = one.json().await["result"].to_string();
        assert_eq!(one.heard().await, (mine.clone(), json!("of the next")));
        if let Some(before) = &mut before {
            assert_eq!(before.json().await, json!({"jsonrpc": "2.0", "id": 2, "result": true}));
        }
    }
}

#[tokio::test]
async fn c112_after_a_lost_connection_the_client_goes_on_under_its_id_and_is_told_of_the_gap() {
    let up = FakeWs::start().await;
    let kind = format!("{KIND}, gap = \"eth_gap\"");
    let gateway = gateway(&up, &kind, "").await;
    let mut client = Client::to(&gateway).await;
    client.ask(1, "eth_subscribe", r#"["logs",{"a":1.0}]"#).await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.answer(id, "11").await;
    let mine = client.json().await["result"].clone();
    assert!(mine.is_u64(), "a number stays a number: {mine}");
    drop(peer);
    let mut peer = up.accept().await;
    let again = peer.json().await;
    assert_eq!(again["method"], "eth_subscribe", "{again}");
    assert_eq!(again["params"], json!(["logs", {"a": 1.0}]));
    peer.tell("11", "0").await;
    peer.tell("12", "1").await;
    peer.answer(again["id"].as_u64().unwrap(), "12").await;
    let gap = json!({"jsonrpc": "2.0", "method": "eth_gap", "params": {"subscription": mine}});
    assert_eq!(client.json().await, gap);
    assert_eq!(client.heard().await, (mine.to_string(), json!(1)));
    peer.tell("11", "2").await;
    peer.tell("12", "3").await;
    assert_eq!(client.heard().await, (mine.to_string(), json!(3)));
    client.ask(2, "eth_unsubscribe", &format!("[{mine}]")).await;
    let (id, ended) = peer.ended_one().await;
    assert_eq!(ended, "12");
    peer.answer(id, "true").await;
    assert_eq!(client.json().await["result"], true);
}

#[tokio::test]
async fn a_subscription_that_is_not_made_again_closes_its_clients_connection() {
    let up = FakeWs::start().await;
    let gateway = gateway(&up, KIND, "").await;
    let mut client = Client::to(&gateway).await;
    client.ask(1, "eth_subscribe", "[]").await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.answer(id, "1").await;
    client.json().await;
    drop(peer);
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.write(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"no"}}}}"#
    ))
    .await;
    assert_eq!(client.0.closed().await.0, 1012);
}

#[tokio::test]
async fn equal_subscriptions_are_one_upstream_and_each_client_has_an_id_of_it() {
    let up = FakeWs::start().await;
    let kind = format!("{KIND}, share = true");
    let gateway = gateway(&up, &kind, "").await;
    let (mut one, mut two) = (Client::to(&gateway).await, Client::to(&gateway).await);
    one.ask(1, "eth_subscribe", r#"["newHeads", 1.0]"#).await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.answer(id, "\"0x1\"").await;
    let first = one.json().await["result"].to_string();
    two.ask(9, "eth_subscribe", r#"["newHeads",1.0]"#).await;
    let second = two.json().await["result"].to_string();
    assert_ne!(first, second);
    peer.tell("\"0x1\"", "1").await;
    assert_eq!((one.heard().await.0, two.heard().await.0), (first.clone(), second.clone()));
    one.ask(2, "eth_unsubscribe", &format!("[{first}]")).await;
    assert_eq!(one.json().await["result"], true);
    peer.tell("\"0x1\"", "2").await;
    assert_eq!(two.heard().await, (second, json!(2)));
    drop(two);
    assert_eq!(peer.ended_one().await.1, "\"0x1\"");
}

#[tokio::test]
async fn limits_refusals_batches_and_clients_without_a_socket_are_answered() {
    let up = FakeWs::start().await;
    let gateway = gateway(&up, KIND, "max_subscriptions = 1").await;
    for method in ["eth_subscribe", "eth_unsubscribe"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":["x"]}}"#);
        let reply = gateway.http().post("/rpc", body).await.json();
        assert_eq!(reply["error"]["code"], -32601, "{reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains("needs a WebSocket"));
    }
    let mut client = Client::to(&gateway).await;
    client.ask(1, "eth_subscribe", r#"["no"]"#).await;
    let mut peer = up.accept().await;
    let id = peer.asked("eth_subscribe").await;
    peer.write(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"no topic","data":1.0}}}}"#
    ))
    .await;
    assert_eq!(
        client.0.hear().await,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no topic","data":1.0}}"#
    );
    // In a batch, beside a call; what comes before the array is sent waits for it.
    client
        .0
        .say(r#"[{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["x"]},{"jsonrpc":"2.0","id":2,"method":"slow"}]"#)
        .await;
    let mut slow = 0;
    for _ in 0..2 {
        let call = peer.json().await;
        let id = call["id"].as_u64().unwrap();
        if call["method"] == "slow" {
            slow = id;
        } else {
            peer.answer(id, "5").await;
        }
    }
    peer.tell("5", "1").await;
    peer.answer(slow, "2").await;
    let answers = client.json().await;
    let mine = answers[0]["result"].to_string();
    assert_eq!(answers[1]["result"], 2, "{answers}");
    assert_eq!(client.heard().await, (mine, json!(1)));
    client.ask(3, "eth_subscribe", r#"["y"]"#).await;
    let refused = client.json().await;
    assert_eq!(refused["error"]["code"], -31002, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("max_subscriptions = 1"));
    client.ask(4, "plain", "[]").await;
    let id = peer.asked("plain").await;
    peer.answer(id, "true").await;
    assert_eq!(client.json().await["result"], true);
}

#[tokio::test]
async fn the_example_server_tells_its_subscribers_and_keeps_none_that_are_gone() {
    let example = ExampleWs::start().await;
    let upstream = format!("protocol = \"jsonrpc\"\nurl = \"ws://{}/rpc\"", example.addr);
    let kind = r#"notification = "demo_subscription", unsubscribe = "demo_unsubscribe", id = "params.subscription""#;
    let gateway = Setup::new()
        .upstream("node", &upstream)
        .rpc("\"*\" = \"node\"")
        .toml(&format!("subscriptions = {{ \"demo_subscribe\" = {{ {kind} }} }}"))
        .start()
        .await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::to(&gateway).await;
        client.ask(1, "demo_subscribe", r#"["news"]"#).await;
        let id = client.json().await["result"].clone();
        clients.push((client, id));
    }
    let publish =
        r#"{"jsonrpc":"2.0","id":1,"method":"demo_publish","params":["news",{"n":1.50}]}"#;
    assert_eq!(gateway.http().post("/rpc", publish).await.json()["result"], 20);
    for (client, id) in &mut clients {
        assert_eq!(
            client.0.hear().await,
            format!(
                r#"{{"jsonrpc":"2.0","method":"demo_subscription","params":{{"subscription":{id},"result":{{"n":1.50}}}}}}"#
            )
        );
    }
    clients.clear();
    let left = r#"{"jsonrpc":"2.0","id":1,"method":"demo_subscribers"}"#;
    let http = gateway.http();
    let begun = std::time::Instant::now();
    while http.post("/rpc", left).await.json()["result"] != 0 {
        assert!(begun.elapsed() < crate::gateway::PATIENCE, "subscriptions are left");
    }
    until("no log line tells of trouble", || gateway.output().count(" WARN ") == 0).await;
}
