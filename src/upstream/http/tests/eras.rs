//! Which era an upstream is spoken to in, and which links serve whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::stub::{Asked, Back, DISCOVERED, HELLO, Stub, UNSUPPORTED};
use super::{Rig, request, sessionless, shared};
use crate::config::Revision;
use crate::mcp::{ClientCaps, Era, ProtocolVersion};
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind, State};

async fn echo(asked: Asked, mut back: Back) -> Back {
    back.result(&asked, &format!("{{\"got\":{}}}", asked.id())).await;
    back
}

/// What of the stub was asked, but for streams.
fn asked(stub: &Stub) -> Vec<String> {
    stub.log().iter().map(Asked::what).filter(|what| what != "GET").collect()
}

fn of(scope: LinkScope, caps: &str, era: Era) -> LinkKey {
    LinkKey { scope, caps: ClientCaps::parse(caps.as_bytes()), era }
}

fn named(name: &str) -> LinkScope {
    LinkScope::Principal(name.into())
}

/// Both eras.
async fn dual() -> Stub {
    Stub::start(async |asked, mut back| {
        match asked.what().as_str() {
            "server/discover" => back.result(&asked, DISCOVERED).await,
            "initialize" => back.result(&asked, HELLO).await,
            "tools/call" => return echo(asked, back).await,
            "GET" => back.full(405, &[], "").await,
            _ => back.full(202, &[], "").await,
        }
        back
    })
    .await
}

#[tokio::test]
async fn an_upstream_that_knows_both_eras_is_spoken_to_in_the_clients_own() {
    let stub = dual().await;
    let rig = Rig::to(&stub);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert_eq!(asked(&stub), ["initialize", "notifications/initialized", "tools/call"]);
    let version = |key| {
        let upstream = Arc::clone(&rig.upstream);
        async move { upstream.call(&key, request("tools/call", "{}")).await.expect("an answer").version }
    };
    assert_eq!(version(sessionless()).await, ProtocolVersion::V2026_07_28);
    assert_eq!(version(shared()).await, ProtocolVersion::V2025_11_25);
    assert_eq!(asked(&stub)[3..], ["server/discover", "tools/call", "tools/call"]);
    assert_eq!(rig.upstream.link_of(&shared()).era, Era::Legacy);
    assert_eq!(rig.upstream.link_of(&sessionless()).era, Era::Modern);
}

