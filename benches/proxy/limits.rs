//! How many files the processes of a run may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Result;

/// Allows so many for this process and those that it starts from now on.
pub(crate) fn files(wanted: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if enough(current) {
        return Ok(());
    }
    let maximum = if enough(maximum) { maximum } else { Some(wanted) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).map_err(|error| {
        format!("{wanted} open files are needed and may not be had ({error}); raise ulimit -Hn")
            .into()
    })
}
