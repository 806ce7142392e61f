//! Whose leases a caller may use: a run's driver those of its run, and no other's. Other accounts that are let in, as
//! the pool's client account, act for any name.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use grpo_auth::ServiceAccount;
use grpo_contracts::access::run_of_driver;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use percent_encoding::percent_decode_str;

use super::Refused;
use crate::core::Core;

/// The run that the caller drives; none where it is no driver, or the call is the gateway's own.
pub struct CallersRun(Option<String>);

impl CallersRun {
    fn of(account: Option<&ServiceAccount>) -> Self {
        let run = account.and_then(|account| run_of_driver(&account.name));
        Self(run.map(str::to_owned))
    }

    /// Refuses what is done in another run's name.
    pub fn may_act_for(&self, run: &str) -> Result<(), Refused> {
        match &self.0 {
            Some(own) if own != run => Err(forbidden(format!(
                "the token is that of the driver of run {own}, which may not act for run {run}; use the driver's own token"
            ))),
            _ => Ok(()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallersRun {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts.extensions.get()))
    }
}

/// Lets a driver use leases of its own run only, and only by the gateway's own API.
pub async fn check(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let caller = CallersRun::of(request.extensions().get());
    if caller.0.is_none() {
        return next.run(request).await;
    }
    let path = request.uri().path();
    if path.starts_with("/compat/") {
        let message = "drivers use the gateway's own API; /compat is for the pool's client account";
        return forbidden(message.to_owned()).into_response();
    }
    let id = path.strip_prefix("/v1/leases/").and_then(|rest| rest.split('/').next());
    let id = id.and_then(|id| percent_decode_str(id).decode_utf8().ok());
    let run = id.and_then(|id| core.look(|index| index.leases.get(&*id).map(|held| held.entry.run.clone())));
    match run.map_or(Ok(()), |run| caller.may_act_for(&run)) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn forbidden(message: String) -> Refused {
    Refused(ErrorBody::new(ErrorCode::Forbidden, FaultOrigin::Client, message))
}
