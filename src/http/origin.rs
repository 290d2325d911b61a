//! The address that a connection comes from, as far as it stands for one client.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The bits of an IPv6 address that name a network. Within one network a client can choose any address.
const NETWORK: u128 = !0 << 64;

/// The IPv4 address or the IPv6 network (/64) of a client; `None` for all clients of Unix sockets together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Origin(pub(super) Option<IpAddr>);

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        let address = match address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
            address => address,
        };
        Self(Some(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_have_a_second_address_in_its_own_network() {
        let origin = |text: &str| Origin::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(origin("10.0.0.1:1"), origin("[::ffff:10.0.0.1]:2"));
        assert_ne!(origin("10.0.0.1:1"), origin("10.0.0.2:1"));
        assert_eq!(origin("[2001:db8::1]:1"), origin("[2001:db8::ffff:1]:1"));
        assert_ne!(origin("[2001:db8::1]:1"), origin("[2001:db8:0:1::1]:1"));
    }
}
