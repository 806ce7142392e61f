//! What each account may call, and how much of a replica clients may use.
//!
//! The guard has checked a caller's token. Here every path is closed to an account without a grant for it: a new route
//! is open to the accounts that may call everything, and to no other.
//!
//! Clients are not of the run whose weights the replica serves. They have places of their own, fewer than the replica
//! has, and take such a place before their request's body is read. So they never take the last place at the engine, and
//! the agent never holds many of their bodies. While an order waits for the engine, their requests are refused or ended
//! ([`crate::gate`]).

use super::{HttpState, Limits, refusal};
use crate::engine::wire::{Answered, read_request};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use grpo_auth::{AllowedAccount, ServiceAccount};
use grpo_contracts::driver_epoch;
use grpo_engine_protocol::{ErrorBody, ErrorCode};
use std::sync::Arc;

/// Where other agents get chunks of files.
pub(super) const CHUNKS: &str = "/agent/v1/chunks/";
/// What the agent reports about its engine.
pub(super) const STATUS: &str = "/agent/v1/status";
/// What clients may call.
const SAMPLING: [&str; 3] = ["/v1/models", "/v1/chat/completions", "/v1/completions"];
/// Largest body of a client's request: a conversation of a million tokens has about half of it.
const CLIENT_BODY: usize = 8 << 20;

/// Seconds after which a refused client is told to try again. OpenAI's clients try twice more, so they come back after
/// most loads of weights.
const RETRY_AFTER: u64 = 10;

/// Accounts by what they may call. An account in several lists may call all of it, with one exception: a pool that no
/// run owns gives everything to a pattern of names (`team/*-driver`), and a client whose name fits it samples only.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    /// Everything: drivers, engine agents of other pools.
    pub everything: Vec<AllowedAccount>,
    /// Chunks of files: other engine agents of a run's pool.
    pub chunks: Vec<AllowedAccount>,
    /// The report: the operator. It sends one token to the agents of every namespace, and a user who replaces an agent
    /// of one namespace has it. So the token must be of no use at the agents of others.
    pub status: Vec<AllowedAccount>,
    /// Sampling: clients outside of runs.
    pub sampling: Vec<AllowedAccount>,
}

/// How a request is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Free,
    /// It reads the report and no more.
    Report,
    /// It takes one of the clients' places.
    Client,
    Closed,
}

/// Marks a client's request for the handlers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client;

impl Grants {
    fn entry(&self, account: &ServiceAccount, path: &str) -> Entry {
        let is_client = has(&self.sampling, account);
        let everything = match is_client {
            true => names(&self.everything, account),
            false => has(&self.everything, account),
        };
        let in_chunks = has(&self.chunks, account) && path.starts_with(CHUNKS);
        if everything || in_chunks {
            return Entry::Free;
        }
        if path == STATUS && has(&self.status, account) {
            return Entry::Report;
        }
        match is_client && SAMPLING.contains(&path) {
            true => Entry::Client,
            false => Entry::Closed,
        }
    }

    /// The refusal of a call of this account, with what it may call.
    fn refusal(&self, account: &ServiceAccount, path: &str) -> ErrorBody {
        let mut may = Vec::new();
        if has(&self.chunks, account) {
            may.push(CHUNKS);
        }
        if has(&self.status, account) {
            may.push(STATUS);
        }
        if has(&self.sampling, account) {
            may.extend(SAMPLING);
        }
        let may = match may.is_empty() {
            true => "nothing here".to_owned(),
            false => format!("{} and nothing else", may.join(", ")),
        };
        ErrorBody::new(
            ErrorCode::Forbidden,
            format!("account {account} may not call {path}: it may call {may}"),
        )
    }
}

fn has(list: &[AllowedAccount], account: &ServiceAccount) -> bool {
    list.iter().any(|allowed| allowed.allows(account))
}

/// Whether the list has the account by its own name, not by a pattern.
fn names(list: &[AllowedAccount], account: &ServiceAccount) -> bool {
    list.contains(&AllowedAccount::from(account.clone()))
}

/// Largest body that is read.
pub(super) fn body_limit(limits: Limits, client: bool) -> usize {
    match client {
        true => limits.request_bytes.min(CLIENT_BODY),
        false => limits.request_bytes,
    }
}

/// The middleware behind the guard.
pub(super) async fn authorize(State(state): State<Arc<HttpState>>, mut request: Request, next: Next) -> Response {
    // The guard names no account on paths that need no token.
    let Some(account) = request.extensions().get::<ServiceAccount>() else {
        return next.run(request).await;
    };
    let path = request.uri().path();
    match state.grants.entry(account, path) {
        Entry::Free => next.run(request).await,
        Entry::Report => {
            // The epoch of a driver that this account names would close the agent to the run's own driver.
            request.headers_mut().remove(driver_epoch::HEADER);
            next.run(request).await
        }
        Entry::Closed => refusal(state.grants.refusal(account, path)),
        Entry::Client => {
            let Ok(_place) = state.client_places.try_acquire() else {
                let error = no_place();
                state.metrics.count(Some(&error));
                return refusal(error);
            };
            DefaultBodyLimit::max(body_limit(state.limits, true)).apply(&mut request);
            request.extensions_mut().insert(Client);
            let mut answer = next.run(request).await;
            if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
                let headers = answer.headers_mut();
                // The server behind the agent may ask for another wait.
                let after = headers.entry(header::RETRY_AFTER);
                after.or_insert(HeaderValue::from(RETRY_AFTER));
            }
            answer
        }
    }
}

impl HttpState {
    /// Refuses a request while the gate is closed to its caller.
    pub(super) fn must_be_open(&self, client: bool) -> Result<(), ErrorBody> {
        match client {
            true => self.gate.must_be_open_to_clients(),
            false => self.gate.must_be_open(),
        }
    }

    /// The engine's answer, unless an order waits for the engine too long for a client's request. Then the request is
    /// dropped, by which its connection to the engine is closed, and the engine aborts it.
    pub(super) async fn answer(
        &self,
        client: bool,
        asked: impl Future<Output = Result<Answered, ErrorBody>>,
    ) -> Result<Answered, ErrorBody> {
        if !client {
            return asked.await;
        }
        tokio::select! {
            biased;
            answered = asked => answered,
            error = self.gate.client_must_leave() => Err(error),
        }
    }
}

/// Refuses a client's completion of several rows: each of its places is for one row at the engine.
pub(super) fn one_row(body: &[u8]) -> Result<(), ErrorBody> {
    let (request, prompts) = read_request(body)?;
    let rows = prompts.len().saturating_mul(request.n as usize);
    match rows {
        1 => Ok(()),
        _ => Err(ErrorBody::new(
            ErrorCode::InvalidRequest,
            format!("prompts times n is {rows}: a client gets one row per request; send one prompt, and leave n out"),
        )),
    }
}

fn no_place() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::QueueFull,
        "clients have as many requests at this replica as they may; try again when one of them has ended, with fewer at \
         a time, or use another replica",
    )
}

#[cfg(test)]
mod tests;
