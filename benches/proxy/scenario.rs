//! What is measured: which request goes to which path of which target.

use crate::catalog::{MERGED, SPREAD};

/// The revision that every session of a run agrees on.
pub(crate) const LEGACY: &str = "2025-11-25";

/// The revision of requests without a session.
pub(crate) const MODERN: &str = "2026-07-28";

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The stub itself.
    Direct,
    /// The control.
    Passthrough,
    /// trunkline.
    Gateway,
}

impl Target {
    /// As printed and as given to `--skip`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Passthrough => "passthrough",
            Self::Gateway => "gateway",
        }
    }
}

/// One row of the table.
pub(crate) struct Scenario {
    /// As given to `--only`.
    pub(crate) name: &'static str,
    /// As printed.
    pub(crate) about: &'static str,
    /// Connections of the load, each with one request in flight.
    pub(crate) connections: usize,
    /// What each sends.
    pub(crate) load: Load,
}

/// Kinds of requests.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// `tools/call` of one tool on a route with one upstream.
    Call(&'static str),
    /// The same on a route with four; the connections are spread over them.
    CallOneOfFour(&'static str),
    /// `tools/list` of all four.
    ListMerged,
    /// `tools/call` of a tool that nobody has.
    Refused,
    /// A plain JSON-RPC call of that method.
    Plain(&'static str),
    /// A plain JSON-RPC call of a method that nobody has.
    PlainRefused,
    /// A batch of so many plain calls, on that route of the gateway, to four upstreams.
    Batch(usize, &'static str),
    /// Plain JSON-RPC calls over WebSocket to an upstream over WebSocket, so many in flight on each connection. The
    /// passthrough has no part in it.
    WebSocket(usize),
    /// `tools/call` by a client without sessions to an upstream without sessions.
    Modern(&'static str),
    /// `tools/call` by a client with a session to an upstream without. Directly and through the passthrough it goes to
    /// the twin with sessions: that is what the client would cost without the bridge.
    ToModern(&'static str),
    /// `tools/call` by a client without sessions, which declares these capabilities, to an upstream with sessions.
    /// Directly and through the passthrough it goes to the twin without.
    ToLegacy(&'static str, &'static str),
}

/// What a client declares that can be asked nothing.
const NOTHING: &str = "{}";
/// What a client declares that can be asked to fill in a form.
const FORMS: &str = r#"{"elicitation":{}}"#;

/// All of them, in the order they run.
#[rustfmt::skip]
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "call-1k",     about: "tools/call, 1 KiB, 32 connections",           connections: 32,  load: Load::Call("text_1k") },
    Scenario { name: "call-1k-128", about: "tools/call, 1 KiB, 128 connections",          connections: 128, load: Load::Call("text_1k") },
    Scenario { name: "call-64k",    about: "tools/call, 64 KiB, 32 connections",          connections: 32,  load: Load::Call("text_64k") },
    Scenario { name: "call-sse",    about: "tools/call, 1 KiB by SSE, 32 connections",    connections: 32,  load: Load::Call("sse_1k") },
    Scenario { name: "call-of-4",   about: "tools/call, 1 KiB, one of 4 upstreams, 32",   connections: 32,  load: Load::CallOneOfFour("text_1k") },
    Scenario { name: "list",        about: "tools/list, 4 x 50 tools, 32 connections",    connections: 32,  load: Load::ListMerged },
    Scenario { name: "plain",       about: "plain JSON-RPC call, 32 connections",         connections: 32,  load: Load::Plain("sum") },
    Scenario { name: "plain-1",     about: "plain JSON-RPC call, one connection",         connections: 1,   load: Load::Plain("sum") },
    Scenario { name: "plain-128",   about: "plain JSON-RPC call, 128 connections",        connections: 128, load: Load::Plain("sum") },
    Scenario { name: "plain-100k",  about: "plain JSON-RPC call, 100 KiB, 32",            connections: 32,  load: Load::Plain("large_100k") },
    Scenario { name: "plain-4m",    about: "plain JSON-RPC call, 4 MiB, 8",               connections: 8,   load: Load::Plain("large_4m") },
    Scenario { name: "plain-none",  about: "plain JSON-RPC call of an unknown method, 32", connections: 32, load: Load::PlainRefused },
    Scenario { name: "batch-20",    about: "batch of 20 over 4 upstreams, 32 connections", connections: 32, load: Load::Batch(20, "/rpc4") },
    Scenario { name: "batch-20-arrays", about: "the same, upstreams take arrays",         connections: 32, load: Load::Batch(20, "/rpc4arrays") },
    Scenario { name: "ws-1x32",     about: "WebSocket to WebSocket, 32 in flight on one", connections: 1,   load: Load::WebSocket(32) },
    Scenario { name: "ws-32x1",     about: "WebSocket to WebSocket, one on each of 32",   connections: 32,  load: Load::WebSocket(1) },
    Scenario { name: "refused",     about: "tools/call of an unknown tool, 32",           connections: 32,  load: Load::Refused },
    Scenario { name: "latency",     about: "tools/call, 1 KiB, one connection",           connections: 1,   load: Load::Call("text_1k") },
    Scenario { name: "modern-1k",     about: "2026-07-28, tools/call, 1 KiB, 32 connections",  connections: 32,  load: Load::Modern("text_1k") },
    Scenario { name: "modern-1k-128", about: "2026-07-28, tools/call, 1 KiB, 128 connections", connections: 128, load: Load::Modern("text_1k") },
    Scenario { name: "modern-64k",    about: "2026-07-28, tools/call, 64 KiB, 32 connections", connections: 32,  load: Load::Modern("text_64k") },
    Scenario { name: "modern-sse",    about: "2026-07-28, tools/call, 1 KiB by SSE, 32",       connections: 32,  load: Load::Modern("sse_1k") },
    Scenario { name: "up-1k",         about: "2025-11-25 to 2026-07-28, 1 KiB, 32",            connections: 32,  load: Load::ToModern("text_1k") },
    Scenario { name: "up-64k",        about: "2025-11-25 to 2026-07-28, 64 KiB, 32",           connections: 32,  load: Load::ToModern("text_64k") },
    Scenario { name: "down-1k",       about: "2026-07-28 to 2025-11-25, 1 KiB, 32",            connections: 32,  load: Load::ToLegacy("text_1k", NOTHING) },
    Scenario { name: "down-1k-forms", about: "the same, client can be asked, 1 KiB, 32",       connections: 32,  load: Load::ToLegacy("text_1k", FORMS) },
    Scenario { name: "down-64k",      about: "2026-07-28 to 2025-11-25, 64 KiB, 32",           connections: 32,  load: Load::ToLegacy("text_64k", NOTHING) },
];

/// A request as one target wants it.
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) method: &'static str,
    pub(crate) params: String,
    pub(crate) client: Client,
    /// Lines of the header that repeat the body.
    pub(crate) headers: String,
    pub(crate) check: Check,
    /// What carries it.
    pub(crate) carrier: Carrier,
}

/// What carries the calls of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A POST for each.
    Post,
    /// A POST for a batch of so many.
    Batch(usize),
    /// Text messages of a WebSocket, so many in flight.
    WebSocket(usize),
}

