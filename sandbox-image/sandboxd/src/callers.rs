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
mod tests;
