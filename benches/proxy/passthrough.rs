//! The control: a reverse proxy that reads no JSON. hyper's server, hyper-util's pooled client,
//! the multi-thread runtime, bodies streamed.

use std::convert::Infallible;
use std::net::SocketAddr;

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::{Result, child};

type Body = Either<Incoming, Empty<Bytes>>;

/// Serves until standard input ends.
pub(crate) fn run(upstream: &str) -> Result<()> {
    let upstream: Authority = upstream.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate::cores())
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    let address = listener.local_addr()?;
    runtime.spawn(accept(listener, upstream));
    child::announce_and_wait(address)
}

async fn accept(listener: TcpListener, upstream: Authority) -> Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, upstream) = (client.clone(), upstream.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| forward(&client, &upstream, request));
            let io = TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        });
    }
}

async fn forward(
    client: &Client<HttpConnector, Incoming>,
    upstream: &Authority,
    mut request: Request<Incoming>,
) -> std::result::Result<Response<Body>, Infallible> {
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(upstream.clone());
    // A request target of another form than a path cannot be forwarded; the load sends none.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    request.headers_mut().remove(header::CONNECTION);
    if let Ok(host) = HeaderValue::from_str(upstream.as_str()) {
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(match client.request(request).await {
        Ok(response) => response.map(Either::Left),
        Err(error) => {
            eprintln!("passthrough: {error}");
            let mut response = Response::new(Either::Right(Empty::new()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    })
}
