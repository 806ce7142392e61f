//! Which run is admitted when: nodes and pods as facts, the decision, and the gates on pods.

pub mod decide;
pub mod facts;
mod fit;
pub mod gate;
mod history;
pub mod messages;
pub mod placement;
mod scale_up;
mod standing;
mod step;
pub mod verdict;

#[cfg(test)]
pub mod tests;

pub use facts::Candidate;
pub use gate::{Gate, whole};
pub use verdict::Verdict;
