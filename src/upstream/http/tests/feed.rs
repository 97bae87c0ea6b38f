//! What an upstream without sessions tells unasked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::stub::{Asked, Back, Stub};
use super::{PATIENCE, Rig, sessionless, shared};
use crate::jsonrpc::Member;
use crate::mcp::ListKind;
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind};

/// A stub that is listened to, and the streams that were opened there.
struct Listened {
    stub: Stub,
    streams: mpsc::UnboundedReceiver<Stream>,
    /// What `subscriptions/listen` is answered with instead of a stream, if not 0.
    refusal: Arc<AtomicU16>,
    discovered: Arc<AtomicUsize>,
}

/// One `subscriptions/listen` as the server sees it.
struct Stream {
    asked: Asked,
    /// What is said next; the stream ends when this is dropped.
    say: Option<mpsc::UnboundedSender<String>>,
    /// Ends when the other side closed it.
    closed: mpsc::UnboundedReceiver<()>,
}

impl Stream {
    fn say(&self, method: &str, mut params: Value) {
        params["_meta"] =
            json!({ "io.modelcontextprotocol/subscriptionId": self.asked.json()["id"] });
        let text = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.send(&text);
    }
    fn send(&self, text: &Value) {
        if let Some(say) = &self.say {
            let _ = say.send(text.to_string());
        }
    }
    fn filter(&self) -> Value {
        self.asked.json()["params"]["notifications"].clone()
    }
    /// Agrees to all that was asked for.
    fn acknowledge(&self) {
        self.agree(&self.filter());
    }
    fn agree(&self, filter: &Value) {
        self.say("notifications/subscriptions/acknowledged", json!({ "notifications": filter }));
    }
    fn end(&mut self) {
        self.say = None;
    }
    fn is_closed(&mut self) -> bool {
        self.closed.try_recv() == Err(mpsc::error::TryRecvError::Disconnected)
    }
    async fn closed(&mut self) {
        let closed = timeout(PATIENCE, self.closed.recv()).await;
        assert_eq!(closed, Ok(None), "closed in time");
    }
}

async fn serve(asked: Asked, mut back: Back, streams: mpsc::UnboundedSender<Stream>) -> Back {
    let (say, mut said) = mpsc::unbounded_channel::<String>();
    let (open, closed) = mpsc::unbounded_channel();
    back.sse().await;
    back.chunk(": welcome\n\n").await;
    let _ = streams.send(Stream { asked, say: Some(say), closed });
    loop {
        tokio::select! {
            text = said.recv() => match text {
                Some(text) => back.event(text).await,
                None => break,
            },
            () = back.closed() => break,
        }
    }
    drop(open);
    back.close();
    back
}

