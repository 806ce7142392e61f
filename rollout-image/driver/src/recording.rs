//! The endpoint that agents in sandboxes take for their model: it answers several APIs and records what was sampled.
//!
//! A body of any API becomes a [`request::Request`] by [`api`], whose answer goes back in the same API's form.
//! [`server`] takes requests, [`sessions`] bring them to the episode that they belong to, and there the [`recorder`]
//! finds where each belongs ([`forest`], by the checksums of [`canon`]), has it sampled, and makes the turn durable
//! before it replies. The client sees text; what is trained on are the ids that were sampled.

pub mod api;
pub mod canon;
pub mod forest;
pub mod recorder;
pub mod request;
pub mod server;
pub mod sessions;
