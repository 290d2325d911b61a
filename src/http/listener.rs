//! Where connections come from: addresses, unix sockets, and sockets that the service manager hands over.
//!
//! Invariant: a listener that exists is bound, and a unix socket that it made is taken away again with it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::config::ListenAddress;

/// Connections that may wait to be taken in.
const BACKLOG: u32 = 1024;

/// A bound socket that connections come from.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// How the log names it.
    name: String,
    /// Taken away when the listener goes.
    _made: Option<SocketFile>,
}

/// A socket file that was made here: where, and which one, since another may stand in its place by the time it goes.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Binds an address. To be called within a runtime.
    ///
    /// # Errors
    /// When it is in use, not there, or not allowed. A unix socket that nobody listens on any longer is replaced; any
    /// other file in its place is left alone and refused.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => listen(*address)?.try_into(),
            ListenAddress::Unix(path) => {
                remove_abandoned(path).await?;
                let socket = Socket::Unix(UnixListener::bind(path)?);
                let made = SocketFile { path: path.clone(), identity: identity(path) };
                // Who may enter its folder may use it, whatever the umask is: connecting takes the right to write.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
                Ok(Self { socket, name: address.to_string(), _made: Some(made) })
            }
        }
    }

    /// The sockets that the service manager hands over (`LISTEN_FDS`), in its order. To be called within a runtime.
    ///
    /// # Errors
    /// When there is none, or one of them takes no connections.
    pub fn inherited() -> io::Result<Vec<Self>> {
        let mut handed = ListenFd::from_env();
        let listeners =
            (0..handed.len()).map(|index| Self::inherit(&mut handed, index)).collect::<io::Result<Vec<_>>>()?;
        if listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the service manager handed over no socket"));
        }
        Ok(listeners)
    }

    fn inherit(handed: &mut ListenFd, index: usize) -> io::Result<Self> {
        // A socket of another family is an error of the first and left for the second.
        if let Ok(Some(socket)) = handed.take_tcp_listener(index) {
            socket.set_nonblocking(true)?;
            return TcpListener::from_std(socket)?.try_into();
        }
        let socket = handed.take_unix_listener(index)?;
        let socket = socket.ok_or_else(|| io::Error::other(format!("socket {index} was taken already")))?;
        socket.set_nonblocking(true)?;
        let name = match socket.local_addr()?.as_pathname() {
            Some(path) => ListenAddress::Unix(path.to_owned()).to_string(),
            None => format!("socket {index} of the service manager"),
        };
        // Its file belongs to the service manager.
        Ok(Self { socket: Socket::Unix(UnixListener::from_std(socket)?), name, _made: None })
    }

    /// How the log names it: the address with the port that was really taken, or `unix:` and the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                // Without it the last part of an answer may wait for the client's acknowledgement. A failure only costs time.
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }
            Socket::Unix(socket) => Stream::Unix(socket.accept().await?.0),
        })
    }
}

impl TryFrom<TcpListener> for Listener {
    type Error = io::Error;

    fn try_from(socket: TcpListener) -> io::Result<Self> {
        let name = socket.local_addr()?.to_string();
        Ok(Self { socket: Socket::Tcp(socket), name, _made: None })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // No longer allowed: then it is somebody else's business.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on an address. `[::]` is every address: where the kernel has no IPv6, every one of IPv4.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match open(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            open((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        opened => opened,
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.is_ipv6() {
        // Where the system has it otherwise (net.ipv6.bindv6only), `[::]` would leave IPv4 without an answer.
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // As the standard library has it: an exporter that starts again does not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Device and inode of what stands at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Takes away the socket of an exporter that was killed. Where somebody still listens, binding will say so; one who listens and
/// does not accept is not waited for.
async fn remove_abandoned(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    let answer = tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(path)).await;
    match answer {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// To be seen to fail where `net.ipv6.bindv6only` is 1.
    #[tokio::test]
    async fn every_address_is_every_address_of_ipv4_too() {
        let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        if address.is_ipv6() {
            assert!(!SockRef::from(&listener).only_v6().unwrap());
        }
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await.unwrap();
    }
}
