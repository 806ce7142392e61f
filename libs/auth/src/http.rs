//! The guard in front of an axum router. It checks the token before it reads the request's body.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::places::{CallersPlace, NoPlace};
use crate::verify::{MAX_TOKEN_BYTES, Refusal, Verifier};

/// Header for the token if a proxy, such as the API server's, removes the header Authorization.
pub const TOKEN_HEADER: &str = "grpo-token";
/// Paths that need no token, because they reveal nothing about a run and take no orders: the kubelet's probes and
/// metrics.
pub const OPEN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Lets requests with a valid token in.
pub struct Guard {
    verifier: Verifier,
    open: Vec<&'static str>,
}

impl Guard {
    pub fn new(verifier: Verifier) -> Self {
        Self {
            verifier,
            open: OPEN_PATHS.to_vec(),
        }
    }

    /// Accepts tokens for an audience of this instance of the service too.
    pub fn accepting(mut self, audience: String) -> Self {
        self.verifier = self.verifier.accepting(audience);
        self
    }

    /// Opens one more path to requests without a token.
    pub fn open_at(mut self, path: &'static str) -> Self {
        self.open.push(path);
        self
    }

    /// The router behind the guard, its fallback included.
    pub fn before(self, router: Router) -> Router {
        router.layer(axum::middleware::from_fn_with_state(Arc::new(self), check))
    }
}

/// The middleware. It puts the caller's [`crate::ServiceAccount`] into the request's extensions, and keeps the place of
/// its connection.
async fn check(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    if guard.open.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let audience = guard.verifier.service().audience();
    let verified = token(request.headers())
        .ok_or(Refusal::NoToken { audience })
        .and_then(|token| guard.verifier.verify(&token));
    match verified {
        Ok(account) => {
            let place = request.extensions().get::<CallersPlace>();
            if let Some(Err(full)) = place.map(CallersPlace::keep) {
                return no_place(full);
            }
            request.extensions_mut().insert(account);
            next.run(request).await
        }
        Err(refusal) => {
            tracing::debug!(path = request.uri().path(), %refusal, "refused");
            refused(&refusal)
        }
    }
}

/// Reads `Authorization: Bearer`, the password of `Authorization: Basic` (for clients that can only be given a URL), or
/// [`TOKEN_HEADER`].
fn token(headers: &HeaderMap) -> Option<String> {
    if let Some(given) = headers.get(TOKEN_HEADER) {
        return given.to_str().ok().map(|token| token.trim().to_owned());
    }
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = given.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if scheme.eq_ignore_ascii_case("basic") && rest.len() <= 2 * MAX_TOKEN_BYTES {
        let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
        return decoded.split_once(':').map(|(_, password)| password.to_owned());
    }
    None
}

/// The response to a refused caller, in the form of all our errors.
pub fn refused(refusal: &Refusal) -> Response {
    let (status, code, fault) = match refusal {
        Refusal::NoKeys => (StatusCode::SERVICE_UNAVAILABLE, "Unavailable", "Infrastructure"),
        Refusal::NotAllowed { .. } => (StatusCode::FORBIDDEN, "Forbidden", "Client"),
        _ => (StatusCode::UNAUTHORIZED, "Unauthenticated", "Client"),
    };
    let body = json!({"code": code, "message": refusal.to_string(), "fault": fault});
    let mut response = (status, Json(body)).into_response();
    let (name, value) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (header::RETRY_AFTER, "1"),
        StatusCode::UNAUTHORIZED => (header::WWW_AUTHENTICATE, "Bearer"),
        _ => return response,
    };
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// The response to an authorised caller whose connection is one too many.
fn no_place(full: NoPlace) -> Response {
    let body = json!({"code": "Unavailable", "message": full.to_string(), "fault": "Infrastructure"});
    let headers = [(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, Json(body)).into_response()
}

#[cfg(test)]
mod tests;
