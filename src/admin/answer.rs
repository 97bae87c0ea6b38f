//! From a request to its answer.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;

use super::AdminSources;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// The text format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>trunkline</title></head><body>
<h1>trunkline</h1>
<ul>
<li><a href=\"/metrics\">/metrics</a>: for Prometheus</li>
<li><a href=\"/livez\">/livez</a>: 200 while the process works</li>
<li><a href=\"/readyz\">/readyz</a>: 200 until it drains, with the state of each upstream</li>
</ul>
</body></html>
";

/// Answers one request. With `local_names_only`, `Host` must name this machine.
pub(super) async fn answer<B>(
    request: &Request<B>,
    sources: &AdminSources,
    local_names_only: bool,
) -> Response<Full<Bytes>> {
    if local_names_only && !names_this_machine(request) {
        return reply(StatusCode::FORBIDDEN, TEXT, "this Host is not served here\n");
    }
    let path = request.uri().path();
    if !matches!(path, "/" | "/metrics" | "/livez" | "/readyz") {
        return reply(StatusCode::NOT_FOUND, TEXT, "not found; / lists what there is\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/livez" => reply(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" => ready(sources),
        "/metrics" => metrics(sources).await,
        _ => reply(StatusCode::OK, HTML, INDEX),
    }
}

fn ready(sources: &AdminSources) -> Response<Full<Bytes>> {
    let readiness = (sources.readiness)();
    let status = if readiness.draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    reply(status, JSON, readiness.to_json())
}

async fn metrics(sources: &AdminSources) -> Response<Full<Bytes>> {
    let metrics = Arc::clone(&sources.metrics);
    // Milliseconds with many tools: not on a thread that serves clients.
    match tokio::task::spawn_blocking(move || metrics.render()).await {
        Ok(text) => reply(StatusCode::OK, METRICS, text),
        Err(error) => {
            tracing::error!(%error, "metrics could not be rendered");
            reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "metrics could not be rendered\n")
        }
    }
}

fn reply(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Whether the request is for a name of this machine. One without any (HTTP/1.0) is not from a web page.
fn names_this_machine<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (request.uri().authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return false,
        (Some(authority), _, None) => Some(authority.clone()),
        (None, Some(value), None) => Authority::try_from(value.as_bytes()).ok(),
        (None, None, None) => return true,
    };
    host.is_some_and(|authority| is_local(authority.host()))
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host == "[::1]"
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}
