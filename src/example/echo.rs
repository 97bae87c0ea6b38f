//! The tool `echo`, which both kinds have: so that names clash where both stand behind one gateway.

use serde_json::json;

use super::tools::{Arguments, Effect, Tool, ToolError, ToolResult, object};

/// The definition.
pub(super) fn tool() -> Tool {
    let message = json!({"message": {"type": "string", "description": "Any text"}});
    Tool::new(
        "echo",
        "Echo",
        Effect::Reads,
        "Gives the message back",
        object(message, &["message"]),
    )
}

/// Gives the message back.
pub(super) fn run(arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    Ok(ToolResult::text(arguments.text("message")?))
}
