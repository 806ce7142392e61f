//! The driver's epoch on its requests to engine agents and to the trainer. They refuse orders of an attempt that a
//! later one has followed ([`grpo_contracts::driver_epoch`]), and such a refusal ends this driver.

use grpo_contracts::driver_epoch::{DriverEpoch, HEADER, NEWER_HEADER, Superseded};
use reqwest::{RequestBuilder, Response, StatusCode};

/// Why an order was not taken.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// A retry cannot help.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// The order is due again later.
    #[error("{0}")]
    Failed(String),
}

/// A request that names the driver's epoch, if the client has one.
pub fn stamped(epoch: Option<&DriverEpoch>, request: RequestBuilder) -> RequestBuilder {
    match epoch {
        Some(epoch) => request.header(HEADER, epoch.to_string()),
        None => request,
    }
}

/// Returns the answer to an order, unless it says that a later attempt gives the orders. A 409 may say other things.
pub fn of_this_driver(epoch: Option<&DriverEpoch>, answer: Response) -> Result<Response, Superseded> {
    let newer = answer.headers().get(NEWER_HEADER).map(|value| value.as_bytes());
    let refused = epoch
        .filter(|_| answer.status() == StatusCode::CONFLICT)
        .and_then(|epoch| epoch.refused(newer));
    match refused {
        Some(superseded) => Err(superseded),
        None => Ok(answer),
    }
}
