//! Tests from outside: the real binary in front of fakes, example servers and real peers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod aggregation;
mod batch_upstream;
mod batches;
mod calls;
mod cases_bytes;
mod cases_http;
mod cases_modern;
mod cases_older;
mod cases_route;
mod chaos;
mod cli;
mod client;
mod drain;
mod encodings;
mod fake;
mod gateway;
mod hostile;
mod http2;
mod jsonrpc_rows;
mod layout;
mod legacy_sse;
mod limits;
mod mcp;
mod metrics;
mod modern;
mod modern_edge;
mod modern_flow;
mod modern_hostile;
mod pairing;
mod peers;
mod resume;
mod routes;
mod seen;
mod sessions;
mod stdio;
mod tls;
mod unix;
mod upstream_sessions;
mod wire;
mod ws;
mod ws_client;
mod ws_frames;
mod ws_mcp;
mod ws_upstream;
