//! A language model of the Qwen families, read from and written to Hugging Face directories.
//!
//! [`config`], [`rope`], [`yarn`], [`lora`], [`adapter`] and [`weights`] are plain Rust for all users; [`decode`]
//! samples with a key-value cache and without libtorch. With feature `torch`, [`model`] is the differentiable model of
//! the trainer, [`layout`] has its tokens' positions, [`rotation`] their angles, and [`head`] its vocabulary head in
//! chunks.

pub mod adapter;
pub mod config;
pub mod decode;
mod error;
#[cfg(feature = "torch")]
pub mod head;
#[cfg(feature = "torch")]
pub mod layout;
pub mod lora;
#[cfg(feature = "torch")]
pub mod model;
pub mod rope;
#[cfg(feature = "torch")]
pub mod rotation;
pub mod weights;
pub mod yarn;

pub use config::{Config, Family};
pub use error::ModelError;
