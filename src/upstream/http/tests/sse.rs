//! Sessions over the older binding to HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::stub::{Asked, Back, HELLO};
use super::*;
use crate::config::Revision;
use crate::jsonrpc::ErrorObject;
use crate::mcp::ProtocolVersion;
use crate::upstream::{AskReply, CallEvent};

/// A server of that binding at `/mcp`; messages are POSTed to `/post?s=NUMBER`.
struct Older {
    /// What each stream says; dropped to end it.
    streams: Mutex<Vec<Option<UnboundedSender<String>>>>,
    /// How the address begins that a stream names.
    names: Mutex<String>,
    /// Whether GET is refused.
    refuses: AtomicBool,
    /// The status of the next POSTs, but for the greeting.
    status: AtomicUsize,
    /// Whether calls are left without an answer.
    mute: AtomicBool,
}

impl Older {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            streams: Mutex::default(),
            names: Mutex::new("/post".to_owned()),
            refuses: AtomicBool::new(false),
            status: AtomicUsize::new(202),
            mute: AtomicBool::new(false),
        })
    }

    async fn start(self: &Arc<Self>) -> Stub {
        let older = Arc::clone(self);
        Stub::start(move |asked, back| {
            let older = Arc::clone(&older);
            async move { older.serve(asked, back).await }
        })
        .await
    }

    async fn serve(&self, asked: Asked, mut back: Back) -> Back {
        let refuses = self.refuses.load(Ordering::SeqCst);
        match (asked.verb.as_str(), asked.path.split_once("?s=")) {
            ("GET", None) if !refuses => return self.stream(back).await,
            ("POST", Some((_, number))) => self.posted(&asked, number, &mut back).await,
            _ => back.full(405, &[], "").await,
        }
        back
    }

    async fn stream(&self, mut back: Back) -> Back {
        let (say, mut said) = unbounded_channel();
        let number = {
            let mut streams = self.streams.lock();
            streams.push(Some(say));
            streams.len() - 1
        };
        back.sse().await;
        let name = self.names.lock().clone();
        back.chunk(format!(": hello\r\n\r\nevent: endpoint\r\ndata: {name}?s={number}\r\n\r\n"))
            .await;
        while let Some(text) = said.recv().await {
            back.chunk(text).await;
        }
        back.close();
        back
    }

    async fn posted(&self, asked: &Asked, number: &str, back: &mut Back) {
        let result = match asked.what().as_str() {
            "initialize" => HELLO.to_owned(),
            "notifications/initialized" => return back.full(202, &[], "").await,
            what => json!({ "did": what }).to_string(),
        };
        let status = if result == HELLO { 202 } else { self.status.load(Ordering::SeqCst) };
        let status = u16::try_from(status).expect("a status");
        back.full(status, &[], "Accepted").await;
        let call = asked.json()["method"].is_string() && asked.json()["id"].is_number();
        let mute = self.mute.load(Ordering::SeqCst) && result != HELLO;
        if call && !mute && status < 300 {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, asked.id());
            self.say_on(
                number.parse().expect("a number"),
                format!("event: message\ndata: {text}\n\n"),
            );
        }
    }

    fn say_on(&self, number: usize, text: String) {
        let streams = self.streams.lock();
        let Some(Some(stream)) = streams.get(number) else { panic!("there is no stream {number}") };
        stream.send(text).expect("the stream is read");
    }

    /// Says a message on the newest stream.
    fn say(&self, message: &Value) {
        let newest = self.streams.lock().len() - 1;
        self.say_on(newest, format!("event: message\ndata: {message}\n\n"));
    }

    /// Ends every stream.
    fn cut(&self) {
        self.streams.lock().iter_mut().for_each(|stream| *stream = None);
    }
}

fn begin(rig: &Rig, call: OutCall) -> JoinHandle<Result<String, CallError>> {
    let upstream = Arc::clone(&rig.upstream);
    tokio::spawn(async move {
        let answer = upstream.call(&shared(), call).await?;
        Ok(String::from_utf8_lossy(answer.message.text()).into_owned())
    })
}

async fn ended(call: JoinHandle<Result<String, CallError>>) -> Result<String, CallError> {
    timeout(PATIENCE, call).await.expect("an outcome in time").expect("no panic")
}

