//! A configuration compiled into what requests use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobMatcher, GlobSet, GlobSetBuilder};
use smallvec::SmallVec;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lists::Lists;
use super::subscriptions::Kinds;
use crate::budget::Budget;
use crate::catalog::{Naming, Upkeep};
use crate::config::{
    Config, Isolation, MethodConfig, Names, Payloads, Protocol, RouteConfig, RouteName,
    ServerConfig, Sessions, ToolsConfig, UpstreamConfig, UpstreamName,
};
use crate::jsonrpc::{Limits, Message};
use crate::policy::{OriginGuard, Slots, Standing, Turns};
use crate::router::{MethodFilter, MethodTable, RouteTable, Spot};
use crate::telemetry::{MethodLabel, Metrics, RouteMetrics, UpstreamMetrics};
use crate::upstream::{CallerId, Client, Events, Notice, OutCall, Upstream, UpstreamDeps};

/// Why a configuration cannot be compiled. Checked configurations can.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A pattern is no glob.
    #[error("a pattern is not valid")]
    Pattern(#[from] globset::Error),
    /// A route names an upstream that there is not.
    #[error("route {route} names the unknown upstream {upstream}")]
    Upstream {
        /// The route.
        route: RouteName,
        /// The upstream.
        upstream: UpstreamName,
    },
}

/// One upstream with what the gateway keeps in front of it.
#[derive(Debug)]
pub struct Backend {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Its concurrency slots.
    pub slots: Slots,
    /// Whether it could be connected lately.
    pub standing: Standing,
    /// Its metrics.
    pub metrics: Arc<UpstreamMetrics>,
    /// Choice and naming of its tools.
    pub upkeep: Upkeep,
    /// Timeouts of tools, longest pattern first.
    timeouts: Vec<(GlobMatcher, Duration)>,
}

impl Backend {
    fn new(upstream: Arc<Upstream>, metrics: Arc<UpstreamMetrics>) -> Result<Self, globset::Error> {
        let config = Arc::clone(upstream.config());
        let mut patterns: Vec<_> = config.tools.timeout.iter().collect();
        patterns.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
        let timeouts = patterns
            .into_iter()
            .map(|(pattern, timeout)| Ok((Glob::new(pattern)?.compile_matcher(), *timeout)))
            .collect::<Result<_, globset::Error>>()?;
        let slots = Slots::new(config.max_concurrency, config.max_queue);
        let upkeep = upkeep(&config.tools)?;
        Ok(Self { slots, standing: Standing::default(), metrics, upkeep, timeouts, upstream })
    }

    /// Its configuration.
    pub fn config(&self) -> &UpstreamConfig {
        self.upstream.config()
    }

    /// A call that no session stands behind: plain JSON-RPC, or a request of the gateway's own. Nothing that precedes
    /// its answer is wanted, and nothing may be asked on it.
    pub(super) fn plain_call(&self, message: Message) -> OutCall {
        self.timed_call(message, self.config().timeout)
    }

    /// The same, with a timeout of its own.
    pub(super) fn timed_call(&self, message: Message, timeout: Duration) -> OutCall {
        OutCall {
            message,
            edits: SmallVec::new(),
            caller: CallerId::GATEWAY,
            client: Client::default(),
            params: None,
            timeout,
            max_timeout: self.config().max_timeout,
            events: Events::closed(),
        }
    }

    /// The longest timeout of any of its calls.
    pub fn longest_timeout(&self) -> Duration {
        let special = self.timeouts.iter().map(|(_, timeout)| *timeout);
        special.max().unwrap_or_default().max(self.config().timeout)
    }

    /// Timeout of one call of a tool, by the upstream's own name.
    pub fn tool_timeout(&self, tool: &str) -> Duration {
        let special = self.timeouts.iter().find(|(pattern, _)| pattern.is_match(tool));
        special.map_or(self.config().timeout, |(_, timeout)| *timeout)
    }
}

fn upkeep(tools: &ToolsConfig) -> Result<Upkeep, globset::Error> {
    let set = |patterns: &[String]| -> Result<Option<GlobSet>, globset::Error> {
        if patterns.is_empty() {
            return Ok(None);
        }
        let mut builder = GlobSetBuilder::new();
        for pattern in patterns {
            builder.add(Glob::new(pattern)?);
        }
        builder.build().map(Some)
    };
    let rename = tools.rename.iter().map(|(own, shown)| (own.clone(), shown.clone())).collect();
    Ok(Upkeep { allow: set(&tools.allow)?, deny: set(&tools.deny)?, rename })
}

