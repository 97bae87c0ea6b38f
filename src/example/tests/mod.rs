//! The example server as its clients see it: without transport, over stdio, over HTTP.

mod http;
mod service;
mod stdio;

use serde_json::{Value, json};

/// A request as text.
fn request(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// A notification as text.
fn notification(method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
}

/// Parameters of `initialize` for a client with all capabilities.
fn hello(revision: &str) -> Value {
    json!({
        "protocolVersion": revision,
        "capabilities": {"sampling": {}, "elicitation": {}, "roots": {"listChanged": true}},
        "clientInfo": {"name": "test", "version": "1"},
    })
}

/// Parameters of a `tools/call`.
fn tool(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// A piece of JSON text as a tree.
fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}
