//! The address of one upstream: its connections, the headers of every request, redirects it was seen to make.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::body::{OutBody, Unread};
use super::conn::{Lease, Pool, Speak};
use super::reply::Reply;
use super::shared::{is_of_request, is_unprocessed, reason};
use super::timer::{Expired, Timer};
use crate::budget::Budget;
use crate::config::{UpstreamConfig, UpstreamName};
use crate::jsonrpc::Chunks;
use crate::net::tls::{in_error, refusal};
use crate::telemetry::UpstreamMetrics;
use crate::upstream::CallError;
use crate::upstream::dial::{Dialer, NoConnection, Offer};

/// Most redirects of one request.
const MAX_REDIRECTS: usize = 3;
/// How often a request is sent again that the upstream said it did not look at.
const MAX_REFUSALS: usize = 3;
/// Headers that the connection decides on; configured ones are ignored.
const OURS: [HeaderName; 6] = [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// One upstream that is spoken to over HTTP.
#[derive(Debug)]
pub(in crate::upstream) struct Endpoint {
    pub(super) name: UpstreamName,
    pub(super) config: Arc<UpstreamConfig>,
    pub(super) metrics: Arc<UpstreamMetrics>,
    /// Headers of every request: `host`, the configured ones, `content-type`, `accept` of both types.
    pub(super) headers: HeaderMap,
    /// How many bytes of answers may be held at once.
    pub(super) budget: Arc<Budget>,
    pool: Arc<Pool>,
    /// Scheme and host, which HTTP/2 has in front of the path.
    origin: (Scheme, Authority),
    url: Url,
    /// The path and query of `url`.
    configured: Uri,
    /// Where the last redirect led; else as configured.
    current: ArcSwap<Uri>,
}

/// A request to send. The body is made anew when it must be sent again.
pub(super) struct Outgoing<'a> {
    pub(super) method: Method,
    pub(super) headers: &'a HeaderMap,
    /// Headers of this request alone.
    pub(super) extra: &'a [(HeaderName, HeaderValue)],
    pub(super) body: &'a (dyn Fn() -> Chunks + Sync),
}

/// Which connection carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// One of the pool.
    Pool,
    /// A new one, for streams that stay open.
    Own,
}

impl Endpoint {
    /// Dials nothing. Says what is wrong with an address that cannot be served.
    pub(in crate::upstream) fn new(
        name: &UpstreamName,
        config: &Arc<UpstreamConfig>,
        metrics: &Arc<UpstreamMetrics>,
        (tasks, stop): (&TaskTracker, &CancellationToken),
        workers: usize,
    ) -> Result<Self, String> {
        let (offer, speak) = match config.http2 {
            None => (Offer::Either, Speak::Agreed),
            Some(true) => (Offer::Http2, Speak::Two),
            Some(false) => (Offer::Http1, Speak::One),
        };
        let dialer = Dialer::new(name, config, offer, (tasks, stop))?;
        let speak = if dialer.is_tls() || speak == Speak::Two { speak } else { Speak::One };
        let url = dialer.url().clone();
        let origin =
            Uri::try_from(url.as_str()).map_err(|_| "its url cannot be sent")?.into_parts();
        let origin = origin.scheme.zip(origin.authority).ok_or("its url names no host")?;
        let configured = path_of(&url).ok_or("the path of its url cannot be sent")?;
        let headers = headers(name, config, &url).ok_or("the host of its url cannot be sent")?;
        let pool = Pool::new(
            (dialer, speak),
            config.max_concurrency,
            workers,
            (Arc::clone(metrics), tasks.clone()),
        );
        Ok(Self {
            name: name.clone(),
            config: Arc::clone(config),
            metrics: Arc::clone(metrics),
            headers,
            budget: Budget::unlimited(),
            pool,
            origin,
            current: ArcSwap::from_pointee(configured.clone()),
            configured,
            url,
        })
    }

