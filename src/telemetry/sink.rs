//! Where log lines go: one buffer of bounded size, and one thread that writes it.
//!
//! Whoever logs copies a finished line into the buffer and goes on; a reader of the log that is slow, or stuck, costs
//! lines and never time. Lines of `tracing` and access lines share the buffer, so their order is the true one.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

/// Most bytes that wait to be written; lines beyond are dropped and counted.
const ROOM: usize = 1 << 20;
/// What a buffer is shrunk to after a burst.
const USUAL: usize = 64 << 10;
/// How long the thread collects lines before it writes again: at most a hundred writes a second.
const LINGER: Duration = Duration::from_millis(10);
/// How long the end of the process waits for the last lines.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A handle to the buffer; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// For the thread: there is something to write, or it shall end.
    wake: Condvar,
    /// For who waits: the thread has ended.
    done: Condvar,
    dropped: IntCounter,
}

#[derive(Debug)]
struct Queue {
    lines: Vec<u8>,
    phase: Phase,
    ending: bool,
}

/// What the writing thread does.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the first line.
    Asleep,
    /// Writes, or collects lines until it writes again.
    Busy,
    /// Has written the last line.
    Ended,
}

impl Sink {
    /// Starts the thread that writes to `output`; `dropped` counts lines that were lost.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        dropped: IntCounter,
    ) -> io::Result<Self> {
        let queue = Queue { lines: Vec::new(), phase: Phase::Busy, ending: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            done: Condvar::new(),
            dropped,
        });
        let writer = Arc::clone(&shared);
        // Ended by `finish`, or with the process.
        thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(output))?;
        Ok(Self { shared })
    }

    /// Appends a whole line (with its line feed). Never waits for the output.
    pub(super) fn push(&self, line: &[u8]) {
        let mut queue = self.shared.queue.lock();
        if queue.ending || queue.lines.len() + line.len() > ROOM {
            drop(queue);
            self.shared.dropped.inc();
            return;
        }
        queue.lines.extend_from_slice(line);
        let wake = queue.phase == Phase::Asleep || queue.lines.len() > ROOM / 2;
        drop(queue);
        if wake {
            self.shared.wake.notify_one();
        }
    }

    /// Ends the thread and waits, for a bounded time, until the last line is written.
    pub(super) fn finish(&self) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut queue = self.shared.queue.lock();
        queue.ending = true;
        self.shared.wake.notify_one();
        while queue.phase != Phase::Ended {
            if self.shared.done.wait_until(&mut queue, deadline).timed_out() {
                return;
            }
        }
    }
}

impl Shared {
    fn run(&self, mut output: impl Write) {
        let mut batch = Vec::new();
        while self.next(&mut batch) {
            if output.write_all(&batch).and_then(|()| output.flush()).is_err() {
                // Nobody can be told but the metric.
                self.dropped.inc_by(memchr::memchr_iter(b'\n', &batch).count() as u64);
            }
            batch.clear();
            batch.shrink_to(USUAL);
            self.linger();
        }
    }

    /// Waits for lines and takes them; `false` when there are none and none will come.
    fn next(&self, batch: &mut Vec<u8>) -> bool {
        let mut queue = self.queue.lock();
        while queue.lines.is_empty() && !queue.ending {
            queue.phase = Phase::Asleep;
            self.wake.wait(&mut queue);
        }
        if queue.lines.is_empty() {
            queue.phase = Phase::Ended;
            self.done.notify_all();
            return false;
        }
        queue.phase = Phase::Busy;
        std::mem::swap(&mut queue.lines, batch);
        true
    }

    fn linger(&self) {
        let deadline = Instant::now() + LINGER;
        let mut queue = self.queue.lock();
        while !queue.ending && queue.lines.len() <= ROOM / 2 {
            if self.wake.wait_until(&mut queue, deadline).timed_out() {
                return;
            }
        }
    }
}

/// Takes what `tracing` formats: one call for each line.
impl Write for &Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::telemetry::families::log_dropped;

    /// An output that hands on each write and, when asked to, waits before it takes one.
    struct Output {
        written: mpsc::Sender<Vec<u8>>,
        gate: Option<mpsc::Receiver<()>>,
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(gate) = &self.gate {
                gate.recv().map_err(io::Error::other)?;
            }
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_whole_in_order_and_before_the_end() {
        let (written, received) = mpsc::channel();
        let sink = Sink::start(Output { written, gate: None }, log_dropped()).unwrap();
        let mut expected = String::new();
        for n in 0..10_000 {
            let line = format!("line {n}\n");
            sink.push(line.as_bytes());
            expected.push_str(&line);
        }
        sink.finish();
        let all: Vec<u8> = received.try_iter().flatten().collect();
        assert_eq!(String::from_utf8(all).unwrap(), expected);
    }

    #[test]
    fn a_line_alone_is_written_without_an_end() {
        let (written, received) = mpsc::channel();
        let sink = Sink::start(Output { written, gate: None }, log_dropped()).unwrap();
        sink.push(b"first\n");
        assert_eq!(received.recv().unwrap(), b"first\n");
        sink.push(b"second\n");
        assert_eq!(received.recv().unwrap(), b"second\n");
    }

    #[test]
    fn a_stuck_reader_costs_lines_and_neither_time_nor_memory() {
        let (written, _received) = mpsc::channel();
        let (_keep_shut, gate) = mpsc::channel();
        let dropped = log_dropped();
        let sink = Sink::start(Output { written, gate: Some(gate) }, dropped.clone()).unwrap();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        for _ in 0..5_000 {
            sink.push(&line);
        }
        // What fits: the buffer, and the batch that hangs in the write.
        assert!(dropped.get() >= 5_000 - 2 * (ROOM / line.len()) as u64, "{}", dropped.get());
        assert!(sink.shared.queue.lock().lines.len() <= ROOM);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (written, received) = mpsc::channel();
        drop(received);
        let dropped = log_dropped();
        let sink = Sink::start(Output { written, gate: None }, dropped.clone()).unwrap();
        sink.push(b"one\n");
        sink.push(b"two\n");
        sink.finish();
        assert_eq!(dropped.get(), 2);
    }
}
