//! The policy: a Qwen3-shaped language model, read from and written to Hugging Face directories.
//!
//! [`config`] and [`weights`] are plain Rust and serve everybody; [`decode`] samples with a key-value cache and no libtorch; [`model`] (feature
//! `torch`) is what the trainer differentiates.

pub mod config;
pub mod decode;
#[cfg(feature = "torch")]
pub mod model;
pub mod weights;

pub use config::{Config, ModelError};
