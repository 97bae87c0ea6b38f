//! Who subscribed to which resource, over which link: an upstream is told of the first and of the last.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::UpstreamName;
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

/// The topics of one link.
type OfLink = HashMap<Arc<str>, Watchers>;

/// Every subscription of every session, by link and by session.
#[derive(Debug, Default)]
pub(super) struct Topics {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    links: HashMap<UpstreamName, HashMap<LinkKey, OfLink>>,
    sessions: HashMap<u64, HashSet<Topic>>,
}

impl Topics {
    /// A session subscribes: whether the upstream has agreed already. `None` when it may not.
    pub(super) fn join(&self, topic: &Topic, session: u64) -> Option<bool> {
        let mut table = self.table.lock();
        let joined = table.sessions.get(&session).map_or(0, HashSet::len);
        if joined >= MAX_TOPICS || topic.uri.len() > MAX_URI {
            return None;
        }
        table.sessions.entry(session).or_default().insert(topic.clone());
        let links = table.links.entry(topic.upstream.clone()).or_default();
        let topics = links.entry(topic.link.clone()).or_default();
        let watchers = topics.entry(Arc::clone(&topic.uri)).or_default();
        watchers.sessions.insert(session);
        Some(watchers.confirmed)
    }

    /// The upstream has agreed; `false` when nobody watches any more.
    pub(super) fn confirm(&self, topic: &Topic) -> bool {
        let mut table = self.table.lock();
        match table.watchers(topic) {
            Some(watchers) => {
                watchers.confirmed = true;
                true
            }
            None => false,
        }
    }

    /// Whether anybody watches.
    pub(super) fn is_watched(&self, topic: &Topic) -> bool {
        self.table.lock().watchers(topic).is_some()
    }

    /// A session takes one subscription back, which may not be agreed to yet; whether nobody watches any more.
    pub(super) fn part(&self, topic: &Topic, session: u64) -> bool {
        let mut table = self.table.lock();
        table.forget(topic, session);
        table.leave(topic, session);
        table.watchers(topic).is_none()
    }

    /// A session takes back what it subscribed to; the topics that upstreams have agreed to and nobody watches any more.
    pub(super) fn leave(&self, uri: &str, session: u64) -> Vec<Topic> {
        let mut table = self.table.lock();
        let topics = table.sessions.get(&session).into_iter().flatten();
        let leaving: Vec<Topic> = topics.filter(|topic| *topic.uri == *uri).cloned().collect();
        for topic in &leaving {
            table.forget(topic, session);
        }
        leaving.into_iter().filter(|topic| table.leave(topic, session)).collect()
    }

    /// Forgets a session; the topics that upstreams have agreed to and nobody watches any more.
    pub(super) fn forget(&self, session: u64) -> Vec<Topic> {
        let mut table = self.table.lock();
        let leaving = table.sessions.remove(&session).unwrap_or_default();
        leaving.into_iter().filter(|topic| table.leave(topic, session)).collect()
    }

    /// Sessions that subscribed to the URI, or to something it is a part of, on that link.
    pub(super) fn watchers(
        &self,
        upstream: &UpstreamName,
        link: &LinkKey,
        uri: &str,
    ) -> HashSet<u64> {
        let table = self.table.lock();
        let Some(topics) = table.links.get(upstream).and_then(|links| links.get(link)) else {
            return HashSet::new();
        };
        let watchers = wholes(uri).filter_map(|whole| topics.get(whole));
        watchers.flat_map(|watchers| watchers.sessions.iter().copied()).collect()
    }

    /// What is subscribed to on a link.
    pub(super) fn uris(&self, upstream: &UpstreamName, link: &LinkKey) -> Vec<Arc<str>> {
        let table = self.table.lock();
        let topics = table.links.get(upstream).and_then(|links| links.get(link));
        let confirmed = topics.into_iter().flatten().filter(|(_, watchers)| watchers.confirmed);
        confirmed.map(|(uri, _)| Arc::clone(uri)).collect()
    }
}

impl Table {
    fn watchers(&mut self, topic: &Topic) -> Option<&mut Watchers> {
        self.links.get_mut(&topic.upstream)?.get_mut(&topic.link)?.get_mut(&topic.uri)
    }

