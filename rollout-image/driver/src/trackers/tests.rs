use super::*;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_crds::GrpoRun;
use grpo_records::{Journal, RunState, Writer};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// A run with these trackers.
pub(super) fn config(trackers: Value) -> RunConfig {
    let run: GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": "r", "namespace": "team", "uid": "uid"},
        "spec": {
            "model": {"path": "/m"}, "store": {"persistentVolumeClaim": {"claimName": "c"}}, "trackers": trackers,
        },
    }))
    .unwrap();
    RunConfig::of(&run)
}

/// A server that does what MLflow's does with the calls of a tracker: it keeps each point once.
#[derive(Default)]
struct Played {
    experiments: Vec<String>,
    runs: Vec<PlayedRun>,
    /// The next answers are lost after the work is done.
    lost: u32,
    /// The next changes of a run's status do not arrive.
    refused: u32,
    authorization: Option<String>,
}

#[derive(Default)]
struct PlayedRun {
    tags: BTreeMap<String, String>,
    parameters: BTreeMap<String, String>,
    /// (curve, time, step, value)
    points: Vec<(String, i64, u64, String)>,
    status: String,
}

type Shared = Arc<Mutex<Played>>;

fn named(list: &Value) -> BTreeMap<String, String> {
    let pair = |one: &Value| Some((one["key"].as_str()?.to_owned(), one["value"].as_str()?.to_owned()));
    list.as_array().into_iter().flatten().filter_map(pair).collect()
}

fn call(shared: &Shared, path: &str, headers: &HeaderMap, body: &Value) -> (StatusCode, Json<Value>) {
    let mut played = shared.lock().unwrap();
    played.authorization = headers
        .get("authorization")
        .map(|value| value.to_str().unwrap().to_owned());
    let at = body["run_id"].as_str().and_then(|id| id.parse::<usize>().ok());
    let answer = match path {
        "experiments/create" => {
            played.experiments.push(body["name"].as_str().unwrap().to_owned());
            json!({"experiment_id": "0"})
        }
        "runs/search" => {
            let filter = body["filter"].as_str().unwrap().to_owned();
            let of_uid = |run: &PlayedRun| filter == format!("tags.`grpo.uid` = '{}'", run.tags["grpo.uid"]);
            let found = played.runs.iter().position(of_uid);
            let of = |id: usize| {
                let tags: Vec<Value> = (played.runs[id].tags.iter())
                    .map(|(key, value)| json!({"key": key, "value": value}))
                    .collect();
                let run = &played.runs[id];
                let parameters: Vec<Value> = (run.parameters.iter())
                    .map(|(key, value)| json!({"key": key, "value": value}))
                    .collect();
                json!({
                    "info": {"run_id": id.to_string(), "status": run.status},
                    "data": {"tags": tags, "params": parameters},
                })
            };
            json!({"runs": found.map(of).into_iter().collect::<Vec<_>>()})
        }
        "runs/create" => {
            played.runs.push(PlayedRun {
                tags: named(&body["tags"]),
                status: "RUNNING".to_owned(),
                ..PlayedRun::default()
            });
            json!({"run": {"info": {"run_id": (played.runs.len() - 1).to_string()}}})
        }
        "runs/log-batch" => {
            let run = &mut played.runs[at.unwrap()];
            for (key, value) in named(&body["params"]) {
                if run.parameters.get(&key).is_some_and(|there| *there != value) {
                    return (
                        StatusCode::BAD_REQUEST,
                        Json(json!({"message": "Changing param values is not allowed"})),
                    );
                }
                run.parameters.insert(key, value);
            }
            for one in body["metrics"].as_array().into_iter().flatten() {
                let point = (
                    one["key"].as_str().unwrap().to_owned(),
                    one["timestamp"].as_i64().unwrap(),
                    one["step"].as_u64().unwrap(),
                    one["value"].to_string(),
                );
                if !run.points.contains(&point) {
                    run.points.push(point);
                }
            }
            json!({})
        }
        "runs/set-tag" => {
            let (key, value) = (body["key"].as_str().unwrap(), body["value"].as_str().unwrap());
            played.runs[at.unwrap()].tags.insert(key.to_owned(), value.to_owned());
            json!({})
        }
        "runs/update" if played.refused > 0 => {
            played.refused -= 1;
            return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({})));
        }
        "runs/update" => {
            played.runs[at.unwrap()].status = body["status"].as_str().unwrap().to_owned();
            json!({})
        }
        other => panic!("MLflow has no call {other}"),
    };
    if played.lost > 0 {
        played.lost -= 1;
        return (StatusCode::BAD_GATEWAY, Json(json!({"message": "lost"})));
    }
    (StatusCode::OK, Json(answer))
}

