//! What the agent needs from an engine, whichever it guards.
//!
//! The rest of the agent (orders, pulling, status, the proxy) is the same for every engine; only how an engine is asked what it serves and
//! told to load a folder differs. [`embedded`] is the one that exists so far.

pub mod embedded;

use std::path::Path;
use std::time::Duration;

/// What an engine says it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub version: String,
    /// Checksum of the tensors in its memory.
    pub sha256: String,
}

/// Why an engine did not do what it was asked to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineFault {
    #[error("the engine at {url} does not answer: {cause}; if this lasts, look at the engine container's log")]
    Unreachable { url: String, cause: String },
    #[error("the engine at {url} refused: {message}")]
    Refused { url: String, message: String },
    #[error("the engine at {url} answered what this agent does not understand: {cause}; are both of the same release?")]
    Misunderstood { url: String, cause: String },
}

/// An engine's admin side.
pub trait Engine: Clone + Send + Sync + 'static {
    /// What it serves right now.
    fn serving(&self) -> impl Future<Output = Result<Serving, EngineFault>> + Send;

    /// Makes it serve what is in `dir` as `version`, if its tensors have the checksum `sha256`; returns what it says it holds then.
    /// Where an engine can check before it switches, a wrong checksum leaves the earlier version serving.
    fn load(
        &self,
        dir: &Path,
        version: &str,
        sha256: &str,
        deadline: Duration,
    ) -> impl Future<Output = Result<Serving, EngineFault>> + Send;
}
