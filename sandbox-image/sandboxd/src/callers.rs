//! Who may connect at all.
//!
//! Only the gateway's signature is obeyed, but connections are few: what runs in the sandbox could hold every one of
//! them, and the gateway would find a sandbox that does not answer. It can connect only from the sandbox's own
//! addresses, so callers from those are refused as they come.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Whose connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Those from outside the sandbox.
    OtherHosts,
    /// Also those from the same host, as in tests.
    Anybody,
}

impl Callers {
    /// Whether the peer of a connection to the own address `own` is served.
    pub fn include(self, peer: SocketAddr, own: IpAddr) -> bool {
        self == Self::Anybody || !is_of_this_host(peer, own)
    }
}

fn is_of_this_host(peer: SocketAddr, own: IpAddr) -> bool {
    let address = peer.ip().to_canonical();
    address.is_loopback() || address == own.to_canonical() || can_be_bound(peer)
}

/// An address that can be bound belongs to an interface of this host: a sandbox may have more than the one that was
/// called.
fn can_be_bound(peer: SocketAddr) -> bool {
    let any_port = match (peer, peer.ip().to_canonical()) {
        (_, IpAddr::V4(address)) => SocketAddr::new(address.into(), 0),
        // With its scope, without which a link-local address cannot be bound.
        (mut whole, IpAddr::V6(_)) => {
            whole.set_port(0);
            whole
        }
    };
    UdpSocket::bind(any_port).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(peer: &str, own: &str) -> bool {
        Callers::OtherHosts.include(peer.parse().unwrap(), own.parse().unwrap())
    }

    #[test]
    fn a_caller_from_an_address_of_this_host_is_refused_however_it_is_written() {
        for (peer, own) in [
            ("127.0.0.1:4000", "127.0.0.1"),
            ("127.8.9.10:4000", "192.0.2.7"),
            ("[::1]:4000", "::1"),
            ("[::ffff:127.0.0.1]:4000", "::ffff:192.0.2.7"),
            ("[::ffff:192.0.2.7]:4000", "192.0.2.7"),
            ("192.0.2.7:4000", "::ffff:192.0.2.7"),
        ] {
            assert!(!served(peer, own), "{peer} to {own}");
        }
    }

    #[test]
    fn an_address_of_another_interface_is_of_this_host_too() {
        assert!(can_be_bound("[::ffff:127.0.0.1]:4000".parse().unwrap()));
        assert!(!can_be_bound("192.0.2.1:4000".parse().unwrap()));
    }

    #[test]
    fn a_caller_from_elsewhere_is_served() {
        assert!(served("192.0.2.1:4000", "192.0.2.7"));
        assert!(served("[::ffff:192.0.2.1]:4000", "::ffff:192.0.2.7"));
        assert!(Callers::Anybody.include("127.0.0.1:4000".parse().unwrap(), "127.0.0.1".parse().unwrap()));
    }
}
