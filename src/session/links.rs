//! Links to resources that results showed: such a resource need not be in any list.

use std::collections::VecDeque;
use std::sync::Arc;

/// Most URIs that are remembered.
const MAX_LINKS: usize = 256;
/// Longest URI that is remembered.
const MAX_LINK: usize = 4 << 10;

/// Which upstream showed a link to which URI; the newest ones are remembered.
#[derive(Debug, Default)]
pub struct Links(VecDeque<(Arc<str>, usize)>);

impl Links {
    /// Remembers which upstream showed a link to this URI.
    pub fn saw(&mut self, uri: &str, upstream: usize) {
        if uri.len() > MAX_LINK {
            return;
        }
        self.0.retain(|(known, _)| **known != *uri);
        if self.0.len() >= MAX_LINKS {
            self.0.pop_front();
        }
        self.0.push_back((uri.into(), upstream));
    }

    /// The upstream that showed a link to this URI.
    pub fn owner(&self, uri: &str) -> Option<usize> {
        self.0.iter().rev().find(|(known, _)| **known == *uri).map(|(_, upstream)| *upstream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_links_are_remembered_and_the_last_upstream_counts() {
        let mut links = Links::default();
        for number in 0..=MAX_LINKS {
            links.saw(&format!("x:{number}"), 1);
        }
        links.saw("x:7", 2);
        assert_eq!(
            (links.owner("x:0"), links.owner("x:1"), links.owner("x:7")),
            (None, Some(1), Some(2))
        );
        links.saw(&"x".repeat(MAX_LINK + 1), 3);
        assert_eq!(links.0.len(), MAX_LINKS);
    }
}
