//! What browsers need to be told (MCP digest §7.8). Pages may not send credentials that the browser keeps (cookies,
//! certificates): nothing here reads any, and what a page may do must not hang on who sits in front of it.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers that clients may send.
const ALLOWED: &str = "authorization, content-type, content-encoding, accept, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, last-event-id, x-api-key, idempotency-key, traceparent, tracestate, baggage";

/// Whether a page of the internet asks for an address of a private network, and how it is told that it may.
const PRIVATE_NETWORK: (HeaderName, HeaderName) = (
    HeaderName::from_static("access-control-request-private-network"),
    HeaderName::from_static("access-control-allow-private-network"),
);

/// Marks an answer as readable for the page that asked; its origin was checked before.
pub(super) fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.append(VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("mcp-session-id, www-authenticate, retry-after");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

/// The answer to a preflight request; `Mcp-Param-*` headers that it names are allowed too.
pub(super) fn preflight(answer: &mut HeaderMap, request: &HeaderMap, methods: &'static str) {
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    answer.insert(VARY, HeaderValue::from_static("access-control-request-headers"));
    let (asked, told) = PRIVATE_NETWORK;
    // Its origin was checked before, so it is one that may.
    if request.get(asked).is_some_and(|asked| asked == "true") {
        answer.insert(told, HeaderValue::from_static("true"));
    }
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|names| names.to_str().ok());
    let params =
        asked.into_iter().flat_map(|names| names.split(',')).map(str::trim).filter(|name| {
            name.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("mcp-param-"))
        });
    let allowed = std::iter::once(ALLOWED).chain(params).collect::<Vec<_>>().join(", ");
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_headers_are_allowed_when_asked_for() {
        let mut request = HeaderMap::new();
        let asked = HeaderValue::from_static("content-type, Mcp-Param-Region, x-evil");
        request.insert(ACCESS_CONTROL_REQUEST_HEADERS, asked);
        let mut answer = HeaderMap::new();
        preflight(&mut answer, &request, "POST");
        let allowed = answer[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        assert!(allowed.ends_with(", Mcp-Param-Region"), "{allowed}");
        assert!(!allowed.contains("x-evil"));
    }
}
