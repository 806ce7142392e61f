//! The server through which people look into a run's records: what [`grpo_records::look`] answers, over HTTP, read
//! only.
//!
//! It listens on loopback. Weights are for the cluster; records are not: graders' logs and other episodes must not
//! reach a sandbox on a network that enforces no policy. Who gets here came by the API server's port-forward, so the
//! cluster's own rights are the lock. Outside of a run `grpo-driver records` starts the same server, in a pod that
//! mounts the store and nothing else.

use crate::fault::DriverError;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use grpo_records::RunStore;
use grpo_records::look::{EpisodeAt, EpisodesOf, Records, Refusal, RefusalCause, RefusalCode, TurnsOf, routes};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;

/// The routes of [`grpo_records::look::routes`].
pub fn router(records: Records) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route(routes::CONTENTS, get(contents))
        .route(routes::EPISODES, get(episodes))
        .route(routes::EPISODE, get(episode))
        .route(routes::TURNS, get(turns))
        .with_state(records)
}

/// Starts the server beside a running driver. A run continues without it.
pub async fn open_beside(store: &RunStore, listen: SocketAddr) {
    let records = Records::below(store.dir());
    match tokio::net::TcpListener::bind(listen).await {
        Ok(listener) => {
            tokio::spawn(async move { axum::serve(listener, router(records)).await });
        }
        Err(error) => {
            tracing::warn!(%error, %listen, "nobody can look into the records: the address cannot be listened on")
        }
    }
}

/// Shows the records of a store that lies on a mounted volume, until the process is ended.
pub async fn serve(mount: &Path, path: &str, listen: SocketAddr) -> Result<(), DriverError> {
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
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .map_err(DriverError::io(format!("listening on {listen}")))?;
    tracing::info!(%listen, store = %dir.display(), "showing records");
    axum::serve(listener, router(Records::below(dir)))
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

/// Reads on a thread that may wait for a disk.
async fn answer<T: Serialize + Send + 'static>(
    records: Records,
    read: impl FnOnce(&Records) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || read(&records)).await {
        Ok(Ok(found)) => Json(found).into_response(),
        Ok(Err(refusal)) => refused(refusal),
        Err(error) => refused(Refusal {
            code: RefusalCode::Unreadable,
            message: format!("reading the store was broken off: {error}"),
            fault: RefusalCause::Infrastructure,
        }),
    }
}

fn bad_query(rejection: &QueryRejection) -> Response {
    refused(Refusal {
        code: RefusalCode::BadPath,
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
mod tests {
    use super::*;
    use grpo_records::fixture;
    use grpo_records::look::{Contents, EpisodePage, EpisodeView, TurnPage};

    const EPISODE: &str = "rollouts/iter-000001/psf__requests-1__g0__i0";

    async fn opened() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        fixture::write_store(dir.path());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = router(Records::below(dir.path()));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (dir, url)
    }

    async fn asked(url: &str, path: &str) -> (u16, serde_json::Value) {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    #[tokio::test]
    async fn contents_episodes_and_turns_are_shown_over_a_socket() {
        let (_dir, url) = opened().await;
        let (_, contents) = asked(&url, routes::CONTENTS).await;
        let contents: Contents = serde_json::from_value(contents).unwrap();
        assert_eq!(contents.scopes.len(), 2);
        let (_, page) = asked(&url, "/v1/records/episodes?scope=rollouts/iter-000001&limit=2").await;
        let page: EpisodePage = serde_json::from_value(page).unwrap();
        assert_eq!((page.episodes.len(), page.next.is_some()), (2, true));
        let (_, view) = asked(&url, &format!("/v1/records/episode?path={EPISODE}")).await;
        let view: EpisodeView = serde_json::from_value(view).unwrap();
        assert!(view.patch.unwrap().contains("+b"));
        assert_eq!(view.told.unwrap().tokens, 5);
        let (_, turns) = asked(&url, &format!("/v1/records/turns?path={EPISODE}&from=1")).await;
        let turns: TurnPage = serde_json::from_value(turns).unwrap();
        assert_eq!((turns.turns.len(), turns.next), (1, None));
    }

    #[tokio::test]
    async fn what_is_no_episode_is_refused_with_a_code_and_words() {
        let (_dir, url) = opened().await;
        for (path, status, code) in [
            ("/v1/records/episode?path=journal/0000000001.json", 400, "BadPath"),
            ("/v1/records/episode?path=rollouts/iter-000001/%2e%2e", 400, "BadPath"),
            ("/v1/records/turns?path=rollouts/iter-000001/none", 404, "NotThere"),
            (
                "/v1/records/episodes?scope=rollouts/iter-000001&limit=many",
                400,
                "BadPath",
            ),
            ("/v1/records/episodes", 400, "BadPath"),
        ] {
            let (answered, body) = asked(&url, path).await;
            assert_eq!(
                (answered, body["code"].as_str(), body["fault"].as_str()),
                (status, Some(code), Some("Client")),
                "{path}"
            );
            assert!(
                body["message"].as_str().is_some_and(|words| !words.is_empty()),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn records_cannot_be_changed_through_the_server() {
        let (_dir, url) = opened().await;
        let client = reqwest::Client::new();
        let route = format!("{url}/v1/records/episode?path={EPISODE}");
        for request in [client.put(&route), client.post(&route), client.delete(&route)] {
            assert_eq!(request.send().await.unwrap().status().as_u16(), 405);
        }
    }

    #[tokio::test]
    async fn a_store_that_is_not_there_is_named() {
        let mount = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let error = serve(mount.path(), "team/demo", listen).await.unwrap_err().to_string();
        assert!(error.contains("team/demo"), "{error}");
        let error = serve(mount.path(), "../demo", listen).await.unwrap_err().to_string();
        assert!(error.contains("plain relative path"), "{error}");
    }
}
