//! Request bodies: read up to a limit, within a deadline. A body that may be large waits until there is room for it.

use std::time::Duration;

use axum::body::{Body, Bytes};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Room};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;

/// Deadline for the arrival of a body, its wait for room included.
pub const ARRIVES_WITHIN: Duration = Duration::from_secs(60);
/// Longest body of a call that has only names and numbers.
pub const SMALL_BODY: usize = 32 << 10;

/// The whole body. It keeps its room until its last byte is dropped.
pub async fn read(room: &Room, body: Body, limit: usize) -> Result<Bytes, ErrorBody> {
    let declared = declared(&body, limit)?;
    in_time(async {
        let share = room.take(declared.unwrap_or(limit)).await;
        Ok(share.hold(gather(body, limit, declared).await?))
    })
    .await
}

/// The whole body of a call that has only names and numbers. It takes no room: such a call may wait for a lease.
pub async fn read_small(body: Body) -> Result<Bytes, ErrorBody> {
    let declared = declared(&body, SMALL_BODY)?;
    in_time(async { Ok(gather(body, SMALL_BODY, declared).await?.into()) }).await
}

/// The length in the request's head, if it has one.
fn declared(body: &Body, limit: usize) -> Result<Option<usize>, ErrorBody> {
    match body.size_hint().exact() {
        Some(bytes) if bytes > limit as u64 => Err(too_large(limit)),
        declared => Ok(declared.map(|bytes| bytes as usize)),
    }
}

/// In one buffer from the first byte on: joining pieces would take twice the memory.
async fn gather(body: Body, limit: usize, declared: Option<usize>) -> Result<Vec<u8>, ErrorBody> {
    let (mut body, mut bytes) = (Limited::new(body, limit), Vec::with_capacity(declared.unwrap_or(0)));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => too_large(limit),
            false => {
                let message = format!("reading the body: {error}");
                ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message)
            }
        })?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}

async fn in_time(whole: impl Future<Output = Result<Bytes, ErrorBody>>) -> Result<Bytes, ErrorBody> {
    tokio::time::timeout(ARRIVES_WITHIN, whole).await.map_err(|_| {
        let message =
            format!("the body did not arrive within {ARRIVES_WITHIN:?}, or others took all the room; ask again");
        ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
    })?
}

fn too_large(limit: usize) -> ErrorBody {
    let message = format!("the body has more than {limit} bytes");
    ErrorBody::new(ErrorCode::TooLarge, FaultOrigin::Client, message)
}