    /// The bytes of its answers count there.
    pub(in crate::upstream) fn within(self, budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), ..self }
    }

    /// Sends a request and waits for the head of the answer; same-origin 307 and 308 are followed. `written`
    /// becomes true once the upstream may have read the request.
    pub(super) async fn send(
        &self,
        out: &Outgoing<'_>,
        via: Via,
        timer: &mut Timer<'_>,
        written: &mut bool,
    ) -> Result<Reply<'_>, CallError> {
        if let Some(limit) = self.config.first_byte_timeout {
            timer.narrow(limit);
        }
        let mut redirects = 0;
        loop {
            let reply = self.send_once(out, via, timer, written).await?;
            let status = reply.status();
            if status == StatusCode::NOT_FOUND && **self.current.load() != self.configured {
                self.current.store(Arc::new(self.configured.clone()));
            }
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                if self.config.first_byte_timeout.is_some() {
                    timer.restart();
                }
                return Ok(reply);
            }
            redirects += 1;
            Box::pin(self.follow(reply, redirects, timer)).await?;
        }
    }

    /// Notes where a redirect leads.
    async fn follow(
        &self,
        reply: Reply<'_>,
        redirects: usize,
        timer: &mut Timer<'_>,
    ) -> Result<(), CallError> {
        let status = reply.status();
        let kept =
            matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        if !kept {
            return Err(self.protocol(format!("it answered with the redirect {}", status.as_u16())));
        }
        if redirects > MAX_REDIRECTS {
            return Err(self.protocol("it redirects in a circle"));
        }
        let target = self
            .target(reply.header(&LOCATION))
            .ok_or_else(|| self.protocol("it redirects to another origin"))?;
        self.current.store(Arc::new(target));
        reply.finish(timer).await;
        Ok(())
    }

    /// The path that a `Location` names, when it stays on this origin.
    fn target(&self, location: Option<&HeaderValue>) -> Option<Uri> {
        let target = self.join(location?.to_str().ok()?)?;
        if target.origin() != self.url.origin() { None } else { path_of(&target) }
    }

    /// An address as it is meant where the last request went to.
    fn join(&self, reference: &str) -> Option<Url> {
        let mut base = self.url.clone();
        let current = self.current.load();
        base.set_path(current.path());
        base.set_query(current.query());
        base.join(reference).ok()
    }

    /// The same upstream at an address that it names. Says what is wrong with one that cannot be used.
    pub(super) fn at(&self, reference: &str) -> Result<Self, &'static str> {
        let url = self.join(reference).ok_or("the endpoint that it names is no address")?;
        if url.origin() != self.url.origin() {
            return Err("the endpoint that it names is of another origin");
        }
        let configured = path_of(&url).ok_or("the endpoint that it names cannot be sent")?;
        Ok(Self {
            name: self.name.clone(),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
            headers: self.headers.clone(),
            budget: Arc::clone(&self.budget),
            pool: Arc::clone(&self.pool),
            origin: self.origin.clone(),
            current: ArcSwap::from_pointee(configured.clone()),
            configured,
            url,
        })
    }

    /// Sends once, on a waiting connection if there is one. A connection that closed before it took the request is
    /// passed over.
    async fn send_once(
        &self,
        out: &Outgoing<'_>,
        via: Via,
        timer: &mut Timer<'_>,
        written: &mut bool,
    ) -> Result<Reply<'_>, CallError> {
        let mut refusals = 0;
        loop {
            let reused = match via {
                Via::Pool => self.pool.reuse(),
                Via::Own => self.pool.join(),
            };
            let fresh = reused.is_none();
            let mut lease = match reused {
                Some(lease) => lease,
                None => Box::pin(self.dial(timer)).await?,
            };
            let request = self.request(out, lease.is_shared());
            *written = true;
            let sending = lease.send(request);
            let mut error = match timer.within(sending).await.map_err(|late| self.late(late))? {
                Ok(response) => return Ok(Reply::new(self, response, lease)),
                Err(error) => error,
            };
            *written = error.take_message().is_none();
            let error = error.into_error();
            if let Some(what) = lease.refusal() {
                *written = false;
                return Err(CallError::Connect { upstream: self.name.clone(), what, source: None });
            }
            if lease.is_shared() {
                // What it said it did not look at is sent again, on another connection.
                if is_unprocessed(&error) && refusals < MAX_REFUSALS {
                    refusals += 1;
                    *written = false;
                    lease.give_up();
                    continue;
                }
                if !is_of_request(&error) {
                    lease.give_up();
                }
            }
            if *written || fresh {
                return Err(self.broken(*written, &error));
            }
        }
    }

    async fn dial(&self, timer: &mut Timer<'_>) -> Result<Lease, CallError> {
        let dialled = timer.within(self.pool.dial()).await.map_err(|late| self.late(late))?;
        dialled.map_err(|NoConnection { what, source }| CallError::Connect {
            upstream: self.name.clone(),
            what,
            source,
        })
    }

    fn request(&self, out: &Outgoing<'_>, shared: bool) -> Request<OutBody> {
        let body = (out.body)();
        self.metrics.bytes_out.inc_by(body.len() as u64);
        let body = if body.is_empty() { OutBody::empty() } else { OutBody::new(body) };
        let mut request = Request::new(body);
        *request.method_mut() = out.method.clone();
        *request.uri_mut() = Uri::clone(&self.current.load());
        let headers = request.headers_mut();
        *headers = out.headers.clone();
        for (name, value) in out.extra {
            headers.insert(name.clone(), value.clone());
        }
        if shared {
            self.name_origin(&mut request);
        }
        request
    }

    /// HTTP/2 has the origin in place of the header `host` (RFC 9113 §8.3.1).
    fn name_origin(&self, request: &mut Request<OutBody>) {
        request.headers_mut().remove(HOST);
        let mut parts = request.uri().clone().into_parts();
        let (scheme, authority) = self.origin.clone();
        (parts.scheme, parts.authority) = (Some(scheme), Some(authority));
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }

    /// Begins anew at the configured path.
    pub(super) fn forget_redirects(&self) {
        self.current.store(Arc::new(self.configured.clone()));
    }

    /// Closes connections that waited too long.
    pub(in crate::upstream) fn sweep(&self) {
        self.pool.sweep(tokio::time::Instant::now());
    }

    /// Closes connections that wait, and those in use once they are free.
    pub(in crate::upstream) fn close(&self) {
        self.pool.close();
    }

    /// How a broken connection is told.
    pub(super) fn broken(&self, written: bool, error: &hyper::Error) -> CallError {
        if let Some(what) = in_error(error).and_then(refusal) {
            return CallError::Connect { upstream: self.name.clone(), what, source: None };
        }
        if error.is_parse() || error.is_parse_too_large() {
            return self.protocol("it answered with something that is not HTTP");
        }
        let what = match reason(error) {
            Some(cause) if cause.is_library() => {
                return self.protocol("it answered with something that is not HTTP/2");
            }
            Some(cause) => format!("HTTP/2: {cause}"),
            None => error.to_string(),
        };
        CallError::Closed { upstream: self.name.clone(), written, what }
    }

    /// How an unreadable body is told.
    pub(super) fn unread(&self, unread: &Unread) -> CallError {
        match unread {
            Unread::TooLarge => self.protocol("its message is larger than max_message"),
            Unread::Broken(error) => self.broken(true, error),
            Unread::Full(_) => CallError::NoRoom { upstream: self.name.clone() },
        }
    }

    /// How a passed limit is told.
    pub(super) fn late(&self, late: Expired) -> CallError {
        CallError::Timeout { upstream: self.name.clone(), after: late.after }
    }

    /// How an invalid answer is told.
    pub(super) fn protocol(&self, what: impl Into<String>) -> CallError {
        CallError::Protocol { upstream: self.name.clone(), what: what.into(), upstream_error: None }
    }

    /// How a refusal is told.
    pub(super) fn status(&self, status: StatusCode, retry_after: Option<Duration>) -> CallError {
        CallError::Status { upstream: self.name.clone(), status: status.as_u16(), retry_after }
    }
}

