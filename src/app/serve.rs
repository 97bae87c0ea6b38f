//! The gateway's process: bound, compiled, started, drained.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::summary::{Spoken, Summary};
use crate::admin::{self, AdminSources, Readiness, UpstreamReadiness, UpstreamState};
use crate::config::{Config, Protocol};
use crate::downstream::{self, BindError, Listener, Serving};
use crate::net::Place;
use crate::net::tls::{Live, TlsError};
use crate::pipeline::{Outside, Pipeline, Snapshot, SnapshotError};
use crate::telemetry::{Metrics, TelemetryError};
use crate::upstream::{self, State};

/// Notices of upstreams that may wait to be distributed.
const NOTICES: usize = 1024;
/// How long clients may take to be told that their calls are cut off.
const CUTTING: Duration = Duration::from_secs(2);
/// How long upstreams and background tasks may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// Why the gateway does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// An address is taken.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificates cannot be used.
    #[error("TLS cannot be set up")]
    Tls(#[from] TlsError),
    /// The configuration cannot be compiled.
    #[error("the configuration cannot be used")]
    Snapshot(#[from] SnapshotError),
    /// Logging cannot start.
    #[error("logging cannot start")]
    Telemetry(#[from] TelemetryError),
    /// The system refuses threads, signals or random numbers.
    #[error("the system refuses what the gateway needs")]
    System(#[from] io::Error),
}

/// Runs the gateway until it is told to stop.
pub(super) fn run(config: &Config) -> Result<(), RunError> {
    let guard = crate::telemetry::init(&config.telemetry)?;
    let workers = Workers::start(worker_count(config))?;
    let control = Builder::new_current_thread().enable_all().build()?;
    let result = control.block_on(gateway(config, &workers));
    drop(workers);
    control.shutdown_timeout(Duration::from_secs(1));
    drop(guard);
    result
}

fn worker_count(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.server.workers.unwrap_or(cores).max(1)
}

/// One current-thread runtime a core, each on a thread of its own: a connection stays on its core.
struct Workers {
    handles: Arc<[Handle]>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Workers {
    fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut handles = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let stop = stop.clone();
            let work = move || {
                upstream::set_worker(index);
                runtime.block_on(stop.cancelled());
                runtime.shutdown_timeout(Duration::from_secs(1));
            };
            let name = format!("worker-{index}");
            threads.push(std::thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(Self { handles: handles.into(), threads, stop })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

/// The signals that end the gateway.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Everything that is ended in order.
struct Gateway {
    pipeline: Arc<Pipeline>,
    /// Background tasks: children, links, refreshes, notices.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The client side.
    serving: Serving,
    /// The admin side, stopped last.
    admin_stop: CancellationToken,
    drain_timeout: Duration,
}

async fn gateway(config: &Config, workers: &Workers) -> Result<(), RunError> {
    let mut signals = Signals::new()?;
    let server = &config.server;
    let bind = |place| downstream::bind(place, server.socket_mode);
    let listeners: Vec<Listener> = server.listen.0.iter().map(bind).collect::<Result<_, _>>()?;
    let (admin, admin_address) = downstream::bind_tcp(config.admin.listen)?;
    let places: Vec<Place> = listeners.iter().map(|listener| listener.place.clone()).collect();

    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let tls = server.tls.as_ref().map(|tls| Live::new(tls.recipe())).transpose()?;
    if let Some(tls) = &tls {
        tasks.spawn(Arc::clone(tls).keep_fresh("[server]".to_owned(), stop.clone()));
    }
    let pipeline = compile(config, workers, &tasks, &stop)?;
    let permits = server.max_connections.min(Semaphore::MAX_PERMITS);
    let gateway = Gateway {
        pipeline: Arc::clone(&pipeline),
        tasks,
        stop,
        serving: Serving {
            pipeline: Arc::clone(&pipeline),
            workers: Arc::clone(&workers.handles),
            permits: Arc::new(Semaphore::new(permits)),
            tls,
            connections: TaskTracker::new(),
            drain: CancellationToken::new(),
            cut: CancellationToken::new(),
        },
        admin_stop: CancellationToken::new(),
        drain_timeout: server.drain_timeout,
    };
    let sources = AdminSources {
        metrics: Arc::clone(pipeline.metrics()),
        readiness: Arc::new(move || readiness(&pipeline)),
    };
    let admin = TcpListener::from_std(admin)?;
    let serving_admin = tokio::spawn(admin::serve(admin, sources, gateway.admin_stop.clone()));
    for listener in listeners {
        let serving = downstream::serve(listener, gateway.serving.clone());
        gateway.tasks.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "a listener cannot be served");
            }
        });
    }
    announce(config, &places, admin_address);

    signals.any().await;
    gateway.end(&mut signals).await;
    gateway.admin_stop.cancel();
    let _ = serving_admin.await;
    Ok(())
}

fn compile(
    config: &Config,
    workers: &Workers,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Arc<Pipeline>, RunError> {
    let patterns: Vec<String> =
        config.routes.iter().flat_map(|route| route.methods.keys().cloned()).collect();
    let metrics = Metrics::new(&patterns);
    let (sender, notices) = mpsc::channel(NOTICES);
    let mut secret = [0_u8; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let outside = Outside {
        metrics: &metrics,
        notices: &sender,
        tasks,
        stop,
        workers: workers.handles.len(),
    };
    let snapshot = Snapshot::compile(config, secret, &outside)?;
    let pipeline = Pipeline::new(snapshot, metrics, tasks.clone(), stop.clone());
    pipeline.start(notices);
    Ok(pipeline)
}

/// Says on standard output where the gateway listens, what it serves, and that it is ready.
fn announce(config: &Config, places: &[Place], admin: SocketAddr) {
    let mut text = String::new();
    for place in places {
        text.push_str(&format!("listening on {}\n", Spoken(place, config)));
    }
    text.push_str(&format!("admin on http://{admin}\n"));
    text.push_str(&Summary(config).routes());
    text.push_str("ready\n");
    let mut out = io::stdout().lock();
    // A closed standard output is no reason not to serve.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn readiness(pipeline: &Pipeline) -> Readiness {
    let snapshot = pipeline.snapshot();
    let upstreams = snapshot.backends.iter().map(|(name, replicas)| {
        // One replica that can be called is enough.
        let states: Vec<_> = replicas.iter().map(|replica| replica.upstream.state()).collect();
        let up = states.iter().position(|state| *state == State::Up);
        let state = states.into_iter().nth(up.unwrap_or(0)).unwrap_or(State::Idle);
        let (state, detail) = match state {
            State::Idle => (UpstreamState::Idle, None),
            State::Starting => (UpstreamState::Starting, None),
            State::Up => (UpstreamState::Up, None),
            State::Down(why) => (UpstreamState::Down, Some(why)),
        };
        let mcp = replicas.iter().any(|replica| replica.config().protocol == Protocol::Mcp);
        let tools = if mcp { pipeline.tools_of(name) } else { None };
        UpstreamReadiness { name: name.to_string(), state, detail, tools }
    });
    Readiness { draining: pipeline.is_draining(), upstreams: upstreams.collect() }
}

impl Gateway {
    /// Lame → draining → ended; a second signal skips the waiting.
    async fn end(&self, signals: &mut Signals) {
        tracing::info!(limit = ?self.drain_timeout, "draining; a second signal ends at once");
        let Serving { connections, drain, cut, .. } = &self.serving;
        self.pipeline.drain();
        drain.cancel();
        self.pipeline.close_streams();
        connections.close();
        let forced = tokio::select! {
            () = connections.wait() => false,
            () = tokio::time::sleep(self.drain_timeout) => {
                let open = connections.len();
                tracing::warn!(open, "drain_timeout has passed; what still runs is cut off");
                true
            }
            () = signals.any() => {
                tracing::warn!("second signal; what still runs is cut off");
                true
            }
        };
        if forced {
            // Every call gets an answer, if only that it is not known whether it ran.
            self.pipeline.cut();
            cut.cancel();
            let _ = tokio::time::timeout(CUTTING, connections.wait()).await;
        }
        self.pipeline.end_parked().await;
        self.pipeline.end_sessions();
        let snapshot = self.pipeline.snapshot();
        let backends = snapshot.backends.values().flatten();
        let upstreams = backends.map(|backend| backend.upstream.shutdown());
        let ending = async {
            futures_util::future::join_all(upstreams).await;
            self.stop.cancel();
            self.tasks.close();
            self.tasks.wait().await;
        };
        if tokio::time::timeout(ENDING, ending).await.is_err() {
            self.stop.cancel();
            tracing::warn!(tasks = self.tasks.len(), "not everything ended in time");
        }
        tracing::info!("stopped");
    }
}
