//! Long jobs, which are tasks where the client knows tasks.

use std::time::Duration;

use serde_json::json;

use super::super::call::Call;
use super::super::message::{INTERNAL_ERROR, RpcError};
use super::super::question::{Question, Round};
use super::super::tasks::Job;
use super::super::tools::{Arguments, Tool, ToolError, ToolResult};
use super::tools::{no_arguments, tool};

/// Seconds of `slow_compute`, at most.
const MAX_SECONDS: u64 = 600;
/// How long those take that have no time of their own.
const PAUSE: Duration = Duration::from_millis(100);

/// How a tool becomes a task, if it is a long job.
pub(super) fn job(name: &str) -> Option<Job> {
    Some(match name {
        "slow_compute" | "protocol_error_job" | "confirm_delete" | "multi_input" => Job::Optional,
        "failing_job" => Job::Required,
        "test_tool_with_task" => Job::AfterAsking,
        _ => return None,
    })
}

/// Runs one of these tools; `None` if it is none of them.
pub(super) async fn run(
    call: &Call,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<ToolResult, ToolError>> {
    let done = match name {
        "greet" => arguments.text_or("name", "world").map(|name| format!("Hello, {name}!")),
        "slow_compute" => compute(call, arguments).await,
        "failing_job" => after_a_while(call, ToolError::Failed("this job fails".to_owned())).await,
        "protocol_error_job" => {
            let why = RpcError::new(INTERNAL_ERROR, "this job ends with an error");
            after_a_while(call, why.into()).await
        }
        "confirm_delete" => delete(call, arguments).await,
        "multi_input" => {
            let questions =
                [confirm("first", "Do the first?"), confirm("second", "And the other?")];
            let answers = call.ask_all(Round::of(questions)).await;
            answers.map(|answers| format!("got {} answers", answers.len()))
        }
        "test_tool_with_task" => greet_by_name(call).await,
        _ => return None,
    };
    Some(done.map(ToolResult::text))
}

async fn compute(call: &Call, arguments: Arguments<'_>) -> Result<String, ToolError> {
    let seconds = arguments.whole_or("seconds", 1, MAX_SECONDS)?;
    call.pause(Duration::from_secs(seconds)).await?;
    Ok(format!("computed for {seconds} seconds"))
}

async fn after_a_while(call: &Call, why: ToolError) -> Result<String, ToolError> {
    call.pause(PAUSE).await?;
    Err(why)
}

async fn delete(call: &Call, arguments: Arguments<'_>) -> Result<String, ToolError> {
    let file = arguments.text_or("filename", "a file")?;
    let answers = call.ask_all(Round::of([confirm("confirm", &format!("Delete {file}?"))])).await?;
    let confirmed = answers.iter().all(|answer| answer["content"]["confirm"] == true);
    Ok(format!("{} {file}", if confirmed { "deleted" } else { "kept" }))
}

async fn greet_by_name(call: &Call) -> Result<String, ToolError> {
    let question = Question::field("user_name", "What is your name?", "name", "string");
    let answers = call.ask_all(Round::of([question])).await?;
    call.pause(PAUSE).await?;
    let names = answers.iter().map(|answer| format!("Hello, {}!", answer["content"]["name"]));
    Ok(names.collect())
}

fn confirm(key: &'static str, message: &str) -> Question {
    Question::field(key, message, "confirm", "boolean")
}

/// The definitions.
pub(super) fn tools() -> Vec<Tool> {
    let plain = |name, description| tool(name, description, no_arguments());
    let taking =
        |name: &str, kind: &str| json!({"type": "object", "properties": {name: {"type": kind}}});
    vec![
        tool("greet", "Says hello at once", taking("name", "string")),
        tool(
            "slow_compute",
            "Takes some seconds",
            json!({
                "type": "object",
                "properties": {
                    "seconds": {"type": "integer", "minimum": 0, "maximum": MAX_SECONDS},
                    "label": {"type": "string"},
                },
            }),
        ),
        plain("failing_job", "Fails after a while; only as a task"),
        plain("protocol_error_job", "Ends with an error of the protocol"),
        tool("confirm_delete", "Asks before it does anything", taking("filename", "string")),
        plain("multi_input", "Asks for two things at once"),
        plain("test_tool_with_task", "Asks for a name, then takes a moment"),
    ]
}