/// Path and query as they stand in a request line.
pub(in crate::upstream) fn path_of(url: &Url) -> Option<Uri> {
    match url.query() {
        None => Uri::try_from(url.path()).ok(),
        Some(query) => Uri::try_from(format!("{}?{query}", url.path())).ok(),
    }
}

/// What every request carries. The host is the upstream's own authority, whatever the client sent.
pub(in crate::upstream) fn headers(
    name: &UpstreamName,
    config: &UpstreamConfig,
    url: &Url,
) -> Option<HeaderMap> {
    let host = match (url.host_str()?, url.port()) {
        (host, None) => HeaderValue::from_str(host),
        (host, Some(port)) => HeaderValue::from_str(&format!("{host}:{port}")),
    };
    let agent = concat!("trunkline/", env!("CARGO_PKG_VERSION"));
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(HOST, host.ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    for (key, value) in &config.headers {
        let key = HeaderName::try_from(key.as_str());
        let value = HeaderValue::from_str(value.expose());
        match (key, value) {
            (Ok(key), Ok(mut value)) if !OURS.contains(&key) => {
                value.set_sensitive(true);
                headers.insert(key, value);
            }
            (Ok(key), _) => {
                tracing::warn!(upstream = %name, header = %key, "a configured header is not sent");
            }
            (Err(_), _) => {
                tracing::warn!(upstream = %name, "a configured header has no valid name")
            }
        }
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    Some(headers)
}
