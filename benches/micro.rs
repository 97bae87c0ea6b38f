//! Micro benches: `cargo bench --bench micro`. Each stands for a step of the request path; the
//! figures of a release are compared in one run, on one machine.

use std::time::Duration;

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use trunkline::catalog::{Listing, Naming, Source, Upkeep, merge, parse_page};
use trunkline::exchange::bridge::{self, Recipient};
use trunkline::jsonrpc::{Id, Limits, Member, Message, parse_body};
use trunkline::mcp::{ClientCaps, ListKind, ProtocolVersion, header, method_spec};
use trunkline::router::{MethodTable, RouteTable};
use trunkline::upstream::{CallerId, Client, Events, OutCall};
use trunkline::wire::{SseDecoder, encode_event};

fn main() {
    divan::main();
}

/// What a message is filled with.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Many small objects with escapes.
    Nodes,
    /// One long string.
    Text,
}

/// Sizes as clients send them: a plain call, a page of a list, a file, a large result.
const SHAPES: [(Fill, usize); 7] = [
    (Fill::Nodes, 200),
    (Fill::Nodes, 4 << 10),
    (Fill::Nodes, 10 << 10),
    (Fill::Nodes, 100 << 10),
    (Fill::Text, 10 << 10),
    (Fill::Text, 100 << 10),
    (Fill::Text, 256 << 10),
];

/// A `tools/call` of about `size` bytes, in the key order of the TypeScript SDK: the id is last, so
/// the whole text must be walked before it is known.
fn call(fill: Fill, size: usize) -> Bytes {
    const NODE: &str =
        r#"{"path":"src/\"a\".rs","line":12,"score":0.75,"tags":["x","yy"],"ok":true},"#;
    let head = r#"{"method":"tools/call","params":{"name":"search_files","arguments":{"query":""#;
    let tail = r#"},"_meta":{"progressToken":7}},"jsonrpc":"2.0","id":42}"#;
    let room = size.saturating_sub(head.len() + tail.len());
    let middle = match fill {
        Fill::Nodes => {
            let nodes = NODE.repeat(room / NODE.len());
            format!("needle\",\"nodes\":[{}]", nodes.trim_end_matches(','))
        }
        Fill::Text => format!("{}\"", "lorem ipsum dolor ".repeat(room / 18)),
    };
    Bytes::from(format!("{head}{middle}{tail}"))
}

#[divan::bench(args = SHAPES)]
fn scan(bencher: Bencher<'_, '_>, (fill, size): (Fill, usize)) {
    let text = call(fill, size);
    bencher
        .counter(BytesCount::new(text.len()))
        .bench(|| Message::parse(black_box(text.clone()), 128));
}

#[divan::bench]
fn scan_batch_of_20(bencher: Bencher<'_, '_>) {
    let one = call(Fill::Nodes, 200);
    let one = std::str::from_utf8(&one).expect("the text is UTF-8");
    let text = Bytes::from(format!("[{}]", [one; 20].join(",")));
    let limits = Limits { max_depth: 128, max_batch: 100 };
    bencher
        .counter(BytesCount::new(text.len()))
        .bench(|| parse_body(black_box(text.clone()), &limits));
}

#[divan::bench(args = SHAPES)]
fn splice_id(bencher: Bencher<'_, '_>, (fill, size): (Fill, usize)) {
    let message = Message::parse(call(fill, size), 128).expect("the text is a message");
    let id = Id::from_number(123_456);
    bencher.bench(|| black_box(&message).with_id(black_box(&id)));
}

#[divan::bench]
fn clone_message(bencher: Bencher<'_, '_>) {
    let message = Message::parse(call(Fill::Nodes, 200), 128).expect("the text is a message");
    bencher.bench(|| black_box(&message).clone());
}

#[divan::bench(args = [300, 10 << 10, 100 << 10])]
fn sse_encode(bencher: Bencher<'_, '_>, size: usize) {
    let data = trunkline::jsonrpc::Chunks::from(call(Fill::Nodes, size));
    bencher
        .counter(BytesCount::new(data.len()))
        .bench(|| encode_event(Some("s1-42"), black_box(&data)));
}

