//! Children in the pool: dialled ones, and links on standard input and output.

use std::time::Duration;

use super::stub::Stub;
use super::{Rig, request, sessionless, shared};
use crate::mcp::{ClientCaps, Era, ProtocolVersion};
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind, State};

/// Greets, then answers each call by its own id; `die` ends it.
const SERVER: &str = r#"
read line; printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh"}}}\n'; read line
while read -r line; do
  case "$line" in *die*) exit 3;; esac
  id=${line#*\"id\":}; id=${id%%,*}
  printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id"
done
"#;

/// Knows nothing but sessions.
const SESSIONS: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case "$line" in
    *notifications/*) continue;;
    *'"initialize"'*) result='"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh"}}';;
    *server/discover*) result='"error":{"code":-32601,"message":"x"}';;
    *) result='"result":{}';;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$result"
done
"#;

/// Knows no sessions: says what it can do, and answers each call by its own id.
const SESSIONLESS: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case "$line" in
    *initialize*) result='"error":{"code":-32022,"message":"x","data":{"supported":["2026-07-28"]}}';;
    *server/discover*) result='"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}';;
    *) result='"result":{}';;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$result"
done
"#;

fn sh(script: &str) -> Option<Vec<String>> {
    Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

#[tokio::test]
async fn a_child_with_an_address_is_started_before_it_is_dialled_and_stopped_at_the_end() {
    let stub = Stub::mcp(async |asked, mut back| {
        back.result(&asked, "{}").await;
        back
    })
    .await;
    let rig = Rig::with(stub.url.clone(), |config| config.command = sh("exec sleep 600"));
    assert_eq!(rig.metrics.children.get(), 0, "nothing is started before it is needed");
    rig.call("tools/call", "{}").await.expect("an answer");
    assert_eq!(rig.metrics.children.get(), 1);
    let other = LinkKey { scope: LinkScope::Session(7), ..shared() };
    rig.upstream.call(&other, request("tools/call", "{}")).await.expect("an answer");
    assert_eq!(rig.metrics.children.get(), 1, "links share it");
    rig.upstream.shutdown().await;
    assert_eq!(rig.metrics.children.get(), 0);
}

#[tokio::test]
async fn a_child_that_cannot_be_started_is_told_as_the_reason() {
    let stub = Stub::mcp(async |_, back| back).await;
    let command = Some(vec!["/nowhere/at-all".to_owned()]);
    let rig = Rig::with(stub.url.clone(), |config| config.command = command);
    let result = rig.call("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Connect { .. })), "{result:?}");
    assert!(matches!(rig.upstream.state(), State::Down(_)));
    assert_eq!(stub.log().len(), 0);
}

#[tokio::test]
async fn the_state_of_a_child_is_told_truly_while_it_dies_and_comes_back() {
    let mut rig = Rig::child(sh(SERVER));
    rig.call("tools/call", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    rig.until("it is up", |rig| rig.metrics.up.get() == 1).await;
    assert_eq!(rig.upstream.state(), State::Up);

    let result = rig.call("tools/call", r#"{"name":"die"}"#).await;
    assert!(matches!(result, Err(CallError::Closed { written: true, .. })), "{result:?}");
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    rig.until("it is down", |rig| rig.metrics.up.get() == 0).await;
    assert!(rig.upstream.known(crate::mcp::Era::Legacy).is_some());

    // It comes back without anybody asking for it.
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    rig.until("it is up again", |rig| rig.metrics.up.get() == 1).await;
    assert_eq!(rig.upstream.state(), State::Up);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert_eq!(rig.metrics.restarts.get(), 1);
    rig.upstream.shutdown().await;
    assert_eq!((rig.metrics.children.get(), rig.metrics.up.get()), (0, 0));
}

#[tokio::test]
async fn the_child_of_a_client_session_ends_with_it() {
    let rig = Rig::child(sh(SERVER));
    let key = LinkKey { scope: LinkScope::Session(7), ..shared() };
    for key in [&key, &shared()] {
        rig.upstream.call(key, request("tools/call", "{}")).await.expect("an answer");
    }
    assert_eq!(rig.metrics.children.get(), 2);
    rig.upstream.end_session(7);
    rig.until("one is left", |rig| rig.metrics.children.get() == 1).await;
    assert_eq!(rig.upstream.state(), State::Up);
    rig.upstream.shutdown().await;
    rig.tasks.close();
    tokio::time::timeout(Duration::from_secs(10), rig.tasks.wait()).await.expect("every task ends");
}

#[tokio::test]
async fn children_are_spoken_to_in_the_era_that_they_know() {
    for (script, version) in
        [(SESSIONLESS, ProtocolVersion::V2026_07_28), (SESSIONS, ProtocolVersion::V2025_11_25)]
    {
        let rig = Rig::child(sh(script));
        let caps = ClientCaps::parse(br#"{"sampling":{}}"#);
        for key in [shared(), sessionless(), LinkKey { caps, ..sessionless() }] {
            let answer =
                rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
            assert_eq!(answer.version, version);
            assert_eq!(rig.upstream.link_of(&key).era, version.era());
        }
        // Without sessions nobody needs another one than anybody else.
        let children = if version.era() == Era::Modern { 1 } else { 2 };
        rig.until("the rest has ended", |rig| rig.metrics.children.get() == children).await;
        rig.upstream.shutdown().await;
    }
}

#[tokio::test]
async fn a_child_that_bears_no_other_beside_it_serves_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = format!("mkdir {} || exit 7\n", folder.path().join("lock").display());
    let rig = Rig::child(sh(&(lock + SESSIONS)));
    for key in [shared(), sessionless()] {
        rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
    }
    rig.upstream.shutdown().await;
}
