//! What clients do in each pairing, and what is seen of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::RwLock;

use super::peer::{Begun, Peer, Story, User};
use super::{Pair, Transport};
use crate::fake::scene::{Journal, META};
use crate::gateway::PATIENCE;

/// One of them; a row of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Lists,
    Call,
    Progress,
    Cancel,
    ToolError,
    Structured,
    Array,
    Media,
    Sampling,
    Accept,
    Decline,
    Dismiss,
    Url,
    Roots,
    Twice,
    AskFirst,
    Logs,
    ListChanged,
    Updated,
    Read,
    Prompt,
    Demands,
    Restart,
}

/// All that clients do on their own; what concerns all of them at once comes after.
pub const ALONE: [Behaviour; 22] = [
    Behaviour::Lists,
    Behaviour::Call,
    Behaviour::Progress,
    Behaviour::ToolError,
    Behaviour::Structured,
    Behaviour::Array,
    Behaviour::Media,
    Behaviour::Sampling,
    Behaviour::Accept,
    Behaviour::Decline,
    Behaviour::Dismiss,
    Behaviour::Url,
    Behaviour::Roots,
    Behaviour::Twice,
    Behaviour::AskFirst,
    Behaviour::Logs,
    Behaviour::ListChanged,
    Behaviour::Updated,
    Behaviour::Read,
    Behaviour::Prompt,
    Behaviour::Demands,
    // Last: for a while, what a child asks may be about the call that was cancelled, and is refused to others.
    Behaviour::Cancel,
];

/// A client in its pairing.
pub struct Actor {
    pub pair: Pair,
    pub peer: Arc<Peer>,
    pub journal: Arc<Journal>,
    /// Held for writing by who must be alone with the upstream.
    pub turns: Arc<RwLock<()>>,
}

impl Actor {
    /// Does it, and says what was seen.
    pub async fn perform(&self, behaviour: Behaviour) -> Value {
        // Of what one child says beside its answers, it is certain whose call it is about only if there is one.
        let alone = self.pair.transport == Transport::Stdio && behaviour == Behaviour::Logs;
        let (_one, _many) = if alone {
            (Some(self.turns.write().await), None)
        } else {
            (None, Some(self.turns.read().await))
        };
        match behaviour {
            Behaviour::Lists => self.lists().await,
            Behaviour::Call => self.echo().await,
            Behaviour::Progress => self.progress().await,
            Behaviour::Cancel => self.cancel().await,
            Behaviour::ToolError => self.tool_error().await,
            Behaviour::Structured => self.structured("structured").await,
            Behaviour::Array => self.structured("array").await,
            Behaviour::Media => self.media().await,
            Behaviour::Sampling => self.ask("ask_sampling", "sampling", User::Accepts).await,
            Behaviour::Accept => self.ask("ask_elicit", "accept", User::Accepts).await,
            Behaviour::Decline => self.ask("ask_elicit", "decline", User::Declines).await,
            Behaviour::Dismiss => self.ask("ask_elicit", "dismiss", User::Cancels).await,
            Behaviour::Url => self.ask("ask_url", "url", User::Accepts).await,
            Behaviour::Roots => self.ask("ask_roots", "roots", User::Accepts).await,
            Behaviour::Twice => self.ask("ask_twice", "twice", User::Accepts).await,
            Behaviour::AskFirst => self.ask_first().await,
            Behaviour::Logs => self.logs().await,
            Behaviour::ListChanged => self.list_changed().await,
            Behaviour::Updated => self.updated().await,
            Behaviour::Read => self.read().await,
            Behaviour::Prompt => self.prompt().await,
            Behaviour::Demands => self.demands().await,
            Behaviour::Restart => unreachable!("it takes all clients at once"),
        }
    }

    /// A name for one call of this client.
    pub fn key(&self, what: &str) -> String {
        format!("{}_{what}", self.pair.client.replace('-', ""))
    }

