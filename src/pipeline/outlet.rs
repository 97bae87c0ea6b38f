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
    /// What hangs on the answer's delivery.
    owed: Mutex<Option<Receipt>>,
    /// The client can be sent an answer in pieces, so that it sees when one is cut short.
    takes_pieces: AtomicBool,
    /// What waits are pieces of the answer.
    pieces: AtomicBool,
    /// All of them were sent.
    whole: AtomicBool,
}

/// Something that is of no use unless the client gets the answer: undone when this is dropped before.
pub struct Receipt(Option<Box<dyn FnOnce() + Send>>);

impl Receipt {
    /// `undo` is called if the answer is not delivered.
    pub(super) fn new(undo: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(undo)))
    }

    /// The answer is on its way to the client.
    pub fn delivered(mut self) {
        self.0 = None;
    }
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Receipt").finish_non_exhaustive()
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
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

    /// Something hangs on the delivery of the answer.
    pub(super) fn owe(&self, receipt: Receipt) {
        *self.owed.lock() = Some(receipt);
    }

    /// What hangs on the delivery of the answer, for who delivers it.
    pub fn receipt(&self) -> Option<Receipt> {
        self.owed.lock().take()
    }

    /// The answer is going to be a stream, though nothing is to be sent on it yet.
    pub(super) fn begin_stream(&self) {
        self.streams.store(true, Ordering::Relaxed);
    }

    /// Whether the answer is going to be a stream: something waits to be sent, or will be.
    pub fn is_stream(&self) -> bool {
        self.streams.load(Ordering::Relaxed) || !self.is_empty()
    }

    /// An answer may come in pieces: the client's transport tells a whole one from one that was cut short.
    pub fn accept_pieces(&self) {
        self.takes_pieces.store(true, Ordering::Relaxed);
    }

    /// Whether the answer may come in pieces.
    pub(super) fn takes_pieces(&self) -> bool {
        self.takes_pieces.load(Ordering::Relaxed)
    }

    /// What is sent from now on are pieces of the answer.
    pub(super) fn begin_pieces(&self) {
        self.pieces.store(true, Ordering::Relaxed);
    }

    /// Whether what waits are pieces of the answer.
    pub fn is_pieces(&self) -> bool {
        self.pieces.load(Ordering::Relaxed)
    }

    /// The last piece was sent.
    pub(super) fn end_pieces(&self) {
        self.whole.store(true, Ordering::Relaxed);
    }

    /// Whether the pieces that were sent are the whole answer. One that is not must never be taken as whole.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
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
    use std::sync::atomic::AtomicUsize;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_hangs_on_an_answer_is_undone_unless_that_is_delivered() {
        let undone = Arc::new(AtomicUsize::new(0));
        let owing = || {
            let (outlet, undone) = (Outlet::default(), Arc::clone(&undone));
            outlet.owe(Receipt::new(move || {
                undone.fetch_add(1, Ordering::Relaxed);
            }));
            outlet
        };
        owing().receipt().expect("something").delivered();
        assert_eq!(undone.load(Ordering::Relaxed), 0);
        drop(owing());
        assert_eq!(undone.load(Ordering::Relaxed), 1);
        drop(owing().receipt());
        assert_eq!(undone.load(Ordering::Relaxed), 2);
    }

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
