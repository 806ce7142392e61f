//! How services listen: one socket for both address families, so that they work in IPv4, IPv6 and dual-stack clusters.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// A node without power closes no connection: a silent peer is asked after this time, and given up after three
/// questions without an answer. Otherwise its calls, and their places, would last as long as their own time limits, up
/// to a day.
const PEER_SILENT: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_secs(10);
const QUESTIONS: u32 = 3;

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
    // Connections inherit both. Without the first, the last part of a streamed answer waits 40 ms for an
    // acknowledgement.
    let socket = socket2::SockRef::from(&listener);
    socket.set_tcp_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new().with_time(PEER_SILENT);
    socket.set_tcp_keepalive(&keepalive.with_interval(ASK_AGAIN).with_retries(QUESTIONS))?;
    Ok(listener)
}
