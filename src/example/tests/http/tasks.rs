//! Long jobs as tasks.

use super::*;
use crate::mcp::meta;

fn tasks() -> Value {
    json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
}

impl Web {
    async fn begin(&mut self, name: &str, arguments: Value) -> String {
        let (_, begun) = self.answer("tools/call", tool(name, arguments), tasks()).await;
        let result = &begun["result"];
        assert_eq!(result["resultType"], "task", "{begun}");
        assert!(result["createdAt"].is_string() && result["ttlMs"].is_u64(), "{begun}");
        result["taskId"].as_str().unwrap().to_owned()
    }

    async fn task(&mut self, method: &str, id: &str) -> Value {
        let (_, answer) = self.answer(method, json!({"taskId": id}), tasks()).await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        answer["result"].clone()
    }

    /// The task once it is in this state.
    async fn until(&mut self, id: &str, status: &str) -> Value {
        let reached = async {
            loop {
                let task = self.task("tasks/get", id).await;
                if task["status"] == status {
                    return task;
                }
                assert!(["working", "input_required"].contains(&task["status"].as_str().unwrap()));
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), reached).await.unwrap()
    }
}

#[tokio::test]
async fn a_long_job_is_a_task_for_who_knows_tasks_and_a_call_for_others() {
    let mut web = Web::start(Answers::Auto, true).await;
    let id = web.begin("report", json!({"delay_ms": 1})).await;
    let task = web.until(&id, "completed").await;
    assert_eq!(task["result"]["content"][0]["text"], "120 notes in 4 sections");
    let params = tool("report", json!({"delay_ms": 1}));
    let (_, called) = web.answer("tools/call", params, json!({})).await;
    assert_eq!(called["result"]["content"], task["result"]["content"]);
}

#[tokio::test]
async fn a_task_asks_where_it_is_looked_at() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let id = web.begin("multi_input", json!({})).await;
    let task = web.until(&id, "input_required").await;
    assert_eq!(task["inputRequests"].as_object().unwrap().len(), 2);
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    for (key, left) in [("nothing", 2), ("first", 1)] {
        let update = json!({"taskId": id, "inputResponses": {key: yes}});
        let (_, answer) = web.answer("tasks/update", update, tasks()).await;
        assert!(answer["result"].get("taskId").is_none());
        let task = web.task("tasks/get", &id).await;
        assert_eq!(task["inputRequests"].as_object().unwrap().len(), left);
    }
    let update = json!({"taskId": id, "inputResponses": {"second": yes}});
    web.answer("tasks/update", update, tasks()).await;
    web.until(&id, "completed").await;
}

#[tokio::test]
async fn a_task_ends_as_its_job_does_or_when_it_is_cancelled() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let id = web.begin("failing_job", json!({})).await;
    assert_eq!(web.until(&id, "completed").await["result"]["isError"], true);
    let id = web.begin("protocol_error_job", json!({})).await;
    assert_eq!(web.until(&id, "failed").await["error"]["code"], -32603);
    let id = web.begin("slow_compute", json!({"seconds": 600})).await;
    assert_eq!(web.task("tasks/get", &id).await["status"], "working");
    web.task("tasks/cancel", &id).await;
    assert_eq!(web.task("tasks/get", &id).await["status"], "cancelled");
    web.task("tasks/cancel", &id).await;
}

#[tokio::test]
async fn a_call_may_ask_before_it_becomes_a_task() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let mut params = tool("test_tool_with_task", json!({}));
    let (_, asked) = web.answer("tools/call", params.clone(), tasks()).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    params["inputResponses"] =
        json!({"user_name": {"action": "accept", "content": {"name": "Ann"}}});
    let (_, begun) = web.answer("tools/call", params, tasks()).await;
    let task = web.until(begun["result"]["taskId"].as_str().unwrap(), "completed").await;
    assert!(task["result"].to_string().contains("Ann"));
}

#[tokio::test]
async fn tasks_are_for_clients_that_declare_them_and_must_exist() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    for (method, params) in
        [("tasks/get", json!({"taskId": "x"})), ("tools/call", tool("failing_job", json!({})))]
    {
        let (status, answer) = web.answer(method, params, json!({})).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)));
        let required = &answer["error"]["data"]["requiredCapabilities"]["extensions"];
        assert!(required.get("io.modelcontextprotocol/tasks").is_some());
    }
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = json!({"taskId": "x", "inputResponses": {}});
        let (status, answer) = web.answer(method, params, tasks()).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
    }
}

#[tokio::test]
async fn a_listener_hears_of_the_tasks_it_names() {
    let mut web = Web::of(Kind::Suite, Offered::All).await;
    let id = web.begin("confirm_delete", json!({})).await;
    web.until(&id, "input_required").await;
    let wish = json!({"notifications": {"taskIds": [id, "unknown"]}});
    let mut events = Events::of(web.modern("subscriptions/listen", wish, tasks()).await);
    let first = events.next().await.unwrap();
    assert_eq!(first["params"]["notifications"], json!({"taskIds": [id]}));
    web.task("tasks/cancel", &id).await;
    let told = events.next().await.unwrap();
    assert_eq!(told["method"], "notifications/tasks");
    assert_eq!(told["params"]["status"], "cancelled");
    assert_eq!(told["params"]["_meta"][meta::SUBSCRIPTION_ID], 1);
}
