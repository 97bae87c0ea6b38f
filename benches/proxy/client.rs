//! A minimal HTTP/1.1 client: one connection, one request at a time, nothing it does not need, so
//! that the load costs little beside what it measures.

use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;

/// One keep-alive connection.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    unchunked: Vec<u8>,
}

/// An answer, read to its end.
pub(crate) struct Answer<'a> {
    /// HTTP status.
    pub(crate) status: u16,
    /// Status line and header, without the empty line.
    pub(crate) head: &'a str,
    /// Body, without chunks.
    pub(crate) body: &'a [u8],
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let received = Vec::with_capacity(80 * 1024);
        Ok(Self { stream, received, unchunked: Vec::new() })
    }

    /// Sends a request as it stands and reads the answer.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.received.clear();
        self.stream.write_all(request).await?;
        let head_end = loop {
            self.read().await?;
            if let Some(end) = memmem::find(&self.received, b"\r\n\r\n") {
                break end;
            }
        };
        let head = std::str::from_utf8(&self.received[..head_end])?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or("no status")?;
        let length = header(head, "content-length").map(str::parse).transpose()?;
        let chunked = header(head, "transfer-encoding").is_some();
        let body_at = head_end + 4;
        let end = match length {
            Some(length) => self.read_sized(body_at, length).await?,
            None if chunked => self.read_chunks(body_at).await?,
            None => body_at,
        };
        if self.received.len() != end {
            return Err("bytes behind the answer".into());
        }
        let head = std::str::from_utf8(&self.received[..head_end])?;
        let body = if chunked { &self.unchunked[..] } else { &self.received[body_at..] };
        Ok(Answer { status, head, body })
    }

    async fn read(&mut self) -> Result<()> {
        self.received.reserve(16 * 1024);
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err("connection closed by the other side".into()),
            _ => Ok(()),
        }
    }

    async fn read_sized(&mut self, body_at: usize, length: usize) -> Result<usize> {
        while self.received.len() < body_at + length {
            self.read().await?;
        }
        Ok(body_at + length)
    }

    /// Collects the chunks in `unchunked`; says where the last one ends.
    async fn read_chunks(&mut self, body_at: usize) -> Result<usize> {
        self.unchunked.clear();
        let mut at = body_at;
        loop {
            let line_end = loop {
                if let Some(end) = memmem::find(&self.received[at..], b"\r\n") {
                    break at + end;
                }
                self.read().await?;
            };
            let size = std::str::from_utf8(&self.received[at..line_end])?;
            let size = usize::from_str_radix(size.trim(), 16)?;
            at = line_end + 2;
            self.read_sized(at, size + 2).await?;
            self.unchunked.extend_from_slice(&self.received[at..at + size]);
            at += size + 2;
            if size == 0 {
                return Ok(at);
            }
        }
    }
}

/// The value of a header, if it is there.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
