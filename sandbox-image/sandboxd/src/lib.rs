//! sandboxd: process 1 of every sandbox. It runs commands and moves files for the one lease it is bound to, and nothing
//! else.
//!
//! Put into any image as one static binary. [`reaper`] owns every child and orphan; [`exec`] runs commands with ids;
//! [`session`] talks to programs behind a terminal; [`output`] keeps what all of them print, within bounds; [`files`]
//! moves bytes; [`lease`] binds to (lease, epoch, time to live) and ends the sandbox when nobody comes; [`leftovers`]
//! puts back what outlives the container; [`http`] is the door, which obeys only the gateway's signature; [`callers`]
//! keeps the sandbox's own processes from standing in it, [`offload`] keeps what may block away from the loop that
//! answers, [`watchdog`] ends a loop that stands still all the same, or whose [`standing`] somebody has changed,
//! [`bounds`] keeps processor time from being taken, and [`places`] shares its connections out. [`relay`] is the one
//! way out, and leads to the gateway; [`probe`] shows that there is no other.

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
pub mod watchdog;
