//! Ownership of leases: a run's driver may use only the leases of its run. Other allowed accounts, such as the pool's
//! client account, may act for any run.
//!
//! A pool may serve runs of other namespaces. Two of them may have the same name, so the gateway calls such a run
//! `namespace/run`; its driver need not know.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use grpo_auth::ServiceAccount;
use grpo_contracts::RunConfig;
use grpo_contracts::access::run_of_driver;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use percent_encoding::percent_decode_str;

use super::Refused;
use crate::core::Core;
use crate::relay::is_of_driver;

/// The run of the calling driver. Empty if the caller is not a driver, or if the gateway calls itself.
pub struct CallersRun(Option<DrivenRun>);

struct DrivenRun {
    name: String,
    namespace: String,
    /// The run's name in the gateway.
    qualified: String,
}

impl CallersRun {
    /// `home`: the pool's own namespace.
    fn of(account: Option<&ServiceAccount>, home: &str) -> Self {
        let run = account.and_then(|account| Some((account, run_of_driver(&account.name)?)));
        Self(run.map(|(account, name)| DrivenRun {
            name: name.to_owned(),
            namespace: account.namespace.clone(),
            qualified: match account.namespace == home {
                true => name.to_owned(),
                false => format!("{}/{name}", account.namespace),
            },
        }))
    }

    /// The gateway's name for the run that the caller acts for. Refuses the run of another driver.
    pub fn acts_for(&self, run: &str) -> Result<String, Refused> {
        match &self.0 {
            Some(own) if own.name != run => Err(another(&own.qualified, run)),
            Some(own) => Ok(own.qualified.clone()),
            None => Ok(run.to_owned()),
        }
    }

    /// Refuses a relay of a driver that leads elsewhere than to its own service.
    pub fn may_relay_to(&self, to: &Uri) -> Result<(), Refused> {
        let Some(own) = &self.0 else { return Ok(()) };
        let service = RunConfig::driver_service(&own.namespace, &own.name);
        match is_of_driver(to, &service) {
            true => Ok(()),
            false => Err(forbidden(format!(
                "the relay leads to {to}; the driver of run {} may relay to its own service only, http://{service}",
                own.qualified
            ))),
        }
    }

    /// Refuses the use of a lease of another run.
    fn may_use_lease_of(&self, run: &str) -> Result<(), Refused> {
        match &self.0 {
            Some(own) if own.qualified != run => Err(another(&own.qualified, run)),
            _ => Ok(()),
        }
    }
}

impl FromRequestParts<Arc<Core>> for CallersRun {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, core: &Arc<Core>) -> Result<Self, Infallible> {
        Ok(Self::of(parts.extensions.get(), &core.template.namespace))
    }
}

fn another(own: &str, run: &str) -> Refused {
    forbidden(format!(
        "the token is that of the driver of run {own}, which may not act for run {run}; use the driver's own token"
    ))
}

/// Lets a driver use only leases of its own run, and only through the gateway's own API.
pub async fn check(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let caller = CallersRun::of(request.extensions().get(), &core.template.namespace);
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
    let run = id.and_then(|id| core.look(|index| index.run_of(&id).map(str::to_owned)));
    match run.map_or(Ok(()), |run| caller.may_use_lease_of(&run)) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn forbidden(message: String) -> Refused {
    Refused(ErrorBody::new(ErrorCode::Forbidden, FaultOrigin::Client, message))
}
