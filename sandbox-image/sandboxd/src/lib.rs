//! sandboxd: process 1 of every sandbox. It only runs commands and moves files for the one lease that it is bound to.
//!
//! It is one static binary, which works in any image. [`reaper`] owns every child and orphan; [`exec`] runs commands
//! with ids; [`session`] talks to programs behind a terminal; [`output`] keeps the output of both, within bounds;
//! [`files`] moves bytes; [`lease`] binds to (lease, epoch, time to live) and ends the sandbox when the lease expires;
//! [`leftovers`] restores the state that outlives the container; [`http`] serves only health and calls signed by the
//! gateway; [`callers`] refuses connections from the sandbox's own processes; [`offload`] keeps blocking work away from
//! the main loop; [`watchdog`] ends sandboxd if the loop hangs anyway, or if its [`standing`] was changed; [`bounds`]
//! reserves processor time for sandboxd; [`places`] limits connections. [`relay`] is the only connection out of the
//! sandbox, and leads to the gateway; [`probe`] shows that there is no other.

pub mod bounds;
pub mod callers;
pub mod exec;
pub mod files;
pub mod http;
pub mod lease;
pub mod leftovers;
pub mod offload;
pub mod output;
pub mod places;
pub mod probe;
pub mod reaper;
pub mod relay;
pub mod session;
pub mod standing;
mod stat;
pub mod watchdog;
