//! What a connection begins with: enough is read to tell HTTP/2 from HTTP/1.1, and read again by whoever serves it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::net::Stream;
use crate::net::tls::HTTP2;

/// What a connection of HTTP/2 begins with (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most that is read to tell; a whole request of usual size.
const FIRST: usize = 4096;

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// HTTP/1.1 or older.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A connection of which some was read already.
#[derive(Debug)]
pub(super) struct Peeked {
    stream: Stream,
    first: Bytes,
}

impl Peeked {
    /// Tells what is spoken: as TLS agreed, else by what comes first; whoever calls limits the time. `None` when
    /// nothing comes before the end.
    pub(super) async fn at(mut stream: Stream) -> io::Result<Option<(Self, Version)>> {
        if let Some(agreed) = stream.alpn() {
            let version = if agreed == HTTP2 { Version::Http2 } else { Version::Http1 };
            return Ok(Some((Self { stream, first: Bytes::new() }, version)));
        }
        let mut first = BytesMut::with_capacity(FIRST);
        loop {
            let ended = stream.read_buf(&mut first).await? == 0;
            let known = first.len().min(PREFACE.len());
            let version = match first[..known] == PREFACE[..known] {
                true if known == PREFACE.len() => Version::Http2,
                true if ended && known == 0 => return Ok(None),
                true if !ended => continue,
                _ => Version::Http1,
            };
            return Ok(Some((Self { stream, first: first.freeze() }, version)));
        }
    }
}

impl AsyncRead for Peeked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let taken = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..taken]);
        self.first.advance(taken);
        if self.first.is_empty() {
            // Gives the memory back.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peeked {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    async fn told(parts: &[&[u8]]) -> Option<(Version, Vec<u8>)> {
        let (mut client, server) = UnixStream::pair().unwrap();
        let telling = tokio::spawn(Peeked::at(Stream::Unix(server)));
        for part in parts {
            client.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(client);
        let (mut peeked, version) = telling.await.unwrap().unwrap()?;
        let mut all = Vec::new();
        peeked.read_to_end(&mut all).await.unwrap();
        Some((version, all))
    }

    #[tokio::test]
    async fn http_2_is_told_by_its_preface_however_it_is_cut_and_nothing_is_lost() {
        let (begin, end) = PREFACE.split_at(3);
        let mut rest = end.to_vec();
        rest.extend_from_slice(&[7; 5000]);
        let (version, all) = told(&[begin, &rest]).await.unwrap();
        assert_eq!(version, Version::Http2);
        assert_eq!(all, [PREFACE, &[7; 5000]].concat());
        for text in ["POST / HTTP/1.1\r\n\r\n", "P", "PRI * HTTP/1.1\r\n\r\n", "GET"] {
            let told = told(&[text.as_bytes()]).await;
            assert_eq!(told, Some((Version::Http1, text.as_bytes().to_vec())), "{text}");
        }
        assert_eq!(told(&[]).await, None);
    }
}
