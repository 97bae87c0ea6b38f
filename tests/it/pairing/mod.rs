//! The matrix of pairings: clients of every revision in front of upstreams of every revision on every transport, and for
//! each of them everything a client can do. Each cell has its expected result ([`expect`]), also those that refuse; the
//! table in `docs/pairings.md` is printed from the same data ([`table`]).

mod behaviour;
mod expect;
mod peer;
mod table;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::client::Http;
use crate::fake::scene::{Journal, MODERN, REVISIONS};
use crate::fake::stage::{Answers, Stage};
use crate::gateway::{Gateway, Setup, signal};
use behaviour::{ALONE, Actor, Behaviour};
use peer::{Begun, Peer};

/// How an upstream is reached, and how it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP with JSON answers.
    Json,
    /// HTTP with event streams.
    Sse,
    /// Standard input and output of a child.
    Stdio,
}

/// A client and an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub client: &'static str,
    pub upstream: &'static str,
    pub transport: Transport,
}

/// The upstream of some cells.
enum Upstream {
    Http(Stage),
    Child(tempfile::TempDir),
}

impl Upstream {
    async fn start(revision: &str, transport: Transport) -> Self {
        match transport {
            Transport::Json => Self::Http(Stage::start(revision, Answers::Json).await),
            Transport::Sse => Self::Http(Stage::start(revision, Answers::Sse).await),
            Transport::Stdio => Self::Child(tempfile::tempdir().expect("a scratch folder")),
        }
    }

    /// The lines of its configuration.
    fn lines(&self, revision: &str) -> String {
        match self {
            Self::Http(stage) => format!("url = \"{}\"", stage.url()),
            Self::Child(folder) => {
                let journal = folder.path().join("journal");
                crate::fake::stdio::command(&json!({"revision": revision, "journal": journal}))
            }
        }
    }

    fn journal(&self) -> Arc<Journal> {
        match self {
            Self::Http(stage) => stage.journal(),
            Self::Child(folder) => Journal::in_file(&folder.path().join("journal")),
        }
    }

