//! Which era is spoken: in-memory pipes, and children that end over what they do not know.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::far::{Far, discovered};
use super::*;
use crate::config::Revision;
use crate::mcp::ProtocolVersion;
use crate::upstream::Hello;

const LEGACY: ProtocolVersion = ProtocolVersion::V2025_06_18;
const MODERN: ProtocolVersion = ProtocolVersion::V2026_07_28;

fn id(line: &Value) -> u64 {
    line["id"].as_u64().unwrap()
}

fn initialized() -> Value {
    json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": { "name": "far" } })
}

fn error(code: i64) -> Value {
    json!({ "code": code, "message": "no" })
}

fn plan(far: &Far, wanted: Era) -> Vec<Era> {
    far.channel.ctx.verdict.plan(wanted, tokio::time::Instant::now()).to_vec()
}

/// Reads the next request, which must be of that method.
async fn asked(far: &mut Far, method: &str) -> u64 {
    let line = far.line().await;
    assert_eq!(line["method"], method, "{line}");
    id(&line)
}

/// The far end takes part in `initialize`.
async fn initialize(far: &mut Far) {
    let id = asked(far, "initialize").await;
    far.answer(id, initialized()).await;
    assert_eq!(far.line().await["method"], "notifications/initialized");
}

async fn version(greeting: JoinHandle<Result<Hello, CallError>>) -> ProtocolVersion {
    greeting.await.unwrap().unwrap().version
}

#[tokio::test(start_paused = true)]
async fn a_result_of_discover_is_all_that_a_modern_client_needs() {
    let mut far = Far::of_era(Era::Modern);
    let greeting = far.greet(false);
    let line = far.line().await;
    assert_eq!(line["method"], "server/discover");
    let info = json!({ "name": "trunkline", "version": env!("CARGO_PKG_VERSION") });
    let meta = &line["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"], info);
    assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
    far.answer(id(&line), discovered(json!({ "tools": {} }))).await;
    let hello = greeting.await.unwrap().unwrap();
    assert_eq!((hello.version, hello.caps.tools, hello.caps.prompts), (MODERN, true, false));
    assert_eq!(hello.instructions.as_deref(), Some("be kind"));
    assert_eq!(json(&hello.info), json!({ "name": "far" }));
    far.channel.close("done");
    assert!(far.at_end().await, "nothing else is sent");
}

