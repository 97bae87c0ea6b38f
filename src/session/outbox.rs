//! What waits to be written to one standing stream: bounded in bytes, merging what may merge.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::jsonrpc::Chunks;
use crate::mcp::ListKind;

/// A message that belongs to no running request.
#[derive(Clone, Debug)]
pub enum Broadcast {
    /// A list changed; the same kind waiting twice is one.
    ListChanged(ListKind),
    /// A subscribed resource changed; the same text waiting twice is one.
    Updated(Bytes),
    /// Anything else.
    Message(Bytes),
}

impl Broadcast {
    fn text(&self) -> Bytes {
        match self {
            Self::ListChanged(kind) => Bytes::from_static(match kind {
                ListKind::Tools => {
                    br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#
                }
                ListKind::Prompts => {
                    br#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#
                }
                ListKind::Resources | ListKind::Templates => {
                    br#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#
                }
            }),
            Self::Updated(text) | Self::Message(text) => text.clone(),
        }
    }
}

/// Most bytes that wait for one reader; a reader slower than that loses its stream.
const MAX_BYTES: usize = 1 << 20;
/// Most messages that wait for one reader.
const MAX_ITEMS: usize = 1024;

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
}

/// The queue of one stream; one reader.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Outbox {
    /// Adds a message. `false` when the stream is closed, or was closed now since its reader is too slow.
    pub(super) fn push(&self, broadcast: &Broadcast) -> bool {
        let text = broadcast.text();
        let mut queue = self.queue.lock();
        if queue.closed {
            return false;
        }
        let merges = !matches!(broadcast, Broadcast::Message(_));
        if merges && queue.items.contains(&text) {
            return true;
        }
        if queue.items.len() >= MAX_ITEMS || queue.bytes + text.len() > MAX_BYTES {
            *queue = Queue { closed: true, ..Queue::default() };
        } else {
            queue.bytes += text.len();
            queue.items.push_back(text);
        }
        let open = !queue.closed;
        drop(queue);
        self.changed.notify_one();
        open
    }

    /// Ends the stream once what waits is written.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }

    /// Whether it takes messages.
    pub(super) fn is_open(&self) -> bool {
        !self.queue.lock().closed
    }

    /// The next message; `None` when the stream has ended.
    pub(super) async fn next(self: &Arc<Self>) -> Option<Chunks> {
        loop {
            let changed = self.changed.notified();
            {
                let mut queue = self.queue.lock();
                if let Some(text) = queue.items.pop_front() {
                    queue.bytes -= text.len();
                    return Some(Chunks::from(text));
                }
                if queue.closed {
                    return None;
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_list_changes_merge_and_others_keep_their_order() {
        let outbox = Arc::new(Outbox::default());
        assert!(outbox.push(&Broadcast::ListChanged(ListKind::Tools)));
        assert!(outbox.push(&Broadcast::Message(Bytes::from_static(b"1"))));
        assert!(outbox.push(&Broadcast::ListChanged(ListKind::Tools)));
        assert!(outbox.push(&Broadcast::Message(Bytes::from_static(b"1"))));
        outbox.close();
        let mut seen = Vec::new();
        while let Some(text) = outbox.next().await {
            seen.push(text.into_bytes());
        }
        assert_eq!(seen.len(), 3);
        assert_eq!((&seen[1][..], &seen[2][..]), (&b"1"[..], &b"1"[..]));
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_loses_its_stream() {
        let outbox = Arc::new(Outbox::default());
        let big = Broadcast::Message(Bytes::from(vec![b'x'; MAX_BYTES / 2]));
        assert!(outbox.push(&big));
        assert!(outbox.push(&big));
        assert!(!outbox.push(&big));
        assert!(!outbox.is_open());
        assert!(outbox.next().await.is_none());
    }
}
