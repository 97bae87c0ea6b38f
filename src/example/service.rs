//! The MCP server itself: what it holds, who is connected, and the answer to every method but
//! `tools/call` and `prompts/get`, which may take their time and are in [`super::call`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::completion;
use super::content::Content;
use super::message::{INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError, print_notification};
use super::modern::Listeners;
use super::outbox::Standing;
use super::page;
use super::revision::{Offered, Revision};
use super::seal::Sealer;
use super::session::{Agreed, Session};
use super::tasks::Tasks;

/// Levels of log messages, from the chattiest on.
pub(super) const LOG_LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// Index of the level that holds until the client sets one: info.
pub(super) const DEFAULT_LOG_LEVEL: usize = 1;

/// The server behind all its clients.
pub(super) struct Server {
    pub(super) content: Content,
    pub(super) offered: Offered,
    /// Entries on one page of a list.
    pub(super) page_size: usize,
    /// Whether sessions last, so that changes can be told to them.
    pub(super) lasting: bool,
    /// Fires when clients are to be let go: streams that have no end of their own end.
    pub(super) ending: CancellationToken,
    /// Fires when the server ends; whatever still runs stops.
    pub(super) stop: CancellationToken,
    /// Who hears of changes without a session.
    pub(super) listeners: Listeners,
    pub(super) tasks: Tasks,
    pub(super) sealer: Sealer,
    live: Mutex<HashMap<u64, Weak<Session>>>,
    serials: AtomicU64,
}

impl Server {
    /// A server with this content and no client.
    pub(super) fn new(content: Content, offered: Offered, page_size: usize, lasting: bool) -> Self {
        let stop = CancellationToken::new();
        Self {
            content,
            offered,
            page_size,
            lasting,
            ending: stop.child_token(),
            tasks: Tasks::new(stop.child_token()),
            stop,
            listeners: Listeners::default(),
            sealer: Sealer::new(),
            live: Mutex::default(),
            serials: AtomicU64::new(0),
        }
    }

    /// The newest revision that a session can have. Where none is offered, no session gets so far
    /// as to have one.
    pub(super) fn newest(&self) -> Revision {
        self.offered.legacy().unwrap_or(Revision::NEWEST_LEGACY)
    }

    /// Opens a session that hears of changes until it is dropped.
    pub(super) fn open(self: &Arc<Self>, standing: Standing) -> Arc<Session> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(Arc::clone(self), serial, standing, None));
        self.live.lock().insert(serial, Arc::downgrade(&session));
        session
    }

    /// A session for one request that stands alone and hears of nothing else.
    pub(super) fn open_alone(self: &Arc<Self>, revision: Revision) -> Arc<Session> {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let agreed = Agreed { revision, capabilities: json!({}) };
        Arc::new(Session::new(Arc::clone(self), serial, Standing::none(), Some(agreed)))
    }

    /// Takes an ended session off the list.
    pub(super) fn forget(&self, serial: u64) {
        self.live.lock().remove(&serial);
    }

    /// Tells everyone but one session of a change, if they want to know.
    pub(super) fn tell_others(&self, but: Option<&Session>, change: &Change) {
        self.listeners.tell(change);
        let but = but.map(Session::serial);
        let text = change.print();
        // Collected first: the last owner of a session takes this lock when it lets go.
        let live: Vec<Arc<Session>> = self.live.lock().values().filter_map(Weak::upgrade).collect();
        for session in live {
            if Some(session.serial()) != but && session.wants(change) {
                session.standing.tell(text.clone());
            }
        }
    }
}

/// Something clients may want to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The list of tools.
    Tools,
    /// The list of prompts.
    Prompts,
    /// The list of resources or of templates.
    Resources,
    /// One resource, by URI; only for its subscribers.
    Updated(String),
}

impl Change {
    /// The notification's method.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
            Self::Updated(_) => "notifications/resources/updated",
        }
    }

    /// The notification.
    pub(super) fn print(&self) -> String {
        let params = match self {
            Self::Updated(uri) => json!({"uri": uri}),
            _ => Value::Null,
        };
        print_notification(self.method(), params)
    }
}