/// How a call introduces its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// Not at all: plain JSON-RPC.
    Unnamed,
    /// By a session.
    Legacy,
    /// With each request, which declares these capabilities.
    Modern(&'static str),
}

/// What every client says it is.
pub(crate) const CLIENT_INFO: &str = r#"{"name":"load","version":"1.0.0"}"#;

/// In what the answers of two targets must agree.
#[derive(Clone, Copy)]
pub(crate) enum Check {
    /// The result, as JSON.
    Result,
    /// The content of the result, which is otherwise of the revision of the client.
    Content(Client),
    /// The tools of the result, in any order.
    Tools,
    /// The code of the error.
    Error,
}

impl Load {
    /// Whether a target can carry it.
    pub(crate) fn suits(self, target: Target) -> bool {
        target != Target::Passthrough || !matches!(self, Self::WebSocket(_))
    }

    /// The requests of this load; the connections are spread over them.
    pub(crate) fn calls(self, target: Target) -> Vec<Call> {
        let through = target == Target::Gateway;
        match self {
            Self::Call(tool) => vec![tool_call(one_upstream(through), tool, Check::Result)],
            Self::Modern(tool) => vec![modern_call("/modern", tool, NOTHING, Check::Result)],
            Self::ToModern(tool) => {
                let path = if through { "/modern" } else { "/a" };
                vec![tool_call(path, tool, Check::Content(Client::Legacy))]
            }
            Self::ToLegacy(tool, caps) => {
                let path = if through { "/mcp" } else { "/modern" };
                vec![modern_call(path, tool, caps, Check::Content(Client::Modern(caps)))]
            }
            Self::CallOneOfFour(tool) if through => MERGED
                .iter()
                .map(|server| tool_call("/mcp4", &format!("{server}__{tool}"), Check::Result))
                .collect(),
            Self::CallOneOfFour(tool) => MERGED
                .iter()
                .map(|server| tool_call(&format!("/{server}"), tool, Check::Result))
                .collect(),
            Self::ListMerged => vec![Call {
                path: if through { "/mcp4" } else { "/merged" }.to_owned(),
                method: "tools/list",
                params: "{}".to_owned(),
                client: Client::Legacy,
                headers: String::new(),
                check: Check::Tools,
                carrier: Carrier::Post,
            }],
            Self::Refused => vec![tool_call(one_upstream(through), "nobody_has_it", Check::Error)],
            Self::Plain(method) => vec![plain_call("/rpc", method, Carrier::Post)],
            Self::PlainRefused => {
                let path = if through { "/rpc4" } else { "/rpc" };
                vec![Call {
                    check: Check::Error,
                    ..plain_call(path, "nobody_has_it", Carrier::Post)
                }]
            }
            Self::Batch(size, path) => {
                let path = if through { path } else { "/rpc" };
                vec![plain_call(path, "sum", Carrier::Batch(size))]
            }
            Self::WebSocket(in_flight) => {
                let path = if through { "/ws" } else { "/rpc" };
                vec![plain_call(path, "sum", Carrier::WebSocket(in_flight))]
            }
        }
    }
}

