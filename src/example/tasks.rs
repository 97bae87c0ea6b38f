//! Long jobs as tasks (MCP extension `io.modelcontextprotocol/tasks`): the call is answered at once
//! by a task, which the client comes to look at, and whose questions it answers there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::message::{INTERNAL_ERROR, RpcError};
use super::modern::Claims;
use super::question::Question;
use super::service::{self, Server};
use super::sessions::random_id;
use super::tools::ToolError;
use crate::mcp::TASKS_EXTENSION;

/// Tasks there may be.
const MAX_TASKS: usize = 1000;
/// How long a task is kept, counted from its beginning. One that still runs then is cancelled.
const TTL: Duration = Duration::from_secs(15 * 60);
/// How often clients should look.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How a long job becomes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// If the client knows tasks; else the call waits for it.
    Optional,
    /// Always; clients that do not know tasks are refused, unless they have a session, which cannot
    /// know them.
    Required,
    /// As [`Job::Optional`], but only once the questions of the call itself are answered.
    AfterAsking,
}

impl Job {
    /// Whether a request is to become a task.
    pub(super) fn begins(self, claims: &Claims) -> Result<bool, RpcError> {
        match self {
            Self::Required if !claims.knows_tasks() => Err(not_declared()),
            Self::AfterAsking if claims.responses.is_empty() => Ok(false),
            _ => Ok(claims.knows_tasks()),
        }
    }
}

/// All tasks.
pub(super) struct Tasks {
    all: Mutex<HashMap<String, Arc<Task>>>,
    jobs: Mutex<JoinSet<()>>,
    stop: CancellationToken,
}

/// One task.
pub(super) struct Task {
    id: String,
    /// Fires when it is cancelled or the server ends.
    pub(super) cancelled: CancellationToken,
    created: jiff::Timestamp,
    opened: Instant,
    state: Mutex<State>,
}

struct State {
    status: Status,
    updated: jiff::Timestamp,
    /// Questions that wait for their answers.
    asked: Vec<(Question, oneshot::Sender<Value>)>,
}

/// How far a task is. One that has asked something is at work, too.
enum Status {
    Working,
    Completed(Value),
    Failed(RpcError),
    Cancelled,
}

impl Tasks {
    /// No tasks. `stop` ends those that there will be.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { all: Mutex::default(), jobs: Mutex::default(), stop }
    }

    /// A task by id.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Task>> {
        let task = self.all.lock().get(id).cloned()?;
        (!task.is_expired()).then_some(task)
    }

    fn open(&self) -> Result<Arc<Task>, RpcError> {
        let no_id = || RpcError::new(INTERNAL_ERROR, "no id can be made for a task");
        let id = random_id().ok_or_else(no_id)?;
        let now = jiff::Timestamp::now();
        let state = State { status: Status::Working, updated: now, asked: Vec::new() };
        let task = Arc::new(Task {
            id: id.clone(),
            cancelled: self.stop.child_token(),
            created: now,
            opened: Instant::now(),
            state: Mutex::new(state),
        });
        let mut all = self.all.lock();
        all.retain(|_, task| !task.is_expired());
        if all.len() >= MAX_TASKS {
            let why = format!("there is room for {MAX_TASKS} tasks");
            return Err(RpcError::new(INTERNAL_ERROR, why));
        }
        all.insert(id, Arc::clone(&task));
        Ok(task)
    }

    /// Runs a job to its end, whatever becomes of the request that began it.
    fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        let mut jobs = self.jobs.lock();
        while jobs.try_join_next().is_some() {}
        jobs.spawn(job);
    }
}

/// Begins the `tools/call` with these parameters as a task; the result says which.
pub(super) fn start(
    server: &Arc<Server>,
    claims: Claims,
    params: Value,
) -> Result<Value, RpcError> {
    let task = server.tasks.open()?;
    let mut result = task.to_value();
    result["resultType"] = json!("task");
    let call = Call::in_task(server, Arc::clone(&task), claims);
    server.tasks.spawn(async move {
        let outcome = timeout(TTL, call.run("tools/call", &params)).await;
        let status = match outcome.unwrap_or_default() {
            Some(Ok(result)) => Status::Completed(result),
            Some(Err(why)) => Status::Failed(why),
            None => Status::Cancelled,
        };
        task.end(&call.server, status);
    });
    Ok(result)
}

