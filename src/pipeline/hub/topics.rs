//! Who subscribed to which resource, over which link: an upstream is told of the first and of the last.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::UpstreamName;
use crate::mcp::Era;
use crate::upstream::LinkKey;

/// Most resources one session may subscribe to.
const MAX_TOPICS: usize = 1_000;
/// Longest URI that can be subscribed to.
const MAX_URI: usize = 8 << 10;

/// A subscription on one link of one upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Topic {
    pub(super) upstream: UpstreamName,
    pub(super) link: LinkKey,
    pub(super) uri: Arc<str>,
}

#[derive(Debug, Default)]
struct Watchers {
    sessions: HashSet<u64>,
    /// The upstream has agreed.
    confirmed: bool,
}

/// Every subscription of every session.
#[derive(Debug, Default)]
pub(super) struct Topics {
    table: Mutex<HashMap<Topic, Watchers>>,
}

impl Topics {
    /// A session subscribes; `None` when it may not. Unless [`Subscribing::is_known`], the upstream is to be asked.
    pub(super) fn join(&self, topic: Topic, session: u64) -> Option<Subscribing<'_>> {
        let mut table = self.table.lock();
        let joined = table.values().filter(|w| w.sessions.contains(&session)).count();
        if joined >= MAX_TOPICS || topic.uri.len() > MAX_URI {
            return None;
        }
        let watchers = table.entry(topic.clone()).or_default();
        watchers.sessions.insert(session);
        let settled = watchers.confirmed;
        Some(Subscribing { topics: self, topic, session, settled })
    }

    /// A session takes back what it subscribed to; the topics that nobody watches any more.
    pub(super) fn leave(&self, uri: &str, session: u64) -> Vec<Topic> {
        self.remove(session, |topic| *topic.uri == *uri)
    }

    /// Forgets a session; the topics that nobody watches any more.
    pub(super) fn forget(&self, session: u64) -> Vec<Topic> {
        self.remove(session, |_| true)
    }

    fn remove(&self, session: u64, concerns: impl Fn(&Topic) -> bool) -> Vec<Topic> {
        let mut table = self.table.lock();
        let leaving = |(topic, watchers): (&Topic, &mut Watchers)| {
            let left = concerns(topic) && watchers.sessions.remove(&session);
            (left && watchers.sessions.is_empty()).then(|| topic.clone())
        };
        let orphans: Vec<Topic> = table.iter_mut().filter_map(leaving).collect();
        for orphan in &orphans {
            table.remove(orphan);
        }
        orphans
    }

    /// Sessions that subscribed to the URI, or to something it is a part of, on that link.
    pub(super) fn watchers(
        &self,
        upstream: &UpstreamName,
        link: &LinkKey,
        uri: &str,
    ) -> HashSet<u64> {
        let table = self.table.lock();
        let matching = table.iter().filter(|(topic, _)| {
            topic.upstream == *upstream && topic.link == *link && covers(&topic.uri, uri)
        });
        matching.flat_map(|(_, watchers)| watchers.sessions.iter().copied()).collect()
    }

    /// What is subscribed to on a link.
    pub(super) fn uris(&self, upstream: &UpstreamName, link: &LinkKey) -> Vec<Arc<str>> {
        let table = self.table.lock();
        let matching = table.iter().filter(|(topic, watchers)| {
            watchers.confirmed && topic.upstream == *upstream && topic.link == *link
        });
        matching.map(|(topic, _)| Arc::clone(&topic.uri)).collect()
    }
}

/// A subscription that the upstream has not agreed to yet. Dropping it takes it back.
pub(in crate::pipeline) struct Subscribing<'a> {
    topics: &'a Topics,
    topic: Topic,
    session: u64,
    settled: bool,
}

