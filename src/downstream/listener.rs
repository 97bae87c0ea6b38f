//! Accepting: one task for each socket, which hands connections round the workers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bind::{Bound, Listener, SocketFile};
use super::connection::Accepted;
use crate::net::tls::{Live, ServerRecipe};
use crate::net::{Peer, Stream};
use crate::pipeline::Pipeline;

/// How long a client may leave what was sent to it unread before its connection is cut.
const UNREAD: Duration = Duration::from_secs(60);
/// Pause after an error of `accept` such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What listeners share.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Where requests go.
    pub pipeline: Arc<Pipeline>,
    /// The workers that connections are handed to in turn.
    pub workers: Arc<[Handle]>,
    /// One for each client connection.
    pub permits: Arc<Semaphore>,
    /// TLS of addresses.
    pub tls: Option<Arc<Live<ServerRecipe>>>,
    /// Tracks client connections, and the requests on those that carry several at once.
    pub connections: TaskTracker,
    /// Ends accepting; connections finish what runs on them and close.
    pub drain: CancellationToken,
    /// Wakes connections once [`Pipeline::cut`] was called.
    pub cut: CancellationToken,
}

/// A socket of the runtime that accepts on it.
enum Accepting {
    Tcp(TcpListener),
    /// With what removes its file.
    Unix(UnixListener, #[expect(dead_code, reason = "held for its end")] SocketFile),
}

/// A connection between two runtimes.
enum Raw {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Accepting {
    fn of(listener: Listener) -> io::Result<Self> {
        Ok(match listener.socket {
            Bound::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
            Bound::Unix(socket, file) => Self::Unix(UnixListener::from_std(socket)?, file),
        })
    }

    async fn accept(&self) -> io::Result<(Raw, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD));
                Ok((Raw::Tcp(stream.into_std()?), Peer::Tcp(peer)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Raw::Unix(stream.into_std()?), Peer::Unix))
            }
        }
    }
}

impl Raw {
    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

/// Accepts on a listener until it is to drain. The file of a unix socket is removed then.
pub async fn serve(listener: Listener, serving: Serving) -> io::Result<()> {
    let local = listener.place.is_local();
    let listener = Accepting::of(listener)?;
    let mut turn = 0_usize;
    loop {
        let accepted = async {
            let Ok(permit) = Arc::clone(&serving.permits).acquire_owned().await else {
                // The semaphore is never closed.
                return std::future::pending().await;
            };
            listener.accept().await.map(|(stream, peer)| (stream, peer, permit))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = serving.drain.cancelled() => return Ok(()),
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                turn = turn.wrapping_add(1);
                let accepted = Accepted { serving: serving.clone(), peer, local, permit };
                hand_over(accepted, stream, turn);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Gives a connection to the worker whose turn it is.
fn hand_over(accepted: Accepted, raw: Raw, turn: usize) {
    let workers = Arc::clone(&accepted.serving.workers);
    let connections = accepted.serving.connections.clone();
    connections.spawn_on(
        async move {
            if let Ok(stream) = raw.into_stream() {
                accepted.serve(stream).await;
            }
        },
        &workers[turn % workers.len()],
    );
}
