//! Kind `suite`, as far as it differs from the others.

use super::*;

#[tokio::test]
async fn a_broken_stream_is_finished_when_the_client_comes_back() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let id = web.session("2025-11-25").await;
    let body = call(1, "test_reconnection", json!({}));
    let broken = text(web.send(Ask::post("/mcp", body).with("mcp-session-id", &id)).await).await;
    assert!(broken.contains("retry: ") && broken.contains("data:\n\n"), "{broken}");
    let last = broken.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let resume = Ask::of("GET", "/mcp").with("mcp-session-id", &id).with("last-event-id", last);
    let mut events = Events::of(web.send(resume).await);
    assert_eq!(events.next().await.unwrap()["id"], 1);
    assert_eq!(events.next().await, None);
    let other = web.session("2025-06-18").await;
    let body = call(1, "test_reconnection", json!({}));
    let whole = web.send(Ask::post("/mcp", body).with("mcp-session-id", &other)).await;
    assert_eq!(parse(&text(whole).await)["id"], 1, "older clients do not come back");
}

#[tokio::test]
async fn what_a_session_is_asked_on_the_stream_a_request_is_asked_by_its_result() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let id = web.session("2025-11-25").await;
    let all = json!({"sampling": {}, "elicitation": {}, "roots": {}});
    for (name, method) in [
        ("test_sampling", "sampling/createMessage"),
        ("test_elicitation", "elicitation/create"),
        ("test_elicitation_sep1034_defaults", "elicitation/create"),
        ("test_elicitation_sep1330_enums", "elicitation/create"),
        ("test_streaming_elicitation", "elicitation/create"),
        ("test_input_required_result_elicitation", "elicitation/create"),
        ("test_input_required_result_sampling", "sampling/createMessage"),
        ("test_input_required_result_list_roots", "roots/list"),
        ("test_input_required_result_request_state", "elicitation/create"),
        ("test_input_required_result_tampered_state", "elicitation/create"),
        ("test_input_required_result_capabilities", "elicitation/create"),
    ] {
        let arguments = json!({"prompt": "p", "message": "m"});
        let ask = Ask::post("/mcp", call(1, name, arguments.clone()));
        let mut events = Events::of(web.send(ask.with("mcp-session-id", &id)).await);
        let question = events.next().await.unwrap();
        assert_eq!(question["method"], method, "{name}");
        let (_, asked) = web.answer("tools/call", tool(name, arguments), all.clone()).await;
        let requests = asked["result"]["inputRequests"].as_object().unwrap();
        assert_eq!(requests.values().next().unwrap()["params"], question["params"], "{name}");
    }
}

#[tokio::test]
async fn the_tool_and_the_prompt_that_come_and_go_are_told_of() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let wish = json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true}});
    let mut events = Events::of(web.modern("subscriptions/listen", wish, json!({})).await);
    events.next().await.unwrap();
    for (list, there) in [("tool", true), ("prompt", true), ("tool", false), ("prompt", false)] {
        let change = tool(&format!("test_trigger_{list}_change"), json!({}));
        web.answer("tools/call", change, json!({})).await;
        let method = format!("notifications/{list}s/list_changed");
        assert_eq!(events.next().await.unwrap()["method"], method);
        let (_, listed) = web.answer(&format!("{list}s/list"), json!({}), json!({})).await;
        assert_eq!(listed.to_string().contains(&format!("test_dynamic_{list}")), there);
    }
}
