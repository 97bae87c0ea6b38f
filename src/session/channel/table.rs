//! All streams.

use std::sync::Arc;

use dashmap::DashMap;

use super::Channel;
use crate::config::RouteName;
use crate::session::live::SessionId;
use crate::session::table::Full;

/// Every open stream by its token.
#[derive(Debug)]
pub struct Channels {
    map: DashMap<SessionId, Arc<Channel>>,
    limit: usize,
}

impl Channels {
    /// At most about `limit` of them.
    pub fn new(limit: usize) -> Self {
        Self { map: DashMap::new(), limit }
    }

    /// Opens one.
    pub fn open(
        &self,
        route: RouteName,
        principal: Option<Arc<str>>,
    ) -> Result<Arc<Channel>, Full> {
        if self.map.len() >= self.limit {
            return Err(Full::Limit { limit: self.limit });
        }
        let token = SessionId::random().map_err(|_| Full::NoRandomness)?;
        let channel = Channel::new(token.clone(), route, principal);
        self.map.insert(token, Arc::clone(&channel));
        Ok(channel)
    }

    /// The open stream of a token, if it is one of this route and principal.
    pub fn find(
        &self,
        token: &str,
        route: &RouteName,
        principal: Option<&Arc<str>>,
    ) -> Option<Arc<Channel>> {
        let channel = self.map.get(token).map(|entry| Arc::clone(entry.value()))?;
        let own = channel.route == *route && channel.principal.as_ref() == principal;
        (own && !channel.closed.is_cancelled()).then_some(channel)
    }

    /// Forgets one.
    pub fn remove(&self, channel: &Channel) {
        self.map.remove(channel.token.as_str());
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Channel>> {
        self.map.iter().map(|entry| Arc::clone(entry.value())).collect()
    }
}
