//! Prompts of the notes, and the values their arguments may take.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::completion::Reference;
use super::super::message::RpcError;
use super::super::prompts::{Prompt, PromptArgument, argument, user_resource, user_text};
use super::resources::note_uri;
use super::{Notes, grown_name};

const TONES: [&str; 5] = ["brief", "cheerful", "formal", "friendly", "plain"];
const TOPICS: [&str; 4] = ["garden", "groceries", "meeting", "travel"];

impl Notes {
    /// All prompts of this kind.
    pub(in super::super) fn prompts(&self) -> Vec<Prompt> {
        let draft = Prompt {
            name: Cow::Borrowed("draft_note"),
            title: "Draft a note",
            description: "Asks for a note on a topic",
            arguments: vec![
                PromptArgument {
                    name: "topic",
                    description: "What the note is about",
                    required: true,
                },
                PromptArgument {
                    name: "tone",
                    description: "How it should sound; plain by default",
                    required: false,
                },
            ],
        };
        let review = Prompt {
            name: Cow::Borrowed("review_note"),
            title: "Review a note",
            description: "Asks for a review of a note, which is embedded",
            arguments: vec![PromptArgument {
                name: "id",
                description: "Number of the note",
                required: true,
            }],
        };
        let grown = (1..=self.grown()).map(|n| Prompt {
            name: Cow::Owned(grown_name(n)),
            title: "A grown prompt",
            description: "Grown while the server ran",
            arguments: Vec::new(),
        });
        [draft, review].into_iter().chain(grown).collect()
    }

    /// The messages of a prompt.
    pub(in super::super) fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Value>, RpcError> {
        match name {
            "draft_note" => {
                let topic = argument(arguments, "topic", "");
                let tone = argument(arguments, "tone", "plain");
                let text = format!("Write a short note about {topic}, in a {tone} tone.");
                Ok(vec![user_text(text)])
            }
            "review_note" => {
                let id = argument(arguments, "id", "");
                let note = id.parse().ok().and_then(|id| self.read(&note_uri(id)));
                let note =
                    note.ok_or_else(|| RpcError::params(format!("there is no note {id}")))?;
                Ok(vec![user_resource(&note), user_text("Review this note. Is anything unclear?")])
            }
            grown => Ok(vec![user_text(format!("Greet {grown}."))]),
        }
    }

    /// All values that an argument or a template's variable may take.
    pub(in super::super) fn candidates(
        &self,
        reference: &Reference<'_>,
        argument: &str,
    ) -> Vec<String> {
        let list = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        match (reference, argument) {
            (Reference::Prompt("draft_note"), "topic") => list(&TOPICS),
            (Reference::Prompt("draft_note"), "tone") => list(&TONES),
            (Reference::Prompt("review_note"), "id") | (Reference::Template, "id") => {
                self.store.lock().iter().map(|(id, _)| id.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }
}