/// A route of the Model Context Protocol.
#[derive(Debug)]
pub struct McpRoute {
    /// Its path.
    pub name: RouteName,
    /// Its upstreams, in order.
    pub backends: Vec<Arc<Backend>>,
    /// How public names are made.
    pub naming: Naming,
    /// Whether requests need a session.
    pub sessions: Sessions,
    /// Whether batches are served.
    pub batches: bool,
    /// Its merged lists.
    pub lists: Lists,
    /// Its metrics.
    pub metrics: Arc<RouteMetrics>,
}

impl McpRoute {
    /// The one upstream behind it, when names, unknown methods and notifications pass through untouched.
    pub fn transparent(&self) -> Option<&Arc<Backend>> {
        match &self.backends[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether any upstream keeps its lists per session.
    pub fn lists_per_session(&self) -> bool {
        self.backends.iter().any(|backend| backend.config().isolation == Some(Isolation::Session))
    }
}

/// A route of plain JSON-RPC.
#[derive(Debug)]
pub struct PlainRoute {
    /// Its path.
    pub name: RouteName,
    /// Which methods are served at all.
    pub filter: MethodFilter,
    /// Method patterns to indices of `rules`.
    pub methods: MethodTable,
    /// Where the methods of each pattern go.
    pub rules: Vec<MethodRule>,
    /// What can be subscribed to.
    pub(super) subscriptions: Kinds,
    /// Whether requests without a JSON content type are served.
    pub lenient_content_type: bool,
    /// Its metrics.
    pub metrics: Arc<RouteMetrics>,
}

impl PlainRoute {
    /// Where a (decoded) method goes; `None`: it is not served.
    pub fn rule(&self, method: &str) -> Option<&MethodRule> {
        let (index, _) = self.methods.pick(method)?;
        self.rules.get(index).filter(|_| self.filter.admits(method))
    }

    /// The longest that any single call may take without progress.
    pub fn longest_timeout(&self) -> Duration {
        self.rules.iter().map(MethodRule::time).max().unwrap_or_default()
    }
}

/// Where the methods of one pattern go, and under which limits.
#[derive(Debug)]
pub struct MethodRule {
    /// The pattern, as metrics name it.
    pub label: MethodLabel,
    /// Its upstreams, in order.
    pub backends: Vec<Arc<Backend>>,
    /// Which of them is asked first.
    pub turns: Turns,
    /// How long one call may take over all of them, when that is configured.
    pub timeout: Option<Duration>,
    /// Largest request.
    pub max_body: Option<usize>,
    /// Whether a call may run twice.
    pub idempotent: bool,
}

impl MethodRule {
    /// How long one call may take over all upstreams that are tried.
    pub fn time(&self) -> Duration {
        let longest = || self.backends.iter().map(|backend| backend.config().timeout).max();
        self.timeout.or_else(longest).unwrap_or_default()
    }
}

/// What is served at one path.
#[derive(Debug)]
pub enum Route {
    /// Model Context Protocol.
    Mcp(Arc<McpRoute>),
    /// Plain JSON-RPC.
    Plain(Arc<PlainRoute>),
}

impl Route {
    /// Its path.
    pub fn name(&self) -> &RouteName {
        match self {
            Self::Mcp(route) => &route.name,
            Self::Plain(route) => &route.name,
        }
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Arc<RouteMetrics> {
        match self {
            Self::Mcp(route) => &route.metrics,
            Self::Plain(route) => &route.metrics,
        }
    }
}

/// A compiled configuration.
#[derive(Debug)]
pub struct Snapshot {
    /// `[server]`
    pub server: ServerConfig,
    /// Limits of a message's shape.
    pub limits: Limits,
    /// `Host` and `Origin`.
    pub origin: OriginGuard,
    /// Paths to indices of `routes`.
    pub paths: RouteTable,
    /// The routes.
    pub routes: Vec<Arc<Route>>,
    /// Every upstream by name: at least one, several where it has replicas.
    pub backends: BTreeMap<UpstreamName, Vec<Arc<Backend>>>,
    /// Whether texts are logged.
    pub payloads: Payloads,
    /// Bytes of requests and answers that are held now.
    pub budget: Arc<Budget>,
    /// Key of sealed cursors.
    pub secret: Vec<u8>,
}

/// What compiling needs from outside.
#[derive(Debug)]
pub struct Outside<'a> {
    /// All metrics.
    pub metrics: &'a Arc<Metrics>,
    /// Where upstreams report.
    pub notices: &'a mpsc::Sender<Notice>,
    /// Owns every task.
    pub tasks: &'a TaskTracker,
    /// Ends every task.
    pub stop: &'a CancellationToken,
    /// Worker threads.
    pub workers: usize,
}

impl Snapshot {
    /// Compiles a checked configuration. `secret` seals cursors when the configuration has none.
    pub fn compile(
        config: &Config,
        secret: [u8; 32],
        outside: &Outside<'_>,
    ) -> Result<Self, SnapshotError> {
        let gauge = outside.metrics.bytes_in_flight();
        let budget = Budget::new(config.server.max_bytes_in_flight, gauge);
        let mut backends = BTreeMap::new();
        for (name, upstream) in &config.upstreams {
            let mut replicas = Vec::new();
            for replica in upstream.replicas() {
                let metrics = outside.metrics.upstream(name);
                let deps = UpstreamDeps {
                    metrics: Arc::clone(&metrics),
                    notices: outside.notices.clone(),
                    tasks: outside.tasks.clone(),
                    stop: outside.stop.clone(),
                    workers: outside.workers,
                    budget: Arc::clone(&budget),
                };
                let upstream = Upstream::new(name.clone(), Arc::new(replica), deps);
                replicas.push(Arc::new(Backend::new(upstream, metrics)?));
            }
            backends.insert(name.clone(), replicas);
        }
        let routes = config
            .routes
            .iter()
            .map(|route| compile_route(route, &backends, outside.metrics).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let server = config.server.clone();
        let configured = config.store.secret.as_ref().map(|secret| secret.expose().as_bytes());
        Ok(Self {
            limits: Limits { max_depth: server.max_depth, max_batch: server.max_batch },
            origin: OriginGuard::new(&server.allowed_hosts, &server.allowed_origins),
            paths: paths(&config.routes),
            routes,
            backends,
            payloads: config.telemetry.payloads,
            budget,
            secret: configured.unwrap_or(&secret).to_vec(),
            server,
        })
    }

    /// An upstream of MCP, which has no replicas; of others the first one.
    pub fn backend(&self, name: &UpstreamName) -> Option<&Arc<Backend>> {
        self.backends.get(name)?.first()
    }

    /// The route of a path, and what the path is of it.
    pub fn route(&self, path: &str) -> Option<(&Arc<Route>, Spot)> {
        self.paths.find(path).map(|(index, spot)| (&self.routes[index], spot))
    }
}

/// The paths of all routes; what is configured comes before what is implied.
fn paths(routes: &[RouteConfig]) -> RouteTable {
    let mut table = RouteTable::new(routes.iter().map(|route| route.path.as_str()));
    for (index, route) in routes.iter().enumerate() {
        if route.protocol == Protocol::Mcp {
            table.serve_older(route.path.as_str(), index);
        }
    }
    table
}

type Backends = BTreeMap<UpstreamName, Vec<Arc<Backend>>>;

fn compile_route(
    route: &RouteConfig,
    backends: &Backends,
    all: &Arc<Metrics>,
) -> Result<Route, SnapshotError> {
    let find = |upstream: &UpstreamName| {
        let found = backends.get(upstream).filter(|replicas| !replicas.is_empty());
        found.cloned().ok_or_else(|| SnapshotError::Upstream {
            route: route.path.clone(),
            upstream: upstream.clone(),
        })
    };
    let name = route.path.clone();
    let metrics = all.route(&name);
    match route.protocol {
        Protocol::Mcp => {
            // Sessions stay with one server: there are no replicas.
            let first = |upstream| find(upstream).map(|replicas| Arc::clone(&replicas[0]));
            let backends: Vec<_> = route.upstreams.iter().map(first).collect::<Result<_, _>>()?;
            let naming = match (route.names, backends.len()) {
                (Names::Plain, _) | (Names::Auto, 0 | 1) => Naming::Own,
                (Names::Prefix, _) | (Names::Auto, _) => Naming::Prefixed,
            };
            Ok(Route::Mcp(Arc::new(McpRoute {
                name,
                lists: Lists::default(),
                backends,
                naming,
                sessions: route.sessions,
                batches: route.batches,
                metrics,
            })))
        }
        Protocol::JsonRpc => {
            let compile = |(pattern, method): (&String, &MethodConfig)| {
                let replicas = method.upstreams.iter().map(find).collect::<Result<Vec<_>, _>>()?;
                let backends = replicas.concat();
                Ok(MethodRule {
                    label: all.label(pattern),
                    backends,
                    turns: Turns::new(method.balance()),
                    timeout: method.timeout,
                    max_body: method.max_body,
                    idempotent: method.idempotent,
                })
            };
            let rules = route.methods.iter().map(compile).collect::<Result<_, SnapshotError>>()?;
            let patterns = route.methods.keys().map(String::as_str).zip(0..);
            Ok(Route::Plain(Arc::new(PlainRoute {
                name,
                filter: MethodFilter::new(&route.allow, &route.deny)?,
                methods: MethodTable::new(patterns)?,
                rules,
                subscriptions: Kinds::new(route),
                lenient_content_type: route.lenient_content_type,
                metrics,
            })))
        }
    }
}
