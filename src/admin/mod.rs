//! The operator's side: `/metrics`, `/livez`, `/readyz`.
//!
//! A listener of its own, so that probes and scrapes are answered whatever the clients do. What it shows it gets
//! from [`AdminSources`]; it knows no upstream and no route.

mod answer;
mod readiness;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use readiness::{Readiness, UpstreamReadiness, UpstreamState};

use crate::telemetry::Metrics;

/// Most connections at once; further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send a request head; also how long an idle connection is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How old a connection may become. A scraper opens a new one; a reader that is stuck does not stay.
const MAX_AGE: Duration = Duration::from_secs(120);
/// How long an answer may still take once its connection is to end.
const GRACE: Duration = Duration::from_secs(2);
/// Largest request head.
const MAX_HEADER: usize = 16 << 10;
/// Pause after a failed accept: descriptors have run out, and need time to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin side shows.
#[derive(Clone)]
pub struct AdminSources {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`: the state as it is now. Called for each request; must not block.
    pub readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

impl std::fmt::Debug for AdminSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminSources").finish_non_exhaustive()
    }
}

/// Serves until `stop`; then ends its connections and returns within a bounded time. To be stopped last, since
/// `/readyz` is what tells that the gateway drains.
pub async fn serve(listener: TcpListener, sources: AdminSources, stop: CancellationToken) {
    // On loopback a foreign name in `Host` means that a web page has had its own name resolved to us.
    let local_names_only = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Every branch is cancel-safe: an accept or a slot that was not taken is there the next time.
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((stream, slot)) => {
                let sources = sources.clone();
                let stop = stop.clone();
                connections.spawn(async move {
                    connection(stream, sources, local_names_only, stop).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

/// One connection: until it is closed, too old, or `stop`; then what is being answered may end.
async fn connection(
    stream: TcpStream,
    sources: AdminSources,
    local_names_only: bool,
    stop: CancellationToken,
) {
    let service = service_fn(|request| {
        let sources = sources.clone();
        async move { Ok::<_, Infallible>(answer::answer(&request, &sources, local_names_only).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(MAX_HEADER)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = tokio::time::sleep(MAX_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            serving.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, serving).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection broke off");
    }
}
