//! Addresses to listen on, and their form as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The prefix of the path of a socket file.
const UNIX: &str = "unix:";
/// The longest path that the system accepts for a socket, without the terminating null byte.
const LONGEST_SOCKET_PATH: usize = 107;

/// An address of the web server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A literal address and a port. `:PORT` is `[::]:PORT`, which accepts IPv4 too.
    Tcp(SocketAddr),
    /// The absolute path of a socket file.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether the two addresses cannot be listened on at the same time, because they are the same or one includes the
    /// other. Port 0 means a new free port each time.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                one.port() == other.port() && one.port() != 0 && (takes_in(one, other) || takes_in(other, one))
            }
            _ => self == other,
        }
    }
}

/// Whether a listener on `wide` also accepts connections to `address`, regardless of ports. `[::]` accepts IPv4.
fn takes_in(wide: &SocketAddr, address: &SocketAddr) -> bool {
    match (wide.ip().to_canonical(), address.ip().to_canonical()) {
        (IpAddr::V6(ip), _) if ip.is_unspecified() => true,
        (IpAddr::V4(ip), IpAddr::V4(_)) if ip.is_unspecified() => true,
        // The same link-local address on two links counts as two addresses.
        (IpAddr::V6(_), IpAddr::V6(_)) => {
            wide.ip() == address.ip()
                && matches!((wide, address), (SocketAddr::V6(a), SocketAddr::V6(b)) if a.scope_id() == b.scope_id())
        }
        (one, other) => one == other,
    }
}

impl fmt::Display for ListenAddress {
    /// Writes the address in a form that [`ListenAddress::from_str`] reads back as the same address.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(SocketAddr::V6(v6)) if v6.ip().is_unspecified() && v6.scope_id() == 0 => {
                write!(out, ":{}", v6.port())
            }
            Self::Tcp(address) => address.fmt(out),
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    /// Reads `:9836`, `127.0.0.1:9836`, `localhost:9836` (the same), `[::1]:9836` or `unix:/run/vram-exporter.sock`;
    /// the error states what is allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some(path) => socket_path(path).map(Self::Unix),
            None => socket_address(text).map(Self::Tcp),
        }
    }
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let plain = path.is_absolute() && !text.ends_with('/') && !text.contains(char::is_control);
    if !plain {
        return Err(format!("a socket file is given by its absolute path, such as \"{UNIX}/run/vram-exporter.sock\""));
    }
    if text.len() > LONGEST_SOCKET_PATH {
        return Err(format!("a socket's path has at most {LONGEST_SOCKET_PATH} bytes; this one has {}", text.len()));
    }
    Ok(path.to_owned())
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':').and_then(parse_port) {
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(parse_port) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = parse_port(text) {
        return Err(format!("a port needs a colon before it: \":{port}\""));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err("the port is missing; write it like \"127.0.0.1:9836\" or \"[::1]:9836\"".to_owned());
    }
    let named = text.rsplit_once(':').is_some_and(|(name, port)| {
        name.contains(|c: char| c.is_ascii_alphabetic()) && !name.contains([':', '[']) && parse_port(port).is_some()
    });
    if named {
        return Err("names are not resolved; give a literal address such as \"127.0.0.1:9836\"".to_owned());
    }
    Err("must be an address and a port from 0 to 65535: \":9836\", \"127.0.0.1:9836\" or \"[::1]:9836\"".to_owned())
}

fn parse_port(text: &str) -> Option<u16> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ListenAddress, String> {
        text.parse()
    }

    #[test]
    fn addresses_are_literal() {
        for (text, canonical) in [
            (":9836", ":9836"),
            (":0", ":0"),
            ("[::]:80", ":80"),
            ("127.0.0.1:9836", "127.0.0.1:9836"),
            ("localhost:9836", "127.0.0.1:9836"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:65535", "[::1]:65535"),
            ("unix:/run/vram-exporter.sock", "unix:/run/vram-exporter.sock"),
        ] {
            let address = read(text).unwrap();
            assert_eq!(address.to_string(), canonical);
            assert_eq!(read(canonical).unwrap(), address);
        }
        for (text, why) in [
            ("9836", "\":9836\""),
            ("127.0.0.1", "port is missing"),
            ("::1", "port is missing"),
            ("gpu-1:9836", "names are not resolved"),
            ("localhost:65536", "0 to 65535"),
            (":65536", "0 to 65535"),
            (":+1", "0 to 65535"),
            (":", "0 to 65535"),
            ("", "0 to 65535"),
            ("http://[::1]:80", "0 to 65535"),
            ("256.0.0.1:80", "0 to 65535"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    /// A port, and whether the first address keeps the second one from being bound to it. Other programs bind ports at the same
    /// time, so the second address must be free when the first one no longer is bound. `None` if an address cannot be bound.
    fn bound_together(one: &str, other: &str) -> Option<(u16, bool)> {
        use std::net::TcpListener;
        loop {
            let first = TcpListener::bind(format!("{one}:0")).ok()?;
            let port = first.local_addr().unwrap().port();
            match TcpListener::bind(format!("{other}:{port}")) {
                Ok(_) => return Some((port, false)),
                Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => return None,
                Err(_) => drop(first),
            }
            if TcpListener::bind(format!("{other}:{port}")).is_ok() {
                return Some((port, true));
            }
        }
    }

    /// Compares the result with the system's behaviour: the two addresses of each pair are bound at the same time.
    #[test]
    fn addresses_overlap_where_the_system_gives_one_of_them_only() {
        let tcp = ["0.0.0.0", "127.0.0.1", "127.0.0.2", "[::]", "[::1]", "[::ffff:127.0.0.1]"];
        for one in tcp {
            for other in tcp {
                // On a machine without IPv6, some of these addresses cannot be bound.
                let Some((port, taken)) = bound_together(one, other) else { continue };
                let at = |host: &str| read(&format!("{host}:{port}")).unwrap();
                assert_eq!(at(one).overlaps(&at(other)), taken, "{one} beside {other}");
                let next = read(&format!("{other}:{}", port ^ 1)).unwrap();
                assert!(!at(one).overlaps(&next));
            }
        }
        for (one, other, overlap) in [
            (":0", ":0", false),
            ("[fe80::1%1]:1", "[fe80::1%2]:1", false),
            ("[fe80::1%1]:1", "[fe80::1%1]:1", true),
            ("unix:/run/x", "unix:/run//./x", true),
            ("unix:/run/x", "unix:/run/y", false),
            ("unix:/run/x", ":1", false),
        ] {
            assert_eq!(read(one).unwrap().overlaps(&read(other).unwrap()), overlap, "{one} beside {other}");
        }
    }

    #[test]
    fn a_socket_file_is_named_by_a_path_that_the_system_takes() {
        for bad in ["unix:", "unix:run/x", "unix:/run/", "unix:/a\nb", "unix:@name", "unix://"] {
            assert!(read(bad).unwrap_err().contains("absolute path"), "{bad:?}");
        }
        let longest = format!("unix:/{}", "x".repeat(LONGEST_SOCKET_PATH - 1));
        assert!(read(&longest).is_ok());
        assert!(read(&format!("{longest}x")).unwrap_err().contains("at most 107 bytes"));
    }
}
