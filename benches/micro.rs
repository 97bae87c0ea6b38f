//! Micro benches.
fn main() {}
