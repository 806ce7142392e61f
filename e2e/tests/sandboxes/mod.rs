//! Real sandboxes under hostile work, under faults, and after a reset.
//!
//! Needs a cluster with images, chart and the demo's tasks: `make test-sandboxes`. Without one only the book's table of
//! attacks is compared with `attacks.yaml`.

mod ahead;
mod attacks;
mod losses;
mod packages;
pub mod pool;
mod resets;
