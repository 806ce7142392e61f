//! Reads the gateway's answers, and decides which refusals are retried. Reads are bounded, because the workload in a
//! sandbox decides how long an answer is.

use bytes::Bytes;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin as Whose, Room};
use reqwest::StatusCode;

/// The longest answer to a call about leases, sessions and the pool, in bytes.
pub(super) const ANSWER_BYTES: usize = 8 << 20;
/// The longest refusal that is read, in bytes.
const REFUSAL_BYTES: usize = 1 << 20;

/// The longest answer to a command that keeps this many bytes of output: a control character is six bytes in JSON.
pub(super) fn answer_of_output(kept: u64) -> usize {
    usize::try_from(kept).map_or(usize::MAX, |kept| kept.saturating_mul(6).saturating_add(64 << 10))
}

pub(super) enum Refusal {
    /// No answer, or an answer that is not the gateway's.
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
        // The token may be renewed, or its account allowed, before the next try.
        Ok(body) if matches!(body.code, ErrorCode::Unauthenticated | ErrorCode::Forbidden) => Err(Refusal::Again(body)),
        Ok(body) if may_pass(status, &body) => Err(Refusal::Again(body)),
        Ok(body) => Err(Refusal::Final(body)),
        Err(_) => Err(Refusal::Away(format!("status {status}"))),
    }
}

fn away(error: reqwest::Error) -> Refusal {
    Refusal::Away(error.to_string())
}

/// Reads the whole answer, once there is room for it. An answer that is too long is final: a retry would get the same.
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

/// Whether a retry may succeed: the pool is full, the gateway starts, the egress probe is not done, the registry is
/// unavailable, or clocks differ. An error that the workload caused would recur, and waiting for it would turn the
/// workload's loss into a fault of the infrastructure.
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
