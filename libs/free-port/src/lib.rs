//! Local ports for servers that tests start.
//!
//! A port that the kernel chose (port 0) and that was closed again is not safe: before the server listens, the kernel
//! may give it to a client's connection, or to the next test. The ports here are below the kernel's range for
//! connections, and one process returns each port only once.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// Linux uses 32768 to 60999 for connections.
const PORTS: Range<u16> = 11_000..30_000;

/// A port without a listener that this process has not returned before; `None` if all are taken.
pub fn free_port() -> Option<u16> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(somewhere()));
    let count = u32::from(PORTS.end - PORTS.start);
    PORTS
        .map(|_| PORTS.start + (next.fetch_add(1, Ordering::Relaxed) % count) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
}

/// A different start for each of several concurrent processes.
fn somewhere() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_nanos()) ^ std::process::id().wrapping_mul(2_654_435_761)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_port_is_given_once_lies_below_those_of_connections_and_can_be_listened_on() {
        let ports: Vec<u16> = (0..200).map(|_| free_port().unwrap()).collect();
        let held: Vec<_> = ports
            .iter()
            .map(|port| TcpListener::bind(("127.0.0.1", *port)).unwrap())
            .collect();
        assert_eq!(held.len(), ports.iter().collect::<BTreeSet<_>>().len());
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn a_port_with_a_listener_is_left_out() {
        let held = TcpListener::bind(("127.0.0.1", free_port().unwrap())).unwrap();
        let taken = held.local_addr().unwrap().port();
        assert!((0..PORTS.len()).all(|_| free_port() != Some(taken)));
    }
}
