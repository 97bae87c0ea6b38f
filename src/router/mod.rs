//! Paths to routes, and methods of plain routes to upstreams. Pure.

use std::collections::{HashMap, HashSet};

use globset::{Glob, GlobMatcher};

/// What a path is of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// The path of the route itself.
    Own,
    /// Where clients of HTTP+SSE open their stream: `<path>/sse`.
    Events,
    /// Where they POST: `<path>/message`.
    Messages,
}

impl Spot {
    /// The spot below a route's path. One slash at the end of that is no part of it.
    pub fn below(self, path: &str) -> String {
        let base = path.strip_suffix('/').unwrap_or(path);
        match self {
            Self::Own => path.to_owned(),
            Self::Events => format!("{base}/sse"),
            Self::Messages => format!("{base}/message"),
        }
    }
}

/// Exact paths to the index of their route.
#[derive(Debug, Default)]
pub struct RouteTable {
    paths: HashMap<Box<str>, (usize, Spot)>,
}

impl RouteTable {
    /// From the paths of the configuration, in its order; the first of two equal ones wins.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = HashMap::new();
        for (index, path) in paths.into_iter().enumerate() {
            table.entry(path.into()).or_insert((index, Spot::Own));
        }
        Self { paths: table }
    }

    /// Serves HTTP+SSE below a route's path, except at paths that are served already.
    pub fn serve_older(&mut self, path: &str, index: usize) {
        for spot in [Spot::Events, Spot::Messages] {
            self.paths.entry(spot.below(path).into()).or_insert((index, spot));
        }
    }

    /// The route of a request path, and what the path is of it. One trailing slash is forgiven.
    pub fn find(&self, path: &str) -> Option<(usize, Spot)> {
        let found = self.paths.get(path).or_else(|| {
            path.strip_suffix('/')
                .filter(|rest| !rest.is_empty())
                .and_then(|rest| self.paths.get(rest))
        });
        found.copied()
    }
}

/// One method pattern and where it leads.
#[derive(Debug)]
struct Pattern {
    text: String,
    matcher: GlobMatcher,
    target: usize,
}

/// Method patterns of one plain route; the longest that matches wins.
#[derive(Debug, Default)]
pub struct MethodTable {
    exact: HashMap<String, usize>,
    /// Longest first.
    patterns: Vec<Pattern>,
}

impl MethodTable {
    /// From pattern and target pairs.
    ///
    /// # Errors
    /// A pattern that is no glob.
    pub fn new<'a>(
        methods: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Result<Self, globset::Error> {
        let mut table = Self::default();
        for (text, target) in methods {
            if is_pattern(text) {
                let matcher = Glob::new(text)?.compile_matcher();
                table.patterns.push(Pattern { text: text.to_owned(), matcher, target });
            } else {
                table.exact.insert(text.to_owned(), target);
            }
        }
        table.patterns.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.text.cmp(&b.text)));
        Ok(table)
    }

    /// The target of a (decoded) method and the pattern that matched.
    ///
    /// Methods that begin with `rpc.` are reserved (JSON-RPC 2.0 §4.3): only a pattern that begins so too
    /// matches them.
    pub fn pick<'a>(&'a self, method: &'a str) -> Option<(usize, &'a str)> {
        if let Some(target) = self.exact.get(method) {
            return Some((*target, method));
        }
        let reserved = method.starts_with("rpc.");
        self.patterns
            .iter()
            .filter(|pattern| !reserved || pattern.text.starts_with("rpc."))
            .find(|pattern| pattern.matcher.is_match(method))
            .map(|pattern| (pattern.target, pattern.text.as_str()))
    }
}

/// Which methods a plain route serves at all, by their (decoded) names.
#[derive(Debug, Default)]
pub struct MethodFilter {
    /// `None`: every one.
    allow: Option<MethodSet>,
    deny: MethodSet,
}

impl MethodFilter {
    /// From patterns; no `allow` means that all are allowed.
    ///
    /// # Errors
    /// A pattern that is no glob.
    pub fn new(allow: &[String], deny: &[String]) -> Result<Self, globset::Error> {
        let allow = if allow.is_empty() { None } else { Some(MethodSet::new(allow)?) };
        Ok(Self { allow, deny: MethodSet::new(deny)? })
    }

    /// Whether a method is served. What is denied is not, even if it is allowed too.
    pub fn admits(&self, method: &str) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.has(method)) && !self.deny.has(method)
    }
}

