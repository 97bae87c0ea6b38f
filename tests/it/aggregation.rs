//! Many upstreams behind one route: names, pages, clashes, capabilities, and who is down.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake::{self, Call, Fake, tool};
use crate::gateway::{Gateway, Setup, closed_port};

fn numbered(prefix: &str, count: usize) -> Vec<Value> {
    (0..count).map(|n| tool(&format!("{prefix}{n}"))).collect()
}

#[tokio::test]
async fn one_upstream_keeps_its_names_and_several_are_prefixed_in_the_routes_order() {
    let (a, b) = (Fake::mcp(["x", "y"]).start().await, Fake::mcp(["x"]).start().await);
    let gateway = Setup::new()
        .fake("zeta", &a)
        .fake("alpha", &b)
        .mcp(&["zeta", "alpha"])
        .toml("[[routes]]\npath = \"/one\"\nupstreams = [\"zeta\"]")
        .toml("[[routes]]\npath = \"/prefix\"\nupstreams = [\"zeta\"]\nnames = \"prefix\"")
        .toml("[[routes]]\npath = \"/plain\"\nupstreams = [\"alpha\", \"zeta\"]\nnames = \"plain\"")
        .start()
        .await;
    for (path, names) in [
        ("/mcp", &["zeta__x", "zeta__y", "alpha__x"][..]),
        ("/one", &["x", "y"]),
        ("/prefix", &["zeta__x", "zeta__y"]),
        ("/plain", &["x", "y"]),
    ] {
        let client = crate::mcp::Mcp::open_at(gateway.http(), path, "2025-11-25", json!({})).await;
        client.until_tools(path, |tools| tools == names).await;
        for name in names {
            let own = name.rsplit("__").next().unwrap();
            assert_eq!(client.call(name, json!({})).await.said(), own, "{path} {name}");
        }
    }
    assert_eq!(b.count("tools/call"), 2, "on a clash the first of the route wins");
}

#[tokio::test]
async fn an_unknown_tool_is_invalid_params_and_reaches_nobody() {
    let a = Fake::mcp(["x"]).start().await;
    let b = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new().fake("a", &a).fake("b", &b).mcp(&["a", "b"]).start().await;
    let client = gateway.mcp().await;
    for name in ["x", "a__y", "c__x", "a__", "", "A__x", "a_x"] {
        let answer = client.call(name, json!({})).await;
        assert_eq!((answer.status, answer.code()), (200, -32602), "{name}");
    }
    assert_eq!(a.count("tools/call") + b.count("tools/call"), 0);
}

#[tokio::test]
async fn long_names_are_shortened_the_same_way_each_time_and_odd_ones_work() {
    let long = "t".repeat(70);
    let names = [
        format!("{long}a"),
        format!("{long}b"),
        "with space".into(),
        "dots.and/slashes:and".into(),
        "Wetter_ä".into(),
        "🚂".into(),
        "t".repeat(128),
    ];
    let mut seen: Vec<Vec<String>> = Vec::new();
    for _ in 0..2 {
        let up = Fake::mcp([]).with(|lists| lists.tools = names.iter().map(|n| tool(n)).collect());
        let (up, other) = (up.start().await, Fake::mcp(["x"]).start().await);
        let gateway =
            Setup::new().fake("up", &up).fake("other", &other).mcp(&["up", "other"]).start().await;
        let client = gateway.mcp().await;
        client.until_tools("all are listed", |tools| tools.len() == names.len() + 1).await;
        let public = client.tools().await;
        for (public, own) in public.iter().zip(&names) {
            assert!(public.chars().count() <= 64, "{public}");
            assert_eq!(client.call(public, json!({})).await.said(), own);
        }
        let distinct: HashSet<_> = public.iter().collect();
        assert_eq!(distinct.len(), public.len(), "{public:?}");
        seen.push(public);
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn c056_all_pages_of_an_upstream_are_drained_with_its_cursors_unchanged() {
    let cursors = ["a=b/c+d", "with space&x", "ключ語", "\"quoted\\"].map(str::to_owned).to_vec();
    let up = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "prompts": {}, "resources": {}});
            lists.tools = numbered("t", 250);
            lists.prompts = (0..250).map(|n| json!({"name": format!("p{n}")})).collect();
            lists.resources =
                (0..250).map(|n| json!({"name": "r", "uri": format!("x://r/{n}")})).collect();
            lists.templates = (0..250)
                .map(|n| json!({"name": "r", "uriTemplate": format!("x://t{n}/{{id}}")}))
                .collect();
            lists.cursors = cursors;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("all tools", |tools| tools.len() == 250).await;
    assert_eq!(client.tools().await[249], "t249");
    assert_eq!(client.call("t249", json!({})).await.said(), "t249");
    assert_eq!(client.names("prompts/list", "prompts", "name").await[249], "p249");
    assert_eq!(client.names("resources/list", "resources", "uri").await[249], "x://r/249");
    let templates =
        client.names("resources/templates/list", "resourceTemplates", "uriTemplate").await;
    assert_eq!((templates.len(), templates[249].as_str()), (250, "x://t249/{id}"));
    let read = client.request("resources/read", json!({"uri": "x://r/249"})).await;
    assert_eq!(read.result()["contents"][0]["uri"], "x://r/249");
}

