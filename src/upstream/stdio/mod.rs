//! Children on standard input and output.

mod backoff;

pub(in crate::upstream) use backoff::Backoff;
