//! Subscriptions of plain JSON-RPC, as chain nodes and many services have them: `demo_subscribe` to a topic,
//! `demo_subscription` for each value that somebody gives to `demo_publish`, `demo_unsubscribe`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

/// Subscriptions of one connection.
const MAX_OF_LINE: usize = 10_000;

/// One connection, which may subscribe.
pub(super) struct Line {
    number: u64,
    queue: mpsc::Sender<String>,
}

impl Line {
    /// A connection whose messages are put into this queue.
    pub(super) fn new(queue: mpsc::Sender<String>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Ordering::Relaxed), queue }
    }
}

/// Who has subscribed to what.
#[derive(Default)]
pub(super) struct Topics(Mutex<HashMap<String, Subscriber>>);

struct Subscriber {
    topic: String,
    line: u64,
    queue: mpsc::Sender<String>,
}

impl Topics {
    /// Subscribes a connection; the id. `None`: it has too many.
    pub(super) fn subscribe(&self, topic: String, line: &Line) -> Option<String> {
        let mut all = self.0.lock();
        if all.values().filter(|one| one.line == line.number).count() >= MAX_OF_LINE {
            return None;
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let id = random.iter().fold("0x".to_owned(), |id, byte| format!("{id}{byte:02x}"));
        let subscriber = Subscriber { topic, line: line.number, queue: line.queue.clone() };
        all.insert(id.clone(), subscriber);
        Some(id)
    }

    /// Takes a subscription of that connection back; whether there was one.
    pub(super) fn unsubscribe(&self, id: &str, line: &Line) -> bool {
        let mut all = self.0.lock();
        let is_its = all.get(id).is_some_and(|one| one.line == line.number);
        if is_its {
            all.remove(id);
        }
        is_its
    }

    /// Takes back all subscriptions of a connection.
    pub(super) fn leave(&self, line: &Line) {
        self.0.lock().retain(|_, one| one.line != line.number);
    }

    /// Gives a value to all subscribers of a topic; how many there were.
    pub(super) async fn publish(&self, topic: &str, value: &RawValue) -> usize {
        let told: Vec<_> = {
            let all = self.0.lock();
            let of_topic = all.iter().filter(|(_, one)| one.topic == topic);
            of_topic.map(|(id, one)| (id.clone(), one.queue.clone())).collect()
        };
        for (id, queue) in &told {
            let value = value.get();
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"demo_subscription","params":{{"subscription":"{id}","result":{value}}}}}"#
            );
            let _ = queue.send(text).await;
        }
        told.len()
    }

    /// How many subscriptions there are.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
