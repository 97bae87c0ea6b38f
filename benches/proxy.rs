//! Side-by-side bench.
fn main() {}