async fn serve(shared: Shared) -> String {
    let by_name = async |State(shared): State<Shared>, Query(query): Query<HashMap<String, String>>| {
        let wanted = &query["experiment_name"];
        match shared.lock().unwrap().experiments.contains(wanted) {
            true => (StatusCode::OK, Json(json!({"experiment": {"experiment_id": "0"}}))),
            false => (
                StatusCode::NOT_FOUND,
                Json(json!({"error_code": "RESOURCE_DOES_NOT_EXIST"})),
            ),
        }
    };
    let mut app = Router::new().route("/api/2.0/mlflow/experiments/get-by-name", get(by_name));
    for path in [
        "experiments/create",
        "runs/search",
        "runs/create",
        "runs/log-batch",
        "runs/set-tag",
        "runs/update",
    ] {
        let answer = async move |State(shared): State<Shared>, headers: HeaderMap, Json(body): Json<Value>| {
            call(&shared, path, &headers, &body)
        };
        app = app.route(&format!("/api/2.0/mlflow/{path}"), post(answer));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app.with_state(shared)).await });
    url
}

/// A journal with evaluations before and after one step.
pub(super) struct Run {
    pub folder: tempfile::TempDir,
    pub store: RunStore,
    journal: Journal,
    state: RunState,
}

impl Run {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::make(folder.path()).unwrap();
        let (journal, state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
        Self {
            folder,
            store,
            journal,
            state,
        }
    }

    pub async fn note(&mut self, event: Event) {
        self.journal.append(event, &mut self.state).await.unwrap();
    }

    pub async fn evaluated(&mut self, weights: &str, resolved: u32) {
        self.note(Event::EvaluationDone {
            set: "heldout".to_owned(),
            weights: weights.to_owned(),
            resolved,
            episodes: 4,
            voids: 0,
        })
        .await;
    }

    pub async fn stepped(&mut self, step: u32, weights: &str) {
        self.note(Event::StepDone {
            step,
            weights: weights.to_owned(),
            manifest_sha256: String::new(),
        })
        .await;
    }

    pub async fn finished(&mut self, succeeded: bool) {
        self.note(Event::RunFinished {
            succeeded,
            reason: None,
            message: None,
        })
        .await;
    }
}

fn mlflow(url: &str) -> mlflow::Mlflow {
    mlflow_with(url, 1)
}

fn mlflow_with(url: &str, iterations: u32) -> mlflow::Mlflow {
    let mut config = config(json!({"mlflow": {"url": url, "experiment": "swe"}}));
    config.spec.rollout.iterations = iterations;
    let wanted = config.spec.trackers.clone().unwrap().mlflow.unwrap();
    mlflow::Mlflow::of(&wanted, &config)
}

/// Sends everything, with as many tries as it takes.
pub(super) async fn sent(tracker: &mut dyn Tracker, store: &RunStore) {
    let mut last = None;
    for _ in 0..20 {
        let mut reader = Reader::new(store.clone());
        match advance(tracker, &mut reader).await {
            Ok(()) => return,
            Err(error) => last = Some(error),
        }
    }
    panic!("no try succeeded: {last:?}");
}

#[tokio::test]
async fn mlflow_has_each_point_once_at_its_step_after_lost_answers_and_with_several_drivers() {
    let shared = Shared::default();
    let url = serve(shared.clone()).await;
    let mut run = Run::new().await;
    run.evaluated("a-v0", 1).await;
    shared.lock().unwrap().lost = 9;
    sent(&mut mlflow(&url), &run.store).await;
    run.stepped(1, "a-v1").await;
    sent(&mut mlflow(&url), &run.store).await;
    // A driver that knows the weights of earlier entries only from the journal.
    run.evaluated("a-v1", 3).await;
    run.finished(true).await;
    shared.lock().unwrap().lost = 4;
    // Its points are there, and not how it ended.
    shared.lock().unwrap().refused = 1;
    sent(&mut mlflow(&url), &run.store).await;

    let played = shared.lock().unwrap();
    assert_eq!(played.experiments, ["swe"]);
    assert_eq!(played.runs.len(), 1, "each driver finds the run of the first");
    let there = &played.runs[0];
    let rates: Vec<(u64, &str)> = (there.points.iter())
        .filter(|(curve, ..)| curve == "evaluation/heldout/resolved_rate")
        .map(|(_, _, step, value)| (*step, value.as_str()))
        .collect();
    assert_eq!(rates, [(0, "0.25"), (1, "0.75")]);
    assert_eq!(there.points.len(), 6, "{:?}", there.points);
    assert_eq!(
        (there.status.as_str(), there.tags["grpo.journal"].as_str()),
        ("FINISHED", "4")
    );
    assert_eq!(there.parameters["mode"], "Train");
}

