//! Decisions about a `SandboxPool` (`grpo.dev`): [`decide`] turns an [`observation`] into a decision.
//!
//! The pool's gateway owns the sandbox pods; here they are only counted.

pub mod decide;
mod isolation;
mod objects;
pub mod observation;

#[cfg(test)]
pub mod tests;
