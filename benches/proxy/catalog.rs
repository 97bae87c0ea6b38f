//! What the stub serves: its servers, their tools, the texts of its answers.

use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::scenario::{LEGACY, MODERN as MODERN_REVISION};

/// Paths and names of the MCP servers with sessions. `merged` lists the tools of the others under prefixed
/// names, as a merge would: the same bytes from one hand.
pub(crate) const SERVERS: [(&str, &str); 6] =
    [("/a", "a"), ("/b", "b"), ("/c", "c"), ("/d", "d"), ("/merged", "merged"), (STREAMING, "s")];

/// The server with sessions that offers streams.
pub(crate) const STREAMING: &str = "/s";

/// The server without sessions: the twin of `a`, which answers with the same text.
pub(crate) const MODERN: &str = "/modern";

/// Names of the servers that a gateway merges.
pub(crate) const MERGED: [&str; 4] = ["a", "b", "c", "d"];

/// Names of the plain upstreams that a batch is spread over; the methods begin so.
pub(crate) const SPREAD: [&str; 4] = ["p", "q", "r", "t"];

/// Tools of each server.
pub(crate) const TOOLS: usize = 50;

/// Tools that answer with something; all others are only listed.
const REAL_TOOLS: [&str; 3] = ["text_1k", "text_64k", "sse_1k"];

/// Every answer, each from behind the id to the end of the message.
pub(crate) struct Answers {
    pub(crate) initialize: Bytes,
    pub(crate) empty: Bytes,
    pub(crate) plain: Bytes,
    pub(crate) plain_100k: Bytes,
    pub(crate) plain_4m: Bytes,
    pub(crate) unknown_tool: Bytes,
    pub(crate) unknown_method: Bytes,
    /// In the order of [`SERVERS`].
    pub(crate) servers: Vec<Server>,
    pub(crate) modern: Modern,
}

/// Answers of the server without sessions.
pub(crate) struct Modern {
    pub(crate) discover: Bytes,
    pub(crate) unsupported: Bytes,
    pub(crate) unknown_tool: Bytes,
    pub(crate) unknown_method: Bytes,
    pub(crate) server: Server,
}

/// Answers that differ by server, so that one which went to the wrong server is noticed.
pub(crate) struct Server {
    pub(crate) list: Bytes,
    pub(crate) text_1k: Bytes,
    pub(crate) text_64k: Bytes,
}

impl Answers {
    /// Writes them all.
    pub(crate) fn new() -> Self {
        Self {
            initialize: result(&json!({
                "protocolVersion": LEGACY,
                "capabilities": capabilities(),
                "serverInfo": { "name": "stub", "version": "1.0.0" },
            })),
            empty: result(&json!({})),
            plain: result(&json!({ "sum": 42, "terms": [19, 23] })),
            plain_100k: result(&text("plain", 100 << 10)),
            plain_4m: result(&text("plain", 4 << 20)),
            unknown_tool: error(-32602, "unknown tool"),
            unknown_method: error(-32601, "method not found"),
            servers: SERVERS.iter().map(|(_, name)| Server::new(name, None)).collect(),
            modern: Modern::new(),
        }
    }
}

impl Modern {
    fn new() -> Self {
        let about =
            json!({ "io.modelcontextprotocol/serverInfo": { "name": "stub", "version": "1.0.0" } });
        Self {
            discover: result(&json!({
                "supportedVersions": [MODERN_REVISION],
                "capabilities": capabilities(),
                "resultType": "complete",
                "ttlMs": LASTS,
                "cacheScope": "public",
                "_meta": about,
            })),
            unsupported: failure(&json!({
                "code": -32022,
                "message": "unsupported protocol version",
                "data": { "supported": [MODERN_REVISION] },
            })),
            unknown_tool: error(-32602, "unknown tool"),
            unknown_method: error(-32601, "method not found"),
            server: Server::new("a", Some(&about)),
        }
    }
}

fn capabilities() -> Value {
    json!({ "tools": { "listChanged": true } })
}

/// How long lists of the server without sessions may be kept: longer than a run lasts.
const LASTS: u64 = 24 * 3600 * 1000;

impl Server {
    /// `about`: `_meta` of every result of a server without sessions.
    fn new(name: &str, about: Option<&Value>) -> Self {
        let tools: Vec<Value> = if name == "merged" {
            let tool = |server: &str, index| tool(server, index, &format!("{server}__"));
            MERGED.iter().flat_map(|server| (0..TOOLS).map(|i| tool(server, i))).collect()
        } else {
            (0..TOOLS).map(|index| tool(name, index, "")).collect()
        };
        let mut list = json!({ "tools": tools });
        if about.is_some() {
            list["ttlMs"] = LASTS.into();
            list["cacheScope"] = "public".into();
        }
        let finished = |mut members: Value| {
            if let Some(about) = about {
                members["resultType"] = "complete".into();
                members["_meta"] = about.clone();
            }
            result(&members)
        };
        Self {
            list: finished(list),
            text_1k: finished(text(name, 1024)),
            text_64k: finished(text(name, 64 * 1024)),
        }
    }
}

/// About 600 bytes, as definitions of tools are.
fn tool(server: &str, index: usize, prefix: &str) -> Value {
    let name = match REAL_TOOLS.get(index) {
        Some(name) => (*name).to_owned(),
        None => format!("tool_{index:02}"),
    };
    let description = format!(
        "Tool {index} of server {server}. Looks up the records that match the query and returns \
         them as text, newest first, with the fields that were asked for. Use it when the user \
         asks for records by name or by time; for a single record that is known use another one."
    );
    json!({
        "name": format!("{prefix}{name}"),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "What to look for." },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 10 },
                "fields": { "type": "array", "items": { "type": "string" } },
            },
            "required": ["query"],
        },
    })
}

/// A result with one text of that size.
fn text(server: &str, size: usize) -> Value {
    let words = format!("{server}: the quick brown fox jumps over the lazy dog; ");
    let text: String = words.chars().cycle().take(size).collect();
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn result(result: &Value) -> Bytes {
    format!(",\"result\":{result}}}").into()
}

fn error(code: i32, message: &str) -> Bytes {
    failure(&json!({ "code": code, "message": message }))
}

fn failure(error: &Value) -> Bytes {
    format!(",\"error\":{error}}}").into()
}
