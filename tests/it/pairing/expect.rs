//! What each cell of the matrix is to show: the rules of bridging (MCP digest §20), written down once more from the
//! outside.

use serde_json::{Value, json};

use super::behaviour::Behaviour;
use super::{Pair, Transport};
use crate::fake::scene::{MODERN, REVISIONS, Scene};

/// What is to be seen, and how the table says it.
#[derive(Debug)]
pub struct Expected {
    pub word: String,
    pub seen: Value,
}

fn expected(word: &str, seen: Value) -> Expected {
    Expected { word: word.to_owned(), seen }
}

/// A tool that the upstream's revision does not have.
fn absent() -> Expected {
    expected("–", json!({"code": -32602}))
}

const FORM: &str = "form name";

impl Pair {
    fn client_is_modern(self) -> bool {
        self.client == MODERN
    }

    fn upstream_is_modern(self) -> bool {
        self.upstream == MODERN
    }

    /// Whether the upstream can say nothing on a call but its answer.
    fn is_mute(self) -> bool {
        self.transport == Transport::Json
    }

    /// Whether log messages come beside the call: the upstream has only its GET stream for them, and the client, too.
    pub fn logs_aside(self) -> bool {
        self.is_mute() && !self.upstream_is_modern() && !self.client_is_modern()
    }

    /// Whether both sides know what came with a revision.
    fn both(self, revision: &str) -> bool {
        self.client >= revision && self.upstream >= revision
    }

    /// The cell.
    pub fn expect(self, behaviour: Behaviour) -> Expected {
        match behaviour {
            Behaviour::Lists => self.lists(),
            Behaviour::Call => self.call(),
            Behaviour::Progress => self.progress(),
            Behaviour::Cancel => self.cancel(),
            Behaviour::ToolError => {
                expected("`isError`", json!({"said": "it failed", "isError": true, "ran": 1}))
            }
            Behaviour::Structured => self.structured(),
            Behaviour::Array => self.array(),
            Behaviour::Media => self.media(),
            Behaviour::Sampling => self.ask("2024-11-05", "sample Say hi.", "sampled hi"),
            Behaviour::Accept => self.ask("2025-06-18", FORM, "accept Ann"),
            Behaviour::Decline => self.ask("2025-06-18", FORM, "decline"),
            Behaviour::Dismiss => self.ask("2025-06-18", FORM, "cancel"),
            Behaviour::Url => {
                let id = if self.client_is_modern() { "" } else { " with an id" };
                let url = format!("visit https://example.org/in?x=%2f{id}");
                self.ask("2025-11-25", &url, "accept")
            }
            Behaviour::Roots => self.ask("2024-11-05", "roots/list", "rooted file:///work"),
            Behaviour::Twice => self.twice(),
            Behaviour::AskFirst => self.ask_first(),
            Behaviour::Logs => self.logs(),
            Behaviour::ListChanged => {
                expected(self.change_word(), json!({"notified": true, "listed": true}))
            }
            Behaviour::Updated => {
                let uri = format!("memo://{}", self.client);
                expected(self.change_word(), json!({"updated": [uri]}))
            }
            Behaviour::Read => self.read(),
            Behaviour::Prompt => self.prompt(),
            Behaviour::Demands => self.demands(),
            Behaviour::Restart => self.restart(),
        }
    }

    fn lists(self) -> Expected {
        let array = json!({"type": "array", "items": {"type": "integer"}});
        let (word, schema) = match (self.upstream_is_modern(), self.client_is_modern()) {
            (false, _) => ("merged", Value::Null),
            (true, true) => ("merged", array),
            (true, false) => {
                let wrapped = json!({
                    "type": "object", "properties": {"result": array}, "required": ["result"],
                });
                ("merged, schema wrapped", wrapped)
            }
        };
        let memo = |revision: &&str| format!("memo://{revision}");
        let seen = json!({
            "tools": Scene::tool_names(self.upstream),
            "prompts": ["greet", "plain", "asks"],
            "resources": REVISIONS.iter().chain(&["asks"]).map(memo).collect::<Vec<_>>(),
            "templates": ["memo://{id}"],
            "schema of array": schema,
            // Of tasks, which went with 2025-11-25; older clients may read over it.
            "execution": false,
        });
        expected(word, seen)
    }

    fn call(self) -> Expected {
        let declared: &[&str] = if self.client >= "2025-06-18" {
            &["elicitation", "roots", "sampling"]
        } else {
            &["roots", "sampling"]
        };
        let seen = json!({"said": "grüße \u{1F682}", "declared": declared, "ran": 1});
        expected("answered", seen)
    }

    fn progress(self) -> Expected {
        let steps: &[u64] = if self.is_mute() { &[] } else { &[1, 2, 3] };
        let texts = self.both("2025-03-26");
        let messages: &[&str] =
            if self.is_mute() || !texts { &[] } else { &["step 1", "step 2", "step 3"] };
        let word = match (self.is_mute(), texts) {
            (true, _) => "nothing to relay",
            (false, true) => "relayed",
            (false, false) => "relayed without texts",
        };
        let seen =
            json!({"said": "progressed", "steps": steps, "messages": messages, "foreign": false});
        expected(word, seen)
    }

