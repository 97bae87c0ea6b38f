//! Sockets that are listened on: bound, and unix sockets cleared away.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::net::Place;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// A place that cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}; {remedy}")]
pub struct BindError {
    /// The place.
    pub place: Place,
    /// What to do.
    pub remedy: &'static str,
    /// The cause.
    pub source: io::Error,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Bound,
    /// Where it really listens (port 0 is resolved).
    pub place: Place,
}

/// The socket itself.
#[derive(Debug)]
pub(super) enum Bound {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A unix socket, whose file goes when it does.
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// Binds a place; `mode` are the permissions of a unix socket.
pub fn bind(place: &Place, mode: u32) -> Result<Listener, BindError> {
    match place {
        Place::Tcp(address) => {
            let (socket, address) = bind_tcp(*address)?;
            Ok(Listener { socket: Bound::Tcp(socket), place: Place::Tcp(address) })
        }
        Place::Unix(path) => {
            let (socket, file) = bind_unix(path, mode).map_err(|source| {
                let remedy = match source.kind() {
                    io::ErrorKind::AddrInUse => "stop the other process, or change server.listen",
                    io::ErrorKind::AlreadyExists => "remove the file, or change server.listen",
                    io::ErrorKind::NotFound => "create its folder, or change server.listen",
                    _ => "see that the folder can be written to, or change server.listen",
                };
                BindError { place: place.clone(), remedy, source }
            })?;
            Ok(Listener { socket: Bound::Unix(socket, file), place: place.clone() })
        }
    }
}

/// Binds an address; it is given back with its port.
pub fn bind_tcp(address: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), BindError> {
    let bound = || -> io::Result<_> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = std::net::TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    bound().map_err(|source| BindError {
        place: Place::Tcp(address),
        remedy: "is another process using it? Change server.listen or admin.listen",
        source,
    })
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<(std::os::unix::net::UnixListener, SocketFile)> {
    // Two that start at once do not clear away each other's sockets. A folder that cannot be locked is no reason
    // not to serve.
    let folder = path.parent().and_then(|folder| File::open(folder).ok());
    let _locked = folder.as_ref().map(File::lock);
    clear(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::of(path)?;
    // Nobody connects before it listens, so nobody does who may not.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    Ok((OwnedFd::from(socket).into(), file))
}

/// Takes away a socket that nobody serves any more. Anything else stays.
fn clear(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !there.file_type().is_socket() {
        let what = "a file that is no socket is in its place";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        // It accepts, its backlog is full, or it is a socket of another kind: somebody is there.
        Ok(()) | Err(_) => {
            let what = "another process listens there";
            Err(io::Error::new(io::ErrorKind::AddrInUse, what))
        }
    }
}

/// The file of a unix socket. It is removed with this, unless another has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}