#[tokio::test]
async fn a_legacy_client_is_served_by_an_upstream_that_knows_no_sessions() {
    let stub = Stub::modern(echo).await;
    let mut rig = Rig::to(&stub);
    let key = of(LinkScope::Session(3), r#"{"sampling":{}}"#, Era::Legacy);
    let answer = rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
    assert_eq!(answer.version, ProtocolVersion::V2026_07_28);
    assert_eq!(asked(&stub), ["initialize", "server/discover", "tools/call"]);
    let one = LinkKey { scope: LinkScope::Shared, caps: ClientCaps::NONE, era: Era::Modern };
    assert_eq!(rig.upstream.link_of(&key), one);
    assert!(rig.upstream.is_open(&key) && rig.upstream.is_open(&sessionless()));
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    let hello = rig.upstream.hello(&key).await.expect("a hello");
    assert_eq!(hello.instructions.as_deref(), Some("be brief"));
    rig.upstream.end_session(3);
    assert!(rig.upstream.is_open(&key), "it is everybody's");
    // What is known is not asked again, by nobody.
    for key in [shared(), of(named("a"), "{}", Era::Modern), of(named("b"), "{}", Era::Legacy)] {
        rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
    }
    assert_eq!(asked(&stub)[3..], ["tools/call", "tools/call", "tools/call"]);
    assert_eq!(rig.upstream.state(), State::Up);
}

#[tokio::test]
async fn who_can_be_asked_is_served_without_sessions_where_there_are_none_anyway() {
    let stub = dual().await;
    let rig = Rig::to(&stub);
    rig.call_modern("tools/call", "{}").await.expect("an answer");
    let asks = of(LinkScope::Session(3), r#"{"sampling":{}}"#, Era::Legacy);
    for _ in 0..2 {
        let answer = rig.upstream.call(&asks, request("tools/call", "{}")).await;
        assert_eq!(answer.expect("an answer").version, ProtocolVersion::V2026_07_28);
    }
    let first = ["server/discover", "tools/call", "initialize", "notifications/initialized"];
    assert_eq!(asked(&stub)[..4], first);
    assert_eq!(asked(&stub)[4..], ["tools/call", "tools/call"]);
    let answer = rig.upstream.call(&shared(), request("tools/call", "{}")).await;
    assert_eq!(answer.expect("an answer").version, ProtocolVersion::V2025_11_25);
}

#[tokio::test]
async fn what_an_upstream_says_of_itself_is_kept_for_each_era() {
    let stub = dual().await;
    let rig = Rig::to(&stub);
    let says = |era| {
        let hello = rig.upstream.known(era).expect("a hello");
        hello.instructions.clone().expect("instructions")
    };
    assert!(rig.upstream.may_come_up(Era::Legacy) && rig.upstream.may_come_up(Era::Modern));
    rig.upstream.hello(&sessionless()).await.expect("a hello");
    assert_eq!((says(Era::Legacy), says(Era::Modern)), ("be brief".into(), "be brief".into()));
    assert!(rig.upstream.may_come_up(Era::Legacy) && !rig.upstream.may_come_up(Era::Modern));
    for _ in 0..2 {
        for key in [shared(), sessionless()] {
            rig.upstream.hello(&key).await.expect("a hello");
            assert_eq!(
                (says(Era::Legacy), says(Era::Modern)),
                ("be kind".into(), "be brief".into())
            );
        }
    }
}

#[tokio::test]
async fn an_upstream_known_to_want_no_sessions_is_not_asked_so_twice() {
    let stub = Stub::modern(echo).await;
    let rig = Rig::to(&stub);
    rig.call_modern("tools/call", "{}").await.expect("an answer");
    for _ in 0..2 {
        rig.call("tools/call", "{}").await.expect("an answer");
    }
    let calls = ["server/discover", "tools/call", "initialize", "tools/call", "tools/call"];
    assert_eq!(asked(&stub), calls);
}

#[tokio::test]
async fn a_modern_client_shares_the_session_of_legacy_clients_like_it() {
    let stub = Stub::mcp(echo).await;
    let rig = Rig::to(&stub);
    let caps = r#"{"elicitation":{}}"#;
    let extended = r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    for key in [
        of(named("a"), extended, Era::Modern),
        of(named("a"), caps, Era::Legacy),
        of(named("b"), caps, Era::Modern),
    ] {
        let answer = rig.upstream.call(&key, request("tools/call", "{}")).await.expect("an answer");
        assert_eq!(answer.version, ProtocolVersion::V2025_11_25);
        assert_eq!(rig.upstream.link_of(&key), of(key.scope.clone(), caps, Era::Legacy));
    }
    assert_eq!(stub.asked("server/discover").len(), 1);
    let opened = stub.asked("initialize");
    assert_eq!(opened.len(), 2, "one for each principal");
    assert_eq!(opened[0].json()["params"]["capabilities"].to_string(), caps);
}

#[tokio::test]
async fn many_who_come_at_once_ask_once() {
    for (stub, questions) in [
        (Stub::modern(echo).await, ["initialize", "server/discover"]),
        (Stub::mcp(echo).await, ["server/discover", "initialize"]),
    ] {
        let rig = Rig::to(&stub);
        let wanted = if questions[0] == "initialize" { shared() } else { sessionless() };
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let (upstream, key) = (Arc::clone(&rig.upstream), wanted.clone());
            calls.spawn(async move { upstream.call(&key, request("tools/call", "{}")).await });
        }
        while let Some(result) = calls.join_next().await {
            result.expect("no panic").expect("an answer");
        }
        for question in questions {
            assert_eq!(stub.asked(question).len(), 1, "{question}");
        }
        assert_eq!(stub.asked("tools/call").len(), 20);
    }
}

/// A server with sessions that answers `server/discover` like this.
async fn answering(status: u16, body: &'static str) -> Stub {
    Stub::start(move |asked, mut back| async move {
        match asked.what().as_str() {
            "server/discover" => {
                let body = body.replace("ID", &asked.id());
                back.full(status, &[("content-type", "application/json")], body).await;
            }
            "initialize" => back.result(&asked, HELLO).await,
            "tools/call" => return echo(asked, back).await,
            _ => back.full(202, &[], "").await,
        }
        back
    })
    .await
}

const NOT_FOUND: &str = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"x"}}"#;
const NO_SESSION: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#;
const OLD_ONLY: &str = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"x","data":{"supported":["2025-11-25"]}}}"#;

