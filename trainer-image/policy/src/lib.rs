//! The policy: a language model of the Qwen families, read from and written to Hugging Face directories.
//!
//! [`config`], [`rope`], [`lora`] and [`weights`] are plain Rust and serve everybody; [`decode`] samples with a key-value cache and no libtorch;
//! [`model`] (feature `torch`) is what the trainer differentiates.

pub mod config;
pub mod decode;
pub mod lora;
#[cfg(feature = "torch")]
pub mod model;
pub mod rope;
pub mod weights;

pub use config::{Config, Family, ModelError};
