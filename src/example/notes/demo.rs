//! Tools that need no notes: each shows one thing that an MCP server can do.

use std::time::Duration;

use serde_json::{Number, Value, json};

use super::super::call::Call;
use super::super::question::{Question, fields};
use super::super::resources::{LOGO_PNG, TONE_WAV};
use super::super::revision::Revision;
use super::super::tools::{Arguments, Effect, Tool, ToolError, ToolResult, nothing, object};

/// Bytes of `payload`, at most.
const MAX_PAYLOAD: u64 = 16 * 1024 * 1024;
/// Steps of `slow`, at most.
const MAX_STEPS: u64 = 1000;
/// Milliseconds of one step of `slow`, at most.
const MAX_DELAY_MS: u64 = 60_000;

/// Runs one of these tools.
pub(super) async fn run(
    call: &Call,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<ToolResult, ToolError> {
    match name {
        "add" => {
            let sum = add(arguments.number("a")?, arguments.number("b")?);
            let sum = sum.ok_or_else(|| ToolError::Failed("the sum is out of range".to_owned()))?;
            Ok(ToolResult::text(sum.to_string()))
        }
        "slow" => slow(call, arguments).await,
        "fail" => Err(ToolError::Failed(
            arguments.text_or("message", "this tool always fails")?.to_owned(),
        )),
        "media" => Ok(media(call.revision())),
        "payload" => payload(arguments),
        "log_something" => log_something(call, arguments).await,
        "summarize" => summarize(call, arguments).await,
        "ask_user" => ask_user(call, arguments).await,
        "list_roots" => list_roots(call).await,
        _ => Err(ToolError::Unknown),
    }
}

/// Exact for integers that fit, else as floating point.
fn add(a: &Number, b: &Number) -> Option<Number> {
    let exact = a.as_i64().zip(b.as_i64()).and_then(|(a, b)| a.checked_add(b));
    exact.map(Number::from).or_else(|| Number::from_f64(a.as_f64()? + b.as_f64()?))
}

async fn slow(call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let steps = arguments.whole_or("steps", 5, MAX_STEPS)?;
    let delay = Duration::from_millis(arguments.whole_or("delay_ms", 100, MAX_DELAY_MS)?);
    for step in 1..=steps {
        call.pause(delay).await?;
        call.progress(step, steps).await?;
    }
    Ok(ToolResult::text(format!("done after {steps} steps")))
}

fn media(revision: Revision) -> ToolResult {
    let mut blocks = vec![
        json!({"type": "text", "text": "a picture, a tone, a resource and a link"}),
        json!({"type": "image", "data": LOGO_PNG, "mimeType": "image/png"}),
    ];
    if revision >= Revision::V2025_03_26 {
        blocks.push(json!({"type": "audio", "data": TONE_WAV, "mimeType": "audio/wav"}));
    }
    let resource = json!({"uri": "notes://embedded", "mimeType": "text/plain", "text": "inside"});
    blocks.push(json!({"type": "resource", "resource": resource}));
    if revision >= Revision::V2025_06_18 {
        let (uri, name) = ("notes://2", "note-2");
        blocks.push(
            json!({"type": "resource_link", "uri": uri, "name": name, "mimeType": "text/plain"}),
        );
    }
    ToolResult::blocks(blocks)
}

fn payload(arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let bytes = arguments.whole_or("bytes", 1024, MAX_PAYLOAD)? as usize;
    const LINE: &str = "abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ.";
    let mut text = LINE.repeat(bytes.div_ceil(LINE.len()));
    text.truncate(bytes);
    Ok(ToolResult::text(text))
}

async fn log_something(call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let message = arguments.text_or("message", "something happened")?;
    // Info, warning, error: all three pass until the client sets a level.
    for level in [1, 3, 4] {
        call.log(level, json!(message)).await?;
    }
    Ok(ToolResult::text("logged three messages"))
}

async fn summarize(call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let text = arguments.text("text")?;
    let text = format!("Summarize in one sentence:\n\n{text}");
    let mut question = Question::sample("summary", &text, 200);
    question.params["systemPrompt"] = json!("You write short summaries.");
    let result = call.ask(question).await?;
    // One block, or since 2025-11-25 possibly several.
    let blocks = match &result["content"] {
        Value::Array(blocks) => blocks.as_slice(),
        block => std::slice::from_ref(block),
    };
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    if texts.is_empty() {
        return Err(ToolError::Failed("the client's model answered without text".to_owned()));
    }
    Ok(ToolResult::text(texts.join("\n")))
}

async fn ask_user(call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let message = arguments.text_or("message", "What should the note be called?")?;
    let schema = fields(
        json!({
            "title": {"type": "string", "title": "Title", "minLength": 1, "maxLength": 80},
            "pinned": {"type": "boolean", "title": "Keep it on top", "default": false},
        }),
        &["title"],
    );
    let result = call.ask(Question::form("title", message, schema)).await?;
    match result["action"].as_str() {
        Some("accept") => Ok(ToolResult::text(format!("accept: {}", result["content"]))),
        Some(action @ ("decline" | "cancel")) => Ok(ToolResult::text(action)),
        _ => Err(ToolError::Failed("the client's answer has no known action".to_owned())),
    }
}

async fn list_roots(call: &Call) -> Result<ToolResult, ToolError> {
    let result = call.ask(Question::roots("roots")).await?;
    let roots = result["roots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let uris: Vec<&str> = roots.iter().filter_map(|root| root["uri"].as_str()).collect();
    Ok(ToolResult::text(if uris.is_empty() { "no roots".to_owned() } else { uris.join("\n") }))
}

/// The definitions.
pub(super) fn tools() -> Vec<Tool> {
    let number = json!({"type": "number"});
    let text = |description: &str| json!({"type": "string", "description": description});
    let whole = |default: u64, most: u64| json!({"type": "integer", "minimum": 0, "maximum": most, "default": default});
    vec![
        Tool::new(
            "add",
            "Add",
            Effect::Reads,
            "Adds two numbers",
            object(json!({"a": number, "b": number}), &["a", "b"]),
        ),
        Tool::new(
            "slow",
            "Take time",
            Effect::Reads,
            "Takes a number of steps with a pause before each and reports progress; can be cancelled",
            object(
                json!({"steps": whole(5, MAX_STEPS), "delay_ms": whole(100, MAX_DELAY_MS)}),
                &[],
            ),
        ),
        Tool::new(
            "fail",
            "Fail",
            Effect::Reads,
            "Always gives an error",
            object(json!({"message": text("Text of the error")}), &[]),
        ),
        Tool::new(
            "media",
            "Show media",
            Effect::Reads,
            "Gives a text, an image, a tone, an embedded resource and a link to one",
            nothing(),
        ),
        Tool::new(
            "payload",
            "Make text",
            Effect::Reads,
            "Gives a text of a certain size",
            object(json!({"bytes": whole(1024, MAX_PAYLOAD)}), &[]),
        ),
        Tool::new(
            "log_something",
            "Log something",
            Effect::Reads,
            "Sends three log messages: info, warning, error",
            object(json!({"message": text("What to log")}), &[]),
        ),
        Tool::new(
            "summarize",
            "Summarize",
            Effect::Asks,
            "Lets the client's model summarize a text",
            object(json!({"text": text("What to summarize")}), &["text"]),
        ),
        Tool::new(
            "ask_user",
            "Ask the user",
            Effect::Asks,
            "Asks the user for a title and reports the answer",
            object(json!({"message": text("The question")}), &[]),
        ),
        Tool::new(
            "list_roots",
            "List roots",
            Effect::Asks,
            "Lists the folders that the client has opened",
            nothing(),
        ),
    ]
}
