//! Other systems' HTTP contracts, so that their clients work on a SandboxPool unchanged but for the URL.
//!
//! Each is a translation into the gateway's own API ([`own`]) and keeps no books: a lease of theirs is a lease like any
//! other, in the ledger, in the queue, in the counts. [`pool`] and [`nodes`] are the two servers of a remote container
//! pool, which share their work ([`work`]); [`retries`] tells a call that is made again from a new one. [`swerex`] is
//! SWE-ReX's server.

mod nodes;
mod own;
mod pool;
mod retries;
mod swerex;
mod work;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use grpo_sandbox_protocol::MAX_JSON_BYTES;

use crate::core::Core;
use own::Own;
use retries::Retries;

/// What every call of a compatible server needs.
#[derive(Clone)]
pub(crate) struct Compat {
    own: Own,
    retries: Retries,
}

/// The routes, in front of the gateway's own API.
pub fn router(core: Arc<Core>, api: Router) -> Router {
    let compat = Compat {
        own: Own::new(core, api),
        retries: Retries::default(),
    };
    Router::new()
        .nest("/compat/pool", pool::router().with_state(compat.clone()))
        .nest("/compat/exec", nodes::router().with_state(compat.clone()))
        .nest("/compat/swerex", swerex::router().with_state(compat))
        .layer(DefaultBodyLimit::max(MAX_JSON_BYTES))
}
