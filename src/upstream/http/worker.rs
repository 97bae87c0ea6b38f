//! Which worker thread this is: connection pools keep a list for each.

use std::cell::Cell;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Numbers the current thread; the runtime calls it once on each worker, counting from zero.
/// Threads without a number share that of worker 0.
pub fn set_worker(index: usize) {
    WORKER.set(index);
}

/// The number of the current thread.
pub fn worker() -> usize {
    WORKER.get()
}
