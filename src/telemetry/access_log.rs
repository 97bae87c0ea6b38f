//! One line for each exchange.

use std::sync::LazyLock;

use prometheus::IntCounter;

use super::families;

static DROPPED: LazyLock<IntCounter> = LazyLock::new(families::log_dropped);

/// Lines that were dropped because the writer was behind, in this process.
pub(super) fn dropped() -> &'static IntCounter {
    &DROPPED
}
