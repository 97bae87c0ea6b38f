//! What the stub serves: its servers, their tools, the texts of its answers.

use hyper::body::Bytes;
use serde_json::{Value, json};

/// Paths of the MCP servers. The last one lists the tools of the others under prefixed names, as
/// a merge would: the same bytes from one hand.
pub(crate) const SERVERS: [&str; 5] = ["/a", "/b", "/c", "/d", "/merged"];

/// Names of the servers that a gateway merges.
pub(crate) const MERGED: [&str; 4] = ["a", "b", "c", "d"];

/// Tools of each server.
pub(crate) const TOOLS: usize = 50;

/// Tools that answer with something; all others are only listed.
const REAL_TOOLS: [&str; 3] = ["text_1k", "text_64k", "sse_1k"];

/// Every answer, each from behind the id to the end of the message.
pub(crate) struct Answers {
    pub(crate) initialize: Bytes,
    pub(crate) empty: Bytes,
    pub(crate) plain: Bytes,
    pub(crate) unknown_tool: Bytes,
    pub(crate) unknown_method: Bytes,
    /// In the order of [`SERVERS`].
    pub(crate) servers: Vec<Server>,
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
        let capabilities = json!({ "tools": { "listChanged": true } });
        Self {
            initialize: result(&json!({
                "protocolVersion": crate::scenario::REVISION,
                "capabilities": capabilities,
                "serverInfo": { "name": "stub", "version": "1.0.0" },
            })),
            empty: result(&json!({})),
            plain: result(&json!({ "sum": 42, "terms": [19, 23] })),
            unknown_tool: error(-32602, "unknown tool"),
            unknown_method: error(-32601, "method not found"),
            servers: SERVERS.iter().map(|path| Server::new(&path[1..])).collect(),
        }
    }
}

impl Server {
    fn new(name: &str) -> Self {
        let tools: Vec<Value> = if name == "merged" {
            let tool = |server: &str, index| tool(server, index, &format!("{server}__"));
            MERGED.iter().flat_map(|server| (0..TOOLS).map(|i| tool(server, i))).collect()
        } else {
            (0..TOOLS).map(|index| tool(name, index, "")).collect()
        };
        Self {
            list: result(&json!({ "tools": tools })),
            text_1k: text(name, 1024),
            text_64k: text(name, 64 * 1024),
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
fn text(server: &str, size: usize) -> Bytes {
    let words = format!("{server}: the quick brown fox jumps over the lazy dog; ");
    let text: String = words.chars().cycle().take(size).collect();
    result(&json!({ "content": [{ "type": "text", "text": text }] }))
}

fn result(result: &Value) -> Bytes {
    format!(",\"result\":{result}}}").into()
}

fn error(code: i32, message: &str) -> Bytes {
    format!(",\"error\":{}}}", json!({ "code": code, "message": message })).into()
}