#[tokio::test]
async fn what_no_modern_server_answers_is_a_verdict() {
    for (status, body) in [
        (200, NOT_FOUND),
        (200, OLD_ONLY),
        (200, r#"{"jsonrpc":"2.0","id":ID,"result":{}}"#),
        (200, "welcome"),
        (202, ""),
        (400, ""),
        (400, "Bad Request"),
        (400, NO_SESSION),
        (400, OLD_ONLY),
        (404, ""),
        (404, NOT_FOUND),
        (405, ""),
        (406, ""),
        (415, "{}"),
    ] {
        let stub = answering(status, body).await;
        let rig = Rig::to(&stub);
        for _ in 0..2 {
            rig.call_modern("tools/call", "{}").await.expect("an answer");
        }
        let questions = ["server/discover", "initialize", "notifications/initialized"];
        assert_eq!(asked(&stub)[..3], questions, "{status} {body}");
        assert_eq!(asked(&stub).len(), 5, "{status} {body}");
    }
}

#[tokio::test]
async fn what_says_nothing_of_the_era_is_no_verdict() {
    for status in [401, 403, 429, 500, 502, 503] {
        for body in ["", NOT_FOUND] {
            let stub = answering(status, body).await;
            let rig = Rig::to(&stub);
            for _ in 0..2 {
                let result = rig.call_modern("tools/call", "{}").await;
                assert!(
                    matches!(result, Err(CallError::Status { status: told, .. }) if told == status),
                    "{result:?}"
                );
            }
            assert_eq!(asked(&stub), ["server/discover", "server/discover"]);
            assert_eq!(rig.upstream.link_of(&sessionless()).era, Era::Modern);
        }
    }
}

#[tokio::test]
async fn silence_of_an_upstream_is_no_verdict() {
    let stub = Stub::start(async |_, back| {
        back.closed().await;
        back
    })
    .await;
    let rig =
        Rig::with(stub.url.clone(), |config| config.probe_timeout = Duration::from_millis(30));
    let result = rig.call_modern("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
    assert_eq!(rig.upstream.link_of(&sessionless()).era, Era::Modern);
    assert_eq!(asked(&stub), ["server/discover"]);
}

#[tokio::test]
async fn our_revision_is_offered_again_when_it_is_refused_and_named_at_once() {
    let count = AtomicUsize::new(0);
    let stub = Stub::start(move |asked, mut back| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match asked.what().as_str() {
                "server/discover" if first => back.error(&asked, 400, UNSUPPORTED).await,
                "server/discover" => back.result(&asked, DISCOVERED).await,
                _ => return echo(asked, back).await,
            }
            back
        }
    })
    .await;
    Rig::to(&stub).call_modern("tools/call", "{}").await.expect("an answer");
    assert_eq!(asked(&stub), ["server/discover", "server/discover", "tools/call"]);
}

