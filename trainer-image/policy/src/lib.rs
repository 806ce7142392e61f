//! The policy: a Qwen3-shaped language model, read from and written to Hugging Face directories.
//!
//! [`config`] and [`weights`] are plain Rust and serve everybody; [`decode`] samples with a key-value cache and no libtorch. With feature
//! `torch`, [`model`] is what the trainer differentiates, [`layout`] says where its tokens stand, and [`head`] is its vocabulary head in chunks.

pub mod config;
pub mod decode;
#[cfg(feature = "torch")]
pub mod head;
#[cfg(feature = "torch")]
pub mod layout;
#[cfg(feature = "torch")]
pub mod model;
pub mod weights;

pub use config::{Config, ModelError};
