//! What a gateway holds: idle, and for each idle session.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::gateway::Gateway;
use crate::scenario::{Load, Target};
use crate::session::Session;
use crate::usage;

/// Sessions after which memory is read. The price of one is the slope between the last two, so
/// that what grows once (pools, tables) does not count as a session's.
const STEPS: [usize; 2] = [1_000, 5_000];

/// Resident bytes of a gateway that nobody has called yet, and after each step.
pub(crate) struct Sessions {
    pub(crate) idle: u64,
    /// Number of sessions and resident bytes.
    pub(crate) steps: Vec<(usize, u64)>,
}

impl Sessions {
    /// Bytes for each session, over all and between the last two steps.
    pub(crate) fn per_session(&self) -> Option<(f64, f64)> {
        let (last, bytes) = *self.steps.last()?;
        let (before, bytes_before) =
            self.steps.iter().rev().nth(1).copied().unwrap_or((0, self.idle));
        let slope = |from: u64, count: usize| bytes.saturating_sub(from) as f64 / count as f64;
        Some((slope(self.idle, last), slope(bytes_before, last - before)))
    }
}

/// Opens sessions without a stream on a fresh gateway and watches it grow.
pub(crate) fn sessions(program: Option<&Path>, stub: SocketAddr) -> Result<Sessions> {
    let gateway = Gateway::start(program, stub)?;
    let pid = gateway.child.pid();
    // Let what runs at start, such as the first fill of catalogs, come to rest.
    std::thread::sleep(Duration::from_millis(500));
    let idle = usage::rss(pid)?;
    let call = Load::Call("text_1k").calls(Target::Gateway).remove(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut steps = Vec::new();
    runtime.block_on(async {
        let mut session = Session::open(gateway.child.address, &call).await?;
        let mut open = 1;
        for step in STEPS {
            while open < step {
                session.initialize().await?;
                open += 1;
            }
            steps.push((step, usage::rss(pid)?));
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    Ok(Sessions { idle, steps })
}
