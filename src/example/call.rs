//! One running `tools/call`, as tools see it: progress, log lines, questions to the client, pauses
//! that end when the call is cancelled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::message::{RpcError, print_notification, print_request};
use super::outbox::Outbox;
use super::revision::Revision;
use super::service::{Change, LOG_LEVELS};
use super::session::{Session, Slot};
use super::tools::{self, ToolError};

/// How long the client may take to answer a question; people are asked, too.
const ASK_TIMEOUT: Duration = Duration::from_secs(600);

/// One running call.
pub(super) struct Call {
    pub(super) session: Arc<Session>,
    slot: Slot,
    outbox: Outbox,
    progress_token: Option<Value>,
}

impl Call {
    /// A call with the `params` of its request.
    pub(super) fn new(session: Arc<Session>, slot: Slot, outbox: Outbox, params: &Value) -> Self {
        let token = params.pointer("/_meta/progressToken");
        let progress_token = token.filter(|t| t.is_string() || t.is_number()).cloned();
        Self { session, slot, outbox, progress_token }
    }

    /// Runs the tool to its end; `None` if the call was cancelled, which is not answered.
    pub(super) async fn run(&self, params: &Value) -> Option<Result<Value, RpcError>> {
        let outcome = tools::run(self, params).await;
        if self.slot.cancelled.is_cancelled() { None } else { outcome }
    }

    /// The revision agreed with the client.
    pub(super) fn revision(&self) -> Revision {
        self.session.revision()
    }

    /// Waits, unless the call is cancelled meanwhile.
    pub(super) async fn pause(&self, time: Duration) -> Result<(), ToolError> {
        tokio::select! {
            biased;
            () = self.slot.cancelled.cancelled() => Err(ToolError::Cancelled),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// Sends a message that belongs to this call.
    async fn send(&self, text: String) -> Result<(), ToolError> {
        tokio::select! {
            biased;
            () = self.slot.cancelled.cancelled() => Err(ToolError::Cancelled),
            () = self.outbox.send(text) => Ok(()),
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
        if !self.session.wants_log(level) {
            return Ok(());
        }
        let params = json!({"level": LOG_LEVELS[level], "logger": "example", "data": data});
        self.send(print_notification("notifications/message", params)).await
    }

    /// Tells every session what has changed. The caller hears of it on this call's stream, unless
    /// it reads a standing one.
    pub(super) async fn announce(&self, changes: &[Change]) -> Result<(), ToolError> {
        for change in changes {
            let text = change.print();
            self.session.server.tell_others(&self.session, change, &text);
            if !self.session.wants(change) {
                continue;
            }
            match self.session.standing.is_read() {
                true => self.session.standing.tell(text),
                false => self.send(text).await?,
            }
        }
        Ok(())
    }

    /// Puts a question to the client and waits for its result. `needs` is the capability that the
    /// client must have declared, such as `/roots`.
    pub(super) async fn ask(
        &self,
        needs: &str,
        method: &str,
        params: Value,
    ) -> Result<Value, ToolError> {
        if !self.session.client_can(needs) {
            let name = needs.trim_start_matches('/');
            let why = format!("this client does not support {name}, which this tool needs");
            return Err(ToolError::Failed(why));
        }
        if !self.outbox.is_open() {
            let why = format!("cannot ask {method}: nothing can be sent before the answer");
            return Err(ToolError::Failed(why));
        }
        let mut ask = self.session.open_ask();
        self.send(print_request(ask.id, method, params)).await?;
        tokio::select! {
            biased;
            () = self.slot.cancelled.cancelled() => {
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

/// The text of a client's JSON-RPC error.
fn error_text(error: &Value) -> String {
    error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned)
}
