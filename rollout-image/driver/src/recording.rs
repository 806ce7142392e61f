//! The endpoint that agents in sandboxes take for their model: it answers several APIs and records what was sampled.
//!
//! A body of any API becomes a [`request::Request`] by [`api`], whose answer goes back in the same API's form.

pub mod api;
pub mod request;