#[divan::bench(args = [300, 10 << 10, 100 << 10])]
fn sse_decode(bencher: Bencher<'_, '_>, size: usize) {
    let data = trunkline::jsonrpc::Chunks::from(call(Fill::Nodes, size));
    let event = encode_event(Some("s1-42"), &data);
    let mut decoder = SseDecoder::new(1 << 20);
    bencher.counter(BytesCount::new(event.len())).bench_local(|| {
        decoder.push(black_box(event.clone()));
        decoder.next_event()
    });
}

/// A large event as a socket delivers it: 16 KiB at a time.
#[divan::bench]
fn sse_decode_in_reads_of_16k(bencher: Bencher<'_, '_>) {
    let data = trunkline::jsonrpc::Chunks::from(call(Fill::Text, 256 << 10));
    let event = encode_event(None, &data);
    let mut decoder = SseDecoder::new(1 << 20);
    bencher.counter(BytesCount::new(event.len())).bench_local(|| {
        let mut rest = event.clone();
        while !rest.is_empty() {
            decoder.push(rest.split_to(rest.len().min(16 << 10)));
            if let Some(event) = decoder.next_event() {
                return Some(event);
            }
        }
        None
    });
}

/// A path and a method of a plain route with some patterns.
#[divan::bench]
fn route(bencher: Bencher<'_, '_>) {
    let paths = RouteTable::new(["/mcp", "/rpc", "/tools/mcp", "/chain"]);
    let methods = [("*", 0), ("eth_*", 1), ("eth_get*", 2), ("eth_call", 3), ("net_*", 4)];
    let methods = MethodTable::new(methods).expect("they are globs");
    bencher.bench_local(|| {
        let route = paths.find(black_box("/chain"));
        (route, methods.pick(black_box("eth_getBlockByNumber")))
    });
}

