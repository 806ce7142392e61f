//! `GET /weights/<version>/<file>`: a file of a published version, or the part that a `Range` header requests, streamed
//! from the store.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use grpo_records::paths::{is_plain_name, weights_file};
use grpo_records::{RunStore, StoreError};
use http_range_header::parse_range_header;
use std::ops::Range;

/// The requested part of a file.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    Part(Range<u64>),
    /// The file has no such part.
    None,
}

impl Wanted {
    /// A header with several parts, or of a form that this server does not know, gets the whole file (RFC 9110).
    fn of(headers: &HeaderMap, length: u64) -> Self {
        let Some(header) = headers.get(RANGE).and_then(|value| value.to_str().ok()) else {
            return Self::Whole;
        };
        let Ok(parsed) = parse_range_header(header) else {
            return Self::Whole;
        };
        match parsed.validate(length).as_deref() {
            Ok([part]) => Self::Part(*part.start()..part.end() + 1),
            Ok(_) => Self::Whole,
            Err(_) => Self::None,
        }
    }
}

pub(super) async fn file(
    State(store): State<RunStore>,
    Path((version, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if !is_plain_name(&version) || !is_plain_name(&name) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let path = weights_file(&version, &name);
    match store.length(&path).await {
        Ok(Some(length)) => answer(&store, &path, length, &Wanted::of(&headers, length)),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => failed(&error),
    }
}

fn answer(store: &RunStore, path: &str, length: u64, wanted: &Wanted) -> Response {
    let (status, part) = match wanted {
        Wanted::None => {
            let there = [(CONTENT_RANGE, format!("bytes */{length}"))];
            return (StatusCode::RANGE_NOT_SATISFIABLE, there).into_response();
        }
        Wanted::Whole => (StatusCode::OK, 0..length),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part.clone()),
    };
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CONTENT_LENGTH, (part.end - part.start).to_string()),
    ];
    let place = format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1));
    let place = (status == StatusCode::PARTIAL_CONTENT).then_some([(CONTENT_RANGE, place)]);
    let body = Body::from_stream(store.stream(path, part));
    (status, headers, place, body).into_response()
}

fn failed(error: &StoreError) -> Response {
    tracing::warn!(%error, "a file of weights cannot be served");
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

#[cfg(test)]
mod tests;
