//! Which worker thread this is: connection pools keep a list for each.

use std::cell::Cell;

thread_local! {
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Numbers the current thread; the runtime calls it once on each worker, counting from zero.
pub fn set_worker(index: usize) {
    WORKER.set(Some(index));
}

/// The number of the current thread; none for those that serve no requests.
pub fn worker() -> Option<usize> {
    WORKER.get()
}
