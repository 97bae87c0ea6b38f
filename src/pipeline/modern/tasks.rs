//! Tasks as the extension has them (MCP digest §16.2): passed through between modern peers, under ids that lead back to
//! their upstream and that nobody else can use.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Id, Member, Message, RawObject};
use crate::mcp::TASKS_EXTENSION;
use crate::pipeline::call::{Context, Ended, Target, call};
use crate::pipeline::ledger::Ledger;
use crate::pipeline::mcp::{Served, invalid_params, restored};
use crate::pipeline::seal::Seal;
use crate::pipeline::{Backend, Outlet};
use crate::upstream::Answered;

/// What an id of ours stands for.
#[derive(Deserialize, Serialize)]
struct Task {
    upstream: String,
    task: String,
}

/// `tasks/get`, `tasks/update`, `tasks/cancel`.
pub(in crate::pipeline) async fn task<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Served {
    if !cx.session.caps().tasks() {
        let needed = json!({ "extensions": { TASKS_EXTENSION: {} } }).to_string();
        let fault = Fault::new(Reason::MissingCapability, "this needs a client that knows tasks");
        return Err(Ended::Fault(fault.with("requiredCapabilities", needed)));
    }
    let shown = message.member_str(Member::TaskId);
    let shown = shown.ok_or_else(|| invalid_params("Invalid params: taskId must be a string"))?;
    let unknown = || invalid_params("Unknown task");
    let Task { upstream, task } = open(cx, &shown).ok_or_else(unknown)?;
    let backend =
        cx.route.backends.iter().find(|backend| backend.upstream.name().as_str() == upstream);
    let backend: &Arc<Backend> = backend.ok_or_else(unknown)?;
    let mut target = Target::plain(backend);
    let own = Bytes::from(Value::from(task).to_string());
    target.edits.extend(message.member_span(Member::TaskId).map(|span| (span, own)));
    let mut answer = call(cx, message, target, ledger, outlet).await?;
    if let Some(renamed) = renamed(&answer.message, &shown) {
        answer.message = renamed;
    }
    Ok(restored(cx, message, id, &answer, None))
}

/// An answer that began a task, under an id of ours; any other as it is.
pub(super) fn begun(
    cx: &Context,
    backend: &Backend,
    answered: Answered,
) -> Result<Answered, Ended> {
    if answered.message.member_str(Member::ResultType).as_deref() != Some("task") {
        return Ok(answered);
    }
    let Answered { message, version } = answered;
    let result = message.result().and_then(|result| RawObject::parse(&result));
    let task = result.and_then(|result| result.get_str("taskId"));
    let upstream = backend.upstream.name().as_str();
    let Some(task) = task else {
        let text = format!("upstream {upstream} sent an invalid answer: its task has no taskId");
        return Err(Ended::Fault(Fault::new(Reason::UpstreamProtocol, text).at(upstream)));
    };
    let failed = || Ended::Fault(Fault::new(Reason::Internal, "the id of a task cannot be sealed"));
    let text = serde_json::to_vec(&Task { upstream: upstream.to_owned(), task });
    let sealed = seal(cx).close(&text.map_err(|_| failed())?, &bound(cx));
    let message = renamed(&message, &sealed.map_err(|_| failed())?).ok_or_else(failed)?;
    Ok(Answered { message, version })
}

/// The answer with another `taskId`; `None` where it has none.
fn renamed(answer: &Message, id: &str) -> Option<Message> {
    let mut result = RawObject::parse(&answer.result()?)?;
    result.get("taskId")?;
    result.set("taskId", Value::from(id).to_string());
    let text = answer.edited(&[(answer.result_span()?, result.to_bytes())]).into_bytes();
    Message::parse_answer(text, u16::MAX).ok()
}

fn open(cx: &Context, shown: &str) -> Option<Task> {
    serde_json::from_slice(&seal(cx).open(shown, &bound(cx))?).ok()
}

fn seal(cx: &Context) -> Seal {
    Seal::new(&cx.snapshot.secret, "taskId")
}

fn bound(cx: &Context) -> [&[u8]; 2] {
    let principal = cx.session.principal().map_or(&b""[..], |principal| principal.as_bytes());
    [cx.route.name.as_str().as_bytes(), principal]
}
