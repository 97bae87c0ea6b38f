//! Tools of the notes: the table, and those that work on notes.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::super::call::Call;
use super::super::echo;
use super::super::service::Change;
use super::super::tools::{Arguments, Effect, Tool, ToolError, ToolResult, nothing, object};
use super::resources::note_uri;
use super::{Notes, demo, grown_name, report};

impl Notes {
    /// All tools of this kind.
    pub(in super::super) fn tools(&self) -> Vec<Tool> {
        let grown = (1..=self.grown()).map(|n| Tool {
            name: Cow::Owned(grown_name(n)),
            ..Tool::new("", "A grown tool", Effect::Reads, "Grown while the server ran", nothing())
        });
        let fixed = note_tools().into_iter().chain([report::tool(), echo::tool()]);
        fixed.chain(demo::tools()).chain(grown).collect()
    }

    /// Runs a tool.
    pub(in super::super) async fn call(
        &self,
        call: &Call,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Result<ToolResult, ToolError> {
        match name {
            "note_add" => self.add(call, arguments).await,
            "note_list" => self.list(arguments),
            "note_get" => self.note(arguments),
            "note_delete" => self.delete(call, arguments).await,
            "stats" => Ok(ToolResult::structured(self.stats())),
            "grow" => self.grow_one(call).await,
            report::NAME => self.report(call, arguments).await,
            "echo" => echo::run(arguments),
            _ if self.has_grown(name) => Ok(ToolResult::text(format!("{name} says hello"))),
            _ => demo::run(call, name, arguments).await,
        }
    }

    async fn add(&self, call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let (title, text) = (arguments.text("title")?, arguments.text("text")?);
        let added = self.store.lock().add(title, text);
        let id = added.map_err(|why| ToolError::Failed(why.to_string()))?;
        call.announce(&[Change::Resources]).await?;
        Ok(ToolResult::text(format!("added note {id}")))
    }

    fn list(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let find = arguments.text_or("find", "")?.to_lowercase();
        let limit = arguments.whole_or("limit", 20, 1000)?;
        let store = self.store.lock();
        let found: Vec<_> = store
            .iter()
            .filter(|(_, note)| note.title.to_lowercase().contains(&find))
            .map(|(id, note)| format!("{id}\t{}", note.title))
            .collect();
        let shown = found.len().min(limit as usize);
        let mut text = found[..shown].join("\n");
        if shown < found.len() {
            text += &format!("\n({} more)", found.len() - shown);
        }
        Ok(ToolResult::text(text))
    }

    fn note(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let id = arguments.whole("id", u64::MAX)?;
        let store = self.store.lock();
        let note = store.note(id).ok_or_else(|| no_note(id))?;
        Ok(ToolResult::text(format!("{}\n\n{}", note.title, note.text)))
    }

    async fn delete(&self, call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let id = arguments.whole("id", u64::MAX)?;
        let removed = self.store.lock().remove(id);
        let note = removed.ok_or_else(|| no_note(id))?;
        call.announce(&[Change::Resources, Change::Updated(note_uri(id))]).await?;
        Ok(ToolResult::text(format!("deleted note {id}: {}", note.title)))
    }

    fn stats(&self) -> Value {
        let store = self.store.lock();
        let words = |text: &str| text.split_whitespace().count();
        let longest = store.iter().max_by_key(|(_, note)| note.text.len());
        json!({
            "notes": store.iter().count(),
            "words": store.iter().map(|(_, note)| words(&note.text)).sum::<usize>(),
            "longest": longest.map(|(id, note)| json!({"id": id, "title": note.title})),
        })
    }

    async fn grow_one(&self, call: &Call) -> Result<ToolResult, ToolError> {
        let grown = self.grow();
        let number = grown.ok_or_else(|| ToolError::Failed("it is tall enough".to_owned()))?;
        self.store.lock().rewrite(1, format!("{number} tools have grown so far."));
        let changes =
            [Change::Tools, Change::Prompts, Change::Resources, Change::Updated(note_uri(1))];
        call.announce(&changes).await?;
        Ok(ToolResult::text(format!("{} is there now", grown_name(number))))
    }
}

fn no_note(id: u64) -> ToolError {
    ToolError::Failed(format!("there is no note {id}"))
}

fn note_tools() -> Vec<Tool> {
    let id = json!({"type": "integer", "minimum": 1, "description": "Number of the note"});
    vec![
        Tool::new(
            "note_add",
            "Add a note",
            Effect::Adds,
            "Adds a note and says its number",
            object(
                json!({
                    "title": {"type": "string", "description": "One line"},
                    "text": {"type": "string", "description": "The note itself"},
                }),
                &["title", "text"],
            ),
        ),
        Tool::new(
            "note_list",
            "List notes",
            Effect::Reads,
            "Lists numbers and titles of notes",
            object(
                json!({
                    "find": {"type": "string", "description": "Only titles that contain this"},
                    "limit": {"type": "integer", "minimum": 0, "maximum": 1000, "default": 20},
                }),
                &[],
            ),
        ),
        Tool::new(
            "note_get",
            "Read a note",
            Effect::Reads,
            "Gives title and text of a note",
            object(json!({"id": id}), &["id"]),
        ),
        Tool::new(
            "note_delete",
            "Delete a note",
            Effect::Destroys,
            "Deletes a note for good",
            object(json!({"id": id}), &["id"]),
        ),
        Tool::new(
            "stats",
            "Count notes",
            Effect::Reads,
            "Counts notes and words; the result is structured",
            nothing(),
        )
        .with_output(stats_schema()),
        Tool::new(
            "grow",
            "Grow a tool",
            Effect::Adds,
            "Adds a tool, a prompt and a resource, and tells all clients that the lists have changed",
            nothing(),
        ),
    ]
}

fn stats_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "notes": {"type": "integer", "minimum": 0},
            "words": {"type": "integer", "minimum": 0},
            "longest": {
                "type": ["object", "null"],
                "properties": {"id": {"type": "integer"}, "title": {"type": "string"}},
                "required": ["id", "title"],
            },
        },
        "required": ["notes", "words", "longest"],
    })
}
