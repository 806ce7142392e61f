//! The recording endpoint: agents in sandboxes take it for their model. It answers several APIs and records what was
//! sampled.
//!
//! [`api`] turns a body of any API into a [`request::Request`], and the answer back into that API's form. [`server`]
//! takes requests, and [`sessions`] bring them to their episode. There the [`recorder`] finds the place of each request
//! ([`forest`], by the checksums of [`canon`]), has its messages rendered ([`rendering`]) and the answer
//! sampled, and makes the turn durable before it replies. The client sees text; training uses the sampled ids.

pub mod api;
pub mod canon;
pub mod forest;
pub mod recorder;
pub mod rendering;
pub mod request;
pub mod server;
pub mod sessions;
