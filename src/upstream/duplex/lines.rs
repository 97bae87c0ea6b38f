//! A channel over one pair of byte streams, a message a line.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use prometheus::IntCounter;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::link::LinkContext;
use super::channel::{Channel, Out, Outlet};
use super::noise::Tail;
use crate::wire::LineDecoder;

/// Lines that are taken at once.
const BATCH: usize = 64;
/// Lines shorter than this are written together.
const SMALL_LINE: usize = 16 * 1024;
/// Room for a read, while little comes and while much comes.
const READ: (usize, usize) = (8 * 1024, 64 * 1024);
/// How long to read on once the child is gone: a process that left its group may hold the pipe for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);

impl Channel {
    /// Starts the two tasks.
    pub(in crate::upstream) fn open(
        ctx: &LinkContext,
        tail: Arc<Tail>,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Arc<Self> {
        let (channel, outlet) = Self::new(ctx, tail);
        ctx.tasks.spawn(Arc::clone(&channel).read_all(reader));
        ctx.tasks.spawn(write_all(outlet, writer, ctx.metrics.bytes_out.clone()));
        channel
    }

    async fn read_all(self: Arc<Self>, reader: impl AsyncRead + Send + Unpin) {
        let too_long = async {
            self.signals.gone.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.read(reader) => {}
            () = too_long => {}
        }
        self.ended();
    }

    async fn read(self: &Arc<Self>, mut reader: impl AsyncRead + Unpin) {
        let mut decoder = LineDecoder::new(self.ctx.config.max_message);
        let mut buffer = BytesMut::new();
        let mut room = READ.0;
        loop {
            if buffer.capacity() < READ.0 / 2 {
                buffer.reserve(room);
            }
            match reader.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => {
                    self.ctx.metrics.bytes_in.inc_by(length as u64);
                    room = if length >= READ.0 / 2 { READ.1 } else { READ.0 };
                }
            }
            decoder.push(buffer.split().freeze());
            while let Some(line) = decoder.next_line() {
                self.take_line(line);
            }
        }
        if let Some(line) = decoder.finish() {
            self.take_line(line);
        }
    }
}

/// Writes lines until told to finish, then what is queued, and closes the upstream's input.
async fn write_all(
    mut outlet: Outlet,
    mut writer: impl AsyncWrite + Send + Unpin,
    bytes: IntCounter,
) {
    let signals = outlet.signals.clone();
    let write = async {
        let mut batch = Vec::new();
        loop {
            if outlet.take(&mut batch, BATCH).await == 0 {
                return writer.shutdown().await;
            }
            let length: usize = batch.iter().map(|out| out.line.len()).sum();
            write_batch(&mut batch, &mut writer).await?;
            bytes.inc_by(length as u64);
        }
    };
    let written: std::io::Result<()> = tokio::select! {
        written = write => written,
        () = signals.gone.cancelled() => Ok(()),
    };
    if let Err(error) = written {
        tracing::debug!("cannot write to a child: {error}");
        signals.broken.cancel();
    }
}

/// Small lines are joined: one system call for many of them.
async fn write_batch(
    batch: &mut Vec<Out>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let mut joined = BytesMut::new();
    let alone = batch.len() == 1;
    for Out { line, .. } in batch.drain(..) {
        if !alone && line.len() < SMALL_LINE {
            joined.extend_from_slice(&line);
            continue;
        }
        if !joined.is_empty() {
            writer.write_all(&joined.split()).await?;
        }
        writer.write_all(&line).await?;
    }
    writer.write_all(&joined).await?;
    writer.flush().await
}
