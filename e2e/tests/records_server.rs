//! The plugin's client and the driver's records API, over a real socket.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use grpo_contracts::RunConfig;
use grpo_contracts::task_sets::TasksQuestion;
use grpo_driver::records_server;
use grpo_driver::tasks::listing::{self, Lister};
use grpo_hub::HubSettings;
use grpo_records::look::{EpisodesOf, Records, RefusalCode, routes};
use grpo_records::{fixture, paths};
use kubectl_grpo::arguments::{Arguments, Part, What};
use kubectl_grpo::error::Error;
use kubectl_grpo::records::{PodConnection, Source};
use kubectl_grpo::{copy, episodes, tasks};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};

async fn connected(router: Router) -> PodConnection {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    PodConnection::over("demo-driver-1-0", TcpStream::connect(address).await.unwrap())
        .await
        .unwrap()
}

async fn opened(dir: &Path) -> Source {
    Source::Pod(connected(records_server::router(Records::open(dir).unwrap())).await)
}

#[tokio::test]
async fn the_driver_and_a_copied_folder_give_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let (mut remote, mut folder) = (
        opened(dir.path()).await,
        Source::Folder(Records::open(dir.path()).unwrap()),
    );
    let contents = folder.contents().await.unwrap();
    assert_eq!(remote.contents().await.unwrap(), contents);
    for scope in &contents.scopes {
        let wanted = EpisodesOf {
            scope: paths::scope(scope),
            limit: Some(2),
            ..EpisodesOf::default()
        };
        let page = folder.episodes(&wanted).await.unwrap();
        assert_eq!(remote.episodes(&wanted).await.unwrap(), page);
        for episode in &page.episodes {
            assert_eq!(
                remote.episode(&episode.path).await.unwrap(),
                folder.episode(&episode.path).await.unwrap()
            );
            assert_eq!(
                remote.turns(&episode.path).await.unwrap(),
                folder.turns(&episode.path).await.unwrap()
            );
        }
    }
}

#[tokio::test]
async fn turns_of_many_pages_come_complete_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let path = "rollouts/iter-000001/psf__requests-1__g0__i3";
    for number in 1..50 {
        let turn = serde_json::to_vec(&fixture::turn(number, "true", "")).unwrap();
        std::fs::write(dir.path().join(paths::turn(path, number)), turn).unwrap();
    }
    let turns = opened(dir.path()).await.turns(path).await.unwrap();
    assert_eq!(
        turns.iter().map(|turn| turn.turn).collect::<Vec<_>>(),
        (0..50).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_refusal_comes_back_as_one_with_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut remote = opened(dir.path()).await;
    match remote.episode("../secret").await {
        Err(Error::Records(refusal)) => assert_eq!(refusal.code, RefusalCode::BadPath),
        other => panic!("{other:?}"),
    }
    let error = episodes::list(&mut remote, &Part::default(), &[], 10)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(error, "the run has no episodes yet");
}

#[tokio::test]
async fn an_answer_that_is_none_is_told_with_the_pods_name() {
    let router = Router::new().route(routes::CONTENTS, get(|| async { "<html>" }));
    let error = Source::Pod(connected(router).await)
        .contents()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("demo-driver-1-0") && error.contains("another version"),
        "{error}"
    );
    let error = Source::Pod(connected(Router::new()).await)
        .contents()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("404"), "{error}");
}

#[tokio::test]
async fn a_store_is_copied_through_the_driver_byte_for_byte() {
    let (dir, dest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fixture::write_store(dir.path());
    // Longer than one piece of a stream.
    let log: Vec<u8> = (0..9_000_000_u32).map(|n| n as u8).collect();
    let path = "rollouts/iter-000001/psf__requests-1__g0__i0/grade.log";
    std::fs::write(dir.path().join(path), &log).unwrap();
    let words = format!("grpo copy demo {} --episodes", dest.path().display());
    let What::Copy(asked) = Arguments::try_parse_from(words.split_whitespace()).unwrap().what else {
        panic!("{words}");
    };
    let mut remote = opened(dir.path()).await;
    let first = copy::copy(&mut remote, &asked).await.unwrap();
    assert_eq!(std::fs::read(dest.path().join(path)).unwrap(), log);
    let again = copy::copy(&mut remote, &asked).await.unwrap();
    assert_eq!((again.files, again.kept), (0, first.files));
    let mut cut = log.clone();
    cut.truncate(5_000_000);
    let part = dest.path().join(format!("{path}.part"));
    std::fs::rename(dest.path().join(path), &part).unwrap();
    std::fs::write(&part, cut).unwrap();
    let continued = copy::copy(&mut remote, &asked).await.unwrap();
    assert_eq!((continued.files, continued.bytes), (1, 4_000_000));
    assert_eq!(std::fs::read(dest.path().join(path)).unwrap(), log);
}

#[derive(Clone, Copy)]
enum Driver {
    Current,
    /// Of a version that knows no request for many files.
    Older,
    /// Its answer with many files ends in the second file.
    BreaksOff,
    /// Its run removes the first file before it is read.
    Removes,
}

const SMALL: [(&str, &str); 3] = [("a", "aaaa"), ("b", "0123456789"), ("c", "cc")];

/// Copies [`SMALL`] and a large file through a driver of this kind. Returns the requests for bytes too.
async fn copied(driver: Driver, dest: &Path) -> (Result<copy::Copied, String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tasks");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in SMALL {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::write(folder.join("d"), vec![7_u8; (1 << 20) + 1]).unwrap();
    let (requests, first) = (Arc::new(Mutex::new(Vec::new())), folder.join("a"));
    let noted = Arc::clone(&requests);
    let answer = move |request: Request, next: Next| {
        let (noted, first) = (Arc::clone(&noted), first.clone());
        async move {
            let asked = format!("{} {}", request.method(), request.uri().path());
            let is_bulk = asked == format!("POST {}", routes::BULK);
            if asked.ends_with(routes::BULK) || asked.ends_with(routes::FILE) {
                noted.lock().unwrap().push(asked.clone());
            }
            match driver {
                Driver::Older if asked.ends_with(routes::BULK) => StatusCode::NOT_FOUND.into_response(),
                Driver::BreaksOff if is_bulk => broken_off(next.run(request).await),
                Driver::Removes if is_bulk => {
                    std::fs::remove_file(first).unwrap();
                    next.run(request).await
                }
                _ => next.run(request).await,
            }
        }
    };
    let router = records_server::router(Records::open(dir.path()).unwrap()).layer(from_fn(answer));
    let words = format!("grpo copy demo {} --rows", dest.display());
    let What::Copy(asked) = Arguments::try_parse_from(words.split_whitespace()).unwrap().what else {
        panic!("{words}");
    };
    let mut source = Source::Pod(connected(router).await);
    let done = copy::copy(&mut source, &asked).await.map_err(|error| error.to_string());
    let requests = requests.lock().unwrap().clone();
    (done, requests)
}

/// The lines of two files, the bytes of the first, half of the bytes of the second, and an error.
fn broken_off(answer: Response) -> Response {
    let pieces = answer.into_body().into_data_stream().map_err(std::io::Error::other);
    let pieces = pieces.take(4).enumerate().map(|(at, piece)| {
        let piece: Bytes = piece?;
        Ok::<_, std::io::Error>(if at == 3 { piece.slice(..piece.len() / 2) } else { piece })
    });
    // The server sends the pieces before it polls the error.
    let error = stream::once(async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("broken off"))
    });
    Body::from_stream(pieces.chain(error)).into_response()
}

