//! Limits the number of connections.
//!
//! Connections are few, and every peer that reaches the port can open one. A connection that has carried a call with
//! the gateway's signature keeps its place. The others give way to newer connections: the oldest of the same address
//! first, so that a peer displaces its own connections before those of other peers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum connections. The gateway holds at most 136 for relays (8 ports, each with 16 connections and one waiting),
/// which the workload can use up, and pools a few for its other calls.
const ALL: usize = 256;
/// Maximum connections of one address without a signed call, such as the kubelet's and the gateway's probes. A client
/// may make 32 calls at once, each on a new connection of the gateway, and a connection is unproven until its body is
/// there.
const UNPROVEN_OF_ONE: usize = 64;

/// The places for connections. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Places(Arc<Mutex<TakenPlaces>>);

#[derive(Default)]
struct TakenPlaces {
    next: u64,
    /// Oldest first.
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    peer: IpAddr,
    proven: bool,
    give_way: Arc<Notify>,
}

/// One connection's place, until it is dropped.
pub struct Place {
    number: u64,
    places: Places,
    give_way: Arc<Notify>,
}

impl Places {
    /// A place for a new connection, if necessary at the cost of another. `None` if all places have connections with
    /// signed calls.
    pub fn take(&self, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut taken = self.lock();
        let unproven = |taken: &TakenPlaces, of: Option<IpAddr>| -> Vec<u64> {
            let all = taken.connections.iter();
            let found = all.filter(|(_, held)| !held.proven && of.is_none_or(|peer| held.peer == peer));
            found.map(|(number, _)| *number).collect()
        };
        let own = unproven(&taken, Some(peer));
        if own.len() >= UNPROVEN_OF_ONE {
            taken.end(own[0]);
        } else if taken.connections.len() >= ALL {
            let oldest = *unproven(&taken, None).first()?;
            taken.end(oldest);
        }
        let (number, give_way) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        let connection = Connection {
            peer,
            proven: false,
            give_way: give_way.clone(),
        };
        taken.connections.insert(number, connection);
        let places = self.clone();
        Some(Place {
            number,
            places,
            give_way,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenPlaces {
    fn end(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            connection.give_way.notify_one();
        }
    }
}

impl Place {
    /// The connection has carried a signed call of the gateway.
    pub fn prove(&self) {
        if let Some(connection) = self.places.lock().connections.get_mut(&self.number) {
            connection.proven = true;
        }
    }

    /// Returns when another connection has taken the place.
    pub async fn taken_away(&self) {
        self.give_way.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