    fn restart(&self, gateway: &Gateway) {
        match self {
            Self::Http(stage) => stage.restart(),
            Self::Child(_) => {
                for pid in gateway.children() {
                    signal(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }
}

/// What went wrong in a cell, or nothing.
async fn cell(
    pair: Pair,
    behaviour: Behaviour,
    seen: impl Future<Output = Value>,
) -> Option<String> {
    let expected = pair.expect(behaviour);
    let seen = AssertUnwindSafe(tokio::time::timeout(Duration::from_secs(20), seen));
    let wrong = match seen.catch_unwind().await {
        Ok(Ok(seen)) if seen == expected.seen => return None,
        Ok(Ok(seen)) => format!("seen     {seen}"),
        Ok(Err(_)) => "seen     nothing in 20 s".to_owned(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("failed   {}", text.unwrap_or("without a word"))
        }
    };
    Some(format!("{behaviour:?} of {pair:?}\n  expected {}\n  {wrong}", expected.seen))
}

async fn alone(actor: &Actor) -> Vec<String> {
    let mut wrong = Vec::new();
    for behaviour in ALONE {
        wrong.extend(cell(actor.pair, behaviour, actor.perform(behaviour)).await);
    }
    if let Some(stray) = actor.peer.stray() {
        wrong.push(format!("{:?}: a question outside of any call: {stray}", actor.pair));
    }
    wrong
}

/// Connects clients of these revisions.
async fn actors(
    http: Http,
    journal: &Arc<Journal>,
    clients: &[&'static str],
    upstream: &'static str,
    transport: Transport,
) -> Vec<Actor> {
    let turns = Arc::<RwLock<()>>::default();
    let connecting = clients.iter().map(|client| {
        let turns = Arc::clone(&turns);
        async move {
            let peer = Arc::new(Peer::connect(http, client).await);
            let pair = Pair { client, upstream, transport };
            Actor { pair, peer, journal: Arc::clone(journal), turns }
        }
    });
    join_all(connecting).await
}

fn violations(journal: &Journal) -> Vec<String> {
    let found = journal.of("violation");
    found.iter().map(|entry| format!("towards the upstream: {entry}")).collect()
}

/// All cells of one upstream: all clients at once, each with everything in turn; then the upstream is restarted.
async fn cells(upstream: &'static str, transport: Transport) {
    let up = Upstream::start(upstream, transport).await;
    let gateway = Setup::new().upstream("up", &up.lines(upstream)).mcp(&["up"]).start().await;
    let journal = up.journal();
    let actors = actors(gateway.http(), &journal, &REVISIONS, upstream, transport).await;
    let mut wrong: Vec<_> = join_all(actors.iter().map(alone)).await.concat();
    wrong.extend(restart(&up, &gateway, &actors).await);
    wrong.extend(violations(&journal));
    drop(actors);
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

/// A call of each client is under way when the upstream is restarted.
async fn restart(up: &Upstream, gateway: &Gateway, actors: &[Actor]) -> Vec<String> {
    let begun = join_all(actors.iter().map(|actor| async move {
        let key = actor.key("broken");
        let begun = Begun::call(&actor.peer, json!(key), "slow", json!({"key": key}));
        let ran = AssertUnwindSafe(actor.until_entry("ran", &key)).catch_unwind().await;
        (actor, key, begun, ran)
    }))
    .await;
    up.restart(gateway);
    let cells = begun.into_iter().map(|(actor, key, begun, ran)| async move {
        if ran.is_err() {
            return Some(format!("Restart of {:?}: the call did not get there", actor.pair));
        }
        cell(actor.pair, Behaviour::Restart, actor.restarted(begun, &key)).await
    });
    join_all(cells).await.into_iter().flatten().collect()
}

/// The fakes and the clients against each other, with nothing between them.
async fn direct(revision: &'static str, transport: Transport) {
    let Upstream::Http(stage) = Upstream::start(revision, transport).await else { return };
    let journal = stage.journal();
    let actors = actors(Http::new(stage.addr()), &journal, &[revision], revision, transport).await;
    let mut wrong = alone(&actors[0]).await;
    wrong.extend(violations(&journal));
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_one_revision_understand_each_other_without_a_gateway() {
    for revision in REVISIONS {
        direct(revision, Transport::Sse).await;
    }
    direct(MODERN, Transport::Json).await;
}

/// A test for the cells of each upstream.
macro_rules! upstreams {
    ($($name:ident: $revision:literal $transport:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                cells($revision, Transport::$transport).await;
            }
        )+
    };
}

upstreams! {
    every_client_uses_2024_11_05_over_http_with_json: "2024-11-05" Json
    every_client_uses_2024_11_05_over_http_with_streams: "2024-11-05" Sse
    every_client_uses_2024_11_05_over_stdio: "2024-11-05" Stdio
    every_client_uses_2025_03_26_over_http_with_json: "2025-03-26" Json
    every_client_uses_2025_03_26_over_http_with_streams: "2025-03-26" Sse
    every_client_uses_2025_03_26_over_stdio: "2025-03-26" Stdio
    every_client_uses_2025_06_18_over_http_with_json: "2025-06-18" Json
    every_client_uses_2025_06_18_over_http_with_streams: "2025-06-18" Sse
    every_client_uses_2025_06_18_over_stdio: "2025-06-18" Stdio
    every_client_uses_2025_11_25_over_http_with_json: "2025-11-25" Json
    every_client_uses_2025_11_25_over_http_with_streams: "2025-11-25" Sse
    every_client_uses_2025_11_25_over_stdio: "2025-11-25" Stdio
    every_client_uses_2026_07_28_over_http_with_json: "2026-07-28" Json
    every_client_uses_2026_07_28_over_http_with_streams: "2026-07-28" Sse
    every_client_uses_2026_07_28_over_stdio: "2026-07-28" Stdio
}
