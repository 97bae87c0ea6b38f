//! One running `tools/call` or `prompts/get`, as tools and prompts see it: progress, log lines,
//! questions to the client, pauses that end when the call is cancelled. They need not know of which
//! era the caller is, nor whether it waits for a task.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::message::{INVALID_PARAMS, RpcError, print_notification, print_request};
use super::modern::Claims;
use super::outbox::Outbox;
use super::prompts;
use super::question::{Question, Round};
use super::revision::Revision;
use super::service::{Change, LOG_LEVELS, Server};
use super::session::{Session, Slot};
use super::tasks::Task;
use super::tools::{self, ToolError};

/// How long the client may take to answer a question; people are asked, too.
const ASK_TIMEOUT: Duration = Duration::from_secs(600);

/// One running call.
pub(super) struct Call {
    pub(super) server: Arc<Server>,
    caller: Caller,
    outbox: Outbox,
    progress_token: Option<Value>,
    cancelled: CancellationToken,
}

/// Who waits for the result, and how the call reaches it meanwhile.
enum Caller {
    /// A session, which can be asked. The slot is its entry for the call.
    Session { session: Arc<Session>, _slot: Slot },
    /// A request that stands alone. `purpose` tells it from others; its next round has the same.
    Request { claims: Claims, purpose: String },
    /// A task, which the client comes to look at, and the request that began it.
    Task { task: Arc<Task>, claims: Claims },
}

impl Call {
    /// A call in a session with the `params` of its request.
    pub(super) fn in_session(
        session: Arc<Session>,
        slot: Slot,
        outbox: Outbox,
        params: &Value,
    ) -> Self {
        Self {
            server: Arc::clone(&session.server),
            cancelled: slot.cancelled.clone(),
            caller: Caller::Session { session, _slot: slot },
            outbox,
            progress_token: progress_token(params),
        }
    }

