//! Where connections come from: addresses, Unix sockets, and sockets that the service manager passes.
//!
//! Invariant: every listener is bound, and dropping it removes the Unix socket that it created.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

use super::origin::Origin;
use super::stream::Stream;
use crate::config::ListenAddress;
use crate::unix_socket::{self, Access, SocketFile};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A bound socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The name in the log.
    name: String,
    /// Removed when the listener is dropped.
    _created: Option<SocketFile>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds an address. Must be called within a runtime.
    ///
    /// # Errors
    /// When the address is in use, not available, or not allowed. A Unix socket on which no process is listening any
    /// more is replaced; any other file at its path is left alone and causes an error.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => listen(*address)?.try_into(),
            ListenAddress::Unix(path) => {
                // The permissions of the folder decide which users may connect.
                let access = Access { mode: 0o666, group: None };
                let (socket, created) = unix_socket::bind(path, &access).await?;
                Ok(Self { socket: Socket::Unix(socket), name: address.to_string(), _created: Some(created) })
            }
        }
    }

    /// The sockets that the service manager passes (`LISTEN_FDS`), in the order in which it passes them. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// When there are none, or one of them does not accept connections.
    pub fn inherited() -> io::Result<Vec<Self>> {
        let mut passed = ListenFd::from_env();
        let listeners =
            (0..passed.len()).map(|index| Self::inherit(&mut passed, index)).collect::<io::Result<Vec<_>>>()?;
        if listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the service manager passed no socket"));
        }
        Ok(listeners)
    }

    fn inherit(passed: &mut ListenFd, index: usize) -> io::Result<Self> {
        // A socket of another family is refused here and left for `take_unix_listener`.
        if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
            socket.set_nonblocking(true)?;
            return TcpListener::from_std(socket)?.try_into();
        }
        let socket = passed.take_unix_listener(index)?;
        let socket = socket.ok_or_else(|| io::Error::other(format!("socket {index} was taken already")))?;
        socket.set_nonblocking(true)?;
        let name = match socket.local_addr()?.as_pathname() {
            Some(path) => ListenAddress::Unix(path.to_owned()).to_string(),
            None => format!("socket {index} of the service manager"),
        };
        // The socket file belongs to the service manager.
        Ok(Self { socket: Socket::Unix(UnixListener::from_std(socket)?), name, _created: None })
    }

    /// The name in the log: the address with the port that was bound, or `unix:` and the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, Origin)> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                // Without this option the last part of a response may wait for the client's acknowledgement. If the
                // option cannot be set, only time is lost.
                let _ = stream.set_nodelay(true);
                (Box::new(stream), address.into())
            }
            Socket::Unix(socket) => (Box::new(socket.accept().await?.0), Origin::default()),
        })
    }
}

impl TryFrom<TcpListener> for Listener {
    type Error = io::Error;

    fn try_from(socket: TcpListener) -> io::Result<Self> {
        let name = socket.local_addr()?.to_string();
        Ok(Self { socket: Socket::Tcp(socket), name, _created: None })
    }
}

/// Listens on an address. `[::]` means every address; on a kernel without IPv6, every IPv4 address.
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
        // Otherwise `[::]` would not accept IPv4 if net.ipv6.bindv6only is 1.
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // As in the standard library, so that a restarted exporter does not wait for the connections of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Without `set_only_v6` this fails if `net.ipv6.bindv6only` is 1.
    #[tokio::test]
    async fn the_unspecified_ipv6_address_accepts_ipv4_too() {
        let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        if address.is_ipv6() {
            assert!(!SockRef::from(&listener).only_v6().unwrap());
        }
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await.unwrap();
    }
}
