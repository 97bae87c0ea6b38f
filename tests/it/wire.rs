//! Clients for connections of any kind: HTTP/1.1 and HTTP/2 over TCP, unix sockets and TLS.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{Reply, patient};

/// Anything that HTTP can be spoken on.
pub trait Line: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Line for T {}

/// POST of JSON; the host is `localhost`.
pub fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(Full::new(body.into()))
        .expect("a request")
}

/// One exchange by HTTP/1.1.
pub async fn http1(line: impl Line, request: Request<Full<Bytes>>) -> Reply {
    let answered = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(line)).await.expect("HTTP");
        tokio::spawn(connection);
        sender.send_request(request).await.expect("an answer")
    };
    whole(patient("an answer", answered).await).await
}

/// Sends requests by HTTP/2.
pub type Http2 = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// A connection of HTTP/2.
pub async fn http2(line: impl Line) -> Http2 {
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(line));
    let (sender, connection) = patient("HTTP/2", handshake).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// POST of JSON as HTTP/2 has it: the host is in the URL.
pub fn post2(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut request = post(&format!("http://localhost{path}"), body);
    request.headers_mut().remove("host");
    request
}

/// The rest of a response.
pub async fn whole(response: http::Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let body = patient("the end of a body", body.collect()).await.expect("a whole body");
    Reply { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes() }
}

/// Connects to a unix socket.
pub async fn unix(path: &Path) -> UnixStream {
    UnixStream::connect(path).await.expect("somebody listens")
}

/// What a client of TLS trusts, shows and offers.
#[derive(Clone, Default)]
pub struct Tls {
    pub ca: String,
    /// Certificate and key.
    pub identity: Option<(String, String)>,
    pub alpn: Vec<&'static str>,
}

impl Tls {
    /// Sets TLS up for `localhost`.
    pub async fn connect(
        &self,
        addr: std::net::SocketAddr,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.ca.as_bytes()) {
            roots.add(certificate.expect("PEM")).expect("an authority");
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = CertificateDer::pem_slice_iter(cert.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("an identity")
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Each handshake is a whole one.
        config.resumption = rustls::client::Resumption::disabled();
        let stream = TcpStream::connect(addr).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        patient("TLS", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }
}
