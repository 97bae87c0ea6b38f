//! What the tools do. Each takes `key`, by which the test finds in the journal what happened.

use std::time::Duration;

use serde_json::{Value, json};

use super::journal::locked;
use super::serve::{Asked, Stop};
use super::{Exchange, Failure, LEVELS, META};

fn said(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

impl Exchange {
    /// Runs a tool that is offered.
    pub(super) async fn run(&self, name: &str) -> Result<Value, Stop> {
        let args = &self.params["arguments"];
        Ok(match name {
            // {text}: the text.
            "echo" => said(args["text"].as_str().unwrap_or_default()),
            // Three notifications, then an answer.
            "progress" => self.progress(),
            // No answer before it is cancelled.
            "slow" => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                said("slept")
            }
            // An error that the model is to see.
            "fails" => {
                let mut result = said("it failed");
                result["isError"] = json!(true);
                result
            }
            // Structured content without a text.
            "structured" => {
                json!({"content": [], "structuredContent": {"n": 1, "all": [1, "two"]}})
            }
            // The same, no object.
            "array" => json!({"content": [], "structuredContent": [1, 2, 3]}),
            // A block of each type that the revision has.
            "media" => self.media(),
            "ask_sampling" => said(&self.ask_sampling(0).await?),
            // Asks for a name by a form.
            "ask_elicit" => said(&self.ask_elicit().await?),
            // Asks the user to open a page.
            "ask_url" => said(&self.ask_url().await?),
            "ask_roots" => said(&self.ask_roots(0).await?),
            // Two questions, one after the other.
            "ask_twice" => {
                let first = self.ask_sampling(0).await?;
                said(&format!("{first}, {}", self.ask_roots(1).await?))
            }
            // A message at each of four levels, then an answer.
            "logs" => self.logs(),
            // One more tool, announced.
            "change" => {
                self.scene.journal.write(&json!({"event": "changed", "key": args["key"]}));
                said("changed")
            }
            // {uri}: announces that the resource changed.
            "update" => {
                self.scene.journal.write(&json!({"event": "updated", "uri": args["uri"]}));
                said("updated")
            }
            // Wants a capability that nobody declares.
            "demands" => {
                let mut failure = Failure::new(-32021, "sampling with tools is needed");
                failure.data = json!({"requiredCapabilities": {"sampling": {"tools": {}}}});
                return Err(failure.into());
            }
            // One question after the other.
            "endless" => {
                let mut round = 0;
                loop {
                    self.ask_sampling(round).await?;
                    round += 1;
                }
            }
            _ => said(name),
        })
    }

    fn progress(&self) -> Value {
        let token = &self.params["_meta"]["progressToken"];
        if !token.is_null() {
            for step in 1..=3 {
                let mut params = json!({"progressToken": token, "progress": step, "total": 3});
                if self.scene.since("2025-03-26") {
                    params["message"] = json!(format!("step {step}"));
                }
                self.say("notifications/progress", params);
            }
        }
        said("progressed")
    }

    fn media(&self) -> Value {
        let mut blocks = vec![
            json!({"type": "text", "text": "a text"}),
            json!({"type": "image", "data": "AAEC", "mimeType": "image/png"}),
            json!({"type": "resource", "resource": {"uri": "memo://2024-11-05", "text": "t"}}),
        ];
        if self.scene.since("2025-03-26") {
            blocks.push(json!({"type": "audio", "data": "AwQF", "mimeType": "audio/wav"}));
        }
        if self.scene.since("2025-06-18") {
            let link = json!({"type": "resource_link", "uri": "memo://2025-03-26", "name": "link"});
            blocks.push(link);
        }
        json!({ "content": blocks })
    }

    fn logs(&self) -> Value {
        let asked = &self.params["_meta"][format!("{META}logLevel")];
        let least = if self.scene.is_modern() {
            LEVELS.iter().position(|level| asked == level)
        } else {
            Some(locked(&self.hop.level).unwrap_or(0))
        };
        let data = &self.params["arguments"]["key"];
        for (rank, level) in LEVELS.iter().enumerate().take(5).filter(|(rank, _)| *rank != 2) {
            if least.is_some_and(|least| rank >= least) {
                let params = json!({"level": level, "logger": "scene", "data": data});
                self.say("notifications/message", params);
            }
        }
        said("logged")
    }

    pub(super) async fn ask_sampling(&self, round: usize) -> Result<String, Stop> {
        let content = json!({"type": "text", "text": "Say hi."});
        let messages = json!([{"role": "user", "content": content}]);
        let params = json!({"messages": messages, "maxTokens": 10});
        let asked = self.ask(round, "sampling/createMessage", params).await?;
        Ok(told(&asked, |answer| {
            format!("sampled {}", answer["content"]["text"].as_str().unwrap_or("nothing"))
        }))
    }

    async fn ask_elicit(&self) -> Result<String, Stop> {
        let properties = json!({"name": {"type": "string"}});
        let schema = json!({"type": "object", "properties": properties, "required": ["name"]});
        let params = json!({"message": "Your name?", "requestedSchema": schema});
        let asked = self.ask(0, "elicitation/create", params).await?;
        Ok(told(&asked, action))
    }

    async fn ask_url(&self) -> Result<String, Stop> {
        let mut params =
            json!({"mode": "url", "message": "Log in.", "url": "https://example.org/in?x=%2f"});
        if !self.scene.is_modern() {
            params["elicitationId"] = json!(format!("e {}", self.scene.next()));
        }
        let asked = self.ask(0, "elicitation/create", params).await?;
        Ok(told(&asked, action))
    }

    async fn ask_roots(&self, round: usize) -> Result<String, Stop> {
        let asked = self.ask(round, "roots/list", json!({})).await?;
        Ok(told(&asked, |answer| {
            format!("rooted {}", answer["roots"][0]["uri"].as_str().unwrap_or("nowhere"))
        }))
    }
}

fn action(answer: &Value) -> String {
    let action = answer["action"].as_str().unwrap_or("nothing");
    match answer["content"]["name"].as_str() {
        Some(name) => format!("{action} {name}"),
        None => action.to_owned(),
    }
}

/// What a tool says of an answer.
fn told(asked: &Asked, answer: impl Fn(&Value) -> String) -> String {
    match asked {
        Asked::Answer(result) => answer(result),
        Asked::Refused(code) => format!("refused {code}"),
        Asked::Undeclared => "undeclared".to_owned(),
    }
}
