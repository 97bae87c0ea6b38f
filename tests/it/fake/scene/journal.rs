//! What happened at a scene, for the test to read; and how its processes tell each other of changes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;

/// Entries in order: objects whose `event` says what happened.
#[derive(Debug)]
pub enum Journal {
    /// Of a server in this process.
    Memory(Mutex<Vec<Value>>, broadcast::Sender<Value>),
    /// Of all processes that write to this file.
    File(PathBuf, broadcast::Sender<Value>),
}

impl Journal {
    /// One that lies in this process.
    pub fn in_memory() -> Arc<Self> {
        Arc::new(Self::Memory(Mutex::default(), broadcast::channel(1024).0))
    }

    /// One that lies in a file.
    pub fn in_file(path: &Path) -> Arc<Self> {
        Arc::new(Self::File(path.to_owned(), broadcast::channel(1024).0))
    }

    /// Adds an entry.
    pub fn write(&self, entry: &Value) {
        match self {
            Self::Memory(entries, news) => {
                locked(entries).push(entry.clone());
                let _ = news.send(entry.clone());
            }
            Self::File(path, _) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                // One write, so that lines of several processes do not mix.
                file.and_then(|mut file| file.write_all(format!("{entry}\n").as_bytes()))
                    .expect("the journal can be written");
            }
        }
    }

    /// All entries so far.
    pub fn read(&self) -> Vec<Value> {
        match self {
            Self::Memory(entries, _) => locked(entries).clone(),
            Self::File(path, _) => {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                whole_lines(&text).filter_map(|line| serde_json::from_str(line).ok()).collect()
            }
        }
    }

    /// The entries of that event.
    pub fn of(&self, event: &str) -> Vec<Value> {
        self.read().into_iter().filter(|entry| entry["event"] == event).collect()
    }

    /// Entries from now on.
    pub fn follow(&self) -> broadcast::Receiver<Value> {
        match self {
            Self::Memory(_, news) | Self::File(_, news) => news.subscribe(),
        }
    }

    /// Of a file: looks for what other processes wrote, for as long as this one lives.
    pub fn watch(self: Arc<Self>) {
        let Self::File(path, _) = &*self else { return };
        let file = OpenOptions::new().create(true).append(true).read(true).open(path);
        let mut file = file.expect("the journal can be read");
        let end = file.seek(SeekFrom::End(0)).expect("the journal can be read");
        std::thread::spawn(move || {
            let Self::File(_, news) = &*self else { return };
            let mut at = end;
            loop {
                at += news_of(&mut file, at, news);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
}

/// Passes on the whole lines after a position, and says how long they are.
fn news_of(file: &mut File, at: u64, news: &broadcast::Sender<Value>) -> u64 {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_to_string(&mut text));
    if read.is_err() {
        return 0;
    }
    let entries = whole_lines(&text).filter_map(|line| serde_json::from_str(line).ok());
    for entry in entries {
        let _ = news.send(entry);
    }
    text.rfind('\n').map_or(0, |end| end as u64 + 1)
}

fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    let end = text.rfind('\n').unwrap_or(0);
    text[..end].lines()
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
