//! How services listen: one socket for both address families, so that they work in IPv4, IPv6 and dual-stack clusters.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// All local addresses of both families.
pub const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

/// A non-blocking listener. If the kernel has no IPv6, [`everywhere`] means all IPv4 addresses.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        Err(error) if address == everywhere(address.port()) && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    // Connections inherit it. Without it, the last part of a streamed answer waits 40 ms for an acknowledgement.
    socket2::SockRef::from(&listener).set_tcp_nodelay(true)?;
    Ok(listener)
}
