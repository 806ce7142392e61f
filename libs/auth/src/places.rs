//! The places for connections at a service: how many there may be, and which connection gives way to a new one.
//!
//! Every pod that reaches the port can open connections: also a sandbox, where no NetworkPolicy is enforced. An address
//! is known while one of its connections is authorised: a caller has shown a valid token on it. Unknown addresses share
//! few places, which known addresses do not need. A new connection of an unknown address pushes out an old one: the
//! oldest of the same address, or the oldest of the address with the most. So a caller that is about to show its token
//! finds a place, however many connections others open.
//!
//! A known address may be a node's, with connections of many pods. So where the known addresses have all of their
//! places, the oldest connection of any of them that is not authorised gives way: probes find a place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all known addresses together.
    pub known: usize,
    pub known_of_one: usize,
    /// Of all unknown addresses together.
    pub unknown: usize,
    pub unknown_of_one: usize,
}

impl Limits {
    /// Shares out `all` places. One address, such as a busy driver's, leaves a quarter to others. An unknown one may
    /// have many too: the gateway is unknown to a restarted driver, while thousands of agents' requests wait for their
    /// sessions. Each of them that gives way uses up one of its client's few attempts.
    pub fn of(all: usize) -> Self {
        let unknown = all / 5;
        let known = all - unknown;
        Self {
            known,
            known_of_one: known / 4 * 3,
            unknown,
            unknown_of_one: unknown / 4 * 3,
        }
    }
}

/// Every place for authorised callers is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "authorised callers have {limit} connections to this service, its maximum; use fewer connections, or ask again later"
)]
pub struct NoPlace {
    pub limit: usize,
}

/// The places of one service. Cloning is cheap.
#[derive(Clone)]
pub struct Places {
    limits: Limits,
    taken: Arc<Mutex<TakenPlaces>>,
}

#[derive(Default)]
struct TakenPlaces {
    next: u64,
    peers: HashMap<IpAddr, Peer>,
}

#[derive(Default)]
struct Peer {
    /// Oldest first.
    connections: BTreeMap<u64, Connection>,
    authorised: usize,
}

struct Connection {
    is_authorised: bool,
    give_way: Arc<Notify>,
}

impl Peer {
    fn is_known(&self) -> bool {
        self.authorised > 0
    }

    fn oldest_unauthorised(&self) -> Option<u64> {
        let mut oldest_first = self.connections.iter();
        let found = oldest_first.find(|(_, connection)| !connection.is_authorised);
        found.map(|(number, _)| *number)
    }
}

/// One connection's place, until it is dropped.
pub(crate) struct Place {
    of: CallersPlace,
    give_way: Arc<Notify>,
}

/// The place of the connection that a request came on. Requests carry it in their extensions.
#[derive(Clone)]
pub struct CallersPlace {
    places: Places,
    peer: IpAddr,
    number: u64,
}

impl Places {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: Arc::default(),
        }
    }

    /// A place for a new connection, if necessary at the cost of another. `None` if every connection that it could push
    /// out is authorised.
    pub(crate) fn take(&self, peer: IpAddr) -> Option<Place> {
        let (peer, limits) = (peer.to_canonical(), self.limits);
        let mut taken = self.lock();
        let own = taken.peers.get(&peer);
        let (own, is_known) = own.map_or((0, false), |own| (own.connections.len(), own.is_known()));
        if is_known {
            if own >= limits.known_of_one {
                taken.push_out(peer)?;
            } else if taken.count(true) >= limits.known {
                taken.push_out_known()?;
            }
        } else if own >= limits.unknown_of_one {
            taken.push_out(peer)?;
        } else if taken.count(false) >= limits.unknown {
            let most = taken.unknown_with_most()?;
            taken.push_out(most)?;
        }
        let (number, give_way) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        let connection = Connection {
            is_authorised: false,
            give_way: give_way.clone(),
        };
        let of_peer = taken.peers.entry(peer).or_default();
        of_peer.connections.insert(number, connection);
        let places = self.clone();
        Some(Place {
            of: CallersPlace { places, peer, number },
            give_way,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenPlaces {
    /// How many connections known or unknown addresses have. Only counted for a new connection and for the first
    /// authorised one of an address.
    fn count(&self, known: bool) -> usize {
        let peers = self.peers.values().filter(|peer| peer.is_known() == known);
        peers.map(|peer| peer.connections.len()).sum()
    }

    fn authorised(&self) -> usize {
        self.peers.values().map(|peer| peer.authorised).sum()
    }

    /// The unknown address with the most connections; of several, the one with the oldest connection.
    fn unknown_with_most(&self) -> Option<IpAddr> {
        let unknown = self.peers.iter().filter(|(_, peer)| !peer.is_known());
        let most = unknown.max_by_key(|(_, peer)| (peer.connections.len(), Reverse(peer.oldest_unauthorised())));
        most.map(|(address, _)| *address)
    }

    /// Ends the address's oldest connection that is not authorised, if there is one.
    fn push_out(&mut self, peer: IpAddr) -> Option<()> {
        let number = self.peers.get(&peer)?.oldest_unauthorised()?;
        self.remove(peer, number)?.give_way.notify_one();
        Some(())
    }

    /// Ends the oldest connection of all known addresses that is not authorised, if there is one.
    fn push_out_known(&mut self) -> Option<()> {
        let known = self.peers.iter().filter(|(_, peer)| peer.is_known());
        let oldest = known.filter_map(|(address, peer)| Some((peer.oldest_unauthorised()?, *address)));
        let (number, address) = oldest.min()?;
        self.remove(address, number)?.give_way.notify_one();
        Some(())
    }

    fn remove(&mut self, peer: IpAddr, number: u64) -> Option<Connection> {
        let of_peer = self.peers.get_mut(&peer)?;
        let removed = of_peer.connections.remove(&number)?;
        of_peer.authorised -= usize::from(removed.is_authorised);
        if of_peer.connections.is_empty() {
            self.peers.remove(&peer);
        }
        Some(removed)
    }
}

impl Place {
    /// For the requests of this connection.
    pub fn of_requests(&self) -> CallersPlace {
        self.of.clone()
    }

    /// Returns when another connection has taken the place.
    pub async fn taken_away(&self) {
        self.give_way.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.places.lock().remove(self.of.peer, self.of.number);
    }
}

impl CallersPlace {
    /// The caller is authorised: the connection keeps its place until it ends, and its address is known. If known
    /// addresses have too many connections with it, the oldest that are not authorised give way.
    pub fn keep(&self) -> Result<(), NoPlace> {
        let mut taken = self.places.lock();
        let limit = self.places.limits.known;
        let Some(own) = taken.peers.get(&self.peer) else {
            return Ok(());
        };
        let is_new = !own.is_known();
        if is_new && taken.authorised() >= limit {
            return Err(NoPlace { limit });
        }
        let Some(own) = taken.peers.get_mut(&self.peer) else {
            return Ok(());
        };
        // Without one, the connection has been pushed out and is about to end.
        if let Some(connection) = own.connections.get_mut(&self.number)
            && !connection.is_authorised
        {
            connection.is_authorised = true;
            own.authorised += 1;
        }
        if is_new {
            for _ in limit..taken.count(true) {
                taken.push_out_known();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