#[tokio::test]
async fn a_run_that_is_resumed_after_a_failure_runs_again_at_mlflow_with_changed_parameters() {
    let shared = Shared::default();
    let url = serve(shared.clone()).await;
    let mut run = Run::new().await;
    let status = |shared: &Shared| shared.lock().unwrap().runs[0].status.clone();
    run.stepped(1, "a-v1").await;
    run.finished(false).await;
    sent(&mut mlflow(&url), &run.store).await;
    assert_eq!(status(&shared), "FAILED");
    run.note(Event::DriverStarted { epoch: 2 }).await;
    let mut other = mlflow_with(&url, 9);
    advance(&mut other, &mut Reader::new(run.store.clone())).await.unwrap();
    assert_eq!(status(&shared), "RUNNING");
    run.evaluated("a-v1", 2).await;
    run.finished(true).await;
    advance(&mut other, &mut Reader::new(run.store.clone())).await.unwrap();
    assert_eq!(status(&shared), "FINISHED");
    assert_eq!(shared.lock().unwrap().runs[0].points.len(), 3);
}

#[tokio::test]
async fn a_page_for_people_is_not_taken_for_mlflow() {
    let app = Router::new().fallback(|| async { "<html>Log in</html>" });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let error = mlflow(&url).begin(0).await.unwrap_err().to_string();
    let expected = "the answer is not MLflow's; check the url: <html>Log in</html>";
    assert!(error.ends_with(expected), "{error}");
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_kept_in_memory() {
    let endless = || async {
        let piece = Ok::<_, std::convert::Infallible>(axum::body::Bytes::from_static(&[b'x'; 1 << 16]));
        axum::body::Body::from_stream(futures::stream::repeat(piece))
    };
    let app = Router::new().fallback(endless);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let error = mlflow(&url).begin(0).await.unwrap_err();
    assert!(matches!(error, TrackerError::TooLong { .. }), "{error}");
}

#[tokio::test]
async fn a_token_is_sent_as_bearer_and_a_user_with_password_as_basic() {
    let shared = Shared::default();
    let url = serve(shared.clone()).await;
    let mut run = Run::new().await;
    run.stepped(1, "a-v1").await;
    let file = run.folder.path().join("token");
    for (token, sent) in [("abc\n", "Bearer abc"), ("user:pass", "Basic dXNlcjpwYXNz")] {
        std::fs::write(&file, token).unwrap();
        let mut tracker = mlflow(&url).with_token(&file);
        advance(&mut tracker, &mut Reader::new(run.store.clone()))
            .await
            .unwrap();
        assert_eq!(shared.lock().unwrap().authorization.as_deref(), Some(sent));
    }
}

#[tokio::test]
async fn a_server_that_is_gone_delays_the_end_of_a_driver_for_seconds_only() {
    let mut run = Run::new().await;
    run.stepped(1, "a-v1").await;
    let config = config(json!({"mlflow": {"url": "http://127.0.0.1:1"}}));
    let trackers = Trackers::start(&config, &run.store, 1);
    tokio::task::yield_now().await;
    let began = std::time::Instant::now();
    trackers.end().await;
    assert!(began.elapsed() < LAST_POINTS * 2);
}

#[tokio::test]
async fn a_refusal_names_call_status_and_the_servers_words() {
    let app = Router::new().fallback(|| async { (StatusCode::FORBIDDEN, "no permission") });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let error = mlflow(&url).begin(0).await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("finding the experiment swe at {url}: the server answers 403: no permission")
    );
}

#[tokio::test]
async fn a_refusal_has_the_pause_that_the_server_asks_for() {
    let busy = || async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "40")], "slow down") };
    let app = Router::new().fallback(busy);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let error = mlflow(&url).begin(0).await.unwrap_err();
    assert_eq!(error.wait(), Duration::from_secs(40), "{error}");
}

#[tokio::test]
async fn numbers_of_iterations_and_steps_become_points_and_missing_files_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = RunStore::make(dir.path()).unwrap();
    let record = grpo_records::IterationRecord::of(Writer::driver(1), 3, "a-v2".to_owned(), &[]);
    store
        .create(&grpo_records::paths::driver_metrics(3), &record)
        .await
        .unwrap();
    let entry = |event| JournalEntry {
        schema: grpo_records::SCHEMA,
        writer: Writer::driver(1),
        sequence: 1,
        at: 77,
        event,
    };
    let batch = Event::BatchWritten {
        iteration: 3,
        step: 3,
        sha256: String::new(),
        rows: 1,
    };
    let points = points::of(&store, &entry(batch)).await.unwrap();
    let rate = points
        .iter()
        .find(|point| point.curve == "rollout/resolved_rate")
        .unwrap();
    assert_eq!((rate.step, rate.at, rate.value), (3, 77, 0.0));
    let step = Event::StepDone {
        step: 3,
        weights: "a-v3".to_owned(),
        manifest_sha256: String::new(),
    };
    assert_eq!(points::of(&store, &entry(step)).await.unwrap(), []);
}