impl Subscribing<'_> {
    /// Whether the upstream agreed before: it need not be asked.
    pub(in crate::pipeline) fn is_known(&self) -> bool {
        self.settled
    }

    /// The link, when it is of an upstream without `resources/subscribe`.
    pub(in crate::pipeline) fn modern(&self) -> Option<&LinkKey> {
        (self.topic.link.era == Era::Modern).then_some(&self.topic.link)
    }

    /// The upstream has agreed.
    pub(in crate::pipeline) fn confirm(mut self) {
        self.settled = true;
        if let Some(watchers) = self.topics.table.lock().get_mut(&self.topic) {
            watchers.confirmed = true;
        }
    }
}

impl Drop for Subscribing<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.topics.remove(self.session, |topic| *topic == self.topic);
        }
    }
}

/// Whether an update of `uri` concerns who subscribed to `subscribed` (MCP digest §10.3: it may be a sub-resource).
fn covers(subscribed: &str, uri: &str) -> bool {
    uri.strip_prefix(subscribed).is_some_and(|rest| {
        rest.is_empty() || subscribed.ends_with('/') || rest.starts_with(['/', '?', '#'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::ClientCaps;
    use crate::upstream::LinkScope;

    fn link() -> LinkKey {
        LinkKey { scope: LinkScope::Shared, caps: ClientCaps::NONE, era: Era::Legacy }
    }

    fn topic(uri: &str) -> Topic {
        Topic { upstream: upstream(), link: link(), uri: uri.into() }
    }

    fn upstream() -> UpstreamName {
        UpstreamName::new("up").unwrap()
    }

    #[test]
    fn the_upstream_is_told_of_the_first_and_of_the_last() {
        let topics = Topics::default();
        let first = topics.join(topic("a"), 1).unwrap();
        assert!(!first.is_known());
        first.confirm();
        assert!(topics.join(topic("a"), 2).unwrap().is_known());
        assert_eq!(topics.leave("a", 1), []);
        assert_eq!(topics.leave("a", 1), []);
        assert_eq!(topics.leave("a", 2), [topic("a")]);
        assert!(topics.table.lock().is_empty());
    }

    #[test]
    fn what_the_upstream_has_not_agreed_to_counts_for_nobody() {
        let topics = Topics::default();
        let first = topics.join(topic("a"), 1).unwrap();
        let second = topics.join(topic("a"), 2).unwrap();
        assert!(!second.is_known(), "the first may be refused");
        assert!(topics.uris(&upstream(), &link()).is_empty());
        drop(first);
        second.confirm();
        assert_eq!(topics.watchers(&upstream(), &link(), "a"), HashSet::from([2]));
        drop(topics.join(topic("b"), 1).unwrap());
        assert_eq!(topics.table.lock().len(), 1);
    }

    #[test]
    fn a_session_that_ends_leaves_nothing_and_others_what_is_theirs() {
        let topics = Topics::default();
        for (uri, session) in [("a", 1), ("b", 1), ("b", 2)] {
            topics.join(topic(uri), session).unwrap().confirm();
        }
        assert_eq!(topics.forget(1), [topic("a")]);
        assert_eq!(topics.watchers(&upstream(), &link(), "b"), HashSet::from([2]));
        assert_eq!(topics.forget(3), []);
    }

    #[test]
    fn subscriptions_of_a_session_are_bounded() {
        let topics = Topics::default();
        for n in 0..MAX_TOPICS {
            topics.join(topic(&n.to_string()), 1).unwrap().confirm();
        }
        assert!(topics.join(topic("more"), 1).is_none());
        assert!(topics.join(topic("more"), 2).is_some());
        assert!(topics.join(topic(&"x".repeat(MAX_URI + 1)), 2).is_none());
    }

    #[test]
    fn an_update_concerns_the_resource_and_its_parts_only() {
        assert!(covers("file:///a", "file:///a"));
        assert!(covers("file:///a", "file:///a/b"));
        assert!(covers("file:///a", "file:///a#x"));
        assert!(covers("file:///a/", "file:///a/b"));
        assert!(!covers("file:///a", "file:///ab"));
        assert!(!covers("file:///a/b", "file:///a"));
    }
}
