//! A client that reads nothing of what waits for it loses its connection, and with it what its requests hold.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A connection that fails once a write on it has waited too long. A timer runs only while one waits.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    limit: Duration,
    /// Since a write waits; let go of by any progress.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Another clock holds: it is a WebSocket now.
    released: Arc<AtomicBool>,
}

impl<S> Watched<S> {
    /// Writes may wait for `limit`, unless it is released from that.
    pub(super) fn new(stream: S, limit: Duration, released: &Arc<AtomicBool>) -> Self {
        Self { stream, limit, waiting: None, released: Arc::clone(released) }
    }

    /// Looks at what a write came to.
    fn look<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.waiting.is_some() {
                self.waiting = None;
            }
            return written;
        }
        if self.released.load(Ordering::Relaxed) {
            self.waiting = None;
            return Poll::Pending;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        waiting.as_mut().poll(cx).map(|()| {
            let text = "the client reads nothing of what is sent to it (write_timeout)";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.look(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.look(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.look(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.look(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_fails_in_time_and_progress_begins_the_time_anew() {
        let (mut client, server) = tokio::io::duplex(10);
        let mut server = Watched::new(server, LIMIT, &Arc::default());
        let begun = tokio::time::Instant::now();
        let reading = async {
            let mut some = [0; 5];
            for _ in 0..3 {
                tokio::time::sleep(LIMIT * 2 / 3).await;
                client.read_exact(&mut some).await.unwrap();
            }
        };
        let (wrote, ()) = tokio::join!(server.write_all(&[7; 100]), reading);
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 20 * 3 + 30);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_released_waits_as_long_as_it_takes() {
        let (_client, server) = tokio::io::duplex(10);
        let released = Arc::new(AtomicBool::new(true));
        let mut server = Watched::new(server, LIMIT, &released);
        let waiting = tokio::time::timeout(LIMIT * 10, server.write_all(&[7; 100])).await;
        assert!(waiting.is_err(), "it failed: {waiting:?}");
    }
}
