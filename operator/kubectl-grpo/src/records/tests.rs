use super::*;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use grpo_records::fixture;
use grpo_records::look::files::FilePage;
use std::sync::{Arc, Mutex};

/// A driver that notes for which folders it is asked.
async fn driver(records: Records) -> (Source, Arc<Mutex<Vec<String>>>) {
    type Driver = (Records, Arc<Mutex<Vec<String>>>);
    async fn contents(State((records, _)): State<Driver>) -> Json<Contents> {
        Json(records.contents().unwrap())
    }
    async fn files(State((records, asked)): State<Driver>, Query(wanted): Query<FilesOf>) -> Json<FilePage> {
        asked.lock().unwrap().push(wanted.folder.clone());
        Json(records.files(&wanted).unwrap())
    }
    let asked = Arc::new(Mutex::new(Vec::new()));
    let state: Driver = (records, Arc::clone(&asked));
    let router = Router::new()
        .route(routes::CONTENTS, get(contents))
        .route(routes::FILES, get(files))
        .with_state(state);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let connection = PodConnection::over("driver", stream).await.unwrap();
    (Source::Pod(connection), asked)
}

#[tokio::test]
async fn files_of_episodes_are_listed_scope_by_scope_and_all_are_found() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let (mut source, asked) = driver(records.clone()).await;
    for (folder, scopes) in [
        ("rollouts", vec!["rollouts/iter-000001"]),
        ("evaluations", vec!["evaluations/heldout/a-v0"]),
        ("journal", vec!["journal"]),
    ] {
        let whole = FilesOf {
            folder: folder.to_owned(),
            after: None,
        };
        let found = source.files(folder).await.unwrap();
        assert_eq!(found, records.files(&whole).unwrap().files, "{folder}");
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), scopes);
    }
}
