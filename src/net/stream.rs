//! One type for every kind of connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// How often is read what a connection may still hold that can no longer be written to.
const UNREAD: usize = 8;

/// A connection of any kind.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS over TCP, either side.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The protocol that both sides agreed on while TLS was set up, such as `h2`.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

/// What the other side said before it closed explains more than that it closed: an alert that waits to be read takes
/// the place of the error that writing gave.
fn told(stream: &mut TlsStream<TcpStream>, cx: &mut Context<'_>, error: io::Error) -> io::Error {
    let mut scrap = [0; 512];
    for _ in 0..UNREAD {
        let mut buffer = ReadBuf::new(&mut scrap);
        match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
            Poll::Ready(Err(told)) if told.get_ref().is_some() => return told,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
            _ => break,
        }
    }
    error
}

/// The same call for writing on whichever kind it is.
macro_rules! write {
    ($stream:expr, $cx:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            Stream::Unix(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            Stream::Tls(inner) => {
                let $inner = Pin::new(&mut **inner);
                let written = $call;
                written.map_err(|error| told(inner, $cx, error))
            }
        }
    };
}

/// The same call on whichever kind it is.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Stream::Unix($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Stream::Tls($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        write!(self, cx, inner => inner.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        write!(self, cx, inner => inner.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(inner) => inner.is_write_vectored(),
            Self::Unix(inner) => inner.is_write_vectored(),
            Self::Tls(inner) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        write!(self, cx, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_shutdown(cx))
    }
}
