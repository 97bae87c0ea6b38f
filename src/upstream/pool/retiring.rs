//! Giving up links: lost, ended, unused.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::slot::{Link, Slot};
use super::{SWEEP, UNUSED, Upstream};
use crate::upstream::http::Failed;
use crate::upstream::{LinkKey, LinkScope, Notice, NoticeKind};

impl Upstream {
    /// The upstream does not know that link any more.
    fn lose(&self, slot: &Slot, link: &Link) {
        link.abandon();
        slot.lose(link);
    }

    /// Gives up the link of a call that failed, if that is why; whether it was.
    pub(super) fn drop_lost(&self, slot: &Slot, link: &Link, failed: &Failed) -> bool {
        match failed {
            Failed::SessionLost(_) => {}
            Failed::EraLost(_) => self.verdict.forget(),
            Failed::Call(_) => return false,
        }
        self.lose(slot, link);
        true
    }

    /// Closes the link of a slot that was taken out of the table.
    pub(super) fn close_later(self: &Arc<Self>, slot: &Slot) {
        let Some(link) = slot.end() else { return };
        let upstream = Arc::clone(self);
        self.deps.tasks.spawn(async move {
            link.close().await;
            upstream.refresh();
        });
    }

    /// Makes room for one link: the one that was unused longest goes.
    pub(super) fn evict(self: &Arc<Self>) -> bool {
        let unused =
            self.links.iter().filter_map(|slot| Some((slot.unused_for()?, slot.key().clone())));
        let Some((_, key)) = unused.max_by_key(|(unused, _)| *unused) else { return false };
        self.retire(&key, Duration::ZERO)
    }

    /// Closes a link that nobody has used for that long.
    fn retire(self: &Arc<Self>, key: &LinkKey, limit: Duration) -> bool {
        let unused = |slot: &Arc<Slot>| slot.unused_for().is_some_and(|unused| unused >= limit);
        let Some((key, slot)) = self.links.remove_if(key, |_, slot| unused(slot)) else {
            return false;
        };
        if let LinkScope::Session(session) = key.scope {
            self.sessions.remove_if_mut(&session, |_, keys| {
                keys.retain(|kept| *kept != key);
                keys.is_empty()
            });
        }
        self.close_later(&slot);
        true
    }

    /// Starts what looks after the links, once.
    pub(super) fn begin(self: &Arc<Self>) {
        if self.begun.load(Ordering::Relaxed) || self.begun.swap(true, Ordering::AcqRel) {
            return;
        }
        let period = self.config.idle_timeout.map_or(SWEEP, |idle| (idle / 4).min(SWEEP));
        let sweep = keep_sweeping(Arc::downgrade(self), period.max(Duration::from_millis(20)));
        let stop = self.stop.clone();
        self.deps.tasks.spawn(async move { stop.run_until_cancelled(sweep).await });
        if let Some(reported) = self.reported.lock().take() {
            let pass_on = pass_on(Arc::downgrade(self), reported, self.deps.notices.clone());
            let stop = self.stop.clone();
            self.deps.tasks.spawn(async move { stop.run_until_cancelled(pass_on).await });
        }
    }

    /// An upstream may say something else of itself each time that its link is up.
    fn learn(&self, key: &LinkKey) {
        let link = self.links.get(key).and_then(|slot| slot.open_link());
        if let Some(link) = link.filter(Link::is_up) {
            self.known.note(link.hello());
        }
    }

    fn sweep(self: &Arc<Self>) {
        if let Ok((endpoint, _)) = &self.http {
            endpoint.sweep();
        }
        let limit = self.config.idle_timeout.unwrap_or(UNUSED);
        let mut open = 0;
        let mut unused = Vec::new();
        for slot in &self.links {
            let link = slot.open_link();
            let is_open = link.is_some();
            open += usize::from(is_open);
            if link.is_some_and(|link| link.is_watched()) {
                continue;
            }
            // A session's link ends with the session; a slot that holds nothing may go at any time.
            let of_a_session = match slot.key().scope {
                LinkScope::Session(session) => self.sessions.contains_key(&session),
                LinkScope::Shared | LinkScope::Principal(_) | LinkScope::Anonymous => false,
            };
            match slot.unused_for() {
                Some(idle) if idle >= limit && !(is_open && of_a_session) => {
                    unused.push((idle, is_open, slot.key().clone()));
                }
                Some(_) | None => {}
            }
        }
        // The one unused longest goes first; the last link stays unless the configuration says when it ends.
        unused.sort_unstable_by(|(a, ..), (b, ..)| b.cmp(a));
        for (_, is_open, key) in unused {
            if is_open && open == 1 && self.config.idle_timeout.is_none() {
                continue;
            }
            if self.retire(&key, limit) && is_open {
                open -= 1;
            }
        }
        self.refresh();
    }
}

async fn keep_sweeping(upstream: Weak<Upstream>, period: Duration) {
    loop {
        sleep(period).await;
        let Some(upstream) = upstream.upgrade() else { return };
        upstream.sweep();
    }
}

/// Passes notices on, once the state agrees with them.
async fn pass_on(
    upstream: Weak<Upstream>,
    mut reported: mpsc::Receiver<Notice>,
    notices: mpsc::Sender<Notice>,
) {
    while let Some(notice) = reported.recv().await {
        if matches!(notice.kind, NoticeKind::Opened | NoticeKind::Lost)
            && let Some(upstream) = upstream.upgrade()
        {
            if matches!(notice.kind, NoticeKind::Lost) {
                upstream.recover(&notice.link);
            }
            upstream.refresh();
            upstream.learn(&notice.link);
        }
        if notices.send(notice).await.is_err() {
            return;
        }
    }
}