/// The tools of ten upstreams, a hundred each, merged under prefixed names.
#[divan::bench]
fn merge_of_10_x_100_tools(bencher: Bencher<'_, '_>) {
    const SCHEMA: &str = r#"{"type":"object","properties":{"path":{"type":"string"},"limit":{"type":"integer"}},"required":["path"]}"#;
    let tools = (0..100).map(|n| {
        format!(r#"{{"name":"tool_{n}","description":"Does number {n}.","inputSchema":{SCHEMA}}}"#)
    });
    let page = Bytes::from(format!(r#"{{"tools":[{}]}}"#, tools.collect::<Vec<_>>().join(",")));
    let (items, _) = parse_page(ListKind::Tools, &page, &mut 0).expect("it is a page");
    let listing = Listing { items };
    let names: Vec<String> = (0..10).map(|n| format!("upstream{n}")).collect();
    let upkeep = Upkeep::default();
    let source = |upstream| Source { upstream, upkeep: &upkeep, listing: Some(&listing) };
    let sources: Vec<Source<'_>> = names.iter().map(|name| source(name)).collect();
    bencher.bench_local(|| merge(ListKind::Tools, Naming::Prefixed, black_box(&sources)));
}

/// The revision with sessions and the one without.
const LEGACY: ProtocolVersion = ProtocolVersion::NEWEST_LEGACY;
const MODERN: ProtocolVersion = ProtocolVersion::NEWEST_MODERN;

/// What a client without sessions can be asked.
const CAPS: [&str; 2] = ["{}", r#"{"elicitation":{"form":{}}}"#];

/// What every client says it is.
const INFO: &str = r#"{"name":"client","version":"1.0.0"}"#;

/// A call of a client without sessions, as its revision has it.
fn modern_call(caps: &str, token: &str) -> Message {
    let text = format!(
        r#"{{"method":"tools/call","params":{{"name":"search_files","arguments":{{"query":"lazy dog","limit":10}},"_meta":{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientInfo":{INFO},"io.modelcontextprotocol/clientCapabilities":{caps}{token}}}}},"jsonrpc":"2.0","id":42}}"#
    );
    Message::parse(text.into(), 128).expect("the text is a message")
}

/// The same of a client with a session.
fn legacy_call() -> Message {
    let text = r#"{"method":"tools/call","params":{"name":"search_files","arguments":{"query":"lazy dog","limit":10}},"jsonrpc":"2.0","id":42}"#;
    Message::parse(text.into(), 128).expect("the text is a message")
}

/// A call on its way to an upstream.
fn out(message: Message, caps: &str) -> OutCall {
    let info =
        message.member(Member::MetaClientInfo).unwrap_or(Bytes::from_static(INFO.as_bytes()));
    let caps = ClientCaps::parse(caps.as_bytes());
    OutCall {
        message,
        edits: smallvec::SmallVec::new(),
        caller: CallerId::of(1),
        client: Client { caps, info: Some(info), log_rank: None },
        params: None,
        timeout: Duration::from_secs(1),
        max_timeout: Duration::from_secs(1),
        events: Events::closed(),
    }
}

#[divan::bench(args = CAPS)]
fn stamp_modern_to_modern(bencher: Bencher<'_, '_>, caps: &str) {
    let call = out(modern_call(caps, ""), caps);
    bencher.bench(|| black_box(&call).text(123_456, MODERN));
}

#[divan::bench]
fn stamp_modern_to_modern_with_progress(bencher: Bencher<'_, '_>) {
    let call = out(modern_call("{}", r#","progressToken":"t""#), "{}");
    bencher.bench(|| black_box(&call).text(123_456, MODERN));
}

#[divan::bench(args = CAPS)]
fn stamp_legacy_to_modern(bencher: Bencher<'_, '_>, caps: &str) {
    let call = out(legacy_call(), caps);
    bencher.bench(|| black_box(&call).text(123_456, MODERN));
}

#[divan::bench]
fn stamp_modern_to_legacy(bencher: Bencher<'_, '_>) {
    let call = out(modern_call("{}", ""), "{}");
    bencher.bench(|| black_box(&call).text(123_456, LEGACY));
}

#[divan::bench]
fn stamp_legacy_to_legacy(bencher: Bencher<'_, '_>) {
    let call = out(legacy_call(), "{}");
    bencher.bench(|| black_box(&call).text(123_456, LEGACY));
}

/// What a request without a session says of its client, and what its headers are compared with.
#[divan::bench(args = CAPS)]
fn read_claims(bencher: Bencher<'_, '_>, caps: &str) {
    let message = modern_call(caps, "");
    bencher.bench(|| {
        let message = black_box(&message);
        let version = message.member_str(Member::MetaProtocolVersion)?;
        let version = ProtocolVersion::parse(&version)?;
        let caps = ClientCaps::parse(&message.member(Member::MetaClientCapabilities)?);
        let name = message.member_str(method_spec(message.method())?.named.member()?)?;
        Some((version, caps, header::decode(black_box("search_files")).is_ok_and(|v| v == name)))
    });
}

#[divan::bench(args = ["search_files", "Zürich"])]
fn name_header(bencher: Bencher<'_, '_>, name: &str) {
    bencher.bench(|| {
        let value = header::encode(black_box(name));
        header::decode(&value).map(|name| name.len())
    });
}

/// A result of about `size` bytes of an upstream without or with sessions.
fn answer(size: usize, from: ProtocolVersion) -> Message {
    let text = "the quick brown fox jumps over the lazy dog; ".repeat(size / 45 + 1);
    let of_the_era = if from == MODERN {
        r#","resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1.0.0"}}"#
    } else {
        ""
    };
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":123456,"result":{{"content":[{{"type":"text","text":"{}"}}]{of_the_era}}}}}"#,
        &text[..size]
    );
    Message::parse_answer(text.into(), 128).expect("the text is a message")
}

/// Ways of an answer: from the revision of the upstream to that of the client.
const WAYS: [(ProtocolVersion, ProtocolVersion, usize); 8] = [
    (LEGACY, LEGACY, 1 << 10),
    (LEGACY, LEGACY, 64 << 10),
    (MODERN, MODERN, 1 << 10),
    (MODERN, MODERN, 64 << 10),
    (MODERN, LEGACY, 1 << 10),
    (MODERN, LEGACY, 64 << 10),
    (LEGACY, MODERN, 1 << 10),
    (LEGACY, MODERN, 64 << 10),
];

#[divan::bench(args = WAYS)]
fn bridge_answer(
    bencher: Bencher<'_, '_>,
    (from, version, size): (ProtocolVersion, ProtocolVersion, usize),
) {
    let answer = answer(size, from);
    let caps = ClientCaps::NONE;
    let to = Recipient { version, caps, method: "tools/call", uri: None, wrapped: Some(false) };
    let id = Id::from_number(42);
    bencher
        .counter(BytesCount::new(size))
        .bench(|| bridge::answer(black_box(&to), from, black_box(&answer), &id));
}
