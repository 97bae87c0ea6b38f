//! What is measured: which request goes to which path of which target.

use crate::catalog::MERGED;

/// The MCP revision that every session of a run agrees on.
pub(crate) const REVISION: &str = "2025-11-25";

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
    /// A plain JSON-RPC call.
    Plain,
}

/// All of them, in the order they run.
#[rustfmt::skip]
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "call-1k",     about: "tools/call, 1 KiB, 32 connections",           connections: 32,  load: Load::Call("text_1k") },
    Scenario { name: "call-1k-128", about: "tools/call, 1 KiB, 128 connections",          connections: 128, load: Load::Call("text_1k") },
    Scenario { name: "call-64k",    about: "tools/call, 64 KiB, 32 connections",          connections: 32,  load: Load::Call("text_64k") },
    Scenario { name: "call-sse",    about: "tools/call, 1 KiB by SSE, 32 connections",    connections: 32,  load: Load::Call("sse_1k") },
    Scenario { name: "call-of-4",   about: "tools/call, 1 KiB, one of 4 upstreams, 32",   connections: 32,  load: Load::CallOneOfFour("text_1k") },
    Scenario { name: "list",        about: "tools/list, 4 x 50 tools, 32 connections",    connections: 32,  load: Load::ListMerged },
    Scenario { name: "plain",       about: "plain JSON-RPC call, 32 connections",         connections: 32,  load: Load::Plain },
    Scenario { name: "refused",     about: "tools/call of an unknown tool, 32",           connections: 32,  load: Load::Refused },
    Scenario { name: "latency",     about: "tools/call, 1 KiB, one connection",           connections: 1,   load: Load::Call("text_1k") },
];

/// A request as one target wants it.
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) method: &'static str,
    pub(crate) params: String,
    /// Whether it needs an MCP session.
    pub(crate) session: bool,
    pub(crate) check: Check,
}

/// In what the answers of two targets must agree.
#[derive(Clone, Copy)]
pub(crate) enum Check {
    /// The result, as JSON.
    Result,
    /// The tools of the result, in any order.
    Tools,
    /// The code of the error.
    Error,
}

impl Load {
    /// The requests of this load; the connections are spread over them.
    pub(crate) fn calls(self, target: Target) -> Vec<Call> {
        let through = target == Target::Gateway;
        match self {
            Self::Call(tool) => vec![tool_call(one_upstream(through), tool, Check::Result)],
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
                session: true,
                check: Check::Tools,
            }],
            Self::Refused => vec![tool_call(one_upstream(through), "nobody_has_it", Check::Error)],
            Self::Plain => vec![Call {
                path: "/rpc".to_owned(),
                method: "sum",
                params: "[19,23]".to_owned(),
                session: false,
                check: Check::Result,
            }],
        }
    }
}

fn one_upstream(through_gateway: bool) -> &'static str {
    if through_gateway { "/mcp" } else { "/a" }
}

fn tool_call(path: &str, tool: &str, check: Check) -> Call {
    let arguments = r#"{"query":"lazy dog","limit":10,"fields":["title","time"]}"#;
    Call {
        path: path.to_owned(),
        method: "tools/call",
        params: format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#),
        session: true,
        check,
    }
}