#[tokio::test(start_paused = true)]
async fn any_other_answer_to_discover_leads_to_initialize() {
    let unsupported =
        json!({ "code": -32022, "message": "no", "data": { "supported": ["2025-06-18"] } });
    let older = json!({ "supportedVersions": ["2025-11-25"], "capabilities": {} });
    let answers = [
        json!({ "error": error(-32601) }),
        json!({ "error": error(-32600) }),
        json!({ "error": error(0) }),
        json!({ "error": unsupported }),
        json!({ "error": "not initialized" }),
        json!({ "result": older }),
        json!({ "result": 1 }),
        json!({ "result": {} }),
    ];
    for answer in answers {
        let mut far = Far::of_era(Era::Modern);
        let greeting = far.greet(false);
        let mut line = json!({ "jsonrpc": "2.0", "id": asked(&mut far, "server/discover").await });
        line.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        far.send(line).await;
        initialize(&mut far).await;
        assert_eq!(version(greeting).await, LEGACY, "{answer}");
        assert_eq!(plan(&far, Era::Modern), [Era::Legacy], "{answer}");
        assert!(!far.channel.is_modern() && !far.channel.is_probing());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_names_the_revision_as_supported_is_asked_once_more() {
    for modern in [true, false] {
        let mut far = Far::of_era(Era::Modern);
        let greeting = far.greet(false);
        let refusal =
            json!({ "code": -32022, "message": "no", "data": { "supported": ["2026-07-28"] } });
        let id = asked(&mut far, "server/discover").await;
        far.refuse(id, refusal.clone()).await;
        let id = asked(&mut far, "server/discover").await;
        if modern {
            far.answer(id, discovered(json!({}))).await;
            assert_eq!(version(greeting).await, MODERN);
        } else {
            far.refuse(id, refusal).await;
            initialize(&mut far).await;
            assert_eq!(version(greeting).await, LEGACY);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silence_for_as_long_as_probe_timeout_leads_to_initialize() {
    let mut far = Far::of_era(Era::Modern);
    let begin = tokio::time::Instant::now();
    let greeting = far.greet(false);
    asked(&mut far, "server/discover").await;
    initialize(&mut far).await;
    assert_eq!(version(greeting).await, LEGACY);
    assert_eq!(begin.elapsed().as_secs(), 2);
    assert_eq!(plan(&far, Era::Modern), [Era::Legacy]);
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_that_starts_slowly_is_known_by_its_late_answer() {
    for late_first in [true, false] {
        let mut far = Far::of_era(Era::Modern);
        let greeting = far.greet(false);
        let discover = asked(&mut far, "server/discover").await;
        let initialize = asked(&mut far, "initialize").await;
        let refusal =
            json!({ "code": -32022, "message": "no", "data": { "supported": ["2026-07-28"] } });
        if late_first {
            far.answer(discover, discovered(json!({}))).await;
            far.refuse(initialize, refusal).await;
        } else {
            far.refuse(initialize, refusal).await;
            far.answer(discover, discovered(json!({}))).await;
        }
        assert_eq!(version(greeting).await, MODERN);
        assert_eq!(plan(&far, Era::Legacy), [Era::Modern]);
        assert!(!far.channel.is_probing());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_of_both_eras_that_agreed_to_initialize_is_in_that_era() {
    let mut far = Far::of_era(Era::Modern);
    let greeting = far.greet(false);
    let discover = asked(&mut far, "server/discover").await;
    let id = asked(&mut far, "initialize").await;
    far.answer(discover, discovered(json!({}))).await;
    far.answer(id, initialized()).await;
    assert_eq!(version(greeting).await, LEGACY);
    assert_eq!(plan(&far, Era::Modern), [Era::Modern, Era::Legacy]);
}

#[tokio::test(start_paused = true)]
async fn for_a_client_with_sessions_nothing_precedes_initialize() {
    let mut far = Far::of_era(Era::Legacy);
    let greeting = far.greet(false);
    initialize(&mut far).await;
    assert_eq!(version(greeting).await, LEGACY);
    far.channel.close("done");
    assert!(far.at_end().await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_initialize_is_asked_for_the_other_era() {
    let mut far = Far::of_era(Era::Legacy);
    let greeting = far.greet(false);
    let id = asked(&mut far, "initialize").await;
    far.refuse(id, error(-32022)).await;
    let id = asked(&mut far, "server/discover").await;
    far.answer(id, discovered(json!({}))).await;
    assert_eq!(version(greeting).await, MODERN);
    assert_eq!(plan(&far, Era::Legacy), [Era::Modern]);
    // The next one is not asked in vain.
    let ctx = far.channel.ctx.clone();
    let mut far = Far::of((ctx, far.notices), 64 * 1024);
    let greeting = far.greet(false);
    let id = asked(&mut far, "server/discover").await;
    far.answer(id, discovered(json!({}))).await;
    assert_eq!(version(greeting).await, MODERN);
    // Unless it was changed meanwhile.
    let ctx = far.channel.ctx.clone();
    let mut far = Far::of((ctx, far.notices), 64 * 1024);
    let greeting = far.greet(false);
    let id = asked(&mut far, "server/discover").await;
    far.refuse(id, error(-32601)).await;
    initialize(&mut far).await;
    assert_eq!(version(greeting).await, LEGACY);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_every_greeting_has_refused_initialize() {
    for silent in [true, false] {
        let mut far = Far::of_era(Era::Legacy);
        let greeting = far.greet(false);
        let id = asked(&mut far, "initialize").await;
        far.refuse(id, error(-32603)).await;
        let id = asked(&mut far, "server/discover").await;
        if !silent {
            far.refuse(id, error(-32601)).await;
        }
        let refused = greeting.await.unwrap();
        let Err(CallError::Protocol { what, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(what, "initialize was refused with error -32603");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pinned_revision_is_the_only_one_tried() {
    for (wanted, pinned) in [(Era::Legacy, MODERN), (Era::Modern, LEGACY)] {
        let config = UpstreamConfig { revision: Revision::Pinned(pinned), ..Default::default() };
        let mut far = Far::of(context_for(config, wanted), 64 * 1024);
        let greeting = far.greet(false);
        let method = if pinned == MODERN { "server/discover" } else { "initialize" };
        let id = asked(&mut far, method).await;
        far.refuse(id, error(-32601)).await;
        assert!(greeting.await.unwrap().is_err());
        far.channel.close("done");
        assert!(far.at_end().await);
    }
}
