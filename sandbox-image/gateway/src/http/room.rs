//! The room for the body of a call: the gateway's room for its own API, or the room that an in-process caller passes
//! along.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use grpo_sandbox_protocol::Room;

use crate::core::Core;

/// The room for a call's body.
pub struct RoomOf(pub Room);

impl FromRequestParts<Arc<Core>> for RoomOf {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, core: &Arc<Core>) -> Result<Self, Infallible> {
        let given = parts.extensions.get::<Room>();
        Ok(Self(given.unwrap_or(&core.room).clone()))
    }
}
