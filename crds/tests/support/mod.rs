//! Manifests that must be refused, each beside a neighbour that must be accepted: one pair for every CEL rule
//! ([`rules`]) and one for every bound ([`bounds`]) of the three kinds. `tests/refusals.rs` judges them by kube's CEL
//! evaluation; against a real API server the same pairs are applied with server-side dry run.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "other crates' tests use a part of it"
)]

pub mod bases;
pub mod bounds;
pub mod judge;
pub mod rules;

pub use bases::{bases, merge, merged};
use serde_json::Value;

/// One pair.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is judged, for messages.
    pub name: String,
    /// What is there already, where the pair is about a change.
    pub old: Option<Value>,
    pub refused: Value,
    pub accepted: Value,
    /// Words that the refusal must contain.
    pub says: Vec<String>,
}

/// The schema of a kind.
pub fn schema_of(kind: &str) -> Value {
    let crds = grpo_crds::crd::all();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    grpo_crds::crd::schema(crd).unwrap()
}
