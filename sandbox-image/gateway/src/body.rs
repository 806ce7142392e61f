//! Request bodies: read up to a limit, within a deadline, once there is room for them.

use std::time::Duration;

use axum::body::{Body, Bytes};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Room};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;

/// Deadline for the arrival of a body, its wait for room included.
pub const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// The whole body. It keeps its room until its last byte is dropped.
pub async fn read(room: &Room, body: Body, limit: usize) -> Result<Bytes, ErrorBody> {
    let too_large = || {
        let message = format!("the body has more than {limit} bytes");
        ErrorBody::new(ErrorCode::TooLarge, FaultOrigin::Client, message)
    };
    let declared = body.size_hint().exact();
    if declared.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    let declared = declared.map(|bytes| bytes as usize);
    let whole = async {
        let share = room.take(declared.unwrap_or(limit)).await;
        let (mut body, mut bytes) = (Limited::new(body, limit), Vec::with_capacity(declared.unwrap_or(0)));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => too_large(),
                false => {
                    let message = format!("reading the body: {error}");
                    ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message)
                }
            })?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
        }
        Ok(share.hold(bytes))
    };
    tokio::time::timeout(ARRIVES_WITHIN, whole).await.map_err(|_| {
        let message =
            format!("the body did not arrive within {ARRIVES_WITHIN:?}, or others took all the room; ask again");
        ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
    })?
}
