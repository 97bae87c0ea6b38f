//! What a configuration serves, in a few lines for people.

use std::fmt;
use std::path::Path;

use crate::config::{
    Config, Isolation, Names, Protocol, RouteConfig, UpstreamConfig, UpstreamName,
};
use crate::net::Place;

/// What listens where, and what each route is answered by.
pub(super) struct Summary<'c>(pub(super) &'c Config);

impl Summary<'_> {
    /// What each route is answered by.
    pub(super) fn routes(&self) -> String {
        Routes(self.0).to_string()
    }
}

struct Routes<'c>(&'c Config);

impl fmt::Display for Routes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for route in &self.0.routes {
            match route.protocol {
                Protocol::Mcp => mcp(f, self.0, route)?,
                Protocol::JsonRpc => plain(f, self.0, route)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        for address in &config.server.listen.0 {
            writeln!(f, "listens on {}", Spoken(address, config))?;
        }
        writeln!(f, "admin on http://{} (/metrics, /livez, /readyz)", config.admin.listen)?;
        write!(f, "{}", Routes(config))
    }
}

/// A place with the scheme that clients use there.
pub(super) struct Spoken<'c>(pub(super) &'c Place, pub(super) &'c Config);

impl fmt::Display for Spoken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, &self.1.server.tls) {
            (Place::Tcp(address), None) => write!(f, "http://{address}"),
            (Place::Tcp(address), Some(_)) => write!(f, "https://{address}"),
            (place @ Place::Unix(_), _) => place.fmt(f),
        }
    }
}

fn mcp(f: &mut fmt::Formatter<'_>, config: &Config, route: &RouteConfig) -> fmt::Result {
    let prefixed = match route.names {
        Names::Auto => route.upstreams.len() > 1,
        Names::Prefix => true,
        Names::Plain => false,
    };
    let names = if prefixed { "<upstream>__<name>" } else { "as upstream" };
    writeln!(f, "\n{} (MCP; names: {names})", route.path)?;
    let width = route.upstreams.iter().map(|name| name.as_str().len()).max().unwrap_or(0);
    for name in &route.upstreams {
        writeln!(f, "  {:width$}  {}", name.as_str(), Reach(config, name))?;
    }
    Ok(())
}

fn plain(f: &mut fmt::Formatter<'_>, config: &Config, route: &RouteConfig) -> fmt::Result {
    writeln!(f, "\n{} (JSON-RPC 2.0)", route.path)?;
    let width = route.methods.keys().map(String::len).max().unwrap_or(0);
    for (pattern, method) in &route.methods {
        for (place, name) in method.upstreams.iter().enumerate() {
            let pattern = if place == 0 { pattern } else { "" };
            writeln!(f, "  {pattern:width$}  {name}: {}", Reach(config, name))?;
        }
    }
    if !route.subscriptions.is_empty() {
        let methods: Vec<&str> = route.subscriptions.keys().map(String::as_str).collect();
        writeln!(f, "  subscriptions by {}", methods.join(", "))?;
    }
    for (word, patterns) in [("only", &route.allow), ("not", &route.deny)] {
        if !patterns.is_empty() {
            writeln!(f, "  {word} {}", patterns.join(", "))?;
        }
    }
    Ok(())
}

/// How an upstream is reached. Arguments and queries may hold secrets and are not shown.
struct Reach<'c>(&'c Config, &'c UpstreamName);

impl fmt::Display for Reach<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(upstream) = self.0.upstreams.get(self.1) else { return f.write_str("unknown") };
        for (place, url) in upstream.endpoints.iter().enumerate() {
            let mut shown = url.clone();
            shown.set_query(None);
            write!(f, "{}{shown}", if place > 0 { ", " } else { "" })?;
        }
        if !upstream.endpoints.is_empty() {
            return Ok(());
        }
        match (program(upstream), &upstream.url) {
            (Some(program), None) => write!(f, "child `{program}`")?,
            (program, Some(url)) => {
                let mut shown = url.clone();
                shown.set_query(None);
                f.write_str(shown.as_str())?;
                if let Some(program) = program {
                    write!(f, ", child `{program}`")?;
                }
            }
            (None, None) => f.write_str("nothing")?,
        }
        match (upstream.protocol, upstream.isolation()) {
            (Protocol::JsonRpc, _) => Ok(()),
            (Protocol::Mcp, Isolation::Shared) => f.write_str(", shared by all"),
            (Protocol::Mcp, Isolation::Session) => f.write_str(", one for each session"),
            (Protocol::Mcp, Isolation::Principal) => f.write_str(", one for each principal"),
        }
    }
}

