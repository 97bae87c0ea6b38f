//! `subscriptions/listen`: a request that stays open and hears of changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::message::{INTERNAL_ERROR, Id, RpcError};
use super::super::outbox::Outbox;
use super::super::service::{Change, Server};
use super::super::tasks;
use super::{Answer, Claims};
use crate::mcp::meta;

/// Requests that may listen at once.
const MAX_LISTENERS: usize = 4096;
/// Resources and tasks that one of them may name.
const MAX_NAMED: usize = 1000;

/// Everyone who listens.
#[derive(Default)]
pub(in super::super) struct Listeners {
    all: Mutex<HashMap<u64, Listener>>,
    serials: AtomicU64,
}

struct Listener {
    /// The request's, which its notifications repeat.
    id: Id,
    filter: Filter,
    outbox: Outbox,
}

/// What a listener wants to hear of.
#[derive(Default)]
struct Filter {
    tools: bool,
    prompts: bool,
    resources: bool,
    uris: BTreeSet<String>,
    tasks: BTreeSet<String>,
}

impl Filter {
    /// Reads what is wished for, and keeps what there is: resources and tasks that exist.
    fn read(server: &Server, wish: &Value, claims: &Claims) -> Result<Self, RpcError> {
        if !wish.is_object() {
            return Err(RpcError::params("notifications must be an object"));
        }
        let flag = |name: &str| wish[name] == true;
        let named = |name: &str| -> Result<Vec<&str>, RpcError> {
            let wrong = || {
                RpcError::params(format!("{name} must be an array of at most {MAX_NAMED} strings"))
            };
            match &wish[name] {
                Value::Null => Ok(Vec::new()),
                Value::Array(all) if all.len() <= MAX_NAMED => {
                    all.iter().map(|one| one.as_str().ok_or_else(wrong)).collect()
                }
                _ => Err(wrong()),
            }
        };
        let tasks = named("taskIds")?;
        if !tasks.is_empty() && !claims.knows_tasks() {
            return Err(tasks::not_declared());
        }
        let uris = named("resourceSubscriptions")?.into_iter();
        let tasks = tasks.into_iter().filter(|id| server.tasks.find(id).is_some());
        Ok(Self {
            tools: flag("toolsListChanged"),
            prompts: flag("promptsListChanged"),
            resources: flag("resourcesListChanged"),
            uris: uris.filter(|uri| server.content.read(uri).is_some()).map(Into::into).collect(),
            tasks: tasks.map(Into::into).collect(),
        })
    }

    /// What the listener is told it will hear of.
    fn to_value(&self) -> Value {
        let mut filter = json!({});
        for (name, wanted) in [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ] {
            if wanted {
                filter[name] = json!(true);
            }
        }
        for (name, named) in [("resourceSubscriptions", &self.uris), ("taskIds", &self.tasks)] {
            if !named.is_empty() {
                filter[name] = json!(named);
            }
        }
        filter
    }

    fn wants(&self, change: &Change) -> bool {
        match change {
            Change::Tools => self.tools,
            Change::Prompts => self.prompts,
            Change::Resources => self.resources,
            Change::Updated(uri) => self.uris.contains(uri),
        }
    }
}

impl Listeners {
    /// Tells those of a change who want to know. Who reads too slowly misses it.
    pub(in super::super) fn tell(&self, change: &Change) {
        let params = match change {
            Change::Updated(uri) => json!({"uri": uri}),
            _ => json!({}),
        };
        for listener in self.all.lock().values().filter(|one| one.filter.wants(change)) {
            listener.outbox.offer(notification(change.method(), &params, &listener.id));
        }
    }

    /// Tells those of a task's new state who named it.
    pub(in super::super) fn tell_task(&self, id: &str, task: &Value) {
        for listener in self.all.lock().values().filter(|one| one.filter.tasks.contains(id)) {
            listener.outbox.offer(notification("notifications/tasks", task, &listener.id));
        }
    }
}

/// Begins to listen. The request is answered when the server ends.
pub(super) fn listen(
    server: &Arc<Server>,
    id: Id,
    params: &Value,
    claims: &Claims,
    outbox: &Outbox,
) -> Result<impl Future<Output = Option<Answer>> + use<>, RpcError> {
    let filter = Filter::read(server, &params["notifications"], claims)?;
    let (server, outbox) = (Arc::clone(server), outbox.clone());
    let full = || RpcError::new(INTERNAL_ERROR, format!("only {MAX_LISTENERS} may listen at once"));
    if server.listeners.all.lock().len() >= MAX_LISTENERS {
        return Err(full());
    }
    Ok(async move {
        let honoured = json!({"notifications": filter.to_value()});
        let first = notification("notifications/subscriptions/acknowledged", &honoured, &id);
        // Entered in one step with the first message, so that none overtakes it and none is missed.
        let permit = outbox.reserve().await?;
        let serial = server.listeners.serials.fetch_add(1, Ordering::Relaxed);
        let entry = Listener { id: id.clone(), filter, outbox: outbox.clone() };
        {
            let mut all = server.listeners.all.lock();
            permit.send(first);
            all.insert(serial, entry);
        }
        let _leave = Leave { server: &server, serial };
        server.ending.cancelled().await;
        Some(Ok(format!(r#"{{"resultType":"complete","_meta":{}}}"#, about(&id))))
    })
}

/// Takes a listener off the list.
struct Leave<'a> {
    server: &'a Server,
    serial: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.server.listeners.all.lock().remove(&self.serial);
    }
}

/// The `_meta` that says to which request a message belongs, with the id as the client wrote it.
fn about(id: &Id) -> String {
    format!(r#"{{"{}":{}}}"#, meta::SUBSCRIPTION_ID, id.get())
}

/// Prints a notification for a listener; `params` is an object without `_meta`.
fn notification(method: &str, params: &Value, id: &Id) -> String {
    let params = params.to_string();
    let members = params.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let members = members.unwrap_or_default();
    let comma = if members.is_empty() { "" } else { "," };
    let about = about(id);
    format!(
        r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{members}{comma}"_meta":{about}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn notifications_carry_the_id_as_it_was_written() {
        let id = RawValue::from_string("123456789012345678901234567890".to_owned()).unwrap();
        let text = notification("m", &json!({"uri": "a:b"}), &id);
        assert_eq!(
            text,
            r#"{"jsonrpc":"2.0","method":"m","params":{"uri":"a:b","_meta":{"io.modelcontextprotocol/subscriptionId":123456789012345678901234567890}}}"#
        );
        let id = RawValue::from_string("\"a\"".to_owned()).unwrap();
        assert!(notification("m", &json!({}), &id).contains(r#""params":{"_meta":{"#));
        assert!(notification("m", &json!({"a": {}}), &id).contains(r#"{"a":{},"_meta""#));
    }
}
