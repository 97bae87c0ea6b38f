//! What a child writes for people: to the log, within limits.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::duplex::{Flow, Tail, printable};
use crate::config::UpstreamName;

/// Longest line that is logged; the rest of a longer one is left out.
const LONGEST_LINE: usize = 2048;
/// How long to read on once the child is gone: a process that left its group may hold the pipe for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// When suppressed lines are told of though no more come.
const FLUSH: Duration = Duration::from_secs(2);

/// Cuts a byte stream into lines of bounded length, fit to be logged.
#[derive(Debug, Default)]
struct Cutter {
    line: Vec<u8>,
    cut: bool,
}

impl Cutter {
    fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(String)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if let Some(line) = self.finish() {
                take(line);
            }
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(LONGEST_LINE - self.line.len());
        self.line.extend_from_slice(&bytes[..fits]);
        self.cut |= fits < bytes.len();
    }

    /// The line so far; `None` when there is nothing to see in it.
    fn finish(&mut self) -> Option<String> {
        let mut line = printable(&self.line);
        if std::mem::take(&mut self.cut) {
            line.push('…');
        }
        self.line.clear();
        (!line.is_empty()).then_some(line)
    }
}

/// One stream of a child on its way to the log.
#[derive(Debug)]
pub(super) struct Drain<'a> {
    /// Whose child.
    pub(super) upstream: &'a UpstreamName,
    /// `stderr` or `stdout`.
    pub(super) stream: &'static str,
    /// Where the last lines are kept.
    pub(super) tail: &'a Tail,
}

impl Drain<'_> {
    /// Reads to the end, so that the child never blocks; `gone` says that there is not much more to come.
    pub(super) async fn run(self, pipe: impl AsyncRead + Unpin, gone: CancellationToken) {
        let mut flow = Flow::new(Instant::now());
        let too_long = async {
            gone.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.read(pipe, &mut flow) => {}
            () = too_long => {}
        }
        self.tell_suppressed(flow.take_suppressed());
    }

    async fn read(&self, mut pipe: impl AsyncRead + Unpin, flow: &mut Flow) {
        let mut cutter = Cutter::default();
        let mut buffer = vec![0; 4096];
        loop {
            let read = tokio::select! {
                read = pipe.read(&mut buffer) => read,
                () = tokio::time::sleep(FLUSH), if flow.holds_back() => {
                    self.tell_suppressed(flow.take_suppressed());
                    continue;
                }
            };
            match read {
                Ok(0) | Err(_) => break,
                Ok(length) => cutter.push(&buffer[..length], |line| self.log(line, flow)),
            }
        }
        if let Some(line) = cutter.finish() {
            self.log(line, flow);
        }
    }

    fn log(&self, line: String, flow: &mut Flow) {
        if let Some(suppressed) = flow.admit(Instant::now()) {
            self.tell_suppressed(suppressed);
            tracing::info!(upstream = %self.upstream, stream = self.stream, "{line}");
        }
        self.tail.push(line);
    }

    fn tell_suppressed(&self, lines: u64) {
        if lines > 0 {
            tracing::warn!(upstream = %self.upstream, stream = self.stream, "{lines} lines suppressed");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn lines_are_cut_to_a_length_and_made_printable() {
        let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
        let long = [b"\x1b[31mred\r\n\n".as_slice(), &[b'x'; 5000], b"y\nrest"].concat();
        for chunk in long.chunks(7) {
            cutter.push(chunk, |line| lines.push(line));
        }
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], " [31mred");
        assert_eq!(lines[1], format!("{}…", "x".repeat(LONGEST_LINE)));
        assert_eq!(cutter.finish().as_deref(), Some("rest"));
    }

    #[test]
    fn a_flood_of_lines_is_held_back_and_counted() {
        let now = Instant::now();
        let mut flow = Flow::new(now);
        let logged = (0..100_000).filter(|_| flow.admit(now).is_some()).count();
        assert_eq!(logged, 100);
        assert_eq!(flow.admit(now + Duration::from_secs(1)), Some(99_900));
        assert_eq!(
            (0..100).filter(|_| flow.admit(now + Duration::from_secs(1)).is_some()).count(),
            19
        );
    }

    #[tokio::test]
    async fn a_flood_is_read_to_its_end_and_only_its_last_lines_are_kept() {
        let (mut child, pipe) = tokio::io::duplex(1024);
        let (tail, upstream) = (Tail::default(), UpstreamName::new("noisy").unwrap());
        let write = async move {
            for line in 0..20_000 {
                child.write_all(format!("line {line}\n").as_bytes()).await.unwrap();
            }
        };
        let drain = Drain { upstream: &upstream, stream: "stderr", tail: &tail };
        tokio::join!(write, drain.run(pipe, CancellationToken::new()));
        let lines = tail.lines();
        assert_eq!(lines.len(), 50);
        assert_eq!(lines.last().map(String::as_str), Some("line 19999"));
        assert!(tail.last_words().ends_with("line 19998 | line 19999"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_stays_open_does_not_keep_the_drain() {
        let (_held, pipe) = tokio::io::duplex(1024);
        let (tail, upstream) = (Tail::default(), UpstreamName::new("daemon").unwrap());
        let gone = CancellationToken::new();
        gone.cancel();
        Drain { upstream: &upstream, stream: "stderr", tail: &tail }.run(pipe, gone).await;
    }
}