#[tokio::test]
async fn an_upstream_that_refuses_both_eras_is_told_by_its_refusal_and_asked_afresh() {
    let stub = Stub::start(async |_, mut back| {
        back.full(404, &[], "").await;
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let result = rig.call("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Status { status: 404, .. })), "{result:?}");
    assert_eq!(asked(&stub), ["initialize", "server/discover"]);
    let result = rig.call_modern("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Status { status: 404, .. })), "{result:?}");
    assert_eq!(asked(&stub)[2..], ["server/discover", "initialize", "server/discover"]);
    assert_eq!(rig.upstream.link_of(&sessionless()).era, Era::Modern);
    assert_eq!(rig.upstream.link_of(&shared()).era, Era::Legacy);
}

#[tokio::test]
async fn what_hinders_the_second_question_is_told_rather_than_the_first_refusal() {
    let stub = Stub::start(async |asked, mut back| {
        let status = if asked.what() == "initialize" { 400 } else { 401 };
        back.full(status, &[], "").await;
        back
    })
    .await;
    let result = Rig::to(&stub).call("tools/call", "{}").await;
    assert!(matches!(result, Err(CallError::Status { status: 401, .. })), "{result:?}");
}

#[tokio::test]
async fn a_pinned_revision_is_the_only_one_that_is_tried() {
    let pin = |stub: &Stub, version| {
        Rig::with(stub.url.clone(), |config| config.revision = Revision::Pinned(version))
    };
    let stub = dual().await;
    let rig = pin(&stub, ProtocolVersion::V2026_07_28);
    rig.call("tools/call", "{}").await.expect("an answer");
    assert_eq!(asked(&stub), ["server/discover", "tools/call"]);
    let stub = dual().await;
    let rig = pin(&stub, ProtocolVersion::V2025_06_18);
    rig.call_modern("tools/call", "{}").await.expect("an answer");
    assert_eq!(asked(&stub), ["initialize", "notifications/initialized", "tools/call"]);
    let stub = Stub::modern(echo).await;
    let rig = pin(&stub, ProtocolVersion::V2025_06_18);
    rig.call("tools/call", "{}").await.expect_err("no sessions");
    assert_eq!(asked(&stub), ["initialize"]);
    let stub = Stub::mcp(echo).await;
    let rig = pin(&stub, ProtocolVersion::V2026_07_28);
    rig.call("tools/call", "{}").await.expect_err("only sessions");
    assert_eq!(asked(&stub), ["server/discover"]);
}

#[tokio::test]
async fn an_upstream_that_was_replaced_by_one_of_the_other_era_is_found_out() {
    let modern = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let told = Arc::clone(&modern);
    let stub = Stub::start(move |asked, mut back| {
        let modern = told.load(Ordering::SeqCst);
        async move {
            let session = asked.header("mcp-session-id") == Some("s");
            match (asked.what().as_str(), modern) {
                ("server/discover", true) => back.result(&asked, DISCOVERED).await,
                ("initialize", true) => back.error(&asked, 400, UNSUPPORTED).await,
                ("initialize", false) => {
                    let text =
                        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{HELLO}}}"#, asked.id());
                    let headers = [("content-type", "application/json"), ("mcp-session-id", "s")];
                    back.full(200, &headers, text).await;
                }
                ("notifications/initialized", _) => back.full(202, &[], "").await,
                ("tools/call", true) if session => back.full(404, &[], "").await,
                ("tools/call", _) if modern || session => return echo(asked, back).await,
                _ => back.full(400, &[], NO_SESSION).await,
            }
            back
        }
    })
    .await;
    let rig = Rig::to(&stub);
    let version = |key| {
        let upstream = Arc::clone(&rig.upstream);
        async move { upstream.call(&key, request("tools/call", "{}")).await.map(|a| a.version) }
    };
    for (is_modern, spoken) in [
        (true, ProtocolVersion::V2026_07_28),
        (false, ProtocolVersion::V2025_11_25),
        (true, ProtocolVersion::V2026_07_28),
    ] {
        modern.store(is_modern, Ordering::SeqCst);
        assert_eq!(version(shared()).await.expect("an answer"), spoken);
        assert_eq!(version(sessionless()).await.expect("an answer"), spoken);
    }
}

#[tokio::test]
async fn links_that_are_kept_stay_whatever_the_era_turns_out_to_be() {
    let stub = Stub::modern(echo).await;
    let rig =
        Rig::with(stub.url.clone(), |config| config.idle_timeout = Some(Duration::from_millis(40)));
    let kept = rig.upstream.keep(&shared()).expect("kept");
    rig.call("tools/call", "{}").await.expect("an answer");
    // Longer than idle links live.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(rig.upstream.is_open(&shared()));
    drop(kept);
    rig.until("it is ended", |rig| !rig.upstream.is_open(&shared())).await;
}