impl Listened {
    async fn start(caps: Value) -> Self {
        let (opened, streams) = mpsc::unbounded_channel();
        let (refusal, discovered) = (Arc::<AtomicU16>::default(), Arc::<AtomicUsize>::default());
        let (refuses, count) = (Arc::clone(&refusal), Arc::clone(&discovered));
        let stub = Stub::start(move |asked, mut back| {
            let (opened, caps) = (opened.clone(), caps.clone());
            let refusal = refuses.load(Ordering::SeqCst);
            let count = Arc::clone(&count);
            async move {
                match (asked.what().as_str(), refusal) {
                    ("server/discover", _) => {
                        count.fetch_add(1, Ordering::SeqCst);
                        let result =
                            json!({ "supportedVersions": ["2026-07-28"], "capabilities": caps });
                        back.result(&asked, &result.to_string()).await;
                    }
                    ("initialize", _) => back.full(400, &[], "").await,
                    ("subscriptions/listen", 0) => return serve(asked, back, opened).await,
                    ("subscriptions/listen", 404) => {
                        back.error(&asked, 404, r#"{"code":-32601,"message":"x"}"#).await;
                    }
                    ("subscriptions/listen", status) => back.full(status, &[], "").await,
                    _ => back.result(&asked, "{}").await,
                }
                back
            }
        })
        .await;
        Self { stub, streams, refusal, discovered }
    }

    async fn everything() -> (Self, Rig) {
        let lists = json!({ "listChanged": true });
        let caps = json!({ "tools": lists, "prompts": {}, "resources": { "listChanged": true, "subscribe": true } });
        let listened = Self::start(caps).await;
        let mut rig = Rig::to(&listened.stub);
        rig.upstream.hello(&sessionless()).await.expect("a link");
        assert!(matches!(rig.notice().await, NoticeKind::Opened));
        (listened, rig)
    }

    async fn stream(&mut self) -> Stream {
        timeout(PATIENCE, self.streams.recv()).await.expect("a stream in time").expect("a stream")
    }
}

fn watch(rig: &Rig, uri: &'static str) -> tokio::task::JoinHandle<Result<(), CallError>> {
    let upstream = Arc::clone(&rig.upstream);
    tokio::spawn(async move { upstream.watch(&sessionless(), uri).await })
}

async fn updated(rig: &mut Rig) -> String {
    match rig.notice().await {
        NoticeKind::ResourceUpdated(message) => {
            message.member_str(Member::Uri).expect("a uri").into_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_stream_is_open_for_the_lists_that_are_offered() {
    let (mut listened, mut rig) = Listened::everything().await;
    let stream = listened.stream().await;
    assert_eq!(stream.filter(), json!({ "toolsListChanged": true, "resourcesListChanged": true }));
    assert_eq!(stream.asked.header("mcp-method"), Some("subscriptions/listen"));
    assert_eq!(stream.asked.header("mcp-protocol-version"), Some("2026-07-28"));
    let meta = &stream.asked.json()["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
    stream.acknowledge();
    for (method, params) in [
        ("notifications/prompts/list_changed", json!({})),
        ("notifications/message", json!({ "level": "info", "data": 1 })),
        ("notifications/progress", json!({ "progressToken": 1, "progress": 1 })),
        ("notifications/resources/updated", json!({ "uri": "a:b" })),
    ] {
        stream.say(method, params);
    }
    stream.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }));
    stream.send(&json!({ "jsonrpc": "2.0", "id": "x", "result": {} }));
    stream.say("notifications/tools/list_changed", json!({}));
    stream.say("notifications/resources/list_changed", json!({}));
    for kind in [ListKind::Tools, ListKind::Resources] {
        let notice = timeout(PATIENCE, rig.notices.recv()).await.expect("in time").expect("one");
        assert!(matches!(notice.kind, NoticeKind::ListChanged(told) if told == kind));
        assert_eq!(notice.link, rig.upstream.link_of(&sessionless()));
    }
    assert_eq!(rig.metrics.stray.get(), 6, "what was not asked for");
    // Who else comes needs no other stream.
    let other = LinkKey { scope: LinkScope::Session(7), ..shared() };
    rig.upstream.hello(&other).await.expect("a link");
    rig.call_modern("tools/list", "{}").await.expect("an answer");
    assert_eq!(listened.stub.asked("subscriptions/listen").len(), 1);
    assert_eq!(listened.stub.asked("response").len(), 0);
}

#[tokio::test]
async fn nothing_is_opened_where_nothing_is_offered() {
    let listened = Listened::start(json!({ "tools": {}, "resources": {} })).await;
    let rig = Rig::to(&listened.stub);
    let refused = rig.upstream.watch(&sessionless(), "a:b").await;
    assert!(matches!(refused, Err(CallError::Protocol { .. })), "{refused:?}");
    rig.call_modern("tools/list", "{}").await.expect("an answer");
    assert_eq!(listened.stub.asked("subscriptions/listen").len(), 0);
}

#[tokio::test]
async fn the_wider_stream_is_agreed_to_before_the_narrower_ends() {
    let (mut listened, mut rig) = Listened::everything().await;
    let mut first = listened.stream().await;
    first.acknowledge();
    let watching = watch(&rig, "a:b");
    let mut second = listened.stream().await;
    assert_eq!(second.filter()["resourceSubscriptions"], json!(["a:b"]));
    assert_eq!(second.filter()["toolsListChanged"], true);
    // Until then the first one tells.
    first.say("notifications/tools/list_changed", json!({}));
    assert!(matches!(rig.notice().await, NoticeKind::ListChanged(ListKind::Tools)));
    assert!(!watching.is_finished() && !first.is_closed());
    second.acknowledge();
    watching.await.expect("no panic").expect("agreed");
    first.closed().await;
    second.say("notifications/resources/updated", json!({ "uri": "a:b" }));
    let NoticeKind::ResourceUpdated(message) = rig.notice().await else { panic!("no update") };
    let params: Value = serde_json::from_slice(&message.params().expect("params")).expect("JSON");
    assert_eq!(params, json!({ "uri": "a:b", "_meta": {} }), "ids of this hop are nobody else's");
    // A second time nothing is asked for; nor when it comes back before the stream was narrowed.
    watch(&rig, "a:b").await.expect("no panic").expect("agreed");
    rig.upstream.unwatch(&sessionless(), "a:b");
    watch(&rig, "a:b").await.expect("no panic").expect("agreed");
    assert_eq!(listened.stub.asked("subscriptions/listen").len(), 2);
    assert!(!second.is_closed());
    assert!(rig.upstream.is_open(&sessionless()));
}

#[tokio::test]
async fn what_is_not_watched_any_more_is_heard_a_little_longer() {
    let (mut listened, rig) = Listened::everything().await;
    let first = listened.stream().await;
    first.acknowledge();
    let watching = watch(&rig, "a:b");
    let mut second = listened.stream().await;
    second.acknowledge();
    watching.await.expect("no panic").expect("agreed");
    let began = Instant::now();
    rig.upstream.unwatch(&sessionless(), "a:b");
    let third = listened.stream().await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(third.filter().get("resourceSubscriptions"), None);
    assert!(!second.is_closed());
    third.acknowledge();
    second.closed().await;
}

#[tokio::test]
async fn what_comes_at_once_is_asked_for_at_once() {
    let (mut listened, rig) = Listened::everything().await;
    let narrow = listened.stream().await;
    narrow.acknowledge();
    let first = watch(&rig, "a:1");
    let second = listened.stream().await;
    let others = [watch(&rig, "a:2"), watch(&rig, "a:3"), watch(&rig, "a:4")];
    // They have said what they want before the second one is agreed to.
    tokio::task::yield_now().await;
    assert!(!others.iter().any(|other| other.is_finished()));
    second.acknowledge();
    first.await.expect("no panic").expect("agreed");
    let third = listened.stream().await;
    assert_eq!(third.filter()["resourceSubscriptions"], json!(["a:1", "a:2", "a:3", "a:4"]));
    third.acknowledge();
    for other in others {
        other.await.expect("no panic").expect("agreed");
    }
    assert_eq!(listened.stub.asked("subscriptions/listen").len(), 3);
}

#[tokio::test]
async fn a_resource_that_the_upstream_does_not_agree_to_is_not_watched() {
    let (mut listened, rig) = Listened::everything().await;
    let narrow = listened.stream().await;
    narrow.acknowledge();
    let watching = watch(&rig, "a:b");
    let mut second = listened.stream().await;
    second.agree(&json!({ "toolsListChanged": true }));
    let refused = watching.await.expect("no panic");
    assert!(matches!(refused, Err(CallError::Protocol { .. })), "{refused:?}");
    // It is told so at once from now on, on the stream that is there.
    let again = watch(&rig, "a:b").await.expect("no panic");
    assert!(again.is_err());
    assert!(!second.is_closed());
    assert_eq!(listened.stub.asked("subscriptions/listen").len(), 2);
}

#[tokio::test]
async fn a_wider_stream_that_is_refused_leaves_the_narrower_one() {
    let (mut listened, mut rig) = Listened::everything().await;
    let mut first = listened.stream().await;
    first.acknowledge();
    listened.refusal.store(500, Ordering::SeqCst);
    let refused = watch(&rig, "a:b").await.expect("no panic");
    assert!(matches!(refused, Err(CallError::Status { status: 500, .. })), "{refused:?}");
    first.say("notifications/tools/list_changed", json!({}));
    assert!(matches!(rig.notice().await, NoticeKind::ListChanged(ListKind::Tools)));
    assert!(!first.is_closed());
}

#[tokio::test]
async fn after_a_break_it_listens_again_and_all_counts_as_changed() {
    for gracefully in [true, false] {
        let (mut listened, mut rig) = Listened::everything().await;
        let first = listened.stream().await;
        first.acknowledge();
        let watching = watch(&rig, "a:b");
        let mut second = listened.stream().await;
        second.acknowledge();
        watching.await.expect("no panic").expect("agreed");
        // It is a good one.
        second.say("notifications/resources/updated", json!({ "uri": "a:b" }));
        assert_eq!(updated(&mut rig).await, "a:b");
        let began = Instant::now();
        if gracefully {
            let id = second.asked.json()["id"].clone();
            second.send(
                &json!({ "jsonrpc": "2.0", "id": id, "result": { "resultType": "complete" } }),
            );
        } else {
            second.end();
        }
        let mut third = listened.stream().await;
        assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
        assert_eq!(third.filter()["resourceSubscriptions"], json!(["a:b"]));
        assert_eq!(listened.discovered.load(Ordering::SeqCst), 2, "it may be another version");
        third.acknowledge();
        assert!(matches!(rig.notice().await, NoticeKind::Opened));
        assert_eq!(updated(&mut rig).await, "a:b");
        rig.upstream.shutdown().await;
        third.closed().await;
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_be_listened_to_serves_well() {
    for status in [404, 405, 501] {
        let lists = json!({ "tools": { "listChanged": true } });
        let listened = Listened::start(lists).await;
        listened.refusal.store(status, Ordering::SeqCst);
        let rig = Rig::to(&listened.stub);
        rig.call_modern("tools/list", "{}").await.expect("an answer");
        rig.until("it was tried", |_| !listened.stub.asked("subscriptions/listen").is_empty())
            .await;
        rig.call_modern("tools/list", "{}").await.expect("an answer");
        assert_eq!(listened.discovered.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn an_upstream_that_went_back_to_sessions_is_found_out_by_the_break() {
    let legacy = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = Arc::clone(&legacy);
    let (opened, mut streams) = mpsc::unbounded_channel();
    let stub = Stub::start(move |asked, mut back| {
        let (legacy, opened) = (told.load(Ordering::SeqCst), opened.clone());
        async move {
            match (asked.what().as_str(), legacy) {
                ("server/discover", false) => {
                    let result = json!({ "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } } });
                    back.result(&asked, &result.to_string()).await;
                }
                ("subscriptions/listen", false) => return serve(asked, back, opened).await,
                ("initialize", true) => back.result(&asked, super::stub::HELLO).await,
                ("tools/list", _) => back.result(&asked, "{}").await,
                ("notifications/initialized", _) => back.full(202, &[], "").await,
                _ => back.full(400, &[], "").await,
            }
            back
        }
    })
    .await;
    let mut rig = Rig::to(&stub);
    rig.call_modern("tools/list", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    let mut stream = timeout(PATIENCE, streams.recv()).await.expect("in time").expect("a stream");
    stream.acknowledge();
    legacy.store(true, Ordering::SeqCst);
    stream.end();
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    assert!(!rig.upstream.is_open(&sessionless()));
    rig.call_modern("tools/list", "{}").await.expect("an answer");
    assert_eq!(stub.asked("initialize").len(), 1);
}

#[tokio::test]
async fn no_more_is_watched_than_can_be_asked_for() {
    let (mut listened, rig) = Listened::everything().await;
    let narrow = listened.stream().await;
    narrow.acknowledge();
    let upstream = Arc::clone(&rig.upstream);
    let all = tokio::spawn(async move {
        let mut watching = tokio::task::JoinSet::new();
        for number in 0..4097 {
            let upstream = Arc::clone(&upstream);
            watching
                .spawn(async move { upstream.watch(&sessionless(), &format!("a:{number}")).await });
        }
        watching.join_all().await
    });
    let seen = tokio::spawn(async move {
        let mut streams = Vec::new();
        loop {
            let stream = listened.stream().await;
            stream.acknowledge();
            streams.push(stream);
        }
    });
    let refused: Vec<_> =
        all.await.expect("no panic").into_iter().filter_map(Result::err).collect();
    seen.abort();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(matches!(refused[0], CallError::Busy { .. }));
}
