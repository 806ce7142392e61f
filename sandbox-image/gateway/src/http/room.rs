//! The bodies of calls: small ones, and the room for large ones, which is the gateway's own or that of an in-process
//! caller.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use grpo_sandbox_protocol::Room;

use super::Refused;
use crate::body::read_small;
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

/// The body of a call that has only names and numbers.
pub(super) struct SmallBody(pub Bytes);

impl FromRequest<Arc<Core>> for SmallBody {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &Arc<Core>) -> Result<Self, Refused> {
        Ok(Self(read_small(request.into_body()).await?))
    }
}
