//! What to dial.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::{TcpStream, UnixStream};
use url::{Host, Url};

use super::Stream;
use super::place::socket_path;

/// What is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A name, looked up anew each time, or a number; and a port.
    Tcp(Host<String>, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// What the URL of an upstream means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What is dialled.
    pub target: Target,
    /// Whether TLS is spoken on the connection.
    pub tls: bool,
    /// Whether it is a WebSocket.
    pub websocket: bool,
    /// The URL as HTTP sees it, with the scheme `http` or `https`. The host of a unix socket is `localhost`.
    pub url: Url,
}

impl Site {
    /// Reads `http:`, `https:`, `ws:` and `wss:` URLs, and unix sockets: `unix:/run/x.sock:/path`, as nginx writes them,
    /// or `http+unix://%2Frun%2Fx.sock/path`. Says what is wrong with others.
    pub fn of(url: &Url) -> Result<Self, String> {
        let (tls, websocket) = match url.scheme() {
            "http" => (false, false),
            "https" => (true, false),
            "ws" => (false, true),
            "wss" => (true, true),
            "unix" => return Self::unix(url, false),
            "http+unix" | "ws+unix" => return Self::unix(url, url.scheme() == "ws+unix"),
            scheme => {
                return Err(format!(
                    "begins with `{scheme}:`; it must begin with `http:`, `https:`, `ws:`, `wss:` or `unix:`"
                ));
            }
        };
        let host = url.host().ok_or("names no host")?.to_owned();
        let port = url.port_or_known_default().ok_or("names no port")?;
        if port == 0 {
            return Err("has port 0, which nobody can dial".to_owned());
        }
        if host == Host::Domain("unix".to_owned()) && url.path().contains(".sock") {
            let rest = url.path();
            return Err(format!("names the host `unix`; write a unix socket as `unix:{rest}`"));
        }
        let mut own = url.clone();
        let scheme = if tls { "https" } else { "http" };
        own.set_scheme(scheme).map_err(|()| "cannot be dialled".to_owned())?;
        Ok(Self { target: Target::Tcp(host, port), tls, websocket, url: own })
    }

    fn unix(url: &Url, websocket: bool) -> Result<Self, String> {
        let (socket, path) = match url.host_str().filter(|host| !host.is_empty()) {
            Some(host) if url.scheme() != "unix" => (host, url.path()),
            Some(_) => return Err("needs an absolute path, as in `unix:/run/x.sock:/path`".into()),
            None => url.path().split_once(':').unwrap_or((url.path(), "/")),
        };
        let socket = socket_path(&decoded(socket)?)?;
        let path = if path.is_empty() { "/" } else { path };
        if !path.starts_with('/') {
            return Err(format!("has the path `{path}` behind the socket; it must begin with `/`"));
        }
        let mut own = Url::parse("http://localhost/").map_err(|error| error.to_string())?;
        own.set_path(path);
        own.set_query(url.query());
        own.set_fragment(url.fragment());
        Ok(Self { target: Target::Unix(socket), tls: false, websocket, url: own })
    }
}

/// `%2F` and the like as the bytes that they stand for.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| tail.get(..2)).flatten();
        let byte = escaped
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).map_err(|_| "names a socket that is no UTF-8".to_owned())
}

impl Target {
    /// A connection without TLS. Every address of a name is tried in turn; whoever calls limits the time.
    pub async fn connect(&self) -> io::Result<Stream> {
        let stream = match self {
            Self::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
            Self::Tcp(Host::Ipv4(ip), port) => {
                TcpStream::connect(SocketAddr::from((*ip, *port))).await
            }
            Self::Tcp(Host::Ipv6(ip), port) => {
                TcpStream::connect(SocketAddr::from((*ip, *port))).await
            }
            Self::Tcp(Host::Domain(name), port) => TcpStream::connect((name.as_str(), *port)).await,
        }?;
        let _ = stream.set_nodelay(true);
        Ok(Stream::Tcp(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(text: &str) -> Result<Site, String> {
        Site::of(&text.parse().unwrap())
    }

    #[test]
    fn sockets_are_written_as_users_of_nginx_and_docker_write_them() {
        for text in [
            "unix:/run/a%20b.sock:/rpc?key=1",
            "unix:///run/a%20b.sock:/rpc?key=1",
            "http+unix://%2Frun%2Fa%20b.sock/rpc?key=1",
        ] {
            let site = site(text).unwrap();
            assert_eq!(site.target, Target::Unix("/run/a b.sock".into()), "{text}");
            assert_eq!(site.url.as_str(), "http://localhost/rpc?key=1", "{text}");
            assert!(!site.tls && !site.websocket);
        }
        assert_eq!(site("unix:/run/x.sock").unwrap().url.path(), "/");
        assert!(site("ws+unix://%2Frun%2Fx.sock/").unwrap().websocket);
    }

    #[test]
    fn addresses_keep_their_host_and_get_a_port() {
        let read = site("wss://[::1]/x").unwrap();
        assert_eq!(read.target, Target::Tcp(Host::Ipv6(std::net::Ipv6Addr::LOCALHOST), 443));
        assert!(read.tls && read.websocket);
        assert_eq!(read.url.as_str(), "https://[::1]/x");
        assert_eq!(site("ws://h:1/").unwrap().url.as_str(), "http://h:1/");
        assert_eq!(site("ws://h/").unwrap().target, Target::Tcp(Host::Domain("h".into()), 80));
    }

    #[test]
    fn what_cannot_be_dialled_says_why() {
        for (text, why) in [
            ("ftp://h/", "begins with `ftp:`"),
            ("http://h:0/", "port 0"),
            ("http://unix:/run/x.sock:/rpc", "unix:/run/x.sock:/rpc"),
            ("unix://run/x.sock", "absolute"),
            ("unix:x.sock", "absolute"),
            ("unix:/run/x.sock:rpc", "must begin with `/`"),
            ("http+unix://x.sock/rpc", "absolute"),
        ] {
            let error = site(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
