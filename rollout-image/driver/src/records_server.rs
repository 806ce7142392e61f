//! The read-only HTTP server for a run's records, which [`grpo_records::look`] reads.
//!
//! It listens on loopback. Weights are for the cluster; records are not: graders' logs and other episodes must not
//! reach a sandbox on a network that enforces no policy. Clients come through the API server's port-forward, so the
//! cluster's own access control applies. Outside of a run, `grpo-driver records` starts the same server, in a pod that
//! mounts only the store.

use crate::fault::DriverError;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use futures::TryStreamExt;
use grpo_crds::sources::ObjectStoreSource;
use grpo_records::RunStore;
use grpo_records::look::bulk::{self, BulkLimits, BulkRequest};
use grpo_records::look::entries::{EntriesOf, MetricsOf};
use grpo_records::look::files::{FileAt, FilesOf};
use grpo_records::look::{EpisodeAt, EpisodesOf, Records, Refusal, RefusalCause, RefusalCode, TurnsOf, routes};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;

/// The routes of [`grpo_records::look::routes`].
pub fn router(records: Records) -> Router {
    let in_bulk = get(|| async { Json(BulkLimits::SERVED) })
        .post(many)
        .layer(DefaultBodyLimit::max(bulk::LONGEST_REQUEST));
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route(routes::CONTENTS, get(contents))
        .route(routes::EPISODES, get(episodes))
        .route(routes::EPISODE, get(episode))
        .route(routes::TURNS, get(turns))
        .route(routes::ENTRIES, get(entries))
        .route(routes::METRICS, get(metrics))
        .route(routes::FILES, get(files))
        .route(routes::FILE, get(file))
        .route(routes::BULK, in_bulk)
        .with_state(records)
}

/// Starts the server beside a running driver. A run continues without it.
pub fn open_beside(store: &RunStore, listen: SocketAddr) {
    let records = Records::of(store.clone());
    match listener(listen) {
        Ok(listener) => {
            tokio::spawn(async move { axum::serve(listener, router(records)).await });
        }
        Err(error) => {
            tracing::warn!(%error, %listen, "cannot listen on the address: the records of this run cannot be viewed")
        }
    }
}

/// The records of a store on a mounted volume.
pub fn open_volume(mount: &Path, path: &str) -> Result<Records, DriverError> {
    if !path.split('/').all(grpo_records::paths::is_plain_name) {
        let message = format!("--path {path:?} is not a plain relative path such as namespace/name");
        return Err(DriverError::Other(message));
    }
    let dir = mount.join(path);
    if !dir.is_dir() {
        let message = format!(
            "{} is not there: the run has not written its store yet, or its store.path is another",
            dir.display()
        );
        return Err(DriverError::Other(message));
    }
    Ok(Records::open(&dir)?)
}

/// The records of a store in a bucket; `credentials` is the folder with its variables.
pub async fn open_bucket(
    bucket: &ObjectStoreSource,
    credentials: Option<&Path>,
    path: &str,
) -> Result<Records, DriverError> {
    let store = grpo_object_storage::read_store(bucket, credentials, path).await;
    let store = store.map_err(|error| DriverError::Other(error.to_string()))?;
    Ok(Records::of(store))
}

fn listener(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::from_std(grpo_contracts::listen::listen(address)?)
}

/// Serves records until the process ends.
pub async fn serve(records: Records, listen: SocketAddr) -> Result<(), DriverError> {
    let listener = listener(listen).map_err(DriverError::io(format!("listening on {listen}")))?;
    tracing::info!(%listen, "showing records");
    axum::serve(listener, router(records))
        .await
        .map_err(DriverError::io("showing records".to_owned()))
}

async fn contents(State(records): State<Records>) -> Response {
    answer(records, |records| records.contents()).await
}

async fn episodes(State(records): State<Records>, wanted: Result<Query<EpisodesOf>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.episodes(&wanted)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

async fn episode(State(records): State<Records>, wanted: Result<Query<EpisodeAt>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.episode(&wanted.path)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

async fn turns(State(records): State<Records>, wanted: Result<Query<TurnsOf>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.turns(&wanted)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

async fn entries(State(records): State<Records>, wanted: Result<Query<EntriesOf>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.entries(&wanted)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

async fn metrics(State(records): State<Records>, wanted: Result<Query<MetricsOf>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.metrics(&wanted)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

async fn files(State(records): State<Records>, wanted: Result<Query<FilesOf>, QueryRejection>) -> Response {
    match wanted {
        Ok(Query(wanted)) => answer(records, move |records| records.files(&wanted)).await,
        Err(rejection) => bad_query(&rejection),
    }
}

/// Streams a file: it may be larger than memory.
async fn file(State(records): State<Records>, wanted: Result<Query<FileAt>, QueryRejection>) -> Response {
    let wanted = match wanted {
        Ok(Query(wanted)) => wanted,
        Err(rejection) => return bad_query(&rejection),
    };
    match tokio::task::spawn_blocking(move || records.file(&wanted)).await {
        Ok(Ok((length, stream))) => ([(CONTENT_LENGTH, length)], Body::from_stream(stream)).into_response(),
        Ok(Err(refusal)) => refused(refusal),
        Err(error) => refused(broken_off(&error)),
    }
}

/// Streams many files. An error breaks the connection off, so the client does not take the answer for complete.
async fn many(State(records): State<Records>, wanted: Result<Json<BulkRequest>, JsonRejection>) -> Response {
    let wanted = match wanted {
        Ok(Json(wanted)) => wanted,
        Err(rejection) => return bad_body(&rejection),
    };
    match records.bulk(wanted) {
        Ok(stream) => {
            let stream = stream.inspect_err(|error| tracing::warn!(%error, "an answer with many files is broken off"));
            Body::from_stream(stream).into_response()
        }
        Err(refusal) => refused(refusal),
    }
}

/// Reads on a blocking thread.
async fn answer<T: Serialize + Send + 'static>(
    records: Records,
    read: impl FnOnce(&Records) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || read(&records)).await {
        Ok(Ok(found)) => Json(found).into_response(),
        Ok(Err(refusal)) => refused(refusal),
        Err(error) => refused(broken_off(&error)),
    }
}

fn broken_off(error: &tokio::task::JoinError) -> Refusal {
    Refusal {
        code: RefusalCode::Unreadable,
        message: format!("reading the store was broken off: {error}"),
        fault: RefusalCause::Infrastructure,
    }
}

fn bad_query(rejection: &QueryRejection) -> Response {
    refused(Refusal {
        code: RefusalCode::BadPath,
        message: rejection.body_text(),
        fault: RefusalCause::Client,
    })
}

fn bad_body(rejection: &JsonRejection) -> Response {
    let code = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => RefusalCode::TooLarge,
        _ => RefusalCode::BadPath,
    };
    refused(Refusal {
        code,
        message: rejection.body_text(),
        fault: RefusalCause::Client,
    })
}

fn refused(refusal: Refusal) -> Response {
    let status = match refusal.code {
        RefusalCode::BadPath => StatusCode::BAD_REQUEST,
        RefusalCode::NotThere => StatusCode::NOT_FOUND,
        RefusalCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalCode::Unreadable => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(refusal)).into_response()
}

#[cfg(test)]
mod tests;
