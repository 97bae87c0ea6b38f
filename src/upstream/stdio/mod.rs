//! Children on standard input and output.
//!
//! [`StdioLink`] is an MCP link whose other end is a child; [`Process`] is a child that is dialled elsewhere. Both are
//! kept running by a `supervisor`, which starts a `child`, sends its standard error to the log (`output`) and
//! starts it again after a [`Backoff`]. The protocol on its pipes is that of [`super::duplex`].

mod child;
mod link;
mod output;
mod process;
mod supervisor;
#[cfg(test)]
mod tests;

pub(in crate::upstream) use link::StdioLink;
pub(in crate::upstream) use process::Process;
