//! Real sandboxes under hostile work, under faults, and after a reset.
//!
//! Needs a cluster with images, chart and the demo's tasks: `make test-sandboxes`. Without one only the book's table of attacks is compared with what is tried.

#![allow(clippy::unwrap_used)]

#[path = "sandboxes/ahead.rs"]
mod ahead;
#[path = "sandboxes/attacks.rs"]
mod attacks;
#[path = "sandboxes/losses.rs"]
mod losses;
#[path = "sandboxes/pool.rs"]
mod pool;
#[path = "sandboxes/resets.rs"]
mod resets;
mod support;
