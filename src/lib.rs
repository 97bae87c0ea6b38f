//! Trunkline: a reverse proxy and gateway for JSON-RPC 2.0 and the Model Context Protocol.
//!
//! The rooms, in reading order (ARCHITECTURE.md has the picture):
//!
//! * [`jsonrpc`]: messages as byte ranges over what was received; no tree, no clock, no I/O.
//! * [`wire`]: bytes to messages and back: SSE events, newline-delimited JSON.
//! * [`mcp`]: vocabulary of the Model Context Protocol: revisions, methods, capabilities.
//! * [`net`]: sockets of every kind, TLS and its certificates.
//! * [`fault`]: the one table from reason to code, HTTP status and outcome.
//! * [`config`]: file to checked configuration.
//! * [`telemetry`]: every metric, log line and label.
//! * [`budget`]: bytes in flight, and when they are too many.
//! * [`router`], [`catalog`], [`exchange`]: pure cores: paths, names, the life of a request.
//! * [`policy`], [`session`], [`upstream`]: what a request passes, belongs to and is sent to.
//! * [`pipeline`]: the written order of steps of every request.
//! * [`downstream`], [`admin`], [`example`]: listeners, the operator's side, the example upstreams.
//! * [`app`]: wires the rooms, the command line.

pub mod admin;
pub mod app;
pub mod budget;
pub mod catalog;
pub mod config;
pub mod downstream;
pub mod example;
pub mod exchange;
pub mod fault;
pub mod jsonrpc;
pub mod mcp;
pub mod net;
pub mod pipeline;
pub mod policy;
pub mod router;
pub mod session;
pub mod telemetry;
pub mod upstream;
pub mod wire;
