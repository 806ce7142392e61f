//! The gateway of one SandboxPool: the only owner of its sandbox pods and the only door to sandboxd.
//!
//! [`index`] is the whole of its mind: pods, leases, waiters and demand in memory, fed by events, answering with actions, no I/O. [`core`] carries
//! actions out: it creates and deletes pods, commits leases to the [`ledger`] before anybody hears of them, binds sandboxd. [`cause`] says
//! from a pod's status why it ended. [`pod`] builds sandbox pods. [`sandbox`] talks to sandboxd, signed. [`http`] is the door for drivers.

pub mod cause;
pub mod core;
pub mod http;
pub mod index;
pub mod ledger;
pub mod pod;
pub mod sandbox;