/// Answers a request of a session, other than those that may take their time.
pub(super) fn answer(session: &Session, method: &str, params: &Value) -> Result<Value, RpcError> {
    let answered = match method {
        "initialize" => return initialize(session, params),
        "ping" => return Ok(json!({})),
        "resources/subscribe" if session.server.lasting => None,
        "resources/unsubscribe" if session.server.lasting => None,
        "logging/setLevel" => None,
        _ => {
            let found = look_up(&session.server, session.revision(), method, params);
            Some(found.ok_or_else(|| RpcError::no_method(method))?)
        }
    };
    session.check_open()?;
    answered.unwrap_or_else(|| change(session, method, params))
}

/// Answers what changes a session.
fn change(session: &Session, method: &str, params: &Value) -> Result<Value, RpcError> {
    match method {
        "resources/subscribe" => subscribe(session, params)?,
        "resources/unsubscribe" => session.unsubscribe(text(params, "uri")?),
        _ => session.set_log_level(log_level(text(params, "level")?)?),
    }
    Ok(json!({}))
}

/// Answers what clients of every revision look up; `None` for any other method.
pub(super) fn look_up(
    server: &Server,
    revision: Revision,
    method: &str,
    params: &Value,
) -> Option<Result<Value, RpcError>> {
    let content = &server.content;
    let list = |name, member, entries| page::cut(name, member, entries, params, server.page_size);
    Some(match method {
        "tools/list" => {
            let tools = content.tools().into_iter().map(|tool| tool.to_value(revision));
            list("tools", "tools", tools.collect())
        }
        "prompts/list" => {
            let prompts = content.prompts().into_iter().map(|prompt| prompt.to_value(revision));
            list("prompts", "prompts", prompts.collect())
        }
        "resources/list" => {
            let resources = content.resources().into_iter().map(|one| one.to_value(revision));
            list("resources", "resources", resources.collect())
        }
        "resources/templates/list" => {
            let templates = content.templates().iter().map(|one| one.to_value(revision));
            list("templates", "resourceTemplates", templates.collect())
        }
        "resources/read" => read_resource(content, revision, params),
        "completion/complete" => completion::complete(content, params),
        _ => return None,
    })
}

fn initialize(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let wish = text(params, "protocolVersion")?;
    let server = &session.server;
    let revision = Revision::negotiate(wish, server.newest());
    let capabilities = params.get("capabilities").cloned().unwrap_or_else(|| json!({}));
    if server.lasting {
        session.agree(Agreed { revision, capabilities })?;
    }
    Ok(json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities_of(server.lasting, revision),
        "serverInfo": info(server, revision),
        "instructions": server.content.instructions(),
    }))
}

/// The server's capabilities for a client of this revision; `changes` says whether it will hear of
/// such.
pub(super) fn capabilities_of(changes: bool, revision: Revision) -> Value {
    let mut capabilities = json!({
        "logging": {},
        "tools": {"listChanged": changes},
        "prompts": {"listChanged": changes},
        "resources": {"subscribe": changes, "listChanged": changes},
    });
    if revision >= Revision::V2025_03_26 {
        capabilities["completions"] = json!({});
    }
    capabilities
}

/// Who the server is.
pub(super) fn info(server: &Server, revision: Revision) -> Value {
    let mut info = json!({"name": server.content.name(), "version": env!("CARGO_PKG_VERSION")});
    if revision >= Revision::V2025_06_18 {
        info["title"] = json!(server.content.title());
    }
    info
}

fn read_resource(content: &Content, revision: Revision, params: &Value) -> Result<Value, RpcError> {
    let uri = text(params, "uri")?;
    let contents = content.read(uri).ok_or_else(|| no_resource(uri, revision))?;
    Ok(json!({"contents": [contents.to_value()]}))
}

fn subscribe(session: &Session, params: &Value) -> Result<(), RpcError> {
    let uri = text(params, "uri")?;
    let found = session.server.content.read(uri);
    found.ok_or_else(|| no_resource(uri, session.revision()))?;
    session.subscribe(uri)
}

/// The index of a level of log messages.
pub(super) fn log_level(name: &str) -> Result<usize, RpcError> {
    let level = LOG_LEVELS.iter().position(|level| *level == name);
    level.ok_or_else(|| RpcError::params(format!("unknown log level: {name}")))
}

/// A required member that must be a string.
pub(super) fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, RpcError> {
    params[name].as_str().ok_or_else(|| RpcError::params(format!("{name} must be a string")))
}

/// The error for a URI that leads nowhere.
fn no_resource(uri: &str, revision: Revision) -> RpcError {
    let code = if revision >= Revision::MODERN { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
    let data = Some(json!({"uri": uri}));
    RpcError { code, message: format!("unknown resource: {uri}"), data }
}
