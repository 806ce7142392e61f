//! The rendezvous of a trainer's ranks, and the error of a collective.

use std::time::Duration;

/// A failed collective.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{doing} on rank {rank} of {world}: {message}")]
pub struct CollectiveError {
    pub doing: &'static str,
    pub rank: u32,
    pub world: u32,
    pub message: String,
}

/// The rendezvous, from torchrun's environment.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    pub rank: u32,
    pub world: u32,
    /// `MASTER_ADDR`.
    pub address: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// Address by which the other ranks reach this one; empty: the address of the host's name.
    pub own_host: String,
    /// Network interface to use instead; empty: the one of `own_host`.
    pub interface: String,
    /// Longest wait of ranks for each other, in the rendezvous and in every collective.
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
