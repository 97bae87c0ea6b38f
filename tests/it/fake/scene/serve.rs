//! Which request gets which answer, and how a tool speaks with the client.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::journal::locked;
use super::{Exchange, Failure, LEVELS, META, MODERN, Scene, note};

/// What every `requestState` begins with: nothing that survives when it is decoded, trimmed or escaped once too often.
const STATE: &str = " st \"é\"\n/+=%2F ";

/// How the client answered a question.
pub(super) enum Asked {
    /// With this result.
    Answer(Value),
    /// With an error of this code.
    Refused(i64),
    /// It was not asked, since it did not declare that it can be.
    Undeclared,
}

/// Why a tool ends before its result is there.
pub(super) enum Stop {
    /// The client is to be asked first.
    Input(Value),
    /// It cannot go on.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Exchange {
    pub(super) async fn serve(mut self) -> Result<Value, Failure> {
        let scene = self.scene.clone();
        let params = self.params.clone();
        let modern = scene.is_modern();
        let result = match self.method.as_str() {
            "server/discover" if modern => scene.hinted(scene.discover(), 0),
            "subscriptions/listen" if modern => self.listen().await?,
            "initialize" if !modern => self.initialize(),
            "ping" if !modern => json!({}),
            "logging/setLevel" if !modern => {
                let rank = LEVELS.iter().position(|level| params["level"] == *level);
                *locked(&self.hop.level) = rank;
                json!({})
            }
            "resources/subscribe" | "resources/unsubscribe" if !modern => self.subscribe(),
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
                scene.list(&self.method, &params)?
            }
            "resources/read" if params["uri"] == "memo://asks" => return self.ask_first().await,
            "prompts/get" if params["name"] == "asks" => return self.ask_first().await,
            "resources/read" => scene.read(&params)?,
            "prompts/get" => Scene::prompt(&params)?,
            "completion/complete" => Scene::complete(&params),
            "tools/call" => return self.call().await,
            _ => return Err(Failure::new(-32601, "method not found")),
        };
        Ok(self.complete(result))
    }

    /// A result that is the last word.
    fn complete(&self, mut result: Value) -> Value {
        if self.scene.is_modern() {
            result["resultType"] = json!("complete");
            let info = json!({"name": "scene", "version": "1"});
            result["_meta"][format!("{META}serverInfo")] = info;
        }
        result
    }

    async fn call(&mut self) -> Result<Value, Failure> {
        let name = self.params["name"].as_str().unwrap_or_default().to_owned();
        let offered = self.scene.tools().iter().any(|tool| tool["name"] == name.as_str());
        if !offered {
            return Err(Failure::new(-32602, "unknown tool"));
        }
        let again = self.resume()?;
        let key = self.params["arguments"]["key"].clone();
        let event = if again { "resumed" } else { "ran" };
        let caps = self.declared();
        let entry = json!({"event": event, "tool": name, "key": key, "caps": caps});
        self.scene.journal.write(&entry);
        match self.run(&name).await {
            Ok(result) => Ok(self.complete(result)),
            Err(Stop::Input(result)) => Ok(result),
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }

    /// A prompt or a resource that is made of what the client answers.
    async fn ask_first(&mut self) -> Result<Value, Failure> {
        let event = if self.resume()? { "resumed" } else { "ran" };
        let key = self.subject().clone();
        self.scene.journal.write(&json!({"event": event, "key": key}));
        let text = match self.ask_sampling(0).await {
            Ok(text) => text,
            Err(Stop::Input(result)) => return Ok(result),
            Err(Stop::Failed(failure)) => return Err(failure),
        };
        let result = if self.method == "prompts/get" {
            let content = json!({"type": "text", "text": text});
            json!({"messages": [{"role": "user", "content": content}]})
        } else {
            let contents = json!([{"uri": "memo://asks", "text": text}]);
            self.scene.hinted(json!({ "contents": contents }), 60_000)
        };
        Ok(self.complete(result))
    }

    /// What is called, got or read.
    fn subject(&self) -> &Value {
        if self.method == "resources/read" { &self.params["uri"] } else { &self.params["name"] }
    }

    /// What the client declared that it can be asked.
    pub(super) fn declared(&self) -> Value {
        if self.scene.is_modern() {
            self.params["_meta"][format!("{META}clientCapabilities")].clone()
        } else {
            locked(&self.hop.caps).clone()
        }
    }

    /// Whether the request goes on with a call that asked for something; then its answers are there.
    fn resume(&mut self) -> Result<bool, Failure> {
        let whole = self.params.clone();
        let Some(params) = self.params.as_object_mut() else { return Ok(false) };
        let responses = params.remove("inputResponses");
        let state = params.remove("requestState");
        let roots = params.get("name") == Some(&json!("ask_roots"));
        let Some(responses) = responses else {
            return if state.is_none() { Ok(false) } else { Err(self.stray(&whole)) };
        };
        let answer = &responses["q 0"];
        match state {
            // The only one that asks without a state.
            None if roots => self.answers = vec![answer.clone()],
            None => return Err(self.stray(&whole)),
            Some(state) => {
                let Some(answers) = self.reopened(&state) else { return Err(self.stray(&whole)) };
                self.answers = answers;
                self.answers.push(answer.clone());
            }
        }
        let one = responses.as_object().is_some_and(|all| all.len() == 1);
        if !one || answer.is_null() {
            self.scene.violation("answers that were not asked for", &whole);
        }
        Ok(true)
    }

    /// The answers of earlier rounds, if the state is of this call, under another id.
    fn reopened(&self, state: &Value) -> Option<Vec<Value>> {
        let state = state.as_str()?.strip_prefix(STATE)?;
        let (name, args, id, answers): (Value, Value, Value, _) =
            serde_json::from_str(state).ok()?;
        let same = name == *self.subject() && args == self.params["arguments"];
        (same && id != self.id).then_some(answers)
    }

    fn stray(&self, params: &Value) -> Failure {
        self.scene.violation("a retry of nothing", params);
        Failure::new(-32602, "invalid requestState")
    }

    /// Asks the client. `round` counts the questions of one call.
    pub(super) async fn ask(
        &self,
        round: usize,
        method: &str,
        params: Value,
    ) -> Result<Asked, Stop> {
        if !self.scene.is_modern() {
            return Ok(self.ask_now(method, params).await);
        }
        if let Some(answer) = self.answers.get(round) {
            return Ok(Asked::Answer(answer.clone()));
        }
        let caps = self.declared();
        let declared = match method {
            "sampling/createMessage" => caps["sampling"].is_object(),
            "roots/list" => caps["roots"].is_object(),
            _ => {
                let kind = params["mode"].as_str().unwrap_or("form");
                let kinds = &caps["elicitation"];
                kinds[kind].is_object() || (kind == "form" && *kinds == json!({}))
            }
        };
        if !declared {
            return Ok(Asked::Undeclared);
        }
        let request = json!({"method": method, "params": params});
        let mut result = json!({"resultType": "input_required", "inputRequests": {"q 0": request}});
        if self.params["name"] != "ask_roots" {
            let args = &self.params["arguments"];
            let state = json!([self.subject(), args, self.id, self.answers]);
            result["requestState"] = json!(format!("{STATE}{state}"));
        }
        Err(Stop::Input(result))
    }

    /// Asks the client by a request of its own.
    async fn ask_now(&self, method: &str, params: Value) -> Asked {
        let id = self.scene.next();
        let (tx, answer) = oneshot::channel();
        locked(&self.hop.asks).insert(id, tx);
        let ask = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let sent = if self.hop.mute {
            locked(&self.hop.side).as_ref().is_some_and(|side| side.send(ask).is_ok())
        } else {
            self.out.send(ask).is_ok()
        };
        if !sent {
            return Asked::Refused(0);
        }
        match answer.await {
            Ok(answer) if answer.get("error").is_none() => Asked::Answer(answer["result"].clone()),
            Ok(answer) => Asked::Refused(answer["error"]["code"].as_i64().unwrap_or(0)),
            Err(_) => Asked::Refused(0),
        }
    }

    /// Says something that belongs to this exchange.
    pub(super) fn say(&self, method: &str, params: Value) {
        let message = note(method, params);
        if !self.hop.mute {
            let _ = self.out.send(message);
        } else if self.scene.is_modern() || method != "notifications/message" {
            // There is no other way to say it.
        } else if let Some(side) = &*locked(&self.hop.side) {
            let _ = side.send(message);
        }
    }

    fn initialize(&self) -> Value {
        let caps = self.params["capabilities"].clone();
        *locked(&self.hop.caps) = caps.clone();
        let version = &self.params["protocolVersion"];
        let entry = json!({"event": "initialize", "caps": caps, "version": version});
        self.scene.journal.write(&entry);
        json!({
            "protocolVersion": self.scene.revision,
            "capabilities": self.scene.capabilities(),
            "serverInfo": {"name": "scene", "version": "1"},
        })
    }

    fn subscribe(&self) -> Value {
        let uri = self.params["uri"].as_str().unwrap_or_default().to_owned();
        let entry = json!({"event": self.method, "uri": uri, "session": self.hop.name});
        let mut subscribed = locked(&self.hop.subscribed);
        if self.method == "resources/subscribe" {
            subscribed.insert(uri);
        } else {
            subscribed.remove(&uri);
        }
        drop(subscribed);
        self.scene.journal.write(&entry);
        json!({})
    }

    /// Tells of changes for as long as the client listens.
    async fn listen(&self) -> Result<Value, Failure> {
        let filter = &self.params["notifications"];
        if !filter.is_object() {
            return Err(Failure::new(-32602, "missing notifications"));
        }
        let mut news = self.scene.journal.follow();
        let mut honoured = json!({});
        for name in ["toolsListChanged", "resourceSubscriptions"] {
            if !filter[name].is_null() {
                honoured[name] = filter[name].clone();
            }
        }
        let subscription = json!({ format!("{META}subscriptionId"): self.id });
        let tell = |method: &str, mut params: Value| {
            params["_meta"] = subscription.clone();
            let _ = self.out.send(note(method, params));
        };
        tell("notifications/subscriptions/acknowledged", json!({"notifications": honoured}));
        self.scene.journal.write(&json!({"event": "listening", "filter": filter}));
        while let Ok(entry) = news.recv().await {
            match entry["event"].as_str() {
                Some("changed") if filter["toolsListChanged"] == true => {
                    tell("notifications/tools/list_changed", json!({}));
                }
                Some("updated") => {
                    let uris = filter["resourceSubscriptions"].as_array();
                    if uris.is_some_and(|uris| uris.contains(&entry["uri"])) {
                        let params = json!({"uri": entry["uri"]});
                        tell("notifications/resources/updated", params);
                    }
                }
                _ => {}
            }
        }
        Ok(json!({"_meta": subscription}))
    }
}

impl Scene {
    fn discover(&self) -> Value {
        json!({"supportedVersions": [MODERN], "capabilities": self.capabilities()})
    }
}