    fn cancel(self) -> Expected {
        let by = |modern: bool, http: bool| {
            if modern && http { "stream closed" } else { "`cancelled`" }
        };
        let word = format!(
            "{} → {}",
            by(self.client_is_modern(), true),
            by(self.upstream_is_modern(), self.transport != Transport::Stdio)
        );
        expected(&word, json!({"answered": false, "ran": 1, "cancelled": 1}))
    }

    fn structured(self) -> Expected {
        if self.upstream < "2025-06-18" {
            return absent();
        }
        let value = json!({"n": 1, "all": [1, "two"]});
        if self.client < "2025-06-18" {
            return expected("object, and as text", json!({"structured": value, "text": value}));
        }
        expected("object", json!({"structured": value, "text": null}))
    }

    fn array(self) -> Expected {
        if !self.upstream_is_modern() {
            return absent();
        }
        let value = json!([1, 2, 3]);
        if self.client_is_modern() {
            return expected("array", json!({"structured": value, "text": null}));
        }
        let wrapped = json!({ "result": value });
        expected("wrapped, and as text", json!({"structured": wrapped, "text": value}))
    }

    fn media(self) -> Expected {
        let mut words = vec!["as it is"];
        let mut blocks = vec!["text", "image", "resource"];
        if self.upstream >= "2025-03-26" {
            if self.client >= "2025-03-26" {
                blocks.push("audio");
            } else {
                blocks.push("blob of \"audio/wav\", uri: true");
                words.push("audio as resource");
            }
        }
        if self.upstream >= "2025-06-18" {
            if self.client >= "2025-06-18" {
                blocks.push("resource_link");
            } else {
                blocks.push("text of a link");
                words.push("link as text");
            }
        }
        let from = usize::from(words.len() > 1);
        expected(&words[from..].join(", "), json!(blocks))
    }

    /// A question of a tool that there is from a revision on, which is the revision of the question, too.
    fn ask(self, since: &str, asked: &str, said: &str) -> Expected {
        if self.upstream < since {
            return absent();
        }
        let (word, asked, said) = match (self.upstream_is_modern(), self.client >= since) {
            (false, false) => ("refused", None, "refused"),
            (true, false) => ("not declared", None, "undeclared"),
            (_, true) => (self.ask_word(), Some(asked), said),
        };
        let asked: Vec<_> = asked.into_iter().collect();
        expected(word, json!({"asked": asked, "said": said, "ran": 1}))
    }

    fn ask_word(self) -> &'static str {
        match (self.client_is_modern(), self.upstream_is_modern()) {
            (false, false) => "relayed",
            (true, true) => "relayed, state sealed",
            (true, false) => "parked",
            (false, true) => "asked, then retried",
        }
    }

    fn twice(self) -> Expected {
        let (asked, said) = (["sample Say hi.", "roots/list"], "sampled hi, rooted file:///work");
        expected(self.ask_word(), json!({"asked": asked, "said": said, "ran": 1}))
    }

    fn ask_first(self) -> Expected {
        let (asked, said) = (["sample Say hi.", "sample Say hi."], "sampled hi");
        expected(self.ask_word(), json!({"asked": asked, "prompt": said, "resource": said}))
    }

    fn logs(self) -> Expected {
        let both: &[&str] = &["warning", "error"];
        let (word, on_call, aside) = match (self.is_mute(), self.logs_aside()) {
            (_, true) => ("relayed on GET", &[][..], both),
            (true, false) if self.upstream_is_modern() => ("nothing to relay", &[][..], &[][..]),
            (true, false) => ("dropped", &[][..], &[][..]),
            (false, false) => ("relayed", both, &[][..]),
        };
        expected(word, json!({"said": "logged", "on the call": on_call, "aside": aside}))
    }

    fn change_word(self) -> &'static str {
        match (self.client_is_modern(), self.upstream_is_modern()) {
            (false, false) => "relayed",
            (true, true) => "listen to listen",
            (true, false) => "on listen",
            (false, true) => "from listen",
        }
    }

    fn read(self) -> Expected {
        let code =
            if self.client_is_modern() || self.upstream_is_modern() { -32602 } else { -32002 };
        let uri = "memo://2024-11-05";
        let missing = json!({"code": code, "uri": "memo://none"});
        let seen = json!({"uri": uri, "text": format!("the text of {uri}"), "missing": missing});
        expected(&format!("read; missing: {code}"), seen)
    }

    fn prompt(self) -> Expected {
        let context = self.both("2025-06-18");
        let values: &[&str] = if context { &["ann", "anna", "loud"] } else { &["ann", "anna"] };
        let word = match (context, self.client >= "2025-06-18") {
            (true, _) => "with context",
            (false, true) => "context dropped",
            (false, false) => "without context",
        };
        expected(word, json!({"prompt": "Greet Ann.", "values": values}))
    }

    fn demands(self) -> Expected {
        if !self.upstream_is_modern() {
            return expected("–", json!({"code": -32602, "needs": null}));
        }
        if self.client_is_modern() {
            let needs = json!({"sampling": {"tools": {}}});
            return expected("-32021", json!({"code": -32021, "needs": needs}));
        }
        expected("`isError`", json!({"isError": true}))
    }

    fn restart(self) -> Expected {
        let status = if self.client_is_modern() { 502 } else { 200 };
        let seen = json!({
            "reason": "upstream_closed", "status": status, "ran": 1, "after": "again", "ran after": 1,
        });
        expected("`upstream_closed`; the next is served", seen)
    }
}