    async fn call(&self, tool: &str, arguments: Value) -> Story {
        let params = json!({"name": tool, "arguments": arguments});
        self.peer.request("tools/call", params, User::Accepts).await
    }

    /// The journal's entries of that event for one call.
    pub fn entries(&self, event: &str, key: &str) -> Vec<Value> {
        self.journal.of(event).into_iter().filter(|entry| entry["key"] == key).collect()
    }

    /// Waits until the journal has an entry.
    pub async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let begun = Instant::now();
        while !self.journal.read().iter().any(&holds) {
            assert!(begun.elapsed() < PATIENCE / 3, "waited in vain for the upstream: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the upstream has an entry of that event for one call.
    pub async fn until_entry(&self, event: &str, key: &str) {
        let what = format!("{event} {key}");
        self.until(&what, |entry| entry["event"] == event && entry["key"] == key).await;
    }

    async fn lists(&self) -> Value {
        let tools = self.peer.list("tools/list", "tools").await;
        let named = |items: &[Value], key: &str| -> Vec<String> {
            items.iter().map(|item| item[key].as_str().unwrap_or("?").to_owned()).collect()
        };
        let modern = matches!(*self.peer, Peer::Modern(_));
        let find = |name: &str| tools.iter().find(|tool| tool["name"] == name);
        let own: Vec<_> = named(&tools, "name");
        let own: Vec<_> = own.iter().filter(|name| !name.starts_with("extra_")).collect();
        json!({
            "tools": own,
            "prompts": named(&self.peer.list("prompts/list", "prompts").await, "name"),
            "resources": named(&self.peer.list("resources/list", "resources").await, "uri"),
            "templates": named(
                &self.peer.list("resources/templates/list", "resourceTemplates").await,
                "uriTemplate",
            ),
            "schema of array": find("array").map(|tool| tool["outputSchema"].clone()),
            "execution": modern && find("echo").is_some_and(|tool| tool.get("execution").is_some()),
        })
    }

    async fn echo(&self) -> Value {
        let key = self.key("echo");
        let args = json!({"key": key, "text": "grüße \u{1F682}", "zone": "Zürich"});
        let story = self.call("echo", args).await;
        let ran = self.entries("ran", &key);
        let declared = ran.first().and_then(|entry| entry["caps"].as_object());
        let declared = declared.map(|caps| caps.keys().cloned().collect::<Vec<_>>());
        let declared = declared.map(|mut names| {
            names.sort();
            names
        });
        json!({"said": story.said(), "declared": declared, "ran": ran.len()})
    }

    async fn progress(&self) -> Value {
        let key = self.key("progress");
        let token = format!("token of {key}");
        let meta = json!({"progressToken": token});
        let params = json!({"name": "progress", "arguments": {"key": key}, "_meta": meta});
        let story = self.peer.request("tools/call", params, User::Accepts).await;
        let notes = story.params_of("notifications/progress");
        let foreign = notes.iter().any(|note| note["progressToken"] != token.as_str());
        json!({
            "said": story.said(),
            "steps": notes.iter().map(|note| note["progress"].clone()).collect::<Vec<_>>(),
            "messages": notes.iter().filter_map(|note| note.get("message")).collect::<Vec<_>>(),
            "foreign": foreign,
        })
    }

    async fn cancel(&self) -> Value {
        let key = self.key("slow");
        let id = json!(format!("id of {key}"));
        let begun = Begun::call(&self.peer, id.clone(), "slow", json!({"key": key}));
        self.until_entry("ran", &key).await;
        let answered = match &*self.peer {
            Peer::Legacy(legacy) => {
                legacy.mcp.cancel(id).await;
                !begun.ended().await.json.is_null()
            }
            Peer::Modern(_) => {
                begun.hang_up().await;
                false
            }
        };
        self.until_entry("cancelled", &key).await;
        json!({
            "answered": answered,
            "ran": self.entries("ran", &key).len(),
            "cancelled": self.entries("cancelled", &key).len(),
        })
    }

    async fn tool_error(&self) -> Value {
        let key = self.key("fails");
        let story = self.call("fails", json!({"key": key})).await;
        let ran = self.entries("ran", &key).len();
        json!({"said": story.said(), "isError": story.answer["result"]["isError"], "ran": ran})
    }

    async fn structured(&self, tool: &str) -> Value {
        let key = self.key(tool);
        let story = self.call(tool, json!({"key": key})).await;
        if let Some(code) = code(&story) {
            return json!({ "code": code });
        }
        let result = &story.answer["result"];
        let text: Value = serde_json::from_str(story.said()).unwrap_or(Value::Null);
        json!({"structured": result["structuredContent"], "text": text})
    }

    async fn media(&self) -> Value {
        let story = self.call("media", json!({"key": self.key("media")})).await;
        let blocks = story.answer["result"]["content"].as_array().cloned().unwrap_or_default();
        let words = blocks.iter().map(|block| match block["type"].as_str() {
            Some("text") if block["text"].as_str().is_some_and(|text| text.contains("memo://")) => {
                "text of a link".to_owned()
            }
            Some("resource") if block["resource"]["blob"] == "AwQF" => {
                let uri = block["resource"]["uri"].is_string();
                format!("blob of {}, uri: {uri}", block["resource"]["mimeType"])
            }
            other => other.unwrap_or("?").to_owned(),
        });
        json!(words.collect::<Vec<_>>())
    }

    async fn ask(&self, tool: &str, what: &str, user: User) -> Value {
        let key = self.key(what);
        let params = json!({"name": tool, "arguments": {"key": key}});
        let story = self.peer.request("tools/call", params, user).await;
        if let Some(code) = code(&story) {
            return json!({ "code": code });
        }
        let said = plain(story.said());
        json!({"asked": story.asked, "said": said, "ran": self.entries("ran", &key).len()})
    }

    async fn ask_first(&self) -> Value {
        let get = json!({"name": "asks"});
        let prompt = self.peer.request("prompts/get", get, User::Accepts).await;
        let read = json!({"uri": "memo://asks"});
        let resource = self.peer.request("resources/read", read, User::Accepts).await;
        let text = &prompt.answer["result"]["messages"][0]["content"]["text"];
        let read = &resource.answer["result"]["contents"][0]["text"];
        let plain = |text: &Value| plain(text.as_str().unwrap_or_default());
        let asked = [prompt.asked, resource.asked].concat();
        json!({
            "asked": asked,
            "prompt": plain(text),
            "resource": plain(read),
        })
    }

    async fn logs(&self) -> Value {
        let key = self.key("logs");
        let mut params = json!({"name": "logs", "arguments": {"key": key}});
        match &*self.peer {
            Peer::Legacy(legacy) => {
                let answer =
                    legacy.mcp.request("logging/setLevel", json!({"level": "warning"})).await;
                assert_eq!(*answer.result(), json!({}), "{}", answer.text);
            }
            Peer::Modern(_) => {
                let silent = self.peer.request("tools/call", params.clone(), User::Accepts).await;
                let logs = silent.params_of("notifications/message").len();
                assert_eq!(logs, 0, "log messages that nobody asked for: {silent:?}");
                params["_meta"] = json!({ format!("{META}logLevel"): "warning" });
            }
        }
        let story = self.peer.request("tools/call", params, User::Accepts).await;
        let of_call = |params: &Value| params["data"] == key.as_str();
        let level = |params: &Value| params["level"].clone();
        let on_call = story.params_of("notifications/message").into_iter().cloned();
        let on_call: Vec<_> = on_call.filter(of_call).map(|params| level(&params)).collect();
        let aside = || -> Vec<Value> {
            let heard = self.peer.heard("notifications/message");
            let params = heard.iter().map(|note| &note["params"]);
            params.filter(|params| of_call(params)).map(level).collect()
        };
        // Nothing says when they are all there.
        if self.pair.logs_aside() {
            let _ = wait(|| aside().len() >= 2).await;
        }
        json!({"said": story.said(), "on the call": on_call, "aside": aside()})
    }

    async fn list_changed(&self) -> Value {
        const METHOD: &str = "notifications/tools/list_changed";
        let key = self.key("changed");
        let name = format!("extra_{key}");
        match &*self.peer {
            Peer::Legacy(_) => {
                self.until_fed(None).await;
                self.call("change", json!({"key": key})).await;
                let notified = wait(|| !self.peer.heard(METHOD).is_empty()).await;
                json!({"notified": notified, "listed": self.until_listed(&name).await})
            }
            Peer::Modern(modern) => {
                let filter = json!({"toolsListChanged": true});
                let (mut stream, id, honoured) = modern.listen(filter).await;
                self.until_fed(None).await;
                self.call("change", json!({"key": key})).await;
                let note = stream.next_message().await.unwrap_or(Value::Null);
                let notified = note["method"] == METHOD
                    && note["params"]["_meta"][format!("{META}subscriptionId")] == id
                    && honoured == json!({"toolsListChanged": true});
                json!({"notified": notified, "listed": self.until_listed(&name).await})
            }
        }
    }

    /// Whether a tool is listed. Others change the list at the same time, and one notification may stand for two
    /// changes; so it may take a while.
    async fn until_listed(&self, name: &str) -> bool {
        let begun = Instant::now();
        loop {
            let tools = self.peer.list("tools/list", "tools").await;
            if tools.iter().any(|tool| tool["name"] == name) {
                return true;
            }
            if begun.elapsed() > PATIENCE / 3 {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the upstream is listened to for changes of its lists, or of a resource.
    async fn until_fed(&self, uri: Option<&str>) {
        let begun = Instant::now();
        while !self.is_fed(uri) {
            let journal = self.journal.read();
            let last: Vec<_> = journal.iter().rev().take(12).collect();
            assert!(begun.elapsed() < PATIENCE / 3, "nobody listens for {uri:?}: {last:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn is_fed(&self, uri: Option<&str>) -> bool {
        let journal = self.journal.read();
        let streams = |session: &Value| {
            self.pair.transport == Transport::Stdio
                || journal.iter().any(|e| e["event"] == "stream" && e["session"] == *session)
        };
        journal.iter().any(|entry| match (entry["event"].as_str(), uri) {
            (Some("initialize"), None) => self.pair.transport == Transport::Stdio,
            (Some("stream"), None) => true,
            (Some("listening"), None) => entry["filter"]["toolsListChanged"] == true,
            (Some("resources/subscribe"), Some(uri)) => {
                entry["uri"] == uri && streams(&entry["session"])
            }
            (Some("listening"), Some(uri)) => {
                let uris = entry["filter"]["resourceSubscriptions"].as_array();
                uris.is_some_and(|uris| uris.iter().any(|known| known == uri))
            }
            _ => false,
        })
    }

    async fn updated(&self) -> Value {
        const METHOD: &str = "notifications/resources/updated";
        let uri = format!("memo://{}", self.pair.client);
        let change = async || {
            self.until_fed(Some(&uri)).await;
            self.call("update", json!({"key": self.key("update"), "uri": uri})).await;
        };
        match &*self.peer {
            Peer::Legacy(legacy) => {
                let answer = legacy.mcp.request("resources/subscribe", json!({"uri": uri})).await;
                assert_eq!(*answer.result(), json!({}), "{}", answer.text);
                change().await;
                let _ = wait(|| !self.peer.heard(METHOD).is_empty()).await;
                let answer = legacy.mcp.request("resources/unsubscribe", json!({"uri": uri})).await;
                assert_eq!(*answer.result(), json!({}), "{}", answer.text);
                let heard = self.peer.heard(METHOD);
                let uris: Vec<_> = heard.iter().map(|note| &note["params"]["uri"]).collect();
                json!({ "updated": uris })
            }
            Peer::Modern(modern) => {
                let filter = json!({"resourceSubscriptions": [uri]});
                let (mut stream, id, honoured) = modern.listen(filter.clone()).await;
                assert_eq!(honoured, filter, "what is honoured");
                change().await;
                let note = stream.next_message().await.unwrap_or(Value::Null);
                let own = note["params"]["_meta"][format!("{META}subscriptionId")] == id;
                assert!(own && note["method"] == METHOD, "{note}");
                json!({"updated": [note["params"]["uri"]]})
            }
        }
    }

    async fn read(&self) -> Value {
        let read = async |uri: &str| {
            self.peer.request("resources/read", json!({"uri": uri}), User::Accepts).await
        };
        let story = read("memo://2024-11-05").await;
        let contents = &story.answer["result"]["contents"][0];
        let missing = read("memo://none").await;
        let error = &missing.answer["error"];
        json!({
            "uri": contents["uri"],
            "text": contents["text"],
            "missing": {"code": error["code"], "uri": error["data"]["uri"]},
        })
    }

    async fn prompt(&self) -> Value {
        let params = json!({"name": "greet", "arguments": {"who": "Ann"}});
        let prompt = self.peer.request("prompts/get", params, User::Accepts).await;
        let mut params = json!({
            "ref": {"type": "ref/prompt", "name": "greet"},
            "argument": {"name": "who", "value": "an"},
        });
        if self.pair.client >= "2025-06-18" {
            params["context"] = json!({"arguments": {"how": "loud"}});
        }
        let values = self.peer.request("completion/complete", params, User::Accepts).await;
        json!({
            "prompt": prompt.answer["result"]["messages"][0]["content"]["text"],
            "values": values.answer["result"]["completion"]["values"],
        })
    }

    async fn demands(&self) -> Value {
        let story = self.call("demands", json!({"key": self.key("demands")})).await;
        let error = &story.answer["error"];
        match code(&story) {
            Some(code) => json!({"code": code, "needs": error["data"]["requiredCapabilities"]}),
            None => json!({"isError": story.answer["result"]["isError"]}),
        }
    }

    /// A call that a restart of the upstream broke, and one after it: refused as long as the upstream is not back.
    pub async fn restarted(&self, begun: Begun, key: &str) -> Value {
        let answer = begun.ended().await;
        let key_after = self.key("after");
        let args = json!({"key": key_after, "text": "again"});
        let mut after = self.call("echo", args.clone()).await;
        let began = Instant::now();
        // Until every old connection is known to be gone, one may still be tried: the gateway cannot know then whether
        // the call ran, and says so. Below it shows that it did not.
        while is_gone(&after.answer) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = self.call("echo", args.clone()).await;
        }
        json!({
            "reason": reason(&answer.json),
            "status": answer.status,
            "ran": self.entries("ran", key).len(),
            "after": after.said(),
            "ran after": self.entries("ran", &key_after).len(),
        })
    }
}

/// Whether the upstream could not be asked.
fn is_gone(answer: &Value) -> bool {
    matches!(reason(answer), "upstream_unavailable" | "upstream_closed")
}

fn reason(answer: &Value) -> &str {
    answer["error"]["data"]["reason"].as_str().unwrap_or_default()
}

/// What a tool said, but for the code of a refusal: there are two.
fn plain(said: &str) -> String {
    said.replace("refused -32601", "refused").replace("refused -32602", "refused")
}

fn code(story: &Story) -> Option<i64> {
    story.answer["error"]["code"].as_i64()
}

/// Waits until a condition holds, and says whether it came to hold.
async fn wait(holds: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > PATIENCE / 3 {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}