#[tokio::test]
async fn c054_a_long_list_comes_in_pages_of_the_gateways_own() {
    let up = Fake::mcp([]).with(|lists| lists.tools = numbered("t", 1300)).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (client, other) = (gateway.mcp().await, gateway.mcp().await);
    client.until_tools("all tools", |tools| tools.len() == 1300).await;
    let distinct: HashSet<_> = client.tools().await.into_iter().collect();
    assert_eq!(distinct.len(), 1300, "none twice");
    let first = client.request("tools/list", json!({})).await;
    let cursor = first.result()["nextCursor"].clone();
    assert!(cursor.is_string(), "1300 tools do not go on one page");
    for (who, method, cursor) in [
        (&client, "tools/list", json!("garbage")),
        (&client, "tools/list", json!("")),
        (&client, "tools/list", json!(5)),
        (&client, "prompts/list", cursor.clone()),
        (&other, "tools/list", cursor.clone()),
    ] {
        let answer = who.request(method, json!({ "cursor": cursor })).await;
        let codes = if method == "prompts/list" { &[-32602, -32601][..] } else { &[-32602] };
        assert!(codes.contains(&answer.code()), "{method} {cursor}: {}", answer.text);
    }
    up.edit(|lists| lists.tools.push(tool("more")));
    up.push(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    let answer = client.request("tools/list", json!({ "cursor": cursor })).await;
    assert_eq!(answer.status, 200, "a change between pages does no harm");
}

#[tokio::test]
async fn an_upstream_that_pages_for_ever_is_stopped() {
    let up = Fake::mcp(["x"])
        .on("tools/list", |call: Call| async move {
            let page = json!({"tools": [tool("x")], "nextCursor": "again"});
            call.result(&page.to_string()).await;
        })
        .start()
        .await;
    let good = Fake::mcp(["y"]).start().await;
    let gateway = Setup::new().fake("up", &up).fake("good", &good).mcp(&["up", "good"]);
    let gateway = gateway.start().await;
    let client = gateway.mcp().await;
    client.until_tools("the good one", |t| t.contains(&"good__y".to_owned())).await;
    assert!(up.count("tools/list") < 50, "{} pages", up.count("tools/list"));
}

/// Two upstreams whose names and tools meet in one public name; either may be first to answer.
async fn clash(slow_first: bool) -> (Vec<String>, Vec<String>) {
    let slow = |slow: bool, who: &'static str| {
        move |call: Call| async move {
            if slow {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let tools = json!({"tools": [tool(if who == "a" { "b__c" } else { "c" })]});
            call.result(&tools.to_string()).await;
        }
    };
    let say = |who: &'static str| move |call: Call| async move { call.say(who).await };
    let a = Fake::mcp([]).on("tools/list", slow(slow_first, "a")).on("tools/call", say("a"));
    let b = Fake::mcp([]).on("tools/list", slow(!slow_first, "a__b")).on("tools/call", say("b"));
    let (a, b) = (a.start().await, b.start().await);
    let gateway = Setup::new().fake("a", &a).fake("a__b", &b).mcp(&["a", "a__b"]).start().await;
    let client = gateway.mcp().await;
    until_complete(&gateway).await;
    let tools = client.tools().await;
    let mut said = Vec::new();
    for name in &tools {
        said.push(client.call(name, json!({})).await.said().to_owned());
    }
    (tools, said)
}

/// Waits until every upstream is up and nothing more comes in.
async fn until_complete(gateway: &Gateway) {
    gateway.until("all are up", |m| m.value("trunkline_upstream_up", &[]) == 2.0).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
}

#[tokio::test]
async fn c060_a_clash_ends_the_same_way_whoever_answers_first() {
    let first = clash(false).await;
    let second = clash(true).await;
    assert_eq!(first, second);
    assert_eq!(first.0[0], "a__b__c");
    assert_eq!(first.1[0], "a", "the first of the route owns the name");
    let distinct: HashSet<_> = first.0.iter().collect();
    assert_eq!(distinct.len(), first.0.len(), "{first:?}");
}

#[tokio::test]
async fn c060_two_tools_of_one_name_in_one_upstream_are_listed_once() {
    let up = Fake::mcp(["x", "x", "y"]).start().await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools == ["x", "y"]).await;
}

