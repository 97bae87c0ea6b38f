//! Which eras an upstream was found to speak (MCP digest §4.5).

use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::config::Revision;
use crate::mcp::Era;

/// How long an upstream that did not know an era is not asked again whether it does: it may have been renewed.
const REFUSED_FOR: Duration = Duration::from_secs(3 * 3600);

/// What is known of the eras of one upstream. Only what the upstream itself said counts: not that it could not be
/// reached, was overloaded, or wanted other credentials.
#[derive(Debug)]
pub(super) struct Verdict {
    revision: Revision,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    legacy: Tried,
    modern: Tried,
    /// It keeps no sessions in the legacy era, so that it can ask its clients nothing there.
    mute: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum Tried {
    #[default]
    Not,
    Speaks,
    Refused(Instant),
}

impl Verdict {
    /// Nothing is known, but what the configuration pins.
    pub(super) fn new(revision: Revision) -> Self {
        Self { revision, known: Mutex::default() }
    }

    /// The eras to try for a client of the era `wanted`, the first one first: the client's own, since nothing needs to be
    /// bridged then, but for one that the upstream has refused of late.
    pub(super) fn plan(&self, wanted: Era, now: Instant) -> SmallVec<[Era; 2]> {
        if let Revision::Pinned(version) = self.revision {
            return SmallVec::from_slice(&[version.era()]);
        }
        let known = *self.known.lock();
        let mut plan: SmallVec<[Era; 2]> = SmallVec::from_slice(&[wanted, wanted.other()]);
        let refused = |era: Era| matches!(known.of(era), Tried::Refused(at) if now.saturating_duration_since(at) < REFUSED_FOR);
        if !plan.iter().all(|era| refused(*era)) {
            plan.retain(|era| !refused(*era));
        }
        plan
    }

    /// The era in which a client of the era `wanted` is served, as far as is known.
    pub(super) fn spoken(&self, wanted: Era, now: Instant) -> Era {
        self.plan(wanted, now).first().copied().unwrap_or(wanted)
    }

    /// The same for a client that can be asked something: without sessions an upstream of the legacy era cannot.
    pub(super) fn asks_in(&self, wanted: Era, now: Instant) -> Era {
        let mute = {
            let known = self.known.lock();
            known.mute && matches!(known.modern, Tried::Speaks)
        };
        if mute && self.revision == Revision::Auto { Era::Modern } else { self.spoken(wanted, now) }
    }

    /// Whether the upstream was found to speak that era.
    pub(super) fn speaks(&self, era: Era) -> bool {
        matches!(self.known.lock().of(era), Tried::Speaks)
    }

    /// The upstream keeps no sessions in the legacy era.
    pub(super) fn asks_nothing(&self) {
        self.known.lock().mute = true;
    }

    /// The upstream speaks that era.
    pub(super) fn found(&self, era: Era) {
        *self.known.lock().of_mut(era) = Tried::Speaks;
    }

    /// The upstream said that it does not speak that era.
    pub(super) fn refused(&self, era: Era, now: Instant) {
        *self.known.lock().of_mut(era) = Tried::Refused(now);
    }

    /// What was known is wrong, or may be by now: the upstream was started again, or does not act by it.
    pub(super) fn forget(&self) {
        *self.known.lock() = Known::default();
    }
}

impl Known {
    fn of(&self, era: Era) -> Tried {
        match era {
            Era::Legacy => self.legacy,
            Era::Modern => self.modern,
        }
    }

    fn of_mut(&mut self, era: Era) -> &mut Tried {
        match era {
            Era::Legacy => &mut self.legacy,
            Era::Modern => &mut self.modern,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::ProtocolVersion;

    #[test]
    fn the_era_of_the_client_comes_first_unless_it_was_refused() {
        let (verdict, now) = (Verdict::new(Revision::Auto), Instant::now());
        assert_eq!(&verdict.plan(Era::Legacy, now)[..], [Era::Legacy, Era::Modern]);
        assert_eq!(&verdict.plan(Era::Modern, now)[..], [Era::Modern, Era::Legacy]);
        verdict.refused(Era::Legacy, now);
        verdict.found(Era::Modern);
        assert_eq!(&verdict.plan(Era::Legacy, now)[..], [Era::Modern]);
        assert_eq!(verdict.spoken(Era::Legacy, now), Era::Modern);
    }

    #[test]
    fn a_refusal_is_asked_about_again_after_hours_or_when_nothing_else_is_left() {
        let (verdict, now) = (Verdict::new(Revision::Auto), Instant::now());
        verdict.refused(Era::Modern, now);
        assert_eq!(verdict.spoken(Era::Modern, now), Era::Legacy);
        assert_eq!(verdict.spoken(Era::Modern, now + REFUSED_FOR), Era::Modern);
        verdict.refused(Era::Legacy, now);
        assert_eq!(&verdict.plan(Era::Modern, now)[..], [Era::Modern, Era::Legacy]);
        verdict.forget();
        assert_eq!(verdict.spoken(Era::Legacy, now), Era::Legacy);
    }

    #[test]
    fn who_can_be_asked_is_served_where_the_upstream_can_ask() {
        let (verdict, now) = (Verdict::new(Revision::Auto), Instant::now());
        verdict.asks_nothing();
        assert_eq!(verdict.asks_in(Era::Legacy, now), Era::Legacy, "there is no other era");
        verdict.found(Era::Modern);
        assert_eq!(verdict.asks_in(Era::Legacy, now), Era::Modern);
        assert_eq!(verdict.spoken(Era::Legacy, now), Era::Legacy);
        verdict.forget();
        assert_eq!(verdict.asks_in(Era::Legacy, now), Era::Legacy);
    }

    #[test]
    fn a_pinned_revision_is_the_only_one() {
        let verdict = Verdict::new(Revision::Pinned(ProtocolVersion::V2026_07_28));
        verdict.refused(Era::Modern, Instant::now());
        assert_eq!(&verdict.plan(Era::Legacy, Instant::now())[..], [Era::Modern]);
    }
}
