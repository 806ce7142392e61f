//! Ports for the rendezvous of tests. This crate uses none of ours, so it has its own.
//!
//! Rank 0 listens only some time after the port was chosen. A port that the kernel chose (port 0) may belong to the
//! listener of another test by then. The ports here are below the kernel's range for connections and listeners, and one
//! process returns each port only once.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Linux uses 32768 to 60999, and the crate for ports of other tests 11000 to 29999.
const PORTS: Range<u16> = 30_000..32_000;

/// A port without a listener. Concurrent processes begin at different ones.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (first, count) = (std::process::id().wrapping_mul(61), PORTS.len() as u32);
    let mut ports = PORTS.map(|_| {
        let at = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        PORTS.start + at as u16
    });
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a port of this machine is free")
}
