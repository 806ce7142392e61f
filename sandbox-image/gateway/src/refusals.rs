//! Gives the HTTP library's own refusals the common error body: unknown paths and methods, bodies that are too long or
//! do not arrive.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use http_body_util::BodyExt;

pub async fn nothing_there() -> StatusCode {
    StatusCode::NOT_FOUND
}

pub async fn explain(request: Request, next: Next) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    let is_ours = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json");
    if !response.status().is_client_error() || is_ours {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let said = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let error = refusal(head.status, &asked, &String::from_utf8_lossy(&said));
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::CONTENT_TYPE);
    head.extensions.insert(error.clone());
    (head.status, head.headers, head.extensions, Json(error)).into_response()
}

fn refusal(status: StatusCode, asked: &str, said: &str) -> ErrorBody {
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::TooLarge,
        _ => ErrorCode::BadRequest,
    };
    let why = match status {
        StatusCode::NOT_FOUND if said.is_empty() => "there is no such path",
        StatusCode::METHOD_NOT_ALLOWED => "the path has other methods; see the header Allow",
        _ => said,
    };
    ErrorBody::new(code, FaultOrigin::Client, format!("{asked}: {why}"))
}
