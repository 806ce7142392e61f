//! The gateway's answers: read up to a bound, because what ran in a sandbox decides how long they are; and what a
//! refusal means for the next try.

use bytes::Bytes;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin as Whose, Room};
use reqwest::StatusCode;

/// The longest answer of a call about leases, sessions and the pool, bytes.
pub(super) const ANSWER_BYTES: usize = 8 << 20;
/// The longest refusal that is read, bytes.
const REFUSAL_BYTES: usize = 1 << 20;

/// The longest answer about a command of which so many bytes of output are kept: a control character is six in JSON.
pub(super) fn answer_of_output(kept: u64) -> usize {
    usize::try_from(kept).map_or(usize::MAX, |kept| kept.saturating_mul(6).saturating_add(64 << 10))
}

pub(super) enum Refusal {
    /// No answer, or none of the gateway's.
    Away(String),
    Again(ErrorBody),
    Final(ErrorBody),
}

impl Refusal {
    pub(super) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Away(_) => None,
            Self::Again(body) | Self::Final(body) => Some(body.code),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Away(why) => why,
            Self::Again(body) | Self::Final(body) => &body.message,
        }
    }
}

/// Sends a request and reads its answer.
pub(super) async fn once(request: reqwest::RequestBuilder, longest: usize, room: &Room) -> Result<Bytes, Refusal> {
    let answer = request.send().await.map_err(away)?;
    let status = answer.status();
    if status.is_success() {
        return read(answer, longest, room).await;
    }
    let bytes = read(answer, REFUSAL_BYTES, room).await;
    match serde_json::from_slice::<ErrorBody>(&bytes.unwrap_or_default()) {
        // A token may be replaced, and its account allowed, in the next moment.
        Ok(body) if matches!(body.code, ErrorCode::Unauthenticated | ErrorCode::Forbidden) => Err(Refusal::Again(body)),
        Ok(body) if may_pass(status, &body) => Err(Refusal::Again(body)),
        Ok(body) => Err(Refusal::Final(body)),
        Err(_) => Err(Refusal::Away(format!("status {status}"))),
    }
}

fn away(error: reqwest::Error) -> Refusal {
    Refusal::Away(error.to_string())
}

/// The whole answer, once there is room for it. One that is longer than it may be is no better the next time.
async fn read(mut answer: reqwest::Response, longest: usize, room: &Room) -> Result<Bytes, Refusal> {
    let too_long = || {
        let message = format!("the gateway's answer has more than {longest} bytes; is it the gateway that answers?");
        Refusal::Final(ErrorBody::new(ErrorCode::TooLarge, Whose::Infrastructure, message))
    };
    let declared = answer
        .content_length()
        .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if declared.is_some_and(|bytes| bytes > longest) {
        return Err(too_long());
    }
    let share = room.take(declared.unwrap_or(longest)).await;
    let mut bytes = Vec::with_capacity(declared.unwrap_or(0));
    while let Some(part) = answer.chunk().await.map_err(away)? {
        if bytes.len() + part.len() > longest {
            return Err(too_long());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(share.hold(bytes))
}

/// Whether the same call may be served later: a full pool, a gateway that starts, a probe that is not through, a
/// registry that is away, clocks that are about to be set. What the workload brought about it would bring about again,
/// and waiting for it would turn its loss into a fault of the infrastructure.
fn may_pass(status: StatusCode, body: &ErrorBody) -> bool {
    let passing = matches!(
        body.code,
        ErrorCode::EgressUnproven | ErrorCode::BadSignature | ErrorCode::ImageUnavailable
    );
    let infrastructure = status.is_server_error() || passing;
    status == StatusCode::TOO_MANY_REQUESTS || infrastructure && body.fault != Whose::Workload
}

#[cfg(test)]
mod tests;
