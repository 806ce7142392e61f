//! Which run is admitted when: nodes and pods as facts, the decision, and the gates on pods.

pub mod decide;
pub mod facts;
mod fit;
pub mod gate;
pub mod messages;
pub mod placement;
mod standing;
pub mod verdict;

#[cfg(test)]
pub mod tests;

pub use facts::Candidate;
pub use gate::{Gate, whole};
pub use verdict::Verdict;
