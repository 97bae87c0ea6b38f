//! Tools and prompts that ask by their result (2026-07-28, `input_required`).

use super::*;

fn all() -> Value {
    json!({"sampling": {}, "elicitation": {}, "roots": {}})
}

/// The parameters of the next round.
fn retry(mut params: Value, asked: &Value, answers: Value) -> Value {
    params["inputResponses"] = answers;
    if let Some(state) = asked["result"].get("requestState") {
        params["requestState"] = state.clone();
    }
    params
}

#[tokio::test]
async fn a_question_is_a_result_and_its_answer_comes_with_the_next_request() {
    let mut web = Web::start(Answers::Auto, true).await;
    let accepted = json!({"action": "accept", "content": {"title": "Tea"}});
    let sampled =
        json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "short"}});
    let rows = [
        (
            "ask_user",
            json!({}),
            "title",
            "elicitation/create",
            accepted,
            r#"accept: {"title":"Tea"}"#,
        ),
        ("summarize", json!({"text": "x"}), "summary", "sampling/createMessage", sampled, "short"),
        (
            "list_roots",
            json!({}),
            "roots",
            "roots/list",
            json!({"roots": [{"uri": "file:///a"}]}),
            "file:///a",
        ),
    ];
    for (name, arguments, key, method, answer, expected) in rows {
        let params = tool(name, arguments);
        let (_, asked) = web.answer("tools/call", params.clone(), all()).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        assert_eq!(asked["result"]["inputRequests"][key]["method"], method);
        let next = retry(params, &asked, json!({key: answer, "other": 5}));
        let (_, done) = web.answer("tools/call", next, all()).await;
        assert_eq!(done["result"]["resultType"], "complete", "{done}");
        assert_eq!(done["result"]["content"][0]["text"], expected);
    }
}

#[tokio::test]
async fn a_missing_or_odd_answer_is_asked_for_again() {
    let mut web = Web::start(Answers::Auto, true).await;
    let params = tool("ask_user", json!({}));
    let (_, asked) = web.answer("tools/call", params.clone(), all()).await;
    for odd in [json!({}), json!({"title": 5}), json!({"title": {"action": "maybe"}})] {
        let (_, again) = web.answer("tools/call", retry(params.clone(), &asked, odd), all()).await;
        assert_eq!(again["result"]["resultType"], "input_required");
    }
}

#[tokio::test]
async fn a_state_serves_its_own_call_only() {
    let mut web = Web::start(Answers::Auto, true).await;
    let params = tool("ask_user", json!({"message": "Which?"}));
    let (_, asked) = web.answer("tools/call", params.clone(), all()).await;
    let answers = json!({"title": {"action": "decline"}});
    let right = retry(params, &asked, answers.clone());
    let mut none = right.clone();
    none.as_object_mut().unwrap().remove("requestState");
    let mut tampered = right.clone();
    tampered["requestState"] = json!(format!("{}x", right["requestState"].as_str().unwrap()));
    let other = retry(tool("ask_user", json!({"message": "Who?"})), &asked, answers);
    for wrong in [none, tampered, other] {
        let (_, answer) = web.answer("tools/call", wrong, all()).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let (_, answer) = web.answer("tools/call", right, all()).await;
    assert_eq!(answer["result"]["content"][0]["text"], "decline");
}

#[tokio::test]
async fn nothing_is_asked_that_the_request_does_not_offer() {
    let mut web = Web::start(Answers::Auto, true).await;
    for (name, required) in [
        ("ask_user", json!({"elicitation": {"form": {}}})),
        ("summarize", json!({"sampling": {}})),
        ("list_roots", json!({"roots": {}})),
    ] {
        let params = tool(name, json!({"text": "x"}));
        let (status, answer) = web.answer("tools/call", params, json!({})).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)));
        assert_eq!(answer["error"]["data"]["requiredCapabilities"], required);
    }
}

#[tokio::test]
async fn two_rounds_keep_the_first_answer_in_the_state() {
    let mut web = Web::of(Kind::Suite, Offered::Modern).await;
    let params = tool("test_input_required_result_multi_round", json!({}));
    let (_, first) = web.answer("tools/call", params.clone(), all()).await;
    let name = json!({"step1": {"action": "accept", "content": {"name": "Ann"}}});
    let (_, second) = web.answer("tools/call", retry(params.clone(), &first, name), all()).await;
    assert!(second["result"]["inputRequests"].get("step2").is_some(), "{second}");
    assert_ne!(first["result"]["requestState"], second["result"]["requestState"]);
    let color = json!({"step2": {"action": "accept", "content": {"color": "red"}}});
    let early = retry(params.clone(), &first, color.clone());
    let (_, again) = web.answer("tools/call", early, all()).await;
    assert!(again["result"]["inputRequests"].get("step1").is_some(), "one after the other");
    let (_, done) = web.answer("tools/call", retry(params, &second, color), all()).await;
    assert_eq!(done["result"]["content"][0]["text"], r#""Ann" likes "red""#);
}

#[tokio::test]
async fn prompts_ask_as_tools_do() {
    let mut web = Web::of(Kind::Suite, Offered::Modern).await;
    let params = json!({"name": "test_input_required_result_prompt"});
    let (_, asked) = web.answer("prompts/get", params.clone(), all()).await;
    assert!(asked["result"]["inputRequests"].get("user_context").is_some());
    let context = json!({"user_context": {"action": "accept", "content": {"context": "tides"}}});
    let (_, done) = web.answer("prompts/get", retry(params, &asked, context), all()).await;
    assert!(done["result"]["messages"].to_string().contains("tides"));
}
