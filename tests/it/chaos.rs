//! Chaos: clients of both eras and upstreams of both, restarts, hang-ups, late, doubled, tampered and missing answers. Every
//! request gets exactly one answer of its own, nobody gets a byte of another, no call runs twice, and nothing is left at the
//! end. What happens follows from a seed, which a failure prints; `CHAOS_SEED` sets it, `CHAOS_SECONDS` how long it goes on.

mod legacy;
mod modern;
mod upstream;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;

use crate::gateway::{PATIENCE, Setup, is_alive, signal, until};
use crate::metrics::Metrics;
use upstream::Up;
use world::{Random, World};

/// A mark that belongs to nobody: whoever gets it got what is not his.
const EVIL: &str = "mk:666:0";
/// How long parked calls are kept.
const PARKED: Duration = Duration::from_secs(2);

/// Tells the seed when the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("CHAOS_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn start(seed: u64) -> Arc<World> {
    let ups = vec![
        Up::legacy("old", false).await,
        Up::modern("new", false).await,
        Up::legacy("quiet", true).await,
        Up::modern("still", true).await,
    ];
    let mut setup = Setup::new().server(
        "park_timeout = \"2s\"\nkeep_alive = \"300ms\"\nmax_connections = 5000\nmax_batch = 10",
    );
    for up in &ups {
        let limits = match up.calm {
            true => "timeout = \"10s\"\nmax_timeout = \"12s\"",
            false => "timeout = \"1500ms\"\nmax_timeout = \"3s\"",
        };
        setup = setup.fake_with(up.name, &up.fake, limits);
    }
    let gateway = setup
        .child("kid", &json!({}), "timeout = \"1500ms\"\nmax_timeout = \"3s\"")
        .mcp(&["old", "new", "quiet", "still", "kid"])
        .start()
        .await;
    let client = gateway.mcp().await;
    client.until_tools("all", |tools| tools.len() > 20).await;
    assert_eq!(client.delete().await, 204);
    Arc::new(World::new(gateway, ups, seed))
}

/// Restarts what is not left in peace.
async fn disturb(world: Arc<World>, mut rng: Random) {
    while !world.is_over() {
        world.pause(&mut rng, 500).await;
        match rng.below(6) {
            0 => world.up("old").restart(),
            1 => world.up("new").restart(),
            2 => {
                for pid in world.gateway.children() {
                    if is_alive(pid) {
                        signal(pid, Signal::KILL);
                    }
                }
            }
            _ => {
                for up in &world.ups {
                    up.whisper();
                }
            }
        }
    }
}

fn left(metrics: &Metrics) -> Vec<String> {
    let gauges = ["exchanges_in_flight", "sessions", "streams", "parked_calls"];
    let gauges =
        gauges.iter().map(|gauge| (gauge, metrics.value(&format!("trunkline_{gauge}"), &[])));
    gauges
        .filter(|(_, value)| *value != 0.0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect()
}

/// Every call that began has ended, or its upstream was told that nobody waits for it.
async fn nothing_runs(up: &Up) {
    let begun = Instant::now();
    while !up.book.running().is_empty() {
        if begun.elapsed() > PATIENCE {
            let seen = up.fake.requests();
            let seen = seen.iter().filter_map(|seen| {
                let session = seen.header("mcp-session-id").unwrap_or_default();
                let body = seen.json();
                let id = match body["method"].as_str()? {
                    "tools/call" => body["id"].clone(),
                    "notifications/cancelled" => body["params"]["requestId"].clone(),
                    _ => return None,
                };
                Some(format!("{} {session} {id}", body["method"]))
            });
            let seen: Vec<_> = seen.collect();
            panic!("at {} runs {:#?}; it saw {seen:#?}", up.name, up.book.running());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Nothing is left of what the clients did.
async fn settle(world: &World) {
    world.gateway.until("nothing is left", |metrics| left(metrics).is_empty()).await;
    for up in &world.ups {
        nothing_runs(up).await;
        assert_eq!(up.book.violations(), Vec::<String>::new(), "at {}", up.name);
        assert_eq!(up.book.repeated(), Vec::<String>::new(), "ran twice at {}", up.name);
    }
    let quiet = world.up("quiet");
    // The gateway's own and those that clients without sessions share, by what they declare.
    until("upstream sessions are ended", || quiet.fake.sessions() <= 8).await;
    // One for each set of capabilities that clients declared, and none that nobody knows of.
    let children = || world.gateway.children().into_iter().filter(|pid| is_alive(*pid)).count();
    let known = |metrics: &Metrics| metrics.value("trunkline_children", &[]) == children() as f64;
    world.gateway.until("every child is known", known).await;
    assert!(children() <= 4, "{} children", children());
    assert_eq!(world.gateway.output().count("panicked"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_each_request_gets_its_own_answer_once_and_nothing_is_left() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = Seed(number("CHAOS_SEED").unwrap_or(clock.as_micros() as u64));
    let world = start(seed.0).await;
    let mut random = Random::new(seed.0);
    let mut clients = JoinSet::new();
    world.end_after(Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(5)));
    for _ in 0..4 {
        clients.spawn(legacy::sessions(Arc::clone(&world), random.part()));
        clients.spawn(modern::requests(Arc::clone(&world), random.part()));
    }
    for _ in 0..2 {
        clients.spawn(legacy::streams(Arc::clone(&world), random.part()));
        clients.spawn(modern::requests(Arc::clone(&world), random.part()));
    }
    clients.spawn(legacy::thief(Arc::clone(&world), random.part()));
    clients.spawn(modern::listener(Arc::clone(&world), random.part()));
    clients.spawn(disturb(Arc::clone(&world), random.part()));
    let begun = Instant::now();
    while let Some(ended) = clients.join_next().await {
        if let Err(failed) = ended {
            std::panic::resume_unwind(failed.into_panic());
        }
    }
    settle(&world).await;
    world.report(begun.elapsed());
}