#[tokio::test]
async fn c061_an_error_on_one_kind_of_list_empties_that_kind_only() {
    let odd = Fake::mcp(["x"])
        .with(|lists| {
            lists.capabilities = json!({"tools": {}, "resources": {}, "prompts": {}});
        })
        .on("resources/list", |call: Call| async move { call.error(-32601, "none").await })
        .on("prompts/list", |_: Call| std::future::pending())
        .start()
        .await;
    let good = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"resources": {}, "prompts": {}});
            lists.prompts = vec![json!({"name": "p"})];
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .start()
        .await;
    let gateway = Setup::new()
        .fake_with("odd", &odd, "list_timeout = \"1s\"")
        .fake("good", &good)
        .mcp(&["odd", "good"])
        .start()
        .await;
    let client = gateway.mcp().await;
    let begun = Instant::now();
    client.until_tools("its tools", |tools| tools == ["odd__x"]).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(client.names("resources/list", "resources", "uri").await, ["x://r"]);
    let begun = Instant::now();
    assert_eq!(client.names("prompts/list", "prompts", "name").await, ["good__p"]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn c063_capabilities_are_the_union_of_what_can_be_routed() {
    let tools = Fake::mcp(["x"]).start().await;
    let prompts = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"prompts": {}, "completions": {}});
            lists.prompts = vec![json!({"name": "p", "arguments": [{"name": "a"}]})];
            lists.instructions = Some("Use p with care.".into());
        })
        .on("completion/complete", |call: Call| async move {
            let name = call.req.json()["params"]["ref"]["name"].clone();
            call.result(&json!({"completion": {"values": [name]}}).to_string()).await;
        })
        .start()
        .await;
    let resources = Fake::mcp([])
        .with(|lists| lists.capabilities = json!({"resources": {"subscribe": true}, "logging": {}}))
        .start()
        .await;
    let gateway = Setup::new()
        .fake("tools", &tools)
        .fake("prompts", &prompts)
        .fake("resources", &resources)
        .mcp(&["tools", "prompts", "resources"])
        .toml("[[routes]]\npath = \"/tools\"\nupstreams = [\"tools\"]")
        .start()
        .await;
    // Known to be up: from then on the gateway knows what they can do.
    gateway.until("all are up", |m| m.value("trunkline_upstream_up", &[]) == 3.0).await;
    let client = gateway.mcp().await;
    let all = &client.hello["capabilities"];
    for kind in ["tools", "prompts", "resources"] {
        assert_eq!(all[kind]["listChanged"], true, "{all}");
    }
    assert_eq!(all["resources"]["subscribe"], true, "{all}");
    assert!(all["completions"].is_object() && all["logging"].is_object(), "{all}");
    let instructions = client.hello["instructions"].as_str().unwrap();
    assert!(
        instructions.contains("__`)\nUse p with care."),
        "a heading with the prefix: {instructions}"
    );
    let reference = json!({"type": "ref/prompt", "name": "prompts__p"});
    let params = json!({"ref": reference, "argument": {"name": "a", "value": ""}});
    let answer = client.request("completion/complete", params).await;
    assert_eq!(answer.result()["completion"]["values"][0], "p", "under its own name");

    let only = crate::mcp::Mcp::open_at(gateway.http(), "/tools", "2025-11-25", json!({})).await;
    let caps = only.hello["capabilities"].as_object().unwrap();
    assert!(caps.contains_key("tools"));
    assert!(!caps.contains_key("prompts") && !caps.contains_key("resources"), "{caps:?}");
    assert_eq!(only.request("prompts/list", json!({})).await.code(), -32601);
}

