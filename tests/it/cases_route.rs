//! Cases from the field: notices, lists and pages, names and addresses, capabilities. The table is in `cases`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Streaming;
use crate::fake::{Call, Fake, tool};
use crate::gateway::{Setup, closed_port, run};
use crate::modern::Modern;

/// All methods of notices that come until nothing new comes any more.
async fn notices(stream: &mut Streaming, wanted: &[&str]) -> HashSet<String> {
    let mut seen = HashSet::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let patience = if wanted.iter().all(|method| seen.contains(*method)) { 300 } else { 5_000 };
        let Some(message) = stream.message_within(Duration::from_millis(patience)).await else {
            break;
        };
        seen.insert(message["method"].as_str().expect("a notice").to_owned());
    }
    seen
}

#[tokio::test]
async fn c049_a_tool_that_changes_everything_is_told_to_everyone_and_lists_are_fresh() {
    const CHANGES: [&str; 3] = [
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    ];
    const UPDATED: &str = "notifications/resources/updated";
    let up = Fake::mcp(["grow"])
        .with(|lists| {
            lists.capabilities = json!({
                "tools": {"listChanged": true},
                "prompts": {"listChanged": true},
                "resources": {"subscribe": true, "listChanged": true},
            });
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .on("tools/call", |call: Call| async move {
            call.fake.edit(|lists| {
                lists.tools.push(tool("grown"));
                lists.prompts.push(json!({"name": "grown"}));
                lists.resources.push(json!({"name": "grown", "uri": "x://grown"}));
            });
            call.out.sse().await;
            for method in CHANGES {
                call.out.event(json!({"jsonrpc": "2.0", "method": method}).to_string()).await;
            }
            let updated = json!({"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "x://r"}});
            call.out.event(updated.to_string()).await;
            call.out.event(call.response(&crate::fake::said("grown").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    for client in [&a, &b] {
        client.until_tools("the first list", |tools| tools == ["grow"]).await;
        assert!(client.names("prompts/list", "prompts", "name").await.is_empty());
        assert_eq!(client.names("resources/list", "resources", "uri").await, ["x://r"]);
    }
    let (mut of_a, mut of_b) = (a.stream().await, b.stream().await);
    a.request("resources/subscribe", json!({"uri": "x://r"})).await.result();
    assert_eq!(a.call("grow", json!({})).await.said(), "grown");
    let mut wanted = CHANGES.to_vec();
    let seen = notices(&mut of_b, &wanted).await;
    assert!(CHANGES.iter().all(|method| seen.contains(*method)), "{seen:?}");
    assert!(!seen.contains(UPDATED), "it did not subscribe: {seen:?}");
    assert_eq!(b.tools().await, ["grow", "grown"]);
    assert_eq!(b.names("prompts/list", "prompts", "name").await, ["grown"]);
    assert_eq!(b.names("resources/list", "resources", "uri").await, ["x://r", "x://grown"]);
    wanted.push(UPDATED);
    let seen = notices(&mut of_a, &wanted).await;
    assert!(wanted.iter().all(|method| seen.contains(*method)), "{seen:?}");
}

#[tokio::test]
async fn c054_a_tool_that_comes_between_two_pages_makes_no_duplicate() {
    let tools: Vec<_> = (0..1_200).map(|n| tool(&format!("t{n}"))).collect();
    let up = Fake::mcp([]).with(|lists| lists.tools = tools).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools.len() == 1_200).await;
    let mut stream = client.stream().await;
    up.until("a stream for notices", |up| up.streams() > 0).await;
    let (mut names, mut params) = (Vec::new(), json!({}));
    loop {
        let answer = client.request("tools/list", params).await;
        let result = answer.result();
        let page = result["tools"].as_array().expect("a list");
        names.extend(page.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()));
        let Some(cursor) = result.get("nextCursor") else { break };
        params = json!({ "cursor": cursor });
        if names.len() < 1_000 {
            // At the front, so that every item moves.
            up.edit(|lists| lists.tools.insert(0, tool("new")));
            up.push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
            stream.next_message().await.expect("a notice");
            assert_eq!(client.tools().await[0], "new", "who begins anew sees it");
        }
    }
    assert_eq!(names.len(), 1_200, "the pages are those of one list");
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
}

/// An upstream with two addresses that another has, too, and a tool that shows both.
async fn sharing(own: &'static str) -> Fake {
    Fake::mcp([])
        .with(|lists| {
            let mut link = tool("link");
            link["_meta"] = json!({"ui": {"resourceUri": "ui://w", "visibility": ["model"]}});
            lists.tools = vec![link];
            lists.capabilities = json!({"tools": {}, "resources": {"subscribe": true}});
            lists.resources = vec![
                json!({"name": "a", "uri": "file:///a.txt"}),
                json!({"name": "w", "uri": "ui://w"}),
                json!({"name": "own", "uri": own}),
            ];
        })
        .on("tools/call", |call: Call| async move {
            let link = json!({"type": "resource_link", "name": "l", "uri": "file:///a.txt"});
            let embedded = json!({"type": "resource", "resource": {"uri": "ui://w", "text": "t"}});
            call.result(&json!({"content": [link, embedded]}).to_string()).await;
        })
        .start()
        .await
}

#[tokio::test]
async fn c058_an_address_is_the_same_wherever_it_is_shown_and_leads_to_one_owner() {
    const SHARED: [&str; 2] = ["file:///a.txt", "ui://w"];
    let (a, b) = (sharing("file:///own-a").await, sharing("file:///own-b").await);
    let gateway = Setup::new().fake("a", &a).fake("b", &b).mcp(&["a", "b"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let uris = client.names("resources/list", "resources", "uri").await;
    assert_eq!(uris, ["file:///a.txt", "ui://w", "file:///own-a", "file:///own-b"]);
    let tools = client.list("tools/list", "tools").await;
    for shown in &tools {
        assert_eq!(shown["_meta"]["ui"]["resourceUri"], "ui://w", "{shown}");
    }
    let answer = client.call("b__link", json!({})).await;
    assert_eq!(answer.result()["content"][0]["uri"], "file:///a.txt");
    assert_eq!(answer.result()["content"][1]["resource"]["uri"], "ui://w");
    let mut stream = client.stream().await;
    for (uri, owner) in SHARED.iter().map(|uri| (*uri, &a)).chain([("file:///own-b", &b)]) {
        let answer = client.request("resources/read", json!({ "uri": uri })).await;
        let contents = &answer.result()["contents"][0];
        let text = format!("read at {}", owner.addr());
        assert_eq!((&contents["uri"], &contents["text"]), (&json!(uri), &json!(text)));
        let before = owner.count("resources/subscribe");
        client.request("resources/subscribe", json!({ "uri": uri })).await.result();
        assert_eq!(owner.count("resources/subscribe"), before + 1, "{uri}");
        assert_eq!(owner.of("resources/subscribe")[before].json()["params"]["uri"], uri);
    }
    assert_eq!(b.count("resources/subscribe"), 1);
    for up in [&a, &b] {
        up.until("its links listen", |up| up.streams() > 1).await;
    }
    let updated = |uri: &str| {
        let params = json!({ "uri": uri });
        json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})
    };
    // Not of the owner: nobody's.
    b.push(&updated("ui://w").to_string());
    b.push(&updated("file:///own-b").to_string());
    let told = stream.next_message().await.expect("a notice");
    assert_eq!(told, updated("file:///own-b"));
    a.push(&updated("ui://w").to_string());
    assert_eq!(stream.next_message().await.expect("a notice"), updated("ui://w"));
}

/// The page of a tool need not be in any list, and neither need that of a result.
#[tokio::test]
async fn c058_the_page_of_a_tool_leads_to_the_upstream_of_the_tool() {
    let paged = |page: &'static str, shown: &'static str| {
        Fake::mcp([])
            .with(move |lists| {
                let mut paged = tool("paged");
                paged["_meta"] = json!({"ui": {"resourceUri": page}});
                lists.tools = vec![paged];
                lists.capabilities = json!({"tools": {}, "resources": {}});
            })
            .on("tools/call", move |call: Call| async move {
                let result = json!({"content": [], "_meta": {"ui": {"resourceUri": shown}}});
                call.result(&result.to_string()).await;
            })
            .start()
    };
    let (a, b) = (paged("ui://a", "ui://a/shown").await, paged("ui://b", "ui://b/shown").await);
    let gateway = Setup::new().fake("a", &a).fake("b", &b).mcp(&["a", "b"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let modern = crate::modern::Modern::new(gateway.http(), json!({}));
    let text = format!("read at {}", b.addr());
    let read = |uri: &'static str| json!({ "uri": uri });
    let answer = client.request("resources/read", read("ui://b")).await;
    assert_eq!(answer.result()["contents"][0]["text"], text);
    let answer = modern.request("resources/read", read("ui://b")).await;
    assert_eq!(answer.result()["contents"][0]["text"], text);
    assert_eq!(client.request("resources/read", read("ui://b/shown")).await.code(), -32602);
    client.call("b__paged", json!({})).await.result();
    let answer = client.request("resources/read", read("ui://b/shown")).await;
    assert_eq!(answer.result()["contents"][0]["text"], text);
    assert_eq!(a.count("resources/read"), 0);
}

#[tokio::test]
async fn c060_the_check_warns_of_names_that_can_meet() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clash.toml");
    let text = "[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n\
                [upstreams.a__b]\nurl = \"http://127.0.0.1:2/mcp\"\n\
                [[routes]]\npath = \"/mcp\"\nupstreams = [\"a\", \"a__b\"]\n";
    std::fs::write(&file, text).unwrap();
    let ended = run(&["check", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let told = format!("{}{}", ended.stdout, ended.stderr);
    assert!(told.contains("a__b") && told.contains("mistaken"), "{told}");
}

#[tokio::test]
async fn c061_a_kind_of_list_that_is_refused_is_not_asked_for_at_every_turn() {
    let odd = Fake::mcp(["x"])
        .with(|lists| lists.capabilities = json!({"tools": {}, "resources": {}}))
        .on("resources/list", |call: Call| async move { call.error(-32601, "none").await })
        .start()
        .await;
    let good = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"resources": {}});
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .start()
        .await;
    let gateway =
        Setup::new().fake("odd", &odd).fake("good", &good).mcp(&["odd", "good"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("its tools", |tools| tools == ["odd__x"]).await;
    for _ in 0..30 {
        assert_eq!(client.names("resources/list", "resources", "uri").await, ["x://r"]);
    }
    let asked = odd.count("resources/list");
    assert!(asked <= 6, "it was asked {asked} times");
}

#[tokio::test]
async fn c063_what_an_upstream_refuses_is_told_and_not_made_an_empty_success() {
    let up = Fake::mcp(["x"])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "prompts": {}, "completions": {}});
            lists.prompts = vec![json!({"name": "p"})];
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    gateway.until("it is up", |m| m.value("trunkline_upstream_up", &[]) == 1.0).await;
    let client = gateway.mcp().await;
    // The fake knows neither.
    let reference = json!({"type": "ref/prompt", "name": "p"});
    for (method, params) in [
        ("prompts/get", json!({"name": "p"})),
        ("completion/complete", json!({"ref": reference, "argument": {"name": "a", "value": ""}})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("vendor/unknown", json!({})),
    ] {
        let answer = client.request(method, params).await;
        assert_eq!(answer.code(), -32601, "{method}: {}", answer.text);
    }
    let capabilities: Vec<_> =
        client.hello["capabilities"].as_object().expect("an object").keys().collect();
    assert!(!capabilities.contains(&&"resources".to_owned()), "{capabilities:?}");
    let completions: &Value = &client.hello["capabilities"]["completions"];
    assert!(completions.is_object(), "{capabilities:?}");
}

#[tokio::test]
async fn c095_a_name_of_an_upstream_that_has_said_nothing_is_unavailable_and_not_unknown() {
    let good = Fake::mcp(["x"]).start().await;
    let (addr, _held) = closed_port();
    let limits = "connect_timeout = \"1s\"\nlist_timeout = \"1s\"";
    let gateway = Setup::new()
        .fake("good", &good)
        .upstream("down", &format!("url = \"http://{addr}/mcp\"\n{limits}"))
        .mcp(&["good", "down"])
        .start()
        .await;
    let (legacy, modern) = (gateway.mcp().await, Modern::new(gateway.http(), json!({})));
    for _ in 0..2 {
        let params = json!({"name": "down__y"});
        let answers = [
            legacy.request("tools/call", params.clone()).await,
            legacy.request("prompts/get", params.clone()).await,
            modern.request("tools/call", params).await,
        ];
        for answer in answers {
            assert_eq!((answer.code(), answer.reason()), (-31004, "upstream_unavailable"));
            assert_eq!(answer.json["error"]["data"]["upstream"], "down", "{}", answer.text);
        }
        assert_eq!(legacy.call("good__y", json!({})).await.code(), -32602);
        assert_eq!(legacy.call("nobody__y", json!({})).await.code(), -32602);
        assert_eq!(legacy.tools().await, ["good__x"]);
    }
}