#[tokio::test]
async fn a_server_without_the_newer_binding_is_reached_over_its_stream() {
    let older = Older::new();
    let stub = older.start().await;
    let mut rig = Rig::with(stub.url.clone(), |config| {
        config.headers.insert("x-key".to_owned(), "s3cret".to_owned().into());
    });
    let answer = rig.call("tools/call", r#"{"name":"a"}"#).await.expect("an answer");
    assert!(answer.contains(r#""did":"tools/call""#), "{answer}");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    let log = stub.log();
    let all: Vec<_> = log.iter().map(|asked| (asked.what(), asked.path.as_str())).collect();
    let all: Vec<_> = all.iter().map(|(what, path)| (what.as_str(), *path)).collect();
    let post = "/post?s=0";
    assert_eq!(
        all,
        [
            ("initialize", "/mcp"),
            ("server/discover", "/mcp"),
            ("GET", "/mcp"),
            ("initialize", post),
            ("notifications/initialized", post),
            ("tools/call", post),
        ]
    );
    assert!(log.iter().all(|asked| asked.header("x-key") == Some("s3cret")));
    assert_eq!(stub.asked("GET")[0].header("accept"), Some("text/event-stream"));
    assert_eq!(
        rig.upstream.known(crate::mcp::Era::Legacy).expect("a hello").instructions.as_deref(),
        Some("be kind")
    );
    // The answer is matched by id, whatever else the stream brings.
    for _ in 0..5 {
        older.say(&json!({ "jsonrpc": "2.0", "id": 99, "result": {} }));
        rig.call("tools/list", "{}").await.expect("an answer");
    }
    assert_eq!(rig.metrics.stray.get(), 5);
    rig.upstream.shutdown().await;
    rig.tasks.close();
    timeout(PATIENCE, rig.tasks.wait()).await.expect("every task ends");
}

#[tokio::test]
async fn the_address_may_be_relative_or_absolute_but_of_the_same_origin() {
    for (name, path) in [
        ("post", "/post"),
        ("/a/../b", "/b"),
        ("", "/mcp"),
        ("ABSOLUTE/x%20y", "/x%20y"),
        ("//HOST/z", "/z"),
    ] {
        let older = Older::new();
        let stub = older.start().await;
        let host = format!("127.0.0.1:{}", stub.url.port().expect("a port"));
        let name = name.replace("ABSOLUTE", &format!("http://{host}")).replace("HOST", &host);
        (*older.names.lock()).clone_from(&name);
        let rig = Rig::to(&stub);
        assert!(rig.call("a", "{}").await.is_ok(), "{name}");
        assert_eq!(stub.asked("a")[0].path, format!("{path}?s=0"), "{name}");
    }
    for name in ["http://127.0.0.2:1/post", "https://127.0.0.1/post", "//localhost/post"] {
        let older = Older::new();
        let stub = older.start().await;
        name.clone_into(&mut older.names.lock());
        let rig = Rig::to(&stub);
        let refused = protocol(rig.call("a", "{}").await);
        assert_eq!(refused, "the endpoint that it names is of another origin", "{name}");
        assert!(stub.asked("a").is_empty());
    }
}

#[tokio::test]
async fn messages_are_read_whatever_ends_their_lines_and_wherever_they_are_cut() {
    let older = Older::new();
    let stub = older.start().await;
    let rig = Rig::to(&stub);
    older.mute.store(true, Ordering::SeqCst);
    for (number, end) in ["\r", "\n", "\r\n"].into_iter().enumerate() {
        let call = begin(&rig, request("a", "{}"));
        rig.until("it was asked", |_| stub.asked("a").len() == number + 1).await;
        let id = stub.asked("a")[number].id();
        let text = format!(
            "id: 7{end}data: {{\"jsonrpc\":\"2.0\",{end}data:\"id\":{id},{end}data: \"result\":{{}}}}{end}: x{end}event: message{end}{end}"
        );
        for half in [&text[..text.len() / 2], &text[text.len() / 2..]] {
            older.say_on(0, half.to_owned());
        }
        let answer = ended(call).await.expect("an answer");
        assert_eq!(serde_json::from_str::<Value>(&answer).expect("JSON")["result"], json!({}));
    }
    // Other kinds of events mean nothing.
    older.say_on(0, "event: ping\ndata: {}\n\nevent: endpoint\ndata: /elsewhere\n\n".to_owned());
    older.mute.store(false, Ordering::SeqCst);
    assert!(rig.call("b", "{}").await.is_ok());
    assert_eq!(stub.asked("b")[0].path, "/post?s=0");
}

#[tokio::test]
async fn the_end_of_the_stream_fails_what_waits_and_the_next_call_opens_another() {
    let older = Older::new();
    let stub = older.start().await;
    let mut rig = Rig::to(&stub);
    rig.call("a", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    older.mute.store(true, Ordering::SeqCst);
    let calls = [begin(&rig, request("slow", "{}")), begin(&rig, request("slow", "{}"))];
    rig.until("both were asked", |_| stub.asked("slow").len() == 2).await;
    older.cut();
    for call in calls {
        let failed = ended(call).await;
        assert!(matches!(failed, Err(CallError::Closed { written: true, .. })), "{failed:?}");
    }
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    assert!(!rig.upstream.is_open(&shared()));
    older.mute.store(false, Ordering::SeqCst);
    rig.call("b", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    assert_eq!(stub.asked("b")[0].path, "/post?s=1");
    let initialized = stub.asked("initialize");
    let paths: Vec<_> = initialized.iter().map(|asked| asked.path.as_str()).collect();
    assert_eq!(paths, ["/mcp", "/post?s=0", "/post?s=1"], "the binding is remembered");
}

#[tokio::test]
async fn a_server_that_has_moved_to_the_newer_binding_is_found_there() {
    let older = Older::new();
    let stub = older.start().await;
    let rig = Rig::to(&stub);
    rig.call("a", "{}").await.expect("an answer");
    older.refuses.store(true, Ordering::SeqCst);
    older.cut();
    rig.until("the link is lost", |rig| !rig.upstream.is_open(&shared())).await;
    let failed = rig.call("b", "{}").await;
    assert!(matches!(failed, Err(CallError::Status { status: 405, .. })), "{failed:?}");
    let last: Vec<_> = stub.log().iter().rev().take(3).map(Asked::what).collect();
    assert_eq!(last, ["server/discover", "initialize", "GET"]);
}

#[tokio::test]
async fn a_refused_post_fails_its_own_call_and_a_forgotten_session_is_opened_anew() {
    let older = Older::new();
    let stub = older.start().await;
    let rig = Rig::to(&stub);
    rig.call("a", "{}").await.expect("an answer");
    older.status.store(413, Ordering::SeqCst);
    let failed = rig.call("b", "{}").await;
    assert!(matches!(failed, Err(CallError::Status { status: 413, .. })), "{failed:?}");
    older.status.store(202, Ordering::SeqCst);
    rig.call("c", "{}").await.expect("an answer");
    assert_eq!(stub.asked("GET").len(), 1);
    // The second session knows what the first does not.
    older.status.store(404, Ordering::SeqCst);
    let failed = rig.call("d", "{}").await;
    assert!(matches!(failed, Err(CallError::Status { status: 404, .. })), "{failed:?}");
    assert_eq!((stub.asked("GET").len(), stub.asked("d").len()), (2, 2));
    older.status.store(202, Ordering::SeqCst);
    rig.call("e", "{}").await.expect("an answer");
    assert_eq!(stub.asked("GET").len(), 3);
}

#[tokio::test]
async fn questions_and_pings_are_answered_by_post() {
    let older = Older::new();
    let stub = older.start().await;
    let rig = Rig::to(&stub);
    older.mute.store(true, Ordering::SeqCst);
    let (call, mut events) = listened("slow", "{}");
    let caps = ClientCaps::parse(br#"{"sampling":{}}"#);
    let key = LinkKey { scope: LinkScope::Shared, caps, era: Era::Legacy };
    let upstream = Arc::clone(&rig.upstream);
    let call = tokio::spawn(async move { upstream.call(&key, call).await });
    rig.until("it was asked", |_| stub.asked("slow").len() == 1).await;
    older.say(&json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" }));
    rig.until("it was answered", |_| stub.asked("response").len() == 1).await;
    let pong = stub.asked("response")[0].json();
    assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    older.say(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {} }),
    );
    let event = timeout(PATIENCE, events.recv()).await.expect("in time");
    let Some(CallEvent::Ask(ask)) = event else { panic!("{event:?} is no question") };
    ask.reply(AskReply::Refuse(ErrorObject { code: -1, message: "no".into(), data: None }));
    rig.until("it was answered", |_| stub.asked("response").len() == 2).await;
    let refusal = stub.asked("response")[1].json();
    assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!(1), &json!(-1)));
    call.abort();
    rig.until("it was cancelled", |_| stub.asked("notifications/cancelled").len() == 1).await;
    let cancelled = stub.asked("notifications/cancelled")[0].json();
    assert_eq!(cancelled["params"]["requestId"].to_string(), stub.asked("slow")[0].id());
}

#[tokio::test]
async fn a_post_that_is_answered_late_delays_no_other_call() {
    let older = Older::new();
    let (inner, held) = (Arc::clone(&older), Arc::new(tokio::sync::Notify::new()));
    let hold = Arc::clone(&held);
    let stub = Stub::start(move |asked: Asked, back| {
        let (older, hold) = (Arc::clone(&inner), Arc::clone(&hold));
        async move {
            if asked.what() == "held" {
                hold.notified().await;
            }
            older.serve(asked, back).await
        }
    })
    .await;
    let rig = Rig::to(&stub);
    let call = begin(&rig, request("held", "{}"));
    rig.until("it was asked", |_| stub.asked("held").len() == 1).await;
    rig.call("quick", "{}").await.expect("an answer");
    assert!(!call.is_finished());
    held.notify_one();
    assert!(ended(call).await.is_ok());
}

#[tokio::test]
async fn the_oldest_revision_when_pinned_begins_with_the_stream() {
    let pinned = |config: &mut UpstreamConfig| {
        config.revision = Revision::Pinned(ProtocolVersion::V2024_11_05);
    };
    let older = Older::new();
    let stub = older.start().await;
    let rig = Rig::with(stub.url.clone(), pinned);
    rig.call("a", "{}").await.expect("an answer");
    assert_eq!(stub.log()[0].what(), "GET");
    assert_eq!(stub.asked("initialize")[0].json()["params"]["protocolVersion"], "2024-11-05");
    // A server that has only the newer binding.
    let stub = Stub::mcp(|asked, mut back| async move {
        back.result(&asked, "{}").await;
        back
    })
    .await;
    let rig = Rig::with(stub.url.clone(), pinned);
    // The stub answers a GET without session id with 404.
    rig.call("a", "{}").await.expect("an answer");
    assert_eq!(stub.log()[0].what(), "GET");
}

#[tokio::test]
async fn a_stream_that_names_no_address_is_given_up() {
    let stub = Stub::start(|asked: Asked, mut back: Back| async move {
        if asked.verb == "GET" {
            back.sse().await;
            back.event("{}").await;
            back.end().await;
        } else {
            back.full(404, &[], "").await;
        }
        back
    })
    .await;
    let rig = Rig::to(&stub);
    let refused = protocol(rig.call("a", "{}").await);
    assert_eq!(refused, "its event stream ended, before it named an endpoint");
    let stub = Stub::start(|asked: Asked, mut back: Back| async move {
        if asked.verb == "GET" {
            back.sse().await;
            std::future::pending::<()>().await;
        }
        back.full(404, &[], "").await;
        back
    })
    .await;
    let rig = Rig::with(stub.url.clone(), |config| config.timeout = Duration::from_millis(200));
    let late = rig.call("a", "{}").await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
}

#[tokio::test]
async fn a_stream_that_ends_while_nobody_calls_is_opened_again() {
    let older = Older::new();
    let stub = older.start().await;
    let mut rig = Rig::to(&stub);
    rig.call("a", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    older.cut();
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    assert!(rig.upstream.is_open(&shared()));
    older.say(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    assert!(matches!(rig.notice().await, NoticeKind::ListChanged(_)));
}

#[tokio::test]
async fn a_stream_that_brings_nothing_any_more_is_replaced() {
    let older = Older::new();
    let stub = older.start().await;
    let mut rig = Rig::with(stub.url.clone(), |config| {
        config.probe_timeout = Duration::from_millis(20);
    });
    let short = || OutCall { timeout: Duration::from_millis(50), ..request("a", "{}") };
    rig.call("a", "{}").await.expect("an answer");
    assert!(matches!(rig.notice().await, NoticeKind::Opened));
    older.mute.store(true, Ordering::SeqCst);
    let late = rig.call_with(short()).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    assert!(matches!(rig.notice().await, NoticeKind::Lost));
    assert_eq!(stub.asked("ping").len(), 1);
    older.mute.store(false, Ordering::SeqCst);
    rig.call("b", "{}").await.expect("an answer");
    assert_eq!(stub.asked("GET").len(), 2);
}