#[tokio::test]
async fn c095_broken_upstreams_neither_block_nor_empty_the_others() {
    let good = Fake::mcp(["x"]).start().await;
    let silent = Fake::mcp(["x"]).on("initialize", |_: Call| std::future::pending()).start().await;
    let html = Fake::mcp(["x"])
        .on("*", |call: Call| async move {
            call.out.full(500, &[("content-type", "text/html")], "<html>").await;
        })
        .on("initialize", |call: Call| async move {
            call.out.full(500, &[("content-type", "text/html")], "<html>").await;
        })
        .start()
        .await;
    let (addr, held) = closed_port();
    let limits = "connect_timeout = \"1s\"\nlist_timeout = \"1s\"";
    let gateway = Setup::new()
        .fake("good", &good)
        .upstream("closed", &format!("url = \"http://{addr}/mcp\"\n{limits}"))
        .upstream("hole", &format!("url = \"http://198.51.100.1/mcp\"\n{limits}"))
        .fake_with("silent", &silent, limits)
        .fake_with("html", &html, limits)
        .mcp(&["closed", "good", "hole", "silent", "html"])
        .start()
        .await;
    let begun = Instant::now();
    let client = gateway.mcp().await;
    client.until_tools("the good one", |tools| tools == ["good__x"]).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(client.call("good__x", json!({})).await.said(), "x");
    assert_eq!(gateway.admin().get("/readyz").await.status, 200);
    drop(held);
    let late = Fake::mcp(["y"]).at(addr).start().await;
    client.until_tools("it came back without a restart", |t| t == ["closed__y", "good__x"]).await;
    assert_eq!(client.call("closed__y", json!({})).await.said(), "y");
    drop(late);
    let answer = client.call("closed__y", json!({})).await;
    assert!(matches!(answer.code(), -31004 | -31005), "{}", answer.text);
    let tools = client.tools().await;
    assert_eq!(tools, ["closed__y", "good__x"], "its last good list is still served");
}

#[tokio::test]
async fn c097_a_late_list_is_merged_and_announced() {
    let late = Fake::mcp(["y"])
        .on("tools/list", |call: Call| async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            call.result(&json!({"tools": [tool("y")]}).to_string()).await;
        })
        .start()
        .await;
    let good = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .fake_with("late", &late, "list_timeout = \"500ms\"")
        .fake("good", &good)
        .mcp(&["late", "good"])
        .start()
        .await;
    let client = gateway.mcp().await;
    let begun = Instant::now();
    client.until_tools("the quick one", |tools| tools == ["good__x"]).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let mut stream = client.stream().await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(gateway.admin().get(path).await.status, 200);
    }
    let told = stream.message_within(Duration::from_secs(6)).await.expect("a notice");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(client.tools().await, ["late__y", "good__x"]);
}

#[tokio::test]
async fn a_list_that_failed_is_tried_again_unasked_and_announced() {
    let odd = Fake::mcp(["y"])
        .on("tools/list", |call: Call| async move {
            match call.fake.count("tools/list") {
                1 => call.error(-32603, "not yet").await,
                _ => call.result(&json!({"tools": [tool("y")]}).to_string()).await,
            }
        })
        .start()
        .await;
    let good = Fake::mcp(["x"]).start().await;
    let gateway =
        Setup::new().fake("odd", &odd).fake("good", &good).mcp(&["odd", "good"]).start().await;
    let client = gateway.mcp().await;
    let mut stream = client.stream().await;
    client.until_tools("the one that works", |tools| tools == ["good__x"]).await;
    let told = stream.message_within(Duration::from_secs(6)).await.expect("a notice");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(client.tools().await, ["odd__y", "good__x"]);
}

