//! Watches that feed the three controllers: all our pods, the ledgers, and the applied objects.
//!
//! ```text
//! pods ─────► PodIndex (facts by parent, in memory) ──┐
//! ledgers ──► Ledgers (leases and report by pool) ────┼─► Triggers ─► the parent's controller
//! children ─► Applied (drops what has changed) ───────┘
//! ```
//!
//! The index is updated before the controller is triggered, so a reconcile never reads a state older than its trigger.
//! Pods are kept as facts, a few hundred bytes each. A change that changes no fact triggers no reconcile.

pub mod children;
pub mod config;
pub mod ledgers;
pub mod pods;
pub mod triggers;