/// Answers `tasks/get`, `tasks/update` and `tasks/cancel`.
pub(super) fn answer(
    server: &Server,
    method: &str,
    params: &Value,
    claims: &Claims,
) -> Result<Value, RpcError> {
    if !claims.knows_tasks() {
        return Err(not_declared());
    }
    let id = service::text(params, "taskId")?;
    let task = server.tasks.find(id);
    let task = task.ok_or_else(|| RpcError::params("there is no such task"))?;
    match method {
        "tasks/get" => return Ok(task.to_value()),
        "tasks/update" => {
            let answers = params["inputResponses"].as_object();
            let answers = answers.ok_or_else(|| RpcError::params("inputResponses is missing"))?;
            task.settle(server, answers);
        }
        _ => {
            task.cancelled.cancel();
            task.end(server, Status::Cancelled);
        }
    }
    Ok(json!({}))
}

/// The error for a client that did not declare the extension.
pub(super) fn not_declared() -> RpcError {
    RpcError::capability(&json!({"extensions": {TASKS_EXTENSION: {}}}))
}

impl Task {
    fn is_expired(&self) -> bool {
        self.opened.elapsed() > TTL
    }

    /// Puts questions to the client and waits for all answers, which are given in the same order.
    pub(super) async fn ask(
        &self,
        server: &Server,
        questions: Vec<Question>,
    ) -> Result<Vec<Value>, ToolError> {
        let mut answers = Vec::with_capacity(questions.len());
        self.change(server, |state| {
            for question in questions {
                let (tx, answer) = oneshot::channel();
                state.asked.push((question, tx));
                answers.push(answer);
            }
            true
        });
        let answers = join_all(answers).await.into_iter().collect::<Result<Vec<Value>, _>>();
        answers.map_err(|_| ToolError::Cancelled)
    }

    /// Hands answers to those who wait for them. What answers nothing is ignored.
    fn settle(&self, server: &Server, answers: &Map<String, Value>) {
        self.change(server, |state| {
            let (answered, open): (Vec<_>, Vec<_>) = std::mem::take(&mut state.asked)
                .into_iter()
                .partition(|(one, _)| answers.get(one.key).is_some_and(|a| one.is_answered_by(a)));
            state.asked = open;
            let any = !answered.is_empty();
            for (question, waiter) in answered {
                // Whoever asked may have been cancelled.
                let _ = waiter.send(answers[question.key].clone());
            }
            any
        });
    }

    /// Ends it, unless it has ended already.
    fn end(&self, server: &Server, status: Status) {
        self.change(server, |state| {
            let is_open = matches!(state.status, Status::Working);
            if is_open {
                state.status = status;
                state.asked.clear();
            }
            is_open
        });
    }

    /// Changes it and tells those who want to know; `change` says whether it did anything.
    fn change(&self, server: &Server, change: impl FnOnce(&mut State) -> bool) {
        {
            let mut state = self.state.lock();
            if !change(&mut state) {
                return;
            }
            state.updated = jiff::Timestamp::now();
        }
        server.listeners.tell_task(&self.id, &self.to_value());
    }

    /// The task as clients see it.
    fn to_value(&self) -> Value {
        let state = self.state.lock();
        let (status, outcome) = match &state.status {
            Status::Working if state.asked.is_empty() => ("working", None),
            Status::Working => {
                let asked = state.asked.iter();
                let asked: Map<String, Value> =
                    asked.map(|(one, _)| (one.key.to_owned(), one.to_value())).collect();
                ("input_required", Some(("inputRequests", Value::Object(asked))))
            }
            Status::Completed(result) => ("completed", Some(("result", result.clone()))),
            Status::Failed(why) => ("failed", Some(("error", why.to_value()))),
            Status::Cancelled => ("cancelled", None),
        };
        let mut task = json!({
            "taskId": self.id,
            "status": status,
            "createdAt": self.created.to_string(),
            "lastUpdatedAt": state.updated.to_string(),
            "ttlMs": TTL.as_secs() * 1000,
            "pollIntervalMs": POLL_INTERVAL.as_millis() as u64,
        });
        if let Some((member, value)) = outcome {
            task[member] = value;
        }
        task
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_are_bounded_in_number_and_in_age() {
        let tasks = Tasks::new(CancellationToken::new());
        let ids: Vec<String> = (0..MAX_TASKS).map(|_| tasks.open().unwrap().id.clone()).collect();
        assert!(tasks.open().is_err() && tasks.find(&ids[0]).is_some());
        tokio::time::advance(TTL + Duration::from_secs(1)).await;
        assert!(tasks.find(&ids[0]).is_none());
        assert!(tasks.open().is_ok(), "the old ones have made room");
        assert_eq!(tasks.all.lock().len(), 1);
    }
}
