//! Frames over one connection.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::wire::{FrameError, FrameReader, FrameWriter, Received};

/// Most slices of one write.
const SLICES: usize = 32;

/// Why nothing more is read.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client is gone.
    Gone,
    /// What it sends is wrong.
    Broken(FrameError),
}

/// A connection that speaks WebSocket.
#[derive(Debug)]
pub(super) struct Frames {
    io: TokioIo<Upgraded>,
    reader: FrameReader,
    pub(super) writer: FrameWriter,
    /// Whether anything came since that was last asked.
    heard: bool,
}

impl Frames {
    /// Messages of at most `limit` bytes.
    pub(super) fn new(upgraded: Upgraded, limit: usize) -> Self {
        Self {
            io: TokioIo::new(upgraded),
            reader: FrameReader::new(limit),
            writer: FrameWriter::default(),
            heard: false,
        }
    }

    /// What the client sends next.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Received, Ended>> {
        loop {
            match self.reader.take() {
                Ok(Some(received)) => return Poll::Ready(Ok(received)),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(Ended::Broken(error))),
            }
            let room = self.reader.room();
            let read = pin!(self.io.read_buf(room)).poll(cx);
            match read {
                Poll::Ready(Ok(1..)) => self.heard = true,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Ended::Gone)),
                Poll::Pending => {
                    self.reader.rest();
                    return Poll::Pending;
                }
            }
        }
    }

    /// How many bytes were read that belong to no whole message yet.
    pub(super) fn held(&self) -> usize {
        self.reader.held()
    }

    /// Whether anything came since the last time.
    pub(super) fn was_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Writes what waits. Whether it wrote anything shows in how much still waits.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.writer.pending() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.writer.slices(&mut slices);
            let io = Pin::new(&mut self.io);
            let written = match &slices[..count] {
                [one] => ready!(io.poll_write(cx, one))?,
                several => ready!(io.poll_write_vectored(cx, several))?,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.writer.written(written);
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Nothing more will be written.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Reads bytes that mean nothing any more; how many came, 0 at the end.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut waste = BytesMut::with_capacity(8 << 10);
        let read = ready!(pin!(self.io.read_buf(&mut waste)).poll(cx));
        Poll::Ready(read.unwrap_or_default())
    }
}
