//! Making connections: TCP, TLS or a unix socket, for whatever is spoken on them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::{Host, Url};

use crate::config::{UpstreamConfig, UpstreamName};
use crate::net::tls::{ClientRecipe, HTTP1, HTTP2, Live, describe, in_error};
use crate::net::{Site, Stream, Target};

/// Which versions of HTTP are offered while TLS is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/1.1; what a WebSocket needs.
    Http1,
    /// HTTP/2, else HTTP/1.1.
    Either,
    /// HTTP/2.
    Http2,
}

/// How connections to one upstream are made. Names are looked up anew for each, and certificates are those that its
/// files hold now.
#[derive(Debug)]
pub(super) struct Dialer {
    target: Target,
    tls: Option<Tls>,
    limit: Duration,
    /// The URL as HTTP sees it.
    url: Url,
}

#[derive(Debug)]
struct Tls {
    live: Arc<Live<ClientRecipe>>,
    /// What its certificate must be for.
    name: ServerName<'static>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct NoConnection {
    /// For the log, without address.
    pub(super) what: String,
    /// The cause, where there is one.
    pub(super) source: Option<io::Error>,
}

impl Dialer {
    /// Dials nothing yet. Says what is wrong with an address that cannot be dialled, or with certificates. A task of
    /// `tasks` reads changed certificates until `stop`.
    pub(super) fn new(
        name: &UpstreamName,
        config: &UpstreamConfig,
        offer: Offer,
        (tasks, stop): (&TaskTracker, &CancellationToken),
    ) -> Result<Self, String> {
        let url = config.url.as_ref().ok_or("it has no url")?;
        let site = Site::of(url).map_err(|what| format!("its url {what}"))?;
        let tls = match &site.target {
            Target::Tcp(host, _) if site.tls => Some(Tls::new(host, config, offer)?),
            Target::Tcp(..) | Target::Unix(_) => None,
        };
        // There is none in unit tests that only look at what is set up.
        if let (Some(tls), Ok(runtime)) = (&tls, tokio::runtime::Handle::try_current()) {
            let what = format!("upstream {name}");
            tasks.spawn_on(Arc::clone(&tls.live).keep_fresh(what, stop.clone()), &runtime);
        }
        Ok(Self { target: site.target, tls, limit: config.connect_timeout, url: site.url })
    }

    /// The URL as HTTP sees it: `http` or `https`; the host of a unix socket is `localhost`.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Whether TLS is set up.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// A new connection, with TLS set up if there is to be any, within `connect_timeout`. [`Stream::alpn`] says what was
    /// agreed on.
    pub(super) async fn dial(&self) -> Result<Stream, NoConnection> {
        match timeout(self.limit, self.connect()).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(NoConnection { what: explain(&error), source: Some(error) }),
            Err(_) => {
                let what = format!("no connection within {:?}", self.limit);
                Err(NoConnection { what, source: None })
            }
        }
    }

    async fn connect(&self) -> io::Result<Stream> {
        match (self.target.connect().await?, &self.tls) {
            (Stream::Tcp(stream), Some(tls)) => {
                let connector = TlsConnector::from(tls.live.current());
                let stream = connector.connect(tls.name.clone(), stream).await?;
                Ok(Stream::Tls(Box::new(TlsStream::from(stream))))
            }
            (stream, _) => Ok(stream),
        }
    }
}

impl Tls {
    fn new(host: &Host<String>, config: &UpstreamConfig, offer: Offer) -> Result<Self, String> {
        let alpn: &[&[u8]] = match offer {
            Offer::Http1 => &[HTTP1],
            Offer::Either => &[HTTP2, HTTP1],
            Offer::Http2 => &[HTTP2],
        };
        let recipe = config.tls.recipe(alpn.iter().map(|name| name.to_vec()).collect());
        let live = Live::new(recipe).map_err(|error| format!("its tls: {error}"))?;
        let name = match (&config.tls.server_name, host) {
            (Some(name), _) | (None, Host::Domain(name)) => ServerName::try_from(name.clone())
                .map_err(|_| format!("{name} is no name that a certificate can be for"))?,
            (None, Host::Ipv4(ip)) => ServerName::from(std::net::IpAddr::V4(*ip)),
            (None, Host::Ipv6(ip)) => ServerName::from(std::net::IpAddr::V6(*ip)),
        };
        Ok(Self { live, name })
    }
}

/// What went wrong, without the address.
fn explain(error: &io::Error) -> String {
    if let Some(error) = in_error(error) {
        return describe(error);
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "no route to the host".to_owned()
        }
        io::ErrorKind::NotFound if error.raw_os_error().is_some() => {
            "there is no such socket".to_owned()
        }
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        // What rustls says of a connection that ends while TLS is set up.
        io::ErrorKind::UnexpectedEof => {
            "it closed the connection while TLS was set up; does it speak TLS there?".to_owned()
        }
        kind if error.raw_os_error().is_none() => {
            tracing::debug!(%kind, "a host name was not resolved");
            "the host name cannot be resolved".to_owned()
        }
        kind => kind.to_string(),
    }
}
