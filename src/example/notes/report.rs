//! The long job of the notes: a report, section by section, after a question if so wished.

use std::time::Duration;

use serde_json::json;

use super::super::call::Call;
use super::super::question::Question;
use super::super::tools::{Arguments, Effect, Tool, ToolError, ToolResult, object};
use super::Notes;

/// The tool's name.
pub(super) const NAME: &str = "report";
/// Milliseconds of one section, at most.
const MAX_DELAY_MS: u64 = 60_000;
/// Notes of one section.
const SECTION: usize = 30;

impl Notes {
    /// Writes the report.
    pub(super) async fn report(
        &self,
        call: &Call,
        arguments: Arguments<'_>,
    ) -> Result<ToolResult, ToolError> {
        let delay = Duration::from_millis(arguments.whole_or("delay_ms", 100, MAX_DELAY_MS)?);
        let with_titles = match arguments.flag_or("ask", false)? {
            true => {
                let question =
                    Question::field("titles", "List all titles, too?", "titles", "boolean");
                call.ask(question).await?["content"]["titles"] == true
            }
            false => false,
        };
        let titles: Vec<String> =
            self.store.lock().iter().map(|(_, note)| note.title.clone()).collect();
        let sections: Vec<&[String]> = titles.chunks(SECTION).collect();
        let mut report = format!("{} notes in {} sections", titles.len(), sections.len());
        for (done, section) in (1..).zip(&sections) {
            call.pause(delay).await?;
            call.progress(done, sections.len() as u64).await?;
            if with_titles {
                report += &format!("\n\nSection {done}\n{}", section.join("\n"));
            }
        }
        Ok(ToolResult::text(report))
    }
}

/// The definition.
pub(super) fn tool() -> Tool {
    let delay = json!({"type": "integer", "minimum": 0, "maximum": MAX_DELAY_MS, "default": 100});
    let ask = json!({
        "type": "boolean",
        "default": false,
        "description": "Ask the user whether to list all titles",
    });
    Tool::new(
        NAME,
        "Report on the notes",
        Effect::Asks,
        "Reports on all notes, section by section, which takes a while; a task where the client knows such",
        object(json!({"delay_ms": delay, "ask": ask}), &[]),
    )
}
