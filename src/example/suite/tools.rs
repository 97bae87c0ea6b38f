//! Tools that ask nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::call::Call;
use super::super::message::RpcError;
use super::super::question::Question;
use super::super::resources::{LOGO_PNG, TONE_WAV};
use super::super::service::{Change, DEFAULT_LOG_LEVEL};
use super::super::tools::{Arguments, Effect, Tool, ToolError, ToolResult};
use super::Suite;

/// Between notifications.
const PAUSE: Duration = Duration::from_millis(50);
/// Until the answer after a broken stream.
const AWAY: Duration = Duration::from_millis(200);
/// The tool that comes and goes.
const EXTRA: &str = "test_dynamic_tool";

/// Runs one of these tools; `None` if it is none of them.
pub(super) async fn run(
    suite: &Suite,
    call: &Call,
    name: &str,
    arguments: Arguments<'_>,
) -> Option<Result<ToolResult, ToolError>> {
    let blocks = match name {
        "test_simple_text" => vec![text("This is a simple text response for testing.")],
        "test_image_content" => vec![image()],
        "test_audio_content" => {
            vec![json!({"type": "audio", "data": TONE_WAV, "mimeType": "audio/wav"})]
        }
        "test_embedded_resource" => {
            let inside = "This is an embedded resource content.";
            vec![embedded("test://embedded-resource", "text/plain", inside)]
        }
        "test_multiple_content_types" => {
            let inside = r#"{"test":"data","value":123}"#;
            vec![
                text("Multiple content types test:"),
                image(),
                embedded("test://mixed-content-resource", "application/json", inside),
            ]
        }
        "test_error_handling" => {
            let why = "This tool intentionally returns an error for testing";
            return Some(Err(ToolError::Failed(why.to_owned())));
        }
        "json_schema_2020_12_tool" => vec![text(&Value::from(arguments.0.clone()).to_string())],
        "test_x_mcp_header" => match arguments.text("region") {
            Ok(region) => vec![text(&format!("region={region}"))],
            Err(why) => return Some(Err(why)),
        },
        EXTRA if suite.extra_tool.load(Ordering::Acquire) => vec![text("dynamic")],
        _ => return run_slowly(suite, call, name).await,
    };
    Some(Ok(ToolResult::blocks(blocks)))
}

/// The same for tools that send something on their way.
async fn run_slowly(
    suite: &Suite,
    call: &Call,
    name: &str,
) -> Option<Result<ToolResult, ToolError>> {
    let done = match name {
        "test_tool_with_progress" => progress(call).await,
        "test_tool_with_logging" => log(call).await,
        "test_logging_tool" => call.log(DEFAULT_LOG_LEVEL, json!("one message")).await,
        "test_reconnection" => reconnect(call).await,
        "test_missing_capability" => needs_sampling(call),
        "test_trigger_tool_change" => {
            suite.extra_tool.fetch_xor(true, Ordering::AcqRel);
            call.announce(&[Change::Tools]).await
        }
        "test_trigger_prompt_change" => {
            suite.extra_prompt.fetch_xor(true, Ordering::AcqRel);
            call.announce(&[Change::Prompts]).await
        }
        _ => return None,
    };
    Some(done.map(|()| ToolResult::text(format!("{name} is done"))))
}

async fn progress(call: &Call) -> Result<(), ToolError> {
    call.progress(0, 100).await?;
    for done in [50, 100] {
        call.pause(PAUSE).await?;
        call.progress(done, 100).await?;
    }
    Ok(())
}

async fn log(call: &Call) -> Result<(), ToolError> {
    call.log(DEFAULT_LOG_LEVEL, json!("Tool execution started")).await?;
    for line in ["Tool processing data", "Tool execution completed"] {
        call.pause(PAUSE).await?;
        call.log(DEFAULT_LOG_LEVEL, json!(line)).await?;
    }
    Ok(())
}

async fn reconnect(call: &Call) -> Result<(), ToolError> {
    call.break_stream().await?;
    call.pause(AWAY).await
}

/// The error is one of 2026-07-28, but a gateway before a session needs it, too.
fn needs_sampling(call: &Call) -> Result<(), ToolError> {
    let question = Question::sample("unused", "", 1);
    match call.may_ask(&question) {
        true => Ok(()),
        false => Err(RpcError::capability(&question.required()).into()),
    }
}

/// A block of text.
pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A block with a picture.
pub(super) fn image() -> Value {
    json!({"type": "image", "data": LOGO_PNG, "mimeType": "image/png"})
}

/// A block with a resource.
pub(super) fn embedded(uri: &str, mime: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}})
}

/// A tool's definition; scenarios need no title of its own.
pub(super) fn tool(name: &'static str, description: &'static str, input: Value) -> Tool {
    Tool::new(name, name, Effect::Reads, description, input)
}

/// The schema of a tool without arguments.
pub(super) fn no_arguments() -> Value {
    json!({"type": "object", "properties": {}})
}

impl Suite {
    /// The tool that comes and goes, while it is there.
    pub(super) fn dynamic_tool(&self) -> Option<Tool> {
        let is_there = self.extra_tool.load(Ordering::Acquire);
        is_there.then(|| tool(EXTRA, "Comes and goes", no_arguments()))
    }
}

/// The definitions.
pub(super) fn tools() -> Vec<Tool> {
    let plain = |name, description| tool(name, description, no_arguments());
    vec![
        plain("test_simple_text", "Gives one block of text"),
        plain("test_image_content", "Gives one picture"),
        plain("test_audio_content", "Gives one tone"),
        plain("test_embedded_resource", "Gives one embedded resource"),
        plain("test_multiple_content_types", "Gives a text, a picture and a resource"),
        plain("test_error_handling", "Always gives an error"),
        plain("test_tool_with_progress", "Reports progress 0, 50 and 100 of 100"),
        plain("test_tool_with_logging", "Sends three log messages while it runs"),
        plain("test_logging_tool", "Sends one log message, if the request asks for such"),
        plain("test_reconnection", "Breaks the response stream and answers on the resumed one"),
        plain("test_missing_capability", "Refuses a client that did not declare sampling"),
        plain("test_trigger_tool_change", "Changes the list of tools"),
        plain("test_trigger_prompt_change", "Changes the list of prompts"),
        tool("test_x_mcp_header", "Has an argument that a header repeats", mirrored()),
        tool("json_schema_2020_12_tool", "Has a schema of the 2020-12 dialect", schema_2020_12()),
    ]
}

fn mirrored() -> Value {
    let region = json!({"type": "string", "description": "A region", "x-mcp-header": "Region"});
    json!({"type": "object", "properties": {"region": region}, "required": ["region"]})
}

fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {
            "properties": {"contactMethod": {"const": "phone"}},
            "required": ["contactMethod"],
        },
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
