//! The prompt of the files, and the values its argument may take.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::completion::Reference;
use super::super::message::RpcError;
use super::super::prompts::{Prompt, PromptArgument, argument, user_resource, user_text};
use super::Files;
use super::path::{normalize, to_uri};

impl Files {
    /// All prompts of this kind.
    pub(in super::super) fn prompts() -> Vec<Prompt> {
        let path = PromptArgument { name: "path", description: "Path of the file", required: true };
        let focus = PromptArgument {
            name: "focus",
            description: "What to look at most closely; clarity by default",
            required: false,
        };
        vec![Prompt {
            name: Cow::Borrowed("review_file"),
            title: "Review a file",
            description: "Asks for a review of a file, which is embedded",
            arguments: vec![path, focus],
        }]
    }

    /// The messages of `review_file`.
    pub(in super::super) fn prompt(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Value>, RpcError> {
        let path = argument(arguments, "path", "");
        let focus = argument(arguments, "focus", "clarity");
        let normal = normalize(path).map_err(|why| RpcError::params(why.to_string()))?;
        let file = self.read(&to_uri(&normal));
        let file = file.ok_or_else(|| RpcError::params(format!("there is no file {path}")))?;
        let question = format!("Review this file. Look most closely at {focus}.");
        Ok(vec![user_resource(&file), user_text(question)])
    }

    /// All values that an argument or the template's variable may take.
    pub(in super::super) fn candidates(
        &self,
        reference: &Reference<'_>,
        argument: &str,
    ) -> Vec<String> {
        match (reference, argument) {
            (_, "path") => self.tree.lock().below("").map(|(path, _)| path.to_owned()).collect(),
            (Reference::Prompt(_), "focus") => {
                ["clarity", "correctness", "spelling"].map(str::to_owned).into()
            }
            _ => Vec::new(),
        }
    }
}
