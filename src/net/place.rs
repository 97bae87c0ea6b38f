//! Where to listen.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest path of a unix socket that the system takes.
const LONGEST_PATH: usize = 107;

/// Where clients are listened for. As text: `127.0.0.1:8808`, `[::1]:8808`, `unix:/run/trunkline.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// An address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl Place {
    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Whether both cannot be listened on at once. Port 0 is a new port each time.
    pub fn clashes(&self, other: &Self) -> bool {
        self == other && !matches!(self, Self::Tcp(address) if address.port() == 0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| {
                format!("`{text}` is not IP:PORT, such as \"127.0.0.1:8808\", nor \"unix:/path\"")
            });
        };
        socket_path(path).map(Self::Unix)
    }
}

/// The path of a unix socket, behind `unix:`; `//` may stand in front as in URLs.
pub(super) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("//").unwrap_or(text);
    if !path.starts_with('/') {
        return Err(format!("`unix:{text}` needs an absolute path, such as \"unix:/run/x.sock\""));
    }
    if path.ends_with('/') || path.contains('\0') {
        return Err(format!("`unix:{text}` names no file"));
    }
    if path.len() > LONGEST_PATH {
        return Err(format!(
            "the path of `unix:{text}` is longer than the {LONGEST_PATH} bytes that the system takes"
        ));
    }
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart_and_print_as_they_are_written() {
        for text in ["127.0.0.1:8808", "[::1]:0", "unix:/run/a b.sock"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        let slashed: Place = "unix:///run/x.sock".parse().unwrap();
        assert_eq!(slashed, Place::Unix("/run/x.sock".into()));
        let long = format!("unix:/{}", "x".repeat(107));
        for text in ["8808", "localhost:1", "unix:", "unix:x.sock", "unix:@x", "unix:/run/", &long]
        {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
