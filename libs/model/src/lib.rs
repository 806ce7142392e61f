//! A language model of the Qwen families, read from and written to Hugging Face directories.
//!
//! [`config`], [`rope`], [`yarn`], [`lora`], [`adapter`] and [`weights`] are plain Rust and serve everybody; [`decode`]
//! samples with a key-value cache and no libtorch; with feature `torch`, [`model`] is what the trainer differentiates,
//! [`layout`] says where its tokens stand, [`rotation`] by which angles they turn, and [`head`] is its vocabulary head
//! in chunks.

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
