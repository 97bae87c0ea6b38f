//! What waits on a stream, what is worked on, and how far both are with each other. No waiting here.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use crate::jsonrpc::{Chunks, Id};
use crate::session::Session;

/// Most POSTs of one client of HTTP+SSE that are worked on at once.
pub(super) const MAX_OPEN: usize = 256;

/// Why something is not worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Its id is that of a request in flight.
    Duplicate,
    /// The client has too many in flight.
    Full,
    /// The connection is about to end.
    Ending,
}

/// How much waits, of one kind.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// A message that waits to be read.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) text: Chunks,
    /// Its exchange waited for room; else nobody could.
    pub(super) sent: bool,
    /// The same waiting twice says no more than once.
    pub(super) merges: Option<Bytes>,
}

/// What the client is: `Fresh → Opening → Live`, and back to `Fresh` when `initialize` fails.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// It has not said who it is.
    #[default]
    Fresh,
    /// Its `initialize` is being answered.
    Opening,
    /// It has a session.
    Live(Arc<Session>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Life {
    /// All is well.
    #[default]
    Open,
    /// What is worked on is still answered, then it closes.
    Finishing,
    /// Nothing more is added; what waits may still be read.
    Closed,
}

/// One message or batch that is worked on.
#[derive(Debug)]
struct Open {
    number: u64,
    ids: SmallVec<[Id; 1]>,
    /// Takes the cancellation of a request that is no part of a batch.
    cancel: Option<oneshot::Sender<()>>,
}

/// What changes of a connection.
#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: VecDeque<Entry>,
    /// What of the queue exchanges wait with.
    pub(super) sent: Load,
    /// The rest of it.
    pub(super) told: Load,
    open: Vec<Open>,
    /// The ids of `open`.
    ids: HashSet<Id>,
    next: u64,
    /// The most of `open` at once.
    most: usize,
    pub(super) phase: Phase,
    pub(super) life: Life,
    /// The client read too slowly.
    pub(super) slow: bool,
    /// Something was lost that the client relies on.
    pub(super) cut: bool,
    /// Waits for something to read.
    pub(super) reader: Option<Waker>,
}

impl State {
    /// Of a connection on which so much may be worked on at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            sent: Load::default(),
            told: Load::default(),
            open: Vec::new(),
            ids: HashSet::new(),
            next: 0,
            most,
            phase: Phase::default(),
            life: Life::default(),
            slow: false,
            cut: false,
            reader: None,
        }
    }

    /// Adds a message.
    pub(super) fn push(&mut self, entry: Entry) {
        let load = if entry.sent { &mut self.sent } else { &mut self.told };
        load.count += 1;
        load.bytes += entry.text.len();
        self.queue.push_back(entry);
    }

    /// Takes the oldest message.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        let load = if entry.sent { &mut self.sent } else { &mut self.told };
        load.count -= 1;
        load.bytes -= entry.text.len();
        Some(entry)
    }

    /// Whether anything else may be worked on.
    fn admits(&self) -> Result<(), Busy> {
        match self.life {
            Life::Open if self.open.len() < self.most => Ok(()),
            Life::Open => Err(Busy::Full),
            Life::Finishing | Life::Closed => Err(Busy::Ending),
        }
    }

    /// Begins to work on a request, unless its id is in use already. Its number.
    pub(super) fn enter(&mut self, id: Id, cancel: oneshot::Sender<()>) -> Result<u64, Busy> {
        self.admits()?;
        if !self.ids.insert(id.clone()) {
            return Err(Busy::Duplicate);
        }
        Ok(self.open(smallvec![id], Some(cancel)))
    }

    /// Begins to work on what cannot be cancelled, under an id or none. Its number.
    pub(super) fn hold(&mut self, id: Option<Id>) -> Result<u64, Busy> {
        self.admits()?;
        if id.as_ref().is_some_and(|id| !self.ids.insert(id.clone())) {
            return Err(Busy::Duplicate);
        }
        Ok(self.open(id.into_iter().collect(), None))
    }

    /// Begins to work on a batch. Its number, and which of its ids are in use already.
    pub(super) fn enter_batch(&mut self, ids: Vec<Id>) -> Result<(u64, Vec<Id>), Busy> {
        self.admits()?;
        let (used, ids): (Vec<Id>, Vec<Id>) = ids.into_iter().partition(|id| self.ids.contains(id));
        self.ids.extend(ids.iter().cloned());
        Ok((self.open(ids.into(), None), used))
    }

    fn open(&mut self, ids: SmallVec<[Id; 1]>, cancel: Option<oneshot::Sender<()>>) -> u64 {
        self.next += 1;
        self.open.push(Open { number: self.next, ids, cancel });
        self.next
    }

    /// What is worked on under that number has ended.
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(place) = self.open.iter().position(|open| open.number == number) {
            for id in self.open.swap_remove(place).ids {
                self.ids.remove(&id);
            }
        }
    }

    /// Takes the way to cancel a request that is not part of a batch.
    pub(super) fn cancelled(&mut self, id: &Id) -> Option<oneshot::Sender<()>> {
        let open = self.open.iter_mut().find(|open| open.cancel.is_some() && open.ids[0] == *id);
        open.and_then(|open| open.cancel.take())
    }

    /// Whether nothing is worked on.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Forgets what waits.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        (self.sent, self.told) = (Load::default(), Load::default());
    }
}
