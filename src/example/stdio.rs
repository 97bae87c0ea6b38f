//! MCP on a pair of byte streams: one message a line, many requests in flight.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::message::{Incoming, NoId, PARSE_ERROR, Piece, print_error};
use super::modern::{Era, Line};
use super::outbox::{Outbox, Outgoing, QUEUE, Standing};
use super::revision::Offered;
use super::service::Server;
use super::session::{Reply, Session};

/// Bytes of a line, at most; a longer one is skipped.
const MAX_LINE: usize = 16 * 1024 * 1024;
/// Bytes written at once before the rest waits.
const MAX_WRITE: usize = 64 * 1024;
/// How long running calls may take to finish once the input has ended.
const GRACE: Duration = Duration::from_millis(500);

/// Serves one client until its input ends.
pub(super) async fn serve(
    server: &Arc<Server>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    tasks.spawn(write(outgoing, output));
    let client = Client::new(server, &queue);
    let mut calls = JoinSet::new();
    let mut lines = Lines::new(BufReader::new(input));
    let ended = loop {
        // Both are cancel-safe: a line half read stays in `lines`.
        tokio::select! {
            line = lines.next() => match line {
                Ok(Some(line)) => take(&client, &line, &queue, &mut calls).await,
                Ok(None) => break Ok(()),
                Err(why) => break Err(why),
            },
            _ = tasks.join_next() => return Ok(()),
        }
    };
    client.hang_up();
    server.ending.cancel();
    let finished = async { while calls.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, finished).await;
    calls.shutdown().await;
    // With the last sender gone, the writer ends once all is written.
    drop((client, queue));
    let _ = tokio::time::timeout(GRACE, tasks.join_next()).await;
    ended
}

/// Who is at the other end: a session, once it has opened one, and requests that stand alone.
pub(super) struct Client {
    session: Arc<Session>,
    line: Line,
    offered: Offered,
}

impl Client {
    /// Somebody whose messages are put into this queue.
    pub(super) fn new(server: &Arc<Server>, queue: &mpsc::Sender<Outgoing>) -> Self {
        let session = server.open(Standing::line(queue.clone()));
        Self { session, line: Line::new(server), offered: server.offered }
    }

    /// It can be asked nothing any more.
    pub(super) fn hang_up(&self) {
        self.session.hang_up();
    }

    /// Takes what came in one piece.
    pub(super) fn take(&self, piece: Piece, outbox: &Outbox) -> Reply {
        if let Piece::One(Incoming::Notification { method, params }) = &piece
            && method == "notifications/cancelled"
        {
            self.line.cancel(&params["requestId"]);
        }
        match Era::of(self.offered, None, &piece) {
            Era::Legacy => self.session.take_piece(piece, outbox),
            Era::Modern => self.line.take(piece, outbox),
        }
    }

    /// How errors without an id are spelled.
    pub(super) fn no_id(&self) -> NoId {
        if self.offered.legacy().is_some() { self.session.no_id() } else { NoId::Absent }
    }
}

/// Takes one line. Lines that are not JSON are noise and ignored.
async fn take(
    client: &Client,
    line: &[u8],
    queue: &mpsc::Sender<Outgoing>,
    calls: &mut JoinSet<()>,
) {
    while calls.try_join_next().is_some() {}
    let reply = match Piece::read(line) {
        Ok(piece) => client.take(piece, &Outbox::into(queue.clone())),
        Err(why) if why.code == PARSE_ERROR => Reply::Nothing,
        Err(why) => Reply::Now(print_error(None, client.no_id(), &why)),
    };
    reply.deliver(queue, calls).await;
}

/// Writes what comes, several messages at once where several wait.
async fn write(
    mut outgoing: mpsc::Receiver<Outgoing>,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(first) = outgoing.recv().await {
        let mut next = Some(first);
        while let Some(message) = next {
            if let Some(text) = message.into_text() {
                buffer.extend_from_slice(text.as_bytes());
                buffer.push(b'\n');
            }
            next = if buffer.len() < MAX_WRITE { outgoing.try_recv().ok() } else { None };
        }
        output.write_all(&buffer).await?;
        output.flush().await?;
        buffer.clear();
        buffer.shrink_to(MAX_WRITE);
    }
    Ok(())
}

/// Lines of bounded length.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    /// The line at hand is too long and on its way to be skipped.
    too_long: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, line: Vec::new(), too_long: false }
    }

    /// The next line without its end; `None` at the end of input. What follows the last line end is
    /// a line, too.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                let rest = std::mem::take(&mut self.line);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            let end = memchr::memchr(b'\n', chunk);
            let part = &chunk[..end.unwrap_or(chunk.len())];
            self.too_long |= self.line.len() + part.len() > MAX_LINE;
            if !self.too_long {
                self.line.extend_from_slice(part);
            }
            let taken = part.len() + usize::from(end.is_some());
            self.input.consume(taken);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                if !std::mem::take(&mut self.too_long) && !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            }
        }
    }
}