    /// A call by a request of 2026-07-28. Such are cancelled by dropping them.
    pub(super) fn alone(
        server: &Arc<Server>,
        claims: Claims,
        purpose: String,
        outbox: Outbox,
        params: &Value,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            cancelled: server.stop.clone(),
            caller: Caller::Request { claims, purpose },
            outbox,
            progress_token: progress_token(params),
        }
    }

    /// A call whose result is kept in a task. It tells nothing on its way (MCP extension tasks).
    pub(super) fn in_task(server: &Arc<Server>, task: Arc<Task>, claims: Claims) -> Self {
        Self {
            server: Arc::clone(server),
            cancelled: task.cancelled.clone(),
            caller: Caller::Task { task, claims },
            outbox: Outbox::nowhere(),
            progress_token: None,
        }
    }

    /// Runs it to its end; `None` if it was cancelled, which is not answered.
    pub(super) async fn run(
        &self,
        method: &str,
        params: &Value,
    ) -> Option<Result<Value, RpcError>> {
        let outcome = match method {
            "prompts/get" => prompts::run(self, params).await,
            _ => tools::run(self, params).await,
        };
        if self.cancelled.is_cancelled() { None } else { outcome }
    }

    /// The revision agreed with the client.
    pub(super) fn revision(&self) -> Revision {
        match &self.caller {
            Caller::Session { session, .. } => session.revision(),
            Caller::Request { .. } | Caller::Task { .. } => Revision::MODERN,
        }
    }

    /// Waits, unless the call is cancelled meanwhile.
    pub(super) async fn pause(&self, time: Duration) -> Result<(), ToolError> {
        self.or_cancelled(tokio::time::sleep(time)).await
    }

    async fn or_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, ToolError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(ToolError::Cancelled),
            done = work => Ok(done),
        }
    }

    /// Sends a message that belongs to this call.
    async fn send(&self, text: String) -> Result<(), ToolError> {
        self.or_cancelled(self.outbox.send(text)).await
    }

    /// Breaks the stream of this call, if it has one that the client can come back to (MCP
    /// 2025-11-25, transports); what follows is told when it does.
    pub(super) async fn break_stream(&self) -> Result<(), ToolError> {
        match &self.caller {
            Caller::Session { session, .. } if session.revision() >= Revision::V2025_11_25 => {
                self.or_cancelled(self.outbox.send_break()).await
            }
            _ => Ok(()),
        }
    }

    /// Reports progress, if the client asked for it.
    pub(super) async fn progress(&self, done: u64, total: u64) -> Result<(), ToolError> {
        let Some(token) = &self.progress_token else { return Ok(()) };
        let mut params = json!({"progressToken": token, "progress": done, "total": total});
        if self.revision() >= Revision::V2025_03_26 {
            params["message"] = json!(format!("step {done} of {total}"));
        }
        self.send(print_notification("notifications/progress", params)).await
    }

    /// Sends a log message, if the client wants this level; `level` indexes [`LOG_LEVELS`].
    pub(super) async fn log(&self, level: usize, data: Value) -> Result<(), ToolError> {
        let wanted = match &self.caller {
            Caller::Session { session, .. } => session.wants_log(level),
            Caller::Request { claims, .. } => claims.wants_log(level),
            Caller::Task { .. } => false,
        };
        if !wanted {
            return Ok(());
        }
        let params = json!({"level": LOG_LEVELS[level], "logger": "example", "data": data});
        self.send(print_notification("notifications/message", params)).await
    }

    /// Tells every client what has changed. A session that calls hears of it on this call's stream,
    /// unless it reads a standing one; who has no session, hears of it if it listens.
    pub(super) async fn announce(&self, changes: &[Change]) -> Result<(), ToolError> {
        let session = match &self.caller {
            Caller::Session { session, .. } => Some(session),
            Caller::Request { .. } | Caller::Task { .. } => None,
        };
        for change in changes {
            self.server.tell_others(session.map(|session| &**session), change);
            match session.filter(|session| session.wants(change)) {
                Some(session) if session.standing.is_read() => {
                    session.standing.tell(change.print())
                }
                Some(_) => self.send(change.print()).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Puts one question to the client and gives its answer. What the client needs to carry until
    /// then is sealed.
    pub(super) async fn ask(&self, question: Question) -> Result<Value, ToolError> {
        let round = Round::of([question]).keeping("asked");
        Ok(self.ask_all(round).await?.pop().unwrap_or_default())
    }

    /// Puts questions to the client, all at once, and gives its answers in the same order.
    pub(super) async fn ask_all(&self, round: Round) -> Result<Vec<Value>, ToolError> {
        match &self.caller {
            Caller::Session { session, .. } => {
                let asks = round.questions.into_iter().map(|one| self.ask_session(session, one));
                futures_util::future::try_join_all(asks).await
            }
            Caller::Request { claims, purpose } => {
                check_suits(claims, &round)?;
                self.ask_by_result(claims, purpose, &round)
            }
            Caller::Task { task, claims } => match at_hand(claims, &round) {
                // What the call asked before it became a task.
                Some(answers) => Ok(answers),
                None => {
                    check_suits(claims, &round)?;
                    self.or_cancelled(task.ask(&self.server, round.questions)).await?
                }
            },
        }
    }

    /// Whether the client may be asked this.
    pub(super) fn may_ask(&self, question: &Question) -> bool {
        match &self.caller {
            Caller::Session { session, .. } => session.may_be_asked(question),
            Caller::Request { claims, .. } | Caller::Task { claims, .. } => {
                question.suits(&claims.capabilities)
            }
        }
    }

    /// What the round before this one kept; `None` in the first round, or when it kept nothing.
    pub(super) fn kept(&self) -> Result<Option<String>, ToolError> {
        match &self.caller {
            Caller::Request { claims, purpose } => match &claims.state {
                Some(state) => {
                    let kept = self.server.sealer.open(purpose, state);
                    kept.map(Some).ok_or_else(|| bad_state().into())
                }
                None => Ok(None),
            },
            Caller::Session { .. } | Caller::Task { .. } => Ok(None),
        }
    }

    /// Gives the answers that came with the request, or leaves with a result that asks.
    fn ask_by_result(
        &self,
        claims: &Claims,
        purpose: &str,
        round: &Round,
    ) -> Result<Vec<Value>, ToolError> {
        let kept = if round.state.is_some() { self.kept()? } else { None };
        if let Some(answers) = at_hand(claims, round) {
            return if kept == round.state { Ok(answers) } else { Err(bad_state().into()) };
        }
        let state = match &round.state {
            Some(state) => {
                let sealed = self.server.sealer.seal(purpose, state);
                let why = "no state can be sealed";
                Some(sealed.ok_or_else(|| ToolError::Failed(why.to_owned()))?)
            }
            None => None,
        };
        Err(ToolError::Asks(round.to_value(state)))
    }

    async fn ask_session(
        &self,
        session: &Arc<Session>,
        question: Question,
    ) -> Result<Value, ToolError> {
        let Question { method, ref params, .. } = question;
        if !session.may_be_asked(&question) {
            let name = question.capability();
            let why = format!("this client does not support {name}, which this tool needs");
            return Err(ToolError::Failed(why));
        }
        if !self.outbox.is_open() {
            let why = format!("cannot ask {method}: nothing can be sent before the answer");
            return Err(ToolError::Failed(why));
        }
        let mut ask = session.open_ask();
        self.send(print_request(ask.id, method, params.clone())).await?;
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => {
                self.withdraw(ask.id).await;
                Err(ToolError::Cancelled)
            }
            answer = &mut ask.answer => match answer {
                Ok(Ok(result)) => Ok(result),
                Ok(Err(error)) => Err(ToolError::Failed(format!("the client refused: {}", error_text(&error)))),
                Err(_) => Err(ToolError::Failed("the client went away".to_owned())),
            },
            () = tokio::time::sleep(ASK_TIMEOUT) => {
                self.withdraw(ask.id).await;
                Err(ToolError::Failed(format!("the client did not answer {method}")))
            }
        }
    }

    /// Tells the client that its answer is no longer needed.
    async fn withdraw(&self, id: u64) {
        let params = json!({"requestId": id, "reason": "the call has ended"});
        let text = print_notification("notifications/cancelled", params);
        // A reader that does not take it within a moment will not miss it.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.outbox.send(text)).await;
    }
}

/// The answers to all questions, if they came with the request.
fn at_hand(claims: &Claims, round: &Round) -> Option<Vec<Value>> {
    let answers = round.questions.iter().map(|one| {
        let answer = claims.responses.get(one.key);
        answer.filter(|answer| one.is_answered_by(answer)).cloned()
    });
    answers.collect()
}

/// Checks that the client declared what it is to be asked.
fn check_suits(claims: &Claims, round: &Round) -> Result<(), RpcError> {
    match round.questions.iter().find(|one| !one.suits(&claims.capabilities)) {
        Some(one) => Err(RpcError::capability(&one.required())),
        None => Ok(()),
    }
}

fn progress_token(params: &Value) -> Option<Value> {
    let token = params.pointer("/_meta/progressToken");
    token.filter(|token| token.is_string() || token.is_number()).cloned()
}

/// The error for a state that the client made up or changed, or that belongs to another call.
fn bad_state() -> RpcError {
    RpcError::new(INVALID_PARAMS, "requestState is not one of this call")
}

/// The text of a client's JSON-RPC error.
fn error_text(error: &Value) -> String {
    error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned)
}
