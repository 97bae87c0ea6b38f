//! Tools that ask the client.

use serde_json::{Value, json};

use super::super::call::Call;
use super::super::question::{Question, Round, fields};
use super::super::tools::{Arguments, Tool, ToolError, ToolResult};
use super::tools::{no_arguments, tool};

/// Runs one of these tools.
pub(super) async fn run(
    call: &Call,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<ToolResult, ToolError> {
    let text = match name {
        "test_sampling" => {
            let question = Question::sample("completion", arguments.text("prompt")?, 100);
            format!("LLM response: {}", one(call, question).await?["content"]["text"])
        }
        "test_elicitation" => {
            let question =
                Question::form("form", arguments.text("message")?, two_texts("username", "email"));
            format!("User response: {}", filled(&one(call, question).await?))
        }
        "test_elicitation_sep1034_defaults" => {
            let question = Question::form("form", "Please review the form", defaults());
            format!("Elicitation completed: {}", filled(&one(call, question).await?))
        }
        "test_elicitation_sep1330_enums" => {
            let question = Question::form("form", "Please choose", enums());
            format!("Elicitation completed: {}", filled(&one(call, question).await?))
        }
        "test_streaming_elicitation" => {
            let question = Question::field("who", "Who are you?", "name", "string");
            format!("Hello, {}!", one(call, question).await?["content"]["name"])
        }
        _ => by_result(call, name).await?,
    };
    Ok(ToolResult::text(text))
}

/// Tools that show `input_required`.
async fn by_result(call: &Call, name: &str) -> Result<String, ToolError> {
    let name = name.strip_prefix("test_input_required_result_").ok_or(ToolError::Unknown)?;
    Ok(match name {
        "elicitation" => {
            format!("Hello, {}!", one(call, user_name()).await?["content"]["name"])
        }
        "sampling" => {
            let question =
                Question::sample("capital_question", "What is the capital of France?", 100);
            format!("The model said: {}", one(call, question).await?["content"])
        }
        "list_roots" => {
            format!("Roots: {}", one(call, Question::roots("client_roots")).await?["roots"])
        }
        "request_state" | "tampered_state" => {
            // A state that was changed is told before anything else is missed.
            call.kept()?;
            let question = Question::field("confirm", "Please confirm", "ok", "boolean");
            call.ask_all(Round::of([question]).keeping("confirm")).await?;
            "state-ok".to_owned()
        }
        "multiple_inputs" => {
            let greeting = Question::sample("greeting", "Generate a greeting", 50);
            let round = Round::of([user_name(), greeting, Question::roots("client_roots")]);
            let answers = call.ask_all(round.keeping("multiple")).await?;
            format!("Got {} inputs", answers.len())
        }
        "multi_round" => multi_round(call).await?,
        "capabilities" => capabilities(call).await?,
        _ => return Err(ToolError::Unknown),
    })
}

/// Asks one question that needs no state.
async fn one(call: &Call, question: Question) -> Result<Value, ToolError> {
    Ok(call.ask_all(Round::of([question])).await?.pop().unwrap_or_default())
}

fn user_name() -> Question {
    Question::field("user_name", "What is your name?", "name", "string")
}

/// Asks twice; the second state holds what the first answer was.
async fn multi_round(call: &Call) -> Result<String, ToolError> {
    let text = |key, message, name| Question::field(key, message, name, "string");
    let kept = call.kept()?.and_then(|state| state.strip_prefix("name ").map(str::to_owned));
    let name = match kept {
        Some(name) => name,
        None => {
            let question = text("step1", "Step 1: What is your name?", "name");
            let answers = call.ask_all(Round::of([question]).keeping("first")).await?;
            answers.iter().map(|answer| answer["content"]["name"].to_string()).collect()
        }
    };
    let question = text("step2", "Step 2: What is your favorite color?", "color");
    let state = format!("name {name}");
    let answers = call.ask_all(Round::of([question]).keeping(state)).await?;
    let colors: String = answers.iter().map(|one| one["content"]["color"].to_string()).collect();
    Ok(format!("{name} likes {colors}"))
}

/// Asks for what this client can give, and for nothing else.
async fn capabilities(call: &Call) -> Result<String, ToolError> {
    let mut questions = vec![
        Question::field("ask_user", "What is your name?", "name", "string"),
        Question::sample("ask_model", "Say hello", 20),
        Question::roots("ask_roots"),
    ];
    questions.retain(|question| call.may_ask(question));
    let keys: Vec<&str> = questions.iter().map(|question| question.key).collect();
    let asked = format!("asked for: {}", keys.join(", "));
    if !questions.is_empty() {
        call.ask_all(Round::of(questions)).await?;
    }
    Ok(asked)
}

/// What came back from a form.
fn filled(answer: &Value) -> String {
    let content = answer.get("content").cloned().unwrap_or_else(|| json!({}));
    format!("action={}, content={content}", answer["action"].as_str().unwrap_or_default())
}

fn two_texts(one: &str, other: &str) -> Value {
    fields(json!({one: {"type": "string"}, other: {"type": "string"}}), &[one, other])
}

fn defaults() -> Value {
    let properties = json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": true},
    });
    fields(properties, &[])
}

fn enums() -> Value {
    let titled = |labels: [&str; 3]| -> Vec<Value> {
        let numbered = (1..).zip(labels);
        numbered.map(|(n, title)| json!({"const": format!("value{n}"), "title": title})).collect()
    };
    let plain = json!(["option1", "option2", "option3"]);
    let properties = json!({
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {
            "type": "string",
            "oneOf": titled(["First Option", "Second Option", "Third Option"]),
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": titled(["First Choice", "Second Choice", "Third Choice"])},
        },
    });
    fields(properties, &[])
}

/// The definitions.
pub(super) fn tools() -> Vec<Tool> {
    let plain = |name, description| tool(name, description, no_arguments());
    let text = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    vec![
        tool("test_sampling", "Asks the client's model", text("prompt")),
        tool("test_elicitation", "Asks the user for a name and an address", text("message")),
        plain("test_elicitation_sep1034_defaults", "Asks with a default of every type"),
        plain("test_elicitation_sep1330_enums", "Asks with the five kinds of choice"),
        plain("test_streaming_elicitation", "Asks for a name"),
        plain("test_input_required_result_elicitation", "Asks the user once"),
        plain("test_input_required_result_sampling", "Asks the model once"),
        plain("test_input_required_result_list_roots", "Asks for the roots once"),
        plain("test_input_required_result_request_state", "Lets the client carry a state"),
        plain("test_input_required_result_tampered_state", "Refuses a state that was changed"),
        plain("test_input_required_result_multiple_inputs", "Asks for three things at once"),
        plain("test_input_required_result_multi_round", "Asks twice, one after the other"),
        plain("test_input_required_result_capabilities", "Asks for what the client declared"),
    ]
}
