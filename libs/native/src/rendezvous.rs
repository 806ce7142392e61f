//! Where the ranks of a trainer find each other, and the error that names a rank among them.

use std::time::Duration;

/// A collective that did not come about.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{doing} on rank {rank} of {world}: {message}")]
pub struct CollectiveError {
    pub doing: &'static str,
    pub rank: u32,
    pub world: u32,
    pub message: String,
}

/// Where the ranks find each other: torchrun's environment.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    pub rank: u32,
    pub world: u32,
    /// `MASTER_ADDR`.
    pub address: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// Address by which the other ranks reach this one; empty: what the host's name resolves to.
    pub own_host: String,
    /// Network interface to use instead; empty: the one of `own_host`.
    pub interface: String,
    /// How long ranks wait for each other at most, in the rendezvous and in every collective.
    pub timeout: Duration,
}

impl Rendezvous {
    /// One process, no network.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            world: 1,
            address: String::new(),
            port: 0,
            own_host: String::new(),
            interface: String::new(),
            timeout: Duration::from_secs(60),
        }
    }

    pub(crate) fn error(&self, doing: &'static str, message: String) -> CollectiveError {
        CollectiveError {
            doing,
            rank: self.rank,
            world: self.world,
            message,
        }
    }
}