#[tokio::test]
async fn while_no_upstream_has_said_what_it_lists_the_answer_is_an_error() {
    let (addr, held) = closed_port();
    let limits = "connect_timeout = \"1s\"\nlist_timeout = \"1s\"";
    let gateway = Setup::new()
        .upstream("closed", &format!("url = \"http://{addr}/mcp\"\n{limits}"))
        .mcp(&["closed"])
        .start()
        .await;
    let client = gateway.mcp().await;
    let answer = client.request("tools/list", json!({})).await;
    assert_eq!(answer.code(), -31004, "{}", answer.text);
    drop(held);
}

#[tokio::test]
async fn a_resource_that_is_listed_no_more_can_still_be_unsubscribed() {
    let up = Fake::mcp([])
        .with(|lists| {
            lists.capabilities = json!({"resources": {"subscribe": true, "listChanged": true}});
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .start()
        .await;
    let other = Fake::mcp(["x"]).start().await;
    let gateway =
        Setup::new().fake("up", &up).fake("other", &other).mcp(&["up", "other"]).start().await;
    let client = gateway.mcp().await;
    let uris = || client.names("resources/list", "resources", "uri");
    assert_eq!(uris().await, ["x://r"]);
    client.request("resources/subscribe", json!({"uri": "x://r"})).await.result();
    let mut stream = client.stream().await;
    up.until("a stream for notices", |core| core.streams() > 0).await;
    up.edit(|lists| lists.resources.clear());
    up.push(r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#);
    stream.message_within(Duration::from_secs(6)).await.expect("a notice");
    assert!(uris().await.is_empty());
    let answer = client.request("resources/unsubscribe", json!({"uri": "x://r"})).await;
    assert_eq!(answer.result(), &json!({}));
    up.until_count("resources/unsubscribe", 1).await;
}

#[tokio::test]
async fn tools_are_chosen_renamed_and_passed_on_as_they_are() {
    let definition = r#"{"name":"q","x-vendor":{"b":1.10},"inputSchema":{"type":"object","$defs":{"a":{"$anchor":"n"}},"properties":{"n":{"maximum":9007199254740993}}},"_meta":{"k":1e2}}"#;
    let up = Fake::mcp([])
        .on("tools/list", move |call: Call| async move {
            let more = ["delete_all", "delete_one", "keep"].map(|name| tool(name).to_string());
            call.result(&format!(r#"{{"tools":[{definition},{}]}}"#, more.join(","))).await;
        })
        .start()
        .await;
    let lines = "[upstreams.up.tools]\ndeny = [\"delete_*\"]\nrename = { q = \"query\" }";
    let gateway = Setup::new().fake_with("up", &up, lines).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    client.until_tools("chosen and renamed", |tools| tools == ["query", "keep"]).await;
    let answer = client.request("tools/list", json!({})).await;
    let renamed = definition.replace(r#""name":"q""#, r#""name":"query""#);
    assert!(answer.text.contains(&renamed), "C107: {}", answer.text);
    assert_eq!(client.call("query", json!({})).await.said(), "q");
    for hidden in ["q", "delete_all", "delete_one"] {
        assert_eq!(client.call(hidden, json!({})).await.code(), -32602, "{hidden}");
    }
}

#[tokio::test]
async fn c058_uris_pass_unchanged_and_lead_to_their_owner() {
    let up = |uri: &'static str| {
        Fake::mcp(["link"])
            .with(move |lists| {
                lists.capabilities = json!({"tools": {}, "resources": {}});
                lists.resources = vec![
                    json!({"name": "own", "uri": uri}),
                    json!({"name": "both", "uri": "file:///a.txt"}),
                ];
                lists.templates =
                    vec![json!({"name": "t", "uriTemplate": format!("{uri}/item/{{id}}")})];
            })
            .on("tools/call", move |call: Call| async move {
                let link =
                    json!({"type": "resource_link", "name": "l", "uri": format!("{uri}/seen")});
                call.result(&json!({"content": [link]}).to_string()).await;
            })
    };
    let (a, b) = (up("ui://a").start().await, up("ui://b").start().await);
    let gateway = Setup::new().fake("a", &a).fake("b", &b).mcp(&["a", "b"]).start().await;
    gateway.until("both are up", |m| m.value("trunkline_upstream_up", &[]) == 2.0).await;
    let client = gateway.mcp().await;
    client.until_tools("both", |tools| tools.len() == 2).await;
    let uris = client.names("resources/list", "resources", "uri").await;
    assert_eq!(uris.iter().filter(|uri| *uri == "file:///a.txt").count(), 1, "{uris:?}");
    let owner = |fake: &Fake| format!("read at {}", fake.addr());
    let read = async |uri: &str| {
        let answer = client.request("resources/read", json!({ "uri": uri })).await;
        assert_eq!(answer.result()["contents"][0]["uri"], uri);
        answer.result()["contents"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(read("ui://a").await, owner(&a));
    assert_eq!(read("ui://b").await, owner(&b));
    assert_eq!(read("file:///a.txt").await, owner(&a), "the first of the configuration owns it");
    assert_eq!(read("ui://b/item/7").await, owner(&b), "by its template");
    let before = a.count("resources/read") + b.count("resources/read");
    let answer = client.request("resources/read", json!({"uri": "ui://b/seen"})).await;
    assert_eq!(answer.code(), -32602, "an unknown URI is tried on nobody");
    let answer = client.call("b__link", json!({})).await;
    assert_eq!(answer.result()["content"][0]["uri"], "ui://b/seen");
    assert_eq!(a.count("resources/read") + b.count("resources/read"), before);
    assert_eq!(read("ui://b/seen").await, owner(&b), "a link seen in a result");
}

#[tokio::test]
async fn prompts_are_routed_like_tools() {
    let up = || {
        Fake::mcp([])
            .with(|lists| {
                lists.capabilities = json!({"prompts": {}});
                lists.prompts = vec![json!({"name": "p", "title": "P"})];
            })
            .on("prompts/get", |call: Call| async move {
                call.result(&call.req.params().unwrap()).await;
            })
    };
    let (a, b) = (up().start().await, up().start().await);
    let gateway = Setup::new().fake("a", &a).fake("b", &b).mcp(&["a", "b"]).start().await;
    gateway.until("both are up", |m| m.value("trunkline_upstream_up", &[]) == 2.0).await;
    let client = gateway.mcp().await;
    assert_eq!(client.names("prompts/list", "prompts", "name").await, ["a__p", "b__p"]);
    let params = json!({"name": "b__p", "arguments": {"x": "1"}});
    let answer = client.request("prompts/get", params).await;
    assert_eq!(answer.result()["name"], "p");
    assert_eq!(answer.result()["arguments"]["x"], "1");
    assert_eq!((a.count("prompts/get"), b.count("prompts/get")), (0, 1));
    let answer = client.request("prompts/get", json!({"name": "p"})).await;
    assert_eq!(answer.code(), -32602);
}

#[tokio::test]
async fn a_log_level_is_kept_and_relayed_also_to_later_upstream_sessions() {
    let up = Fake::mcp(["x"])
        .with(|lists| lists.capabilities = json!({"tools": {}, "logging": {}}))
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let client = gateway.mcp().await;
    let answer = client.request("logging/setLevel", json!({"level": "loud"})).await;
    assert_eq!(answer.code(), -32602);
    let answer = client.request("logging/setLevel", json!({"level": "warning"})).await;
    assert_eq!(answer.result(), &json!({}));
    client.call("x", json!({})).await.said();
    up.until_count("logging/setLevel", 1).await;
    assert_eq!(up.of("logging/setLevel")[0].json()["params"]["level"], "warning");
    up.forget();
    client.call("x", json!({})).await.said();
    up.until_count("logging/setLevel", 2).await;
    let last = up.of("logging/setLevel").pop().unwrap();
    assert_eq!(last.json()["params"]["level"], "warning", "after the upstream lost its session");
}

#[tokio::test]
async fn log_messages_of_a_call_reach_its_caller_from_the_level_it_wants() {
    let up = Fake::mcp(["x"])
        .with(|lists| lists.capabilities = json!({"tools": {}, "logging": {}}))
        .on("tools/call", |call: Call| async move {
            call.out.sse().await;
            for level in ["debug", "error"] {
                let params =
                    json!({"level": level, "logger": "l", "data": {"from": call.arg("tag")}});
                let log =
                    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
                call.out.event(log.to_string()).await;
            }
            call.out.event(call.response(&fake::said("done").to_string())).await;
            call.out.end().await;
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    a.request("logging/setLevel", json!({"level": "error"})).await.result();
    b.request("logging/setLevel", json!({"level": "debug"})).await.result();
    let (of_a, of_b) =
        tokio::join!(a.call("x", json!({"tag": "a"})), b.call("x", json!({"tag": "b"})));
    let levels = |answer: &crate::mcp::Answer, tag: &str| -> Vec<String> {
        let logs = answer.before.iter().filter(|m| m["method"] == "notifications/message");
        logs.map(|log| {
            assert_eq!(log["params"]["data"]["from"], tag, "{log}");
            log["params"]["level"].as_str().unwrap().to_owned()
        })
        .collect()
    };
    assert_eq!(levels(&of_a, "a"), ["error"]);
    assert_eq!(levels(&of_b, "b"), ["debug", "error"]);
}

#[tokio::test]
async fn c049_changes_reach_everyone_and_updates_only_subscribers() {
    let up = Fake::mcp(["x"])
        .with(|lists| {
            lists.capabilities = json!({
                "tools": {"listChanged": true},
                "prompts": {"listChanged": true},
                "resources": {"subscribe": true, "listChanged": true},
            });
            lists.resources = vec![json!({"name": "r", "uri": "x://r"})];
        })
        .start()
        .await;
    let gateway = Setup::new().fake("up", &up).mcp(&["up"]).start().await;
    let (a, b) = (gateway.mcp().await, gateway.mcp().await);
    for client in [&a, &b] {
        client.until_tools("the first list", |tools| tools == ["x"]).await;
        assert_eq!(client.names("resources/list", "resources", "uri").await, ["x://r"]);
    }
    let (mut of_a, mut of_b) = (a.stream().await, b.stream().await);
    let answer = a.request("resources/subscribe", json!({"uri": "x://r"})).await;
    assert_eq!(answer.result(), &json!({}));
    up.until_count("resources/subscribe", 1).await;
    up.until("a stream for notices", |core| core.streams() > 0).await;
    up.edit(|lists| lists.tools.push(tool("grown")));
    for kind in ["tools", "prompts", "resources"] {
        let note = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#);
        up.push(&note);
    }
    up.push(
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x://r"}}"#,
    );
    let mut seen = [HashSet::new(), HashSet::new()];
    for (stream, seen) in [&mut of_a, &mut of_b].into_iter().zip(&mut seen) {
        while let Some(message) = stream.message_within(Duration::from_millis(1500)).await {
            let method = message["method"].as_str().unwrap().to_owned();
            if method == "notifications/resources/updated" {
                assert_eq!(message["params"]["uri"], "x://r");
            }
            seen.insert(method);
        }
        assert!(seen.contains("notifications/tools/list_changed"), "{seen:?}");
    }
    let updated = "notifications/resources/updated";
    assert!(seen[0].contains(updated), "the subscriber hears of it: {seen:?}");
    assert!(!seen[1].contains(updated), "nobody else does: {seen:?}");
    assert_eq!(b.tools().await, ["x", "grown"], "a list after the notice is fresh");
    let answer = a.request("resources/unsubscribe", json!({"uri": "x://r"})).await;
    assert_eq!(answer.result(), &json!({}));
    up.until_count("resources/unsubscribe", 1).await;
}

#[tokio::test]
async fn a_method_nobody_knows_passes_to_a_single_upstream_and_is_not_found_with_several() {
    let odd = |call: Call| async move { call.result("{\"odd\":true}").await };
    let a = Fake::mcp(["x"]).on("vendor/odd", odd).start().await;
    let b = Fake::mcp(["x"]).start().await;
    let gateway = Setup::new()
        .fake("a", &a)
        .fake("b", &b)
        .mcp(&["a", "b"])
        .toml("[[routes]]\npath = \"/one\"\nupstreams = [\"a\"]")
        .start()
        .await;
    let client = gateway.mcp().await;
    assert_eq!(client.request("vendor/odd", json!({})).await.code(), -32601);
    assert_eq!(a.count("vendor/odd"), 0);
    let one = crate::mcp::Mcp::open_at(gateway.http(), "/one", "2025-11-25", json!({})).await;
    assert_eq!(one.request("vendor/odd", json!({})).await.result()["odd"], true);
}
