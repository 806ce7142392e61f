//! Which callers may connect at all.
//!
//! Only the gateway's signature is obeyed, but connections are few: the workload could hold all of them, and the
//! gateway would find a sandbox that does not answer. The workload can connect only from the sandbox's own addresses,
//! so connections from those are refused at once.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The callers whose connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Callers from outside the sandbox.
    OtherHosts,
    /// Also callers from the same host, as in tests.
    Anybody,
}

impl Callers {
    /// Whether to serve the peer of a connection to the own address `own`.
    pub fn include(self, peer: SocketAddr, own: IpAddr) -> bool {
        self == Self::Anybody || !is_of_this_host(peer, own)
    }
}

fn is_of_this_host(peer: SocketAddr, own: IpAddr) -> bool {
    let address = peer.ip().to_canonical();
    address.is_loopback() || address == own.to_canonical() || can_be_bound(peer)
}

/// An address that can be bound belongs to an interface of this host. A sandbox may have more addresses than the called
/// one.
fn can_be_bound(peer: SocketAddr) -> bool {
    let any_port = match (peer, peer.ip().to_canonical()) {
        (_, IpAddr::V4(address)) => SocketAddr::new(address.into(), 0),
        // With its scope: a link-local address cannot be bound without it.
        (mut whole, IpAddr::V6(_)) => {
            whole.set_port(0);
            whole
        }
    };
    UdpSocket::bind(any_port).is_ok()
}

#[cfg(test)]
mod tests;