/// Methods by name and by pattern. Reserved names have no part in it: `*` is all of them.
#[derive(Debug, Default)]
struct MethodSet {
    exact: HashSet<String>,
    patterns: Vec<GlobMatcher>,
}

impl MethodSet {
    fn new(methods: &[String]) -> Result<Self, globset::Error> {
        let mut set = Self::default();
        for text in methods {
            if is_pattern(text) {
                set.patterns.push(Glob::new(text)?.compile_matcher());
            } else {
                set.exact.insert(text.clone());
            }
        }
        Ok(set)
    }

    fn has(&self, method: &str) -> bool {
        self.exact.contains(method) || self.patterns.iter().any(|known| known.is_match(method))
    }
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pattern_wins_and_the_star_is_the_default() {
        let table =
            MethodTable::new([("*", 0), ("eth_*", 1), ("eth_get*", 2), ("eth_call", 3)]).unwrap();
        assert_eq!(table.pick("net_version"), Some((0, "*")));
        assert_eq!(table.pick("eth_send"), Some((1, "eth_*")));
        assert_eq!(table.pick("eth_getLogs"), Some((2, "eth_get*")));
        assert_eq!(table.pick("eth_call"), Some((3, "eth_call")));
    }

    #[test]
    fn reserved_methods_need_a_pattern_of_their_own() {
        let table = MethodTable::new([("*", 0)]).unwrap();
        assert_eq!(table.pick("rpc.discover"), None);
        let table = MethodTable::new([("*", 0), ("rpc.*", 1)]).unwrap();
        assert_eq!(table.pick("rpc.discover"), Some((1, "rpc.*")));
    }

    #[test]
    fn a_method_without_pattern_has_no_target() {
        let table = MethodTable::new([("sum", 0)]).unwrap();
        assert_eq!(table.pick("summary"), None);
    }

    #[test]
    fn paths_are_exact_but_for_one_trailing_slash() {
        let table = RouteTable::new(["/mcp", "/rpc", "/"]);
        assert_eq!(table.find("/mcp"), Some((0, Spot::Own)));
        assert_eq!(table.find("/rpc/"), Some((1, Spot::Own)));
        assert_eq!(table.find("/"), Some((2, Spot::Own)));
        assert_eq!(table.find("/mcp/sse"), None);
        assert_eq!(table.find("/MCP"), None);
    }

    #[test]
    fn older_clients_are_served_below_a_path_unless_something_else_is_there() {
        let mut table = RouteTable::new(["/mcp", "/mcp/message", "/", "/a/"]);
        for (index, path) in [(0, "/mcp"), (2, "/"), (3, "/a/")] {
            table.serve_older(path, index);
        }
        assert_eq!(table.find("/mcp/sse"), Some((0, Spot::Events)));
        assert_eq!(table.find("/mcp/sse/"), Some((0, Spot::Events)));
        assert_eq!(table.find("/mcp/message"), Some((1, Spot::Own)));
        assert_eq!(table.find("/sse"), Some((2, Spot::Events)));
        assert_eq!(table.find("/message"), Some((2, Spot::Messages)));
        assert_eq!(table.find("/a/message"), Some((3, Spot::Messages)));
    }

    #[test]
    fn what_is_denied_is_not_served_and_a_list_of_the_allowed_leaves_out_the_rest() {
        let filter = |allow: &[&str], deny: &[&str]| {
            let owned =
                |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
            MethodFilter::new(&owned(allow), &owned(deny)).unwrap()
        };
        let open = filter(&[], &["admin_*", "eth_sign", "debug_?race"]);
        for (method, served) in [
            ("eth_call", true),
            ("eth_sign", false),
            ("eth_signTypedData", true),
            ("admin_", false),
            ("admin_peers\n", false),
            ("debug_trace", false),
            ("Admin_peers", true),
            ("rpc.discover", true),
        ] {
            assert_eq!(open.admits(method), served, "{method}");
        }
        let closed = filter(&["eth_*"], &["eth_send*"]);
        assert!(closed.admits("eth_call") && !closed.admits("eth_sendRawTransaction"));
        assert!(!closed.admits("net_version"));
        assert!(!filter(&[], &["*"]).admits("rpc.discover"), "all means all");
        assert!(MethodFilter::default().admits(""));
    }
}