fn plain_call(path: &str, method: &'static str, carrier: Carrier) -> Call {
    Call {
        path: path.to_owned(),
        method,
        params: "[19,23]".to_owned(),
        client: Client::Unnamed,
        headers: String::new(),
        check: Check::Result,
        carrier,
    }
}

/// The method of one element of a batch: the gateway tells the upstream by it.
pub(crate) fn spread(method: &str, element: usize) -> String {
    format!("{}_{method}", SPREAD[element % SPREAD.len()])
}

fn one_upstream(through_gateway: bool) -> &'static str {
    if through_gateway { "/mcp" } else { "/a" }
}

const ARGUMENTS: &str = r#"{"query":"lazy dog","limit":10,"fields":["title","time"]}"#;

fn tool_call(path: &str, tool: &str, check: Check) -> Call {
    Call {
        path: path.to_owned(),
        method: "tools/call",
        params: format!(r#"{{"name":"{tool}","arguments":{ARGUMENTS}}}"#),
        client: Client::Legacy,
        headers: String::new(),
        check,
        carrier: Carrier::Post,
    }
}

fn modern_call(path: &str, tool: &str, caps: &'static str, check: Check) -> Call {
    let meta = modern_meta(caps);
    Call {
        params: format!(r#"{{"name":"{tool}","arguments":{ARGUMENTS},"_meta":{meta}}}"#),
        client: Client::Modern(caps),
        headers: modern_headers("tools/call") + &format!("Mcp-Name: {tool}\r\n"),
        ..tool_call(path, tool, check)
    }
}

/// What a request without a session says of its client.
pub(crate) fn modern_meta(caps: &str) -> String {
    format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientInfo":{CLIENT_INFO},"io.modelcontextprotocol/clientCapabilities":{caps}}}"#
    )
}

/// The lines of the header that every request without a session has.
pub(crate) fn modern_headers(method: &str) -> String {
    format!("MCP-Protocol-Version: {MODERN}\r\nMcp-Method: {method}\r\n")
}
