//! The MCP server itself: what it holds, who is connected, and the answer to every method but
//! `tools/call`, which may take its time and is in [`super::call`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::completion;
use super::content::Content;
use super::message::{RESOURCE_NOT_FOUND, RpcError, print_notification};
use super::outbox::Standing;
use super::page;
use super::revision::Revision;
use super::session::{Agreed, Session};

/// Levels of log messages, from the chattiest on.
pub(super) const LOG_LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// Index of the level that holds until the client sets one: info.
pub(super) const DEFAULT_LOG_LEVEL: usize = 1;

/// The server behind all its sessions.
pub(super) struct Server {
    pub(super) content: Content,
    /// The newest revision offered; all older ones are, too.
    pub(super) newest: Revision,
    /// Entries on one page of a list.
    pub(super) page_size: usize,
    /// Whether sessions last, so that changes can be told to them.
    pub(super) lasting: bool,
    /// Fires when the server ends.
    pub(super) stop: CancellationToken,
    live: Mutex<HashMap<u64, Weak<Session>>>,
    serials: AtomicU64,
}

impl Server {
    /// A server with this content and no session.
    pub(super) fn new(content: Content, newest: Revision, page_size: usize, lasting: bool) -> Self {
        Self {
            content,
            newest,
            page_size,
            lasting,
            stop: CancellationToken::new(),
            live: Mutex::default(),
            serials: AtomicU64::new(0),
        }
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

    /// Tells all sessions but one of a change, if they want to know.
    pub(super) fn tell_others(&self, but: &Session, change: &Change, text: &str) {
        // Collected first: the last owner of a session takes this lock when it lets go.
        let live: Vec<Arc<Session>> = self.live.lock().values().filter_map(Weak::upgrade).collect();
        for session in live {
            if session.serial() != but.serial() && session.wants(change) {
                session.standing.tell(text.to_owned());
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
    /// The notification.
    pub(super) fn print(&self) -> String {
        let (method, params) = match self {
            Self::Tools => ("notifications/tools/list_changed", Value::Null),
            Self::Prompts => ("notifications/prompts/list_changed", Value::Null),
            Self::Resources => ("notifications/resources/list_changed", Value::Null),
            Self::Updated(uri) => ("notifications/resources/updated", json!({"uri": uri})),
        };
        print_notification(method, params)
    }
}

/// Answers a request, other than `tools/call`.
pub(super) fn answer(session: &Session, method: &str, params: &Value) -> Result<Value, RpcError> {
    let answer: fn(&Session, &Value) -> Result<Value, RpcError> = match method {
        "initialize" => return initialize(session, params),
        "ping" => return Ok(json!({})),
        "tools/list" => list_tools,
        "prompts/list" => list_prompts,
        "prompts/get" => get_prompt,
        "resources/list" => list_resources,
        "resources/templates/list" => list_templates,
        "resources/read" => read_resource,
        "resources/subscribe" if session.server.lasting => subscribe,
        "resources/unsubscribe" if session.server.lasting => unsubscribe,
        "completion/complete" => completion::complete,
        "logging/setLevel" => set_level,
        _ => return Err(RpcError::no_method(method)),
    };
    session.check_open()?;
    answer(session, params)
}

fn initialize(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let wish = text(params, "protocolVersion")?;
    let server = &session.server;
    let revision = Revision::negotiate(wish, server.newest);
    let capabilities = params.get("capabilities").cloned().unwrap_or_else(|| json!({}));
    if server.lasting {
        session.agree(Agreed { revision, capabilities })?;
    }
    let mut info = json!({"name": server.content.name(), "version": env!("CARGO_PKG_VERSION")});
    if revision >= Revision::V2025_06_18 {
        info["title"] = json!(server.content.title());
    }
    let lasting = server.lasting;
    let mut capabilities = json!({
        "logging": {},
        "tools": {"listChanged": lasting},
        "prompts": {"listChanged": lasting},
        "resources": {"subscribe": lasting, "listChanged": lasting},
    });
    if revision >= Revision::V2025_03_26 {
        capabilities["completions"] = json!({});
    }
    Ok(json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities,
        "serverInfo": info,
        "instructions": server.content.instructions(),
    }))
}

fn list_tools(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let revision = session.revision();
    let tools = session.server.content.tools();
    let tools = tools.iter().map(|tool| tool.to_value(revision)).collect();
    page::cut("tools", "tools", tools, params, session.server.page_size)
}

fn list_prompts(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let revision = session.revision();
    let prompts = session.server.content.prompts();
    let prompts = prompts.iter().map(|prompt| prompt.to_value(revision)).collect();
    page::cut("prompts", "prompts", prompts, params, session.server.page_size)
}

fn list_resources(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let revision = session.revision();
    let resources = session.server.content.resources();
    let resources = resources.iter().map(|resource| resource.to_value(revision)).collect();
    page::cut("resources", "resources", resources, params, session.server.page_size)
}

fn list_templates(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let revision = session.revision();
    let templates = session.server.content.templates();
    let templates = templates.iter().map(|template| template.to_value(revision)).collect();
    page::cut("templates", "resourceTemplates", templates, params, session.server.page_size)
}

fn read_resource(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let uri = text(params, "uri")?;
    let contents = session.server.content.read(uri).ok_or_else(|| no_resource(uri))?;
    Ok(json!({"contents": [contents.to_value()]}))
}

fn get_prompt(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let name = text(params, "name")?;
    let content = &session.server.content;
    let prompts = content.prompts();
    let prompt = prompts.iter().find(|prompt| prompt.name == name);
    let prompt = prompt.ok_or_else(|| RpcError::params(format!("unknown prompt: {name}")))?;
    let empty = Map::new();
    let arguments = params.get("arguments").and_then(Value::as_object).unwrap_or(&empty);
    prompt.check(arguments)?;
    let messages = content.prompt(name, arguments)?;
    Ok(json!({"description": prompt.description, "messages": messages}))
}

fn subscribe(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let uri = text(params, "uri")?;
    session.server.content.read(uri).ok_or_else(|| no_resource(uri))?;
    session.subscribe(uri)?;
    Ok(json!({}))
}

fn unsubscribe(session: &Session, params: &Value) -> Result<Value, RpcError> {
    session.unsubscribe(text(params, "uri")?);
    Ok(json!({}))
}

fn set_level(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let name = text(params, "level")?;
    let level = LOG_LEVELS.iter().position(|level| *level == name);
    let level = level.ok_or_else(|| RpcError::params(format!("unknown log level: {name}")))?;
    session.set_log_level(level);
    Ok(json!({}))
}

/// A required member that must be a string.
pub(super) fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, RpcError> {
    params[name].as_str().ok_or_else(|| RpcError::params(format!("{name} must be a string")))
}

/// The error for a URI that leads nowhere.
pub(super) fn no_resource(uri: &str) -> RpcError {
    let data = Some(json!({"uri": uri}));
    RpcError { code: RESOURCE_NOT_FOUND, message: format!("unknown resource: {uri}"), data }
}
