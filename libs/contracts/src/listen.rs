//! How services listen: one socket for both families of addresses, so that they serve in clusters of IPv4, of IPv6 and
//! of both.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Every own address, of both families.
pub const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

/// Listens, without blocking. Where the kernel has no IPv6, [`everywhere`] is every address of IPv4.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        Err(error) if address == everywhere(address.port()) && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}
