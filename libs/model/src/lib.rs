//! A language model of the Qwen families, read from and written to Hugging Face directories.
//!
//! [`config`], [`rope`], [`lora`] and [`weights`] are plain Rust and serve everybody; [`decode`] samples with a
//! key-value cache and no libtorch; with feature `torch`, [`model`] is what the trainer differentiates, [`layout`] says
//! where its tokens stand, and [`head`] is its vocabulary head in chunks.

pub mod config;
pub mod decode;
#[cfg(feature = "torch")]
pub mod head;
#[cfg(feature = "torch")]
pub mod layout;
pub mod lora;
#[cfg(feature = "torch")]
pub mod model;
pub mod rope;
pub mod weights;

pub use config::{Config, Family, ModelError};
