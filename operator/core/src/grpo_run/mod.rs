//! What is to be done about a `GrpoRun`: [`decide`] turns an [`observation`] into a decision.

pub mod decide;
mod ends;
mod objects;
pub mod observation;
mod process_pods;
mod summary;
mod waits;

#[cfg(test)]
mod lifecycle_tests;
#[cfg(test)]
mod screens_tests;
#[cfg(test)]
pub mod tests;
