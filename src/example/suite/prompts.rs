//! Prompts, and what their arguments may be.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};

use super::super::call::Call;
use super::super::completion::Reference;
use super::super::prompts::{Prompt, PromptArgument, argument, user_text};
use super::super::question::{Question, Round};
use super::super::tools::ToolError;
use super::Suite;
use super::tools::{embedded, image};

/// The prompt that comes and goes.
const EXTRA: &str = "test_dynamic_prompt";

fn prompt(name: &'static str, description: &'static str, arguments: &[&'static str]) -> Prompt {
    let arguments = arguments.iter().map(|name| PromptArgument {
        name,
        description: "Shown in the prompt",
        required: true,
    });
    Prompt { name: Cow::Borrowed(name), title: name, description, arguments: arguments.collect() }
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

impl Suite {
    /// All prompts of this kind.
    pub(in super::super) fn prompts(&self) -> Vec<Prompt> {
        let mut prompts = vec![
            prompt("test_simple_prompt", "A prompt without arguments", &[]),
            prompt("test_prompt_with_arguments", "A prompt with two arguments", &["arg1", "arg2"]),
            prompt(
                "test_prompt_with_embedded_resource",
                "A prompt with a resource",
                &["resourceUri"],
            ),
            prompt("test_prompt_with_image", "A prompt with a picture", &[]),
            prompt("test_input_required_result_prompt", "A prompt that asks first", &[]),
        ];
        if self.extra_prompt.load(Ordering::Acquire) {
            prompts.push(prompt(EXTRA, "Comes and goes", &[]));
        }
        prompts
    }

    /// The messages of a prompt whose arguments have been checked.
    pub(in super::super) async fn prompt(
        call: &Call,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Value>, ToolError> {
        Ok(match name {
            "test_simple_prompt" => vec![user_text("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => {
                let [one, other] = ["arg1", "arg2"].map(|name| argument(arguments, name, ""));
                let text = format!("Prompt with arguments: arg1='{one}', arg2='{other}'");
                vec![user_text(text)]
            }
            "test_prompt_with_embedded_resource" => {
                let uri = argument(arguments, "resourceUri", "");
                let inside = "Embedded resource content for testing.";
                vec![
                    user(embedded(uri, "text/plain", inside)),
                    user_text("Please process the embedded resource above."),
                ]
            }
            "test_prompt_with_image" => {
                vec![user(image()), user_text("Please analyze the image above.")]
            }
            "test_input_required_result_prompt" => {
                let message = "What context should the prompt use?";
                let question = Question::field("user_context", message, "context", "string");
                let answers = call.ask_all(Round::of([question])).await?;
                let texts = answers.iter().map(|answer| {
                    user_text(format!("Use this context: {}", answer["content"]["context"]))
                });
                texts.collect()
            }
            _ => vec![user_text("dynamic")],
        })
    }

    /// All values that an argument or the template's variable may take.
    pub(in super::super) fn candidates(_reference: &Reference<'_>) -> Vec<String> {
        ["paris", "park", "party", "test-value"].map(str::to_owned).into()
    }
}
