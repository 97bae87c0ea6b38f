//! The example server as its clients see it: without transport, over stdio, over HTTP.

mod http;
mod service;
mod stdio;

use clap::Parser;
use serde_json::{Value, json};

use super::{Answers, ExampleArgs, Kind, Revision, run};
use crate::mcp::meta;

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

/// Parameters of a request of 2026-07-28 whose client has these capabilities.
fn modern(mut params: Value, capabilities: Value) -> Value {
    params["_meta"][meta::PROTOCOL_VERSION] = json!("2026-07-28");
    params["_meta"][meta::CLIENT_CAPABILITIES] = capabilities;
    params
}

/// Parameters of a `tools/call`.
fn tool(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// A piece of JSON text as a tree.
fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// The command line that holds nothing but the example server's options.
#[derive(Debug, clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    options: ExampleArgs,
}

fn options(line: &str) -> Result<ExampleArgs, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace()).map(|line| line.options)
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for line in [
        "x",
        "x --stdio --http 127.0.0.1:0",
        "x --stdio --stateless",
        "x --ws 127.0.0.1:0 --http 127.0.0.1:0",
        "x --ws 127.0.0.1:0 --stateless",
        "x --stdio --answers sse",
        "x --stdio --page-size 0",
        "x --stdio --revision 2026-07-29",
    ] {
        assert!(options(line).is_err(), "{line}");
    }
    let args = options("x --http localhost:0 --stateless --revision 2025-03-26").unwrap();
    assert_eq!(args.revision, Some(Revision::V2025_03_26));
    assert_eq!((args.kind, args.answers, args.page_size.get()), (Kind::Notes, Answers::Auto, 50));
}

#[tokio::test]
async fn an_address_that_cannot_be_had_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args = options(&format!("x --http {address}")).unwrap();
    let why = run(args).await.unwrap_err();
    assert_eq!(why.to_string(), format!("cannot listen on {address}"));
}
