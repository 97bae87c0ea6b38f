//! Calls that have asked something and wait for their client to come back: bounded in number and bytes, ended by age.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use prometheus::IntGauge;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::flight::Flight;
use crate::pipeline::call::Context;
use crate::pipeline::{Pipeline, Receipt};

/// Most bytes that all parked calls hold.
const MAX_BYTES: usize = 64 << 20;

type Taker = oneshot::Sender<Box<Flight>>;

/// The table of parked calls.
#[derive(Debug)]
pub(in crate::pipeline) struct Parked {
    calls: DashMap<u128, Entry>,
    bytes: AtomicUsize,
    gauge: IntGauge,
    /// Ends all of them.
    ending: CancellationToken,
    /// Who minds them.
    minders: TaskTracker,
}

#[derive(Debug)]
struct Entry {
    /// Who may take it.
    owner: Box<str>,
    round: u32,
    /// Reaches the task that minds the call.
    taken: oneshot::Sender<Taker>,
}

impl Parked {
    /// An empty table that is counted by `gauge`.
    pub(in crate::pipeline) fn new(gauge: IntGauge) -> Self {
        let (ending, minders) = (CancellationToken::new(), TaskTracker::new());
        Self { calls: DashMap::new(), bytes: AtomicUsize::new(0), gauge, ending, minders }
    }

    /// Ends every call as if its time were up; returns when their upstreams were told.
    pub(in crate::pipeline) async fn give_up(&self) {
        self.ending.cancel();
        self.minders.close();
        self.minders.wait().await;
    }

    /// Takes a call out, for its owner and at the round that it stands at.
    pub(super) async fn take(&self, handle: u128, owner: &str, round: u32) -> Option<Box<Flight>> {
        let right = |_: &u128, entry: &Entry| *entry.owner == *owner && entry.round == round;
        let (_, entry) = self.calls.remove_if(&handle, right)?;
        let (taker, taken) = oneshot::channel();
        entry.taken.send(taker).ok()?;
        taken.await.ok()
    }

    fn owned(&self, owner: &str) -> usize {
        self.calls.iter().filter(|entry| *entry.owner == *owner).count()
    }

    fn has_room(&self, size: usize) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(size) <= MAX_BYTES
    }
}

/// Room for a call, and what counts it. Dropping it makes the room free.
pub(super) struct Place {
    pipeline: Arc<Pipeline>,
    handle: u128,
    size: usize,
}

impl Place {
    /// Whether so many bytes more may be held.
    pub(super) fn has_room(&self, size: usize) -> bool {
        self.pipeline.parked.has_room(size)
    }

    /// So many bytes more are held.
    pub(super) fn add(&mut self, size: usize) {
        self.pipeline.parked.bytes.fetch_add(size, Ordering::Relaxed);
        self.size += size;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let parked = &self.pipeline.parked;
        parked.calls.remove(&self.handle);
        parked.bytes.fetch_sub(self.size, Ordering::Relaxed);
        parked.gauge.dec();
    }
}

/// Parks a call and gives its handle; the call comes back when there is no room.
pub(super) fn park(cx: &Context, flight: Box<Flight>) -> Result<u128, Box<Flight>> {
    let (pipeline, owner) = (&cx.pipeline, cx.holder());
    let parked = &pipeline.parked;
    let snapshot = pipeline.snapshot();
    let most = snapshot.server.max_parked;
    let mut handle = [0_u8; 16];
    // Nobody has more than a share, as far as it is known who is who.
    let of_one = cx.session.principal().is_some() && parked.owned(&owner) >= most.div_ceil(4);
    let size = flight.size();
    let full =
        parked.calls.len() >= most || of_one || !parked.has_room(size) || pipeline.is_draining();
    if full || getrandom::fill(&mut handle).is_err() {
        return Err(flight);
    }
    let handle = u128::from_be_bytes(handle);
    let (taken, mut taker) = oneshot::channel();
    parked.bytes.fetch_add(size, Ordering::Relaxed);
    parked.gauge.inc();
    let mut place = Place { pipeline: Arc::clone(pipeline), handle, size };
    parked.calls.insert(handle, Entry { owner: (*owner).into(), round: flight.round, taken });
    let patience = snapshot.server.park_timeout;
    let (stop, ending) = (pipeline.stop.clone(), parked.ending.clone());
    let minder = async move {
        let mut flight = flight;
        let taker = tokio::select! {
            biased;
            taker = &mut taker => taker.ok(),
            () = stop.cancelled() => None,
            () = ending.cancelled() => None,
            () = sleep(patience) => None,
            () = flight.drift(&mut place) => None,
        };
        drop(place);
        match taker {
            Some(taker) => {
                // A request that has gone away meanwhile cancels its call.
                let _ = taker.send(flight);
            }
            None => {
                flight.give_up();
                flight.settle().await;
            }
        }
    };
    pipeline.tasks.spawn(parked.minders.track_future(minder));
    Ok(handle)
}

/// What becomes of a parked call when its client never learns how to come back to it: the place is free again.
pub(super) fn forgotten(cx: &Context, handle: u128) -> Receipt {
    let pipeline = Arc::clone(&cx.pipeline);
    // Without its entry nobody can take the call any more, which its minder learns.
    Receipt::new(move || drop(pipeline.parked.calls.remove(&handle)))
}