fn names(dest: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dest.join("tasks")).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn small_files_come_with_one_request_and_from_an_older_driver_one_by_one() {
    let (limits, bulk) = (format!("GET {}", routes::BULK), format!("POST {}", routes::BULK));
    let file = format!("GET {}", routes::FILE);
    let one_by_one = [vec![limits.clone()], vec![file.clone(); 4]].concat();
    for (driver, expected) in [(Driver::Current, vec![limits, bulk, file]), (Driver::Older, one_by_one)] {
        let dest = tempfile::tempdir().unwrap();
        let (done, requests) = copied(driver, dest.path()).await;
        let done = done.unwrap();
        assert_eq!(
            (done.files, done.bytes, done.kept, done.gone),
            (4, 16 + (1 << 20) + 1, 0, 0)
        );
        assert_eq!(requests, expected);
        assert_eq!(names(dest.path()), ["a", "b", "c", "d"]);
        for (name, text) in SMALL {
            let here = std::fs::read_to_string(dest.path().join("tasks").join(name)).unwrap();
            assert_eq!(here, text);
        }
    }
}

#[tokio::test]
async fn a_copy_whose_answer_with_many_files_was_broken_off_continues() {
    let dest = tempfile::tempdir().unwrap();
    let error = copied(Driver::BreaksOff, dest.path()).await.0.unwrap_err();
    assert!(
        error.contains("copying tasks/b") && error.contains("the same call continues"),
        "{error}"
    );
    assert_eq!(names(dest.path()), ["a", "b.part"]);
    let part = dest.path().join("tasks/b.part");
    assert_eq!(std::fs::read_to_string(part).unwrap(), "01234");
    let done = copied(Driver::Current, dest.path()).await.0.unwrap();
    assert_eq!((done.files, done.bytes, done.kept), (3, 5 + 2 + (1 << 20) + 1, 1));
    assert_eq!(names(dest.path()), ["a", "b", "c", "d"]);
    let here = std::fs::read_to_string(dest.path().join("tasks/b")).unwrap();
    assert_eq!(here, "0123456789");
}

#[tokio::test]
async fn a_file_that_the_run_removes_before_it_is_read_is_counted() {
    let dest = tempfile::tempdir().unwrap();
    let done = copied(Driver::Removes, dest.path()).await.0.unwrap();
    assert_eq!((done.files, done.gone), (3, 1));
    assert_eq!(names(dest.path()), ["b", "c", "d"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_driver_tells_the_plugin_what_would_end_a_run() {
    let scratch = tempfile::tempdir().unwrap();
    let lister = Lister {
        grader_worker: "worker.py".into(),
        grader_site: "site".into(),
        hub: HubSettings::default(),
        scratch: scratch.path().into(),
    };
    let run = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo", "namespace": "team"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "agent": {"bash": {}},
            "tasks": {"train": {"dataset": {"image": {"reference": "d", "path": "none.jsonl"}}}},
            "trainer": {"nodes": 1},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
    });
    let question = TasksQuestion {
        config: RunConfig::of(&serde_json::from_value(run).unwrap()),
        sets: Vec::new(),
    };
    let mut connection = connected(listing::router(lister)).await;
    let error = tasks::ask(&mut connection, &question, |_| {})
        .await
        .unwrap_err()
        .to_string();
    let wanted = "a run of this spec would end with DatasetUnreadable: reading the dataset /datasets/0/none.jsonl";
    assert!(error.starts_with(wanted), "{error}");
}