fn program(upstream: &UpstreamConfig) -> Option<&str> {
    upstream.command.as_ref()?.first().map(String::as_str)
}

/// A line for each upstream whose program is not to be found.
pub(super) fn missing_programs(config: &Config) -> Vec<String> {
    let missing = config.upstreams.iter().filter_map(|(name, upstream)| {
        let program = program(upstream).filter(|program| !program.contains("{self}"))?;
        let base = upstream.cwd.as_deref().unwrap_or(Path::new(""));
        let found = if program.contains('/') {
            base.join(program).is_file()
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        };
        (!found)
            .then(|| format!("upstream `{name}`: program `{program}` is not found on this machine"))
    });
    missing.collect()
}

/// A line when the environment names a proxy that upstreams are not dialled through.
pub(super) fn unused_proxy(
    config: &Config,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let tls = |upstream: &UpstreamConfig| {
        upstream.url.as_ref().is_some_and(|url| matches!(url.scheme(), "https" | "wss"))
    };
    let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let named = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
    let name = names.into_iter().find(named).filter(|_| config.upstreams.values().any(tls))?;
    Some(format!("{name} is set, but upstreams are dialled directly, never through a proxy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        crate::config::parse(text, "t.toml", &|_| None).unwrap().config
    }

    #[test]
    fn it_shows_routes_and_how_upstreams_are_reached_without_secrets() {
        let text = r#"
            [upstreams.notes]
            command = ["notes-server", "--token=s3cret"]
            [upstreams.web]
            url = "http://127.0.0.1:1/mcp?key=s3cret"
            [upstreams.calc]
            protocol = "jsonrpc"
            url = "http://127.0.0.1:2/rpc"
            [[routes]]
            path = "/mcp"
            upstreams = ["notes", "web"]
            [upstreams.live]
            protocol = "jsonrpc"
            url = "ws://127.0.0.1:3/"
            [[routes]]
            path = "/rpc"
            protocol = "jsonrpc"
            methods = { "*" = "calc", "sum" = "calc", "live_*" = "live" }
            subscriptions.live_on = { notification = "n", unsubscribe = "live_off", id = "params.0" }
        "#;
        let right = "listens on http://127.0.0.1:8808
admin on http://127.0.0.1:9808 (/metrics, /livez, /readyz)

/mcp (MCP; names: <upstream>__<name>)
  notes  child `notes-server`, shared by all
  web    http://127.0.0.1:1/mcp, one for each principal

/rpc (JSON-RPC 2.0)
  *       calc: http://127.0.0.1:2/rpc
  live_*  live: ws://127.0.0.1:3/
  sum     calc: http://127.0.0.1:2/rpc
  subscriptions by live_on
";
        assert_eq!(Summary(&config(text)).to_string(), right);
    }

    #[test]
    fn a_proxy_that_is_not_used_is_told_where_it_matters() {
        let variable = |name: &str| (name == "https_proxy").then(|| "http://proxy:3128".into());
        let far = config("[upstreams.a]\nurl = \"https://a.example/mcp\"");
        let told = unused_proxy(&far, variable).unwrap_or_default();
        assert!(told.starts_with("https_proxy is set"), "{told}");
        assert_eq!(unused_proxy(&far, |_| None), None);
        let near = config("[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"");
        assert_eq!(unused_proxy(&near, variable), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let text = |program: &str| format!("[upstreams.a]\ncommand = [\"{program}\"]");
        for there in ["sh", "/bin/sh", "{self}"] {
            assert!(missing_programs(&config(&text(there))).is_empty(), "{there}");
        }
        for missing in ["no-such-program-here", "/no/such/program"] {
            assert_eq!(missing_programs(&config(&text(missing))).len(), 1, "{missing}");
        }
    }
}
