//! Sockets: bound once, accepted by one task, handed round the workers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::{Connection, serve as serve_request};
use crate::pipeline::Pipeline;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// How long a client may leave what was sent to it unread before its connection is cut.
const UNREAD: Duration = Duration::from_secs(60);
/// Pause after an error of `accept` such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}; is another process using it? Change server.listen or admin.listen"
)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The cause.
    pub source: io::Error,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    /// Where it really listens (port 0 is resolved).
    pub address: SocketAddr,
}

/// Binds an address.
pub fn bind(address: SocketAddr) -> Result<Listener, BindError> {
    let bound = || -> io::Result<Listener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = std::net::TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    };
    bound().map_err(|source| BindError { address, source })
}

impl Listener {
    /// As a listener of the current runtime.
    pub fn into_tokio(self) -> io::Result<TcpListener> {
        TcpListener::from_std(self.socket)
    }
}

/// What listeners share.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Where requests go.
    pub pipeline: Arc<Pipeline>,
    /// The workers that connections are handed to in turn.
    pub workers: Arc<[Handle]>,
    /// One for each client connection.
    pub permits: Arc<Semaphore>,
    /// Tracks client connections.
    pub connections: TaskTracker,
    /// Ends accepting; connections finish what runs on them and close.
    pub drain: CancellationToken,
    /// Wakes connections once [`Pipeline::cut`] was called.
    pub cut: CancellationToken,
}

/// One listener's part.
#[derive(Clone, Debug)]
struct Accepting {
    serving: Serving,
    local: bool,
}

/// Accepts on a listener until it is to drain.
pub async fn serve(listener: Listener, serving: Serving) -> io::Result<()> {
    let local = listener.address.ip().is_loopback();
    let accepting = Accepting { serving, local };
    let listener = listener.into_tokio()?;
    let mut turn = 0_usize;
    loop {
        let accepted = async {
            let Ok(permit) = Arc::clone(&accepting.serving.permits).acquire_owned().await else {
                // The semaphore is never closed.
                return std::future::pending().await;
            };
            listener.accept().await.map(|(stream, peer)| (stream, peer, permit))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = accepting.serving.drain.cancelled() => return Ok(()),
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                turn = turn.wrapping_add(1);
                accepting.hand_over(stream, peer, permit, turn);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Accepting {
    /// Gives a connection to the worker whose turn it is.
    fn hand_over(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        turn: usize,
    ) {
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD));
        let Ok(stream) = stream.into_std() else { return };
        let accepting = self.clone();
        let worker = &self.serving.workers[turn % self.serving.workers.len()];
        self.serving.connections.spawn_on(
            async move {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    accepting.connection(stream, peer, permit).await;
                }
            },
            worker,
        );
    }

    async fn connection(self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        let serving = self.serving.clone();
        let Serving { pipeline, drain, cut, .. } = self.serving;
        let snapshot = pipeline.snapshot();
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(snapshot.server.header_timeout)
            .max_header_size(snapshot.server.max_header);
        drop(snapshot);
        let own = Arc::clone(&pipeline);
        let (local, _permit) = (self.local, permit);
        let connection = Arc::new(Connection { pipeline: own, serving, peer, local, _permit });
        let service = service_fn(move |request| {
            let connection = Arc::clone(&connection);
            async move { Ok::<_, Infallible>(serve_request(&connection, request).await) }
        });
        let serving = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut serving = std::pin::pin!(serving);
        let (mut drained, mut cut) =
            (std::pin::pin!(drain.cancelled()), std::pin::pin!(cut.cancelled()));
        // Looking at a token takes locks that all connections share: `drain` is looked at once, so that it wakes
        // this task, and then no more until the flag says so that is set before it.
        let (mut registered, mut draining) = (false, false);
        let ended = std::future::poll_fn(|cx| {
            if !draining && (!registered || pipeline.is_draining()) {
                registered = true;
                draining = drained.as_mut().poll(cx).is_ready();
                if draining {
                    serving.as_mut().graceful_shutdown();
                }
            }
            if draining {
                // Polled again, what still runs sees that it is cut off.
                let _ = cut.as_mut().poll(cx);
            }
            serving.as_mut().poll(cx)
        })
        .await;
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}
