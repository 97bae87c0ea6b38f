//! `Host` and `Origin` checks: what protects local servers from pages in a browser (DNS rebinding).
//!
//! MCP 2025-11-25, transports: a present and not allowed `Origin` is 403. Absent ones are fine.

use http::Uri;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `Host` is missing or not served.
    #[error("the Host header names no host that is served here; see server.allowed_hosts")]
    Host,
    /// `Origin` is not allowed.
    #[error("this Origin is not allowed; see server.allowed_origins")]
    Origin,
}

/// The names that are served and the origins that may call.
#[derive(Clone, Debug)]
pub struct OriginGuard {
    hosts: Vec<String>,
    origins: Vec<String>,
    any_origin: bool,
}

impl OriginGuard {
    /// From `server.allowed_hosts` and `server.allowed_origins`.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        Self {
            hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            origins: origins.iter().map(|o| o.trim_end_matches('/').to_ascii_lowercase()).collect(),
            any_origin: origins.iter().any(|origin| origin == "*"),
        }
    }

    /// Checks one request. `local`: it came in on a loopback listener, where `Host` is always checked.
    pub fn check(
        &self,
        host: Option<&str>,
        origin: Option<&str>,
        local: bool,
    ) -> Result<(), Refused> {
        if (local || !self.hosts.is_empty()) && !host.is_some_and(|host| self.serves(host)) {
            return Err(Refused::Host);
        }
        match origin {
            Some(origin) if !self.allows(origin) => Err(Refused::Origin),
            _ => Ok(()),
        }
    }

    /// Whether a page of that origin may call.
    pub fn allows(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.any_origin || self.origins.contains(&origin) {
            return true;
        }
        let Ok(uri) = origin.parse::<Uri>() else { return false };
        let web = matches!(uri.scheme_str(), Some("http" | "https"));
        web && uri.authority().is_some_and(|authority| {
            is_loopback(authority.host())
                || self.hosts.contains(&authority.as_str().to_owned())
                || self.hosts.contains(&authority.host().to_owned())
        })
    }

    fn serves(&self, host: &str) -> bool {
        // The usual spellings need no parsing.
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        let usual = matches!(name, "localhost" | "127.0.0.1" | "[::1]")
            || self.hosts.iter().any(|known| known == name);
        if usual && port.bytes().all(|byte| byte.is_ascii_digit()) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
        is_loopback(authority.host())
            || self.hosts.iter().any(|known| *known == host || known == authority.host())
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(hosts: &[&str], origins: &[&str]) -> OriginGuard {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        OriginGuard::new(&own(hosts), &own(origins))
    }

    #[test]
    fn foreign_hosts_are_refused_on_loopback() {
        let guard = guard(&["gw.example"], &[]);
        for host in
            ["gw.example", "GW.Example", "gw.example:8808", "127.0.0.1:1", "localhost", "[::1]:9"]
        {
            assert_eq!(guard.check(Some(host), None, true), Ok(()), "{host}");
        }
        for host in [Some("evil.example"), Some("localhost.evil.example"), Some("a b"), None] {
            assert_eq!(guard.check(host, None, true), Err(Refused::Host), "{host:?}");
        }
    }

    #[test]
    fn beyond_loopback_hosts_are_checked_once_they_are_configured() {
        assert_eq!(guard(&[], &[]).check(Some("any.example"), None, false), Ok(()));
        let named = guard(&["gw.example"], &[]);
        assert_eq!(named.check(Some("any.example"), None, false), Err(Refused::Host));
    }

    #[test]
    fn foreign_origins_are_refused_and_absent_ones_are_fine() {
        let guard = guard(&["gw.example"], &["https://app.example/"]);
        let check = |origin| guard.check(Some("localhost"), Some(origin), true);
        for origin in
            ["https://app.example", "http://localhost:6274", "http://[::1]", "https://gw.example"]
        {
            assert_eq!(check(origin), Ok(()), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "",
            "http://127.0.0.1.evil.example",
            "file://localhost",
        ] {
            assert_eq!(check(origin), Err(Refused::Origin), "{origin}");
        }
        assert_eq!(guard.check(Some("localhost"), None, true), Ok(()));
    }

    #[test]
    fn a_star_allows_every_origin() {
        let guard = guard(&[], &["*"]);
        assert_eq!(guard.check(Some("localhost"), Some("https://x.example"), true), Ok(()));
    }
}
