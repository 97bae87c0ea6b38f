//! One connection from its first byte to its end: TLS, which HTTP it speaks, its requests, its end at a drain.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::sync::WaitForCancellationFuture;

use super::http::{Connection, serve as serve_request};
use super::listener::Serving;
use super::multiplexed;
use super::peek::{Peeked, Version};
use super::watched::Watched;
use crate::config::ServerConfig;
use crate::net::{Peer, Stream};

/// How much of a request is read that came without TLS.
const UNREAD: u64 = 64 << 10;
/// Longest time that setting up TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a connection is held to; fixed when it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) header_timeout: Duration,
    pub(super) max_header: usize,
    pub(super) max_streams: u32,
    pub(super) write_timeout: Duration,
}

impl Limits {
    fn of(server: &ServerConfig) -> Self {
        let ServerConfig { header_timeout, max_header, max_streams, write_timeout, .. } = *server;
        Self { header_timeout, max_header, max_streams, write_timeout }
    }
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) serving: Serving,
    pub(super) peer: Peer,
    /// It came in where only this machine can.
    pub(super) local: bool,
    /// One of `max_connections`.
    pub(super) permit: OwnedSemaphorePermit,
}

impl Accepted {
    /// Serves it to its end.
    pub(super) async fn serve(self, stream: Stream) {
        let peer = self.peer;
        if let Err(error) = self.run(stream).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    async fn run(self, stream: Stream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let limits = Limits::of(&self.serving.pipeline.snapshot().server);
        let drain = self.serving.drain.clone();
        let mut drained = pin!(drain.cancelled());
        let begun = tokio::select! {
            biased;
            begun = self.begin(stream, limits.header_timeout) => begun?,
            // Nothing was asked on it yet.
            () = drained.as_mut() => return Ok(()),
        };
        let Some((stream, version)) = begun else { return Ok(()) };
        let Self { serving, peer, local, permit } = self;
        let pipeline = Arc::clone(&serving.pipeline);
        let upgraded = Arc::<AtomicBool>::default();
        let stream = Watched::new(stream, limits.write_timeout, &upgraded);
        let connection = Connection { pipeline, serving, peer, local, upgraded, _permit: permit };
        let connection = Arc::new(connection);
        match version {
            Version::Http1 => http1(connection, stream, limits, drained).await?,
            Version::Http2 => {
                Box::pin(multiplexed::serve(connection, stream, limits, drained)).await?;
            }
        }
        Ok(())
    }

    /// Sets up TLS and tells the version, within the time that a client has for its first request head.
    async fn begin(
        &self,
        stream: Stream,
        limit: Duration,
    ) -> io::Result<Option<(Peeked, Version)>> {
        let stream = match (stream, &self.serving.tls) {
            (Stream::Tcp(stream), Some(tls)) => {
                let setting_up = set_up(TlsAcceptor::from(tls.current()), stream);
                timeout(limit.min(HANDSHAKE), setting_up).await??
            }
            (stream, _) => stream,
        };
        timeout(limit, Peeked::at(stream)).await?
    }
}

/// Sets up TLS. Who speaks HTTP without is told so.
async fn set_up(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<Stream> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        tell_plain(stream).await?;
        return Err(io::Error::other("plain HTTP where TLS is served"));
    }
    let stream = acceptor.accept(stream).await?;
    Ok(Stream::Tls(Box::new(TlsStream::from(stream))))
}

/// Answers in plain HTTP, and reads some of what was sent, so that the answer is not lost with the connection.
async fn tell_plain(mut stream: TcpStream) -> io::Result<()> {
    const ANSWER: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
        content-length: 35\r\nconnection: close\r\n\r\nthis address is served over https:\n";
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(UNREAD), &mut tokio::io::sink()).await?;
    Ok(())
}

async fn http1(
    connection: Arc<Connection>,
    stream: Watched<Peeked>,
    limits: Limits,
    mut drained: Pin<&mut WaitForCancellationFuture<'_>>,
) -> hyper::Result<()> {
    let (pipeline, cut) = (Arc::clone(&connection.pipeline), connection.serving.cut.clone());
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.max_header);
    let service = service_fn(move |request| {
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(serve_request(&connection, request).await) }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let mut cut = pin!(cut.cancelled());
    // Looking at a token takes locks that all connections share: `drain` is looked at once, so that it wakes
    // this task, and then no more until the flag says so that is set before it.
    let (mut registered, mut draining) = (false, false);
    std::future::poll_fn(|cx| {
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
    .await
}
