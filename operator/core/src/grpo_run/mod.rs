//! Decisions about a `GrpoRun`: [`decide`] turns an [`observation`] into a decision.

mod acceptance;
mod blockers;
mod colocation;
pub mod decide;
pub mod decision;
pub mod gpu_claims;
mod hold;
mod objects;
pub mod observation;
mod process_pods;
pub mod queue;
pub mod references;
pub mod status;
mod summary;
mod terminal;
pub mod workload;

#[cfg(test)]
pub mod tests;
