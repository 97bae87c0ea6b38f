//! What an upstream says of itself: one that knows both eras may say something else in each.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::mcp::Era;
use crate::upstream::Hello;

/// The last word of an upstream in each era.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    legacy: ArcSwapOption<Hello>,
    modern: ArcSwapOption<Hello>,
}

impl Greetings {
    /// It was said just now.
    pub(super) fn note(&self, hello: Arc<Hello>) {
        self.of(hello.version.era()).store(Some(hello));
    }

    /// What was said in that era; where nothing was, in the other one.
    pub(super) fn best(&self, era: Era) -> Option<Arc<Hello>> {
        self.of(era).load_full().or_else(|| self.of(era.other()).load_full())
    }

    /// Whether anything was said in that era.
    pub(super) fn has(&self, era: Era) -> bool {
        self.of(era).load().is_some()
    }

    fn of(&self, era: Era) -> &ArcSwapOption<Hello> {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }
}
