//! What a gateway holds: idle, and for each client that is there and asks nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::gateway::Gateway;
use crate::scenario::{Call, Client, Load, Target, modern_headers, modern_meta};
use crate::session::{self, Session};
use crate::socket::Socket;
use crate::stream::Streams;
use crate::stub::faults;
use crate::{Result, limits, usage};

/// How long it may take until every open stream has told of a change.
const PATIENCE: Duration = Duration::from_secs(60);
/// Descriptors of a process beside those of its clients.
const BESIDE: u64 = 500;

/// Who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sessions without a stream.
    Sessions,
    /// Sessions with an open stream each (GET), in front of one upstream session.
    Streams,
    /// Sessions with an open stream each, and each with an upstream session of its own that has one too.
    OwnStreams,
    /// Open `subscriptions/listen` requests of clients without sessions.
    Listens,
    /// WebSockets on a plain route.
    Sockets,
}

impl Kind {
    /// Connections that the gateway has for each.
    fn connections(self) -> u64 {
        match self {
            Self::Sessions => 0,
            Self::Streams | Self::Listens | Self::Sockets => 1,
            Self::OwnStreams => 2,
        }
    }
}

/// Each with its name for `--only` and in the table, and how many there are after each step. The price of one is the
/// slope between the last two, so that what grows once (pools, tables) does not count.
pub(crate) const KINDS: [(Kind, &str, &str, [usize; 2]); 5] = [
    (Kind::Sessions, "memory-sessions", "idle sessions", [1_000, 5_000]),
    (Kind::Streams, "memory-streams", "idle sessions with a stream", [1_000, 10_000]),
    (
        Kind::OwnStreams,
        "memory-own",
        "the same with upstream sessions of their own",
        [1_000, 5_000],
    ),
    (Kind::Listens, "memory-listens", "idle subscriptions/listen", [1_000, 10_000]),
    (Kind::Sockets, "memory-sockets", "idle WebSockets", [1_000, 10_000]),
];

/// Resident bytes of a gateway that nobody has called yet, and after each step.
pub(crate) struct Growth {
    pub(crate) about: &'static str,
    pub(crate) idle: u64,
    /// Number of clients and resident bytes.
    pub(crate) steps: Vec<(usize, u64)>,
    /// How long it took until every stream had told of a change, and resident bytes after that.
    pub(crate) told: Option<(Duration, u64)>,
}

impl Growth {
    /// Bytes for each client, over all and between the last two steps.
    pub(crate) fn per_client(&self) -> Option<(f64, f64)> {
        let (last, bytes) = *self.steps.last()?;
        let (before, bytes_before) =
            self.steps.iter().rev().nth(1).copied().unwrap_or((0, self.idle));
        let slope = |from: u64, count: usize| bytes.saturating_sub(from) as f64 / count as f64;
        Some((slope(self.idle, last), slope(bytes_before, last - before)))
    }
}

/// Lets clients come to a fresh gateway and watches it grow. Fails unless each stream tells of a change.
pub(crate) fn grow(
    (kind, about): (Kind, &'static str),
    steps: [usize; 2],
    program: Option<&Path>,
    stub: SocketAddr,
) -> Result<Growth> {
    limits::files(kind.connections() * steps[1] as u64 + BESIDE)?;
    let gateway = Gateway::start(program, stub)?;
    // Let what runs at start, such as the first fill of catalogs, come to rest.
    std::thread::sleep(Duration::from_millis(500));
    let idle = usage::rss(gateway.child.pid())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut crowd = Crowd::new(kind, gateway.child.address).await?;
        let mut grown = Vec::new();
        for step in steps {
            while crowd.size < step {
                crowd.add().await?;
            }
            crowd.streams.check()?;
            grown.push((step, usage::rss(gateway.child.pid())?));
        }
        let mut told = None;
        if !matches!(kind, Kind::Sessions | Kind::Sockets) {
            let took = crowd.tell(stub).await?;
            told = Some((took, usage::rss(gateway.child.pid())?));
        }
        faults::check(stub).await?;
        Ok(Growth { about, idle, steps: grown, told })
    })
}

/// The clients.
struct Crowd {
    kind: Kind,
    address: SocketAddr,
    call: Call,
    /// All sessions are opened on one connection.
    session: Session,
    streams: Streams,
    sockets: Vec<Socket>,
    size: usize,
}

impl Crowd {
    async fn new(kind: Kind, address: SocketAddr) -> Result<Self> {
        let call = match kind {
            Kind::Sockets => Load::WebSocket(1).calls(Target::Gateway).remove(0),
            Kind::Sessions => Load::Call("text_1k").calls(Target::Gateway).remove(0),
            Kind::Streams => at("/shared"),
            Kind::OwnStreams => at("/own"),
            Kind::Listens => listen(),
        };
        let session = Session::open(address, &call).await?;
        let (streams, sockets) = (Streams::default(), Vec::new());
        let mut crowd = Self { kind, address, call, session, streams, sockets, size: 0 };
        if !matches!(kind, Kind::Listens | Kind::Sockets) {
            crowd.settle().await?;
        }
        Ok(crowd)
    }

    async fn add(&mut self) -> Result<()> {
        if self.kind == Kind::Sockets {
            // It has been of use once: that is what idle ones have been.
            let mut socket = Socket::open(self.address, &self.call.path).await?;
            socket.send(session::text(&self.call)).await?;
            socket.next().await?;
            self.sockets.push(socket);
            self.size += 1;
            return Ok(());
        }
        if self.kind == Kind::Listens {
            let (request, _) = self.session.template(&self.call);
            self.size += 1;
            return self.streams.open(self.address, &request, b"acknowledged").await;
        }
        self.session.initialize().await?;
        self.settle().await
    }

    /// Does with a session that was opened what it is to be there for.
    async fn settle(&mut self) -> Result<()> {
        self.size += 1;
        if self.kind == Kind::OwnStreams {
            let (request, _) = self.session.template(&self.call);
            let status = self.session.client.send(&request).await?.status;
            if status != 200 {
                return Err(format!("a call was answered with {status}").into());
            }
        }
        if self.kind == Kind::Sessions {
            return Ok(());
        }
        self.streams.open(self.address, &self.session.listen(), b"id: ").await
    }

    /// Lets the list of tools change and waits until each stream has told so.
    async fn tell(&self, stub: SocketAddr) -> Result<Duration> {
        let mut control = crate::client::Client::connect(stub).await?;
        let request = format!("POST /change HTTP/1.1\r\nHost: {stub}\r\nContent-Length: 0\r\n\r\n");
        let began = Instant::now();
        let status = control.send(request.as_bytes()).await?.status;
        if status != 204 {
            return Err(format!("the stub answered /change with {status}").into());
        }
        let told = tokio::time::timeout(PATIENCE, self.streams.told(self.size)).await;
        self.streams.check()?;
        told.map_err(|_| {
            let told = self.streams.count();
            format!("{told} of {} streams have told of the change", self.size)
        })?;
        Ok(began.elapsed())
    }
}

/// A call of a session on that route.
fn at(path: &str) -> Call {
    let call = Load::Call("text_1k").calls(Target::Gateway).remove(0);
    Call { path: path.to_owned(), ..call }
}

/// The request for changes of the list of tools.
fn listen() -> Call {
    let meta = modern_meta("{}");
    Call {
        method: "subscriptions/listen",
        params: format!(r#"{{"notifications":{{"toolsListChanged":true}},"_meta":{meta}}}"#),
        client: Client::Modern("{}"),
        headers: modern_headers("subscriptions/listen"),
        ..at("/shared")
    }
}
