//! What processes use, as Linux tells it under `/proc`.

use std::io;
use std::time::Duration;

/// Clock ticks in a second as `/proc` counts them: 100 on every Linux there is (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// User and system time of a process and its descendants, with the children they waited for.
pub(crate) fn cpu(pid: u32) -> io::Result<Duration> {
    let ticks: u64 = tree(pid)?.iter().map(|stat| stat.ticks).sum();
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Resident memory of a process and its descendants, in bytes.
pub(crate) fn rss(pid: u32) -> io::Result<u64> {
    tree(pid)?.iter().map(|stat| resident(stat.pid)).sum()
}

/// The three load averages.
pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Processor, number of cores and kernel, for the line above a table.
pub(crate) fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model.trim());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.split('-').next().unwrap_or_default().trim();
    format!("{} x {model}, Linux {kernel}", crate::cores())
}

/// The parts of one `/proc/PID/stat` that matter here.
struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
}

fn tree(root: u32) -> io::Result<Vec<Stat>> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        // A process that ends while the list is read is simply not in it.
        others.extend(pid.and_then(|pid| stat(pid).ok()));
    }
    let at = others.iter().position(|stat| stat.pid == root).ok_or(io::ErrorKind::NotFound)?;
    let mut found = vec![others.swap_remove(at)];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].pid;
        found.extend(others.extract_if(.., |stat| stat.parent == parent));
        next += 1;
    }
    Ok(found)
}

fn stat(pid: u32) -> io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse(pid, &text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// proc_pid_stat(5). The name may hold anything, so fields are counted from behind its bracket.
fn parse(pid: u32, text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let times = fields.get(11..15)?;
    let ticks = times.iter().map(|ticks| ticks.parse::<u64>()).sum::<Result<u64, _>>().ok()?;
    Some(Stat { pid, parent: fields.get(1)?.parse().ok()?, ticks })
}

fn resident(pid: u32) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) * 1024)
}
