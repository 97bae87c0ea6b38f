//! What an exchange sends to its client before its answer: a small bounded queue that costs nothing until
//! it is used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::jsonrpc::Chunks;

/// Most messages that wait for the client; then the exchange waits, and with it the upstream.
const CAPACITY: usize = 16;

/// The queue of one exchange (or batch): many writers, one reader.
#[derive(Debug, Default)]
pub struct Outlet {
    queue: Mutex<VecDeque<Chunks>>,
    freed: Notify,
    streams: AtomicBool,
}

impl Outlet {
    /// Sends one message, waiting while the client is slow.
    pub(super) async fn send(&self, message: Chunks) {
        let mut message = Some(message);
        loop {
            let freed = self.freed.notified();
            {
                let mut queue = self.queue.lock();
                if queue.len() < CAPACITY {
                    queue.extend(message.take());
                    return;
                }
            }
            freed.await;
        }
    }

    /// The answer is going to be a stream, though nothing is to be sent on it yet.
    pub(super) fn begin_stream(&self) {
        self.streams.store(true, Ordering::Relaxed);
    }

    /// Whether the answer is going to be a stream: something waits to be sent, or will be.
    pub fn is_stream(&self) -> bool {
        self.streams.load(Ordering::Relaxed) || !self.is_empty()
    }

    /// The next message if one waits.
    pub fn try_next(&self) -> Option<Chunks> {
        let message = self.queue.lock().pop_front();
        if message.is_some() {
            self.freed.notify_one();
        }
        message
    }

    /// Whether no message waits. Only the exchange's own future fills it, so whoever polls that need not be woken.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn a_full_outlet_holds_the_sender_until_the_client_reads() {
        let outlet = Arc::new(Outlet::default());
        for _ in 0..CAPACITY {
            outlet.send(Bytes::from_static(b"x").into()).await;
        }
        let sender = tokio::spawn({
            let outlet = Arc::clone(&outlet);
            async move { outlet.send(Bytes::from_static(b"last").into()).await }
        });
        tokio::task::yield_now().await;
        assert!(!sender.is_finished());
        assert!(outlet.try_next().is_some());
        sender.await.unwrap();
        let mut last = None;
        while let Some(message) = outlet.try_next() {
            last = Some(message.into_bytes());
        }
        assert_eq!(last.as_deref(), Some(&b"last"[..]));
    }
}