    /// Takes a topic from what a session subscribed to.
    fn forget(&mut self, topic: &Topic, session: u64) {
        if let Some(topics) = self.sessions.get_mut(&session) {
            topics.remove(topic);
            if topics.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// Takes a session from those who watch a topic; whether the upstream is to be told that nobody does any more. Who
    /// still waits for its consent sees to that.
    fn leave(&mut self, topic: &Topic, session: u64) -> bool {
        let Some(watchers) = self.watchers(topic) else { return false };
        watchers.sessions.remove(&session);
        if !watchers.sessions.is_empty() {
            return false;
        }
        let confirmed = watchers.confirmed;
        if let Some(links) = self.links.get_mut(&topic.upstream) {
            if let Some(topics) = links.get_mut(&topic.link) {
                topics.remove(&topic.uri);
                if topics.is_empty() {
                    links.remove(&topic.link);
                }
            }
            if links.is_empty() {
                self.links.remove(&topic.upstream);
            }
        }
        confirmed
    }
}

/// The URI, and everything that it is a part of (MCP digest §10.3: an update may be about a sub-resource).
fn wholes(uri: &str) -> impl Iterator<Item = &str> {
    let cuts = uri.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'/' | b'?' | b'#'));
    let parts = cuts.flat_map(move |(at, byte)| {
        let with_slash = (byte == b'/' && at + 1 < uri.len()).then(|| &uri[..=at]);
        [Some(&uri[..at]), with_slash].into_iter().flatten()
    });
    parts.filter(|part| !part.is_empty()).chain([uri])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::{ClientCaps, Era};
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

    fn is_empty(topics: &Topics) -> bool {
        let table = topics.table.lock();
        table.links.is_empty() && table.sessions.is_empty()
    }

    #[test]
    fn the_upstream_is_told_of_the_first_and_of_the_last() {
        let topics = Topics::default();
        assert_eq!(topics.join(&topic("a"), 1), Some(false));
        assert!(topics.confirm(&topic("a")));
        assert_eq!(topics.join(&topic("a"), 2), Some(true));
        assert_eq!(topics.leave("a", 1), []);
        assert_eq!(topics.leave("a", 1), []);
        assert_eq!(topics.leave("a", 2), [topic("a")]);
        assert!(is_empty(&topics));
    }

    #[test]
    fn what_the_upstream_has_not_agreed_to_counts_for_nobody() {
        let topics = Topics::default();
        assert_eq!(topics.join(&topic("a"), 1), Some(false));
        assert_eq!(topics.join(&topic("a"), 2), Some(false), "the first may be refused");
        assert!(topics.uris(&upstream(), &link()).is_empty());
        assert!(!topics.part(&topic("a"), 1), "the second still watches");
        assert!(topics.confirm(&topic("a")));
        assert_eq!(topics.watchers(&upstream(), &link(), "a"), HashSet::from([2]));
        assert_eq!(topics.join(&topic("b"), 1), Some(false));
        assert!(topics.part(&topic("b"), 1));
        assert_eq!(topics.forget(2), [topic("a")]);
        assert!(is_empty(&topics));
    }

    #[test]
    fn who_hangs_up_before_the_upstream_agrees_leaves_it_to_who_asked_to_say_so() {
        let topics = Topics::default();
        topics.join(&topic("a"), 1);
        assert_eq!(topics.forget(1), [], "it has not agreed");
        assert!(!topics.is_watched(&topic("a")));
        assert!(!topics.confirm(&topic("a")), "nobody watches: it is to be told");
        assert!(is_empty(&topics));
    }

    #[test]
    fn a_session_that_ends_leaves_nothing_and_others_what_is_theirs() {
        let topics = Topics::default();
        for (uri, session) in [("a", 1), ("b", 1), ("b", 2)] {
            topics.join(&topic(uri), session);
            topics.confirm(&topic(uri));
        }
        assert_eq!(topics.forget(1), [topic("a")]);
        assert_eq!(topics.watchers(&upstream(), &link(), "b"), HashSet::from([2]));
        assert_eq!(topics.forget(3), []);
    }

    #[test]
    fn subscriptions_of_a_session_are_bounded() {
        let topics = Topics::default();
        for n in 0..MAX_TOPICS {
            topics.join(&topic(&n.to_string()), 1);
        }
        assert_eq!(topics.join(&topic("more"), 1), None);
        assert_eq!(topics.join(&topic("more"), 2), Some(false));
        assert_eq!(topics.join(&topic(&"x".repeat(MAX_URI + 1)), 2), None);
    }

    #[test]
    fn an_update_concerns_the_resource_and_its_parts_only() {
        let covers = |subscribed: &str, uri: &str| {
            let topics = Topics::default();
            topics.join(&topic(subscribed), 1);
            !topics.watchers(&upstream(), &link(), uri).is_empty()
        };
        assert!(covers("file:///a", "file:///a"));
        assert!(covers("file:///a", "file:///a/b"));
        assert!(covers("file:///a", "file:///a#x"));
        assert!(covers("file:///a", "file:///a?é#x"));
        assert!(covers("file:///a/", "file:///a/b"));
        assert!(covers("file:///a/", "file:///a/"));
        assert!(covers("file:///", "file:///a/"));
        assert!(!covers("file:///a/", "file:///a"));
        assert!(!covers("file:///a", "file:///ab"));
        assert!(!covers("file:///a/b", "file:///a"));
    }
}
