//! MCP over a connection for each link.

use crate::config::Protocol;
use crate::mcp::{ClientCaps, Era, ListKind};
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind};

use super::{PATIENCE, Peer, Rig, Stub, call};

const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}"#;
const DISCOVERED: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#;
const ECHO: &str =
    r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"echo","arguments":{}}}"#;

fn key(era: Era) -> LinkKey {
    LinkKey { scope: LinkScope::Shared, caps: ClientCaps::NONE, era }
}

impl Rig {
    fn mcp(stub: &Stub) -> Self {
        Self::with(stub, |config| config.protocol = Protocol::Mcp)
    }

    fn call_tool(&self, era: Era) -> tokio::task::JoinHandle<Result<String, CallError>> {
        let upstream = std::sync::Arc::clone(&self.upstream);
        tokio::spawn(async move {
            let call = upstream.call(&key(era), call(ECHO)).await?;
            Ok(String::from_utf8_lossy(call.message.text()).into_owned())
        })
    }

    async fn notice(&mut self) -> NoticeKind {
        let notice = tokio::time::timeout(PATIENCE, self.notices.recv()).await;
        notice.expect("a notice in time").expect("a notice").kind
    }
}

impl Peer {
    /// Answers the greeting of a link with sessions.
    async fn greet(&mut self) {
        let id = self.asked("initialize").await;
        self.answer(id, HELLO).await;
        assert_eq!(self.json().await["method"], "notifications/initialized");
    }
}

#[tokio::test]
async fn a_session_is_opened_on_its_connection_and_opened_again_when_that_is_lost() {
    let stub = Stub::start().await;
    let mut rig = Rig::mcp(&stub);
    let pending = rig.call_tool(Era::Legacy);
    let mut peer = stub.accept().await;
    assert_eq!(peer.headers.get("sec-websocket-protocol").unwrap(), "mcp");
    peer.greet().await;
    let id = peer.asked("tools/call").await;
    peer.answer(id, r#"{"content":[]}"#).await;
    assert!(pending.await.unwrap().unwrap().contains(r#""content":[]"#));
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    assert_eq!(rig.metrics.up.get(), 1);
    peer.write(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#).await;
    assert!(matches!(rig.notice().await, NoticeKind::ListChanged(ListKind::Tools)));
    let pending = rig.call_tool(Era::Legacy);
    peer.asked("tools/call").await;
    drop(peer);
    let Err(CallError::Closed { written: true, .. }) = pending.await.unwrap() else {
        panic!("it was sent and not answered");
    };
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    // Nobody calls: it comes back for what it may tell.
    let mut peer = stub.accept().await;
    peer.greet().await;
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    rig.end().await;
    assert_eq!(peer.closed().await, Some(1000));
}

#[tokio::test]
async fn a_server_without_sessions_serves_both_eras_on_one_connection() {
    let stub = Stub::start().await;
    let rig = Rig::mcp(&stub);
    let pending = rig.call_tool(Era::Modern);
    let mut peer = stub.accept().await;
    let id = peer.asked("server/discover").await;
    peer.answer(id, DISCOVERED).await;
    let call = peer.json().await;
    let meta = &call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    assert_eq!(meta, "2026-07-28", "{call}");
    let id = call["id"].as_u64().unwrap();
    peer.answer(id, r#"{"resultType":"complete","content":[]}"#).await;
    pending.await.unwrap().unwrap();
    // A client with a session finds out that there are none, on a connection that is left again.
    let pending = rig.call_tool(Era::Legacy);
    let mut asked = stub.accept().await;
    let id = asked.asked("initialize").await;
    asked
        .write(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"?"}}}}"#))
        .await;
    let id = asked.asked("server/discover").await;
    asked.answer(id, DISCOVERED).await;
    assert_eq!(asked.closed().await, Some(1000));
    let id = peer.asked("tools/call").await;
    peer.answer(id, r#"{"resultType":"complete","content":[]}"#).await;
    pending.await.unwrap().unwrap();
    rig.end().await;
}

#[tokio::test]
async fn a_server_that_hangs_up_on_a_question_it_does_not_know_is_greeted_otherwise() {
    let stub = Stub::start().await;
    let rig = Rig::mcp(&stub);
    let pending = rig.call_tool(Era::Modern);
    let mut peer = stub.accept().await;
    peer.asked("server/discover").await;
    drop(peer);
    // It turns out to have sessions, and those have a link of their own.
    let mut peer = stub.accept().await;
    let id = peer.asked("initialize").await;
    peer.answer(id, HELLO).await;
    assert_eq!(peer.closed().await, Some(1000));
    let mut peer = stub.accept().await;
    peer.greet().await;
    let id = peer.asked("tools/call").await;
    peer.answer(id, r#"{"content":[]}"#).await;
    pending.await.unwrap().unwrap();
    rig.end().await;
}
