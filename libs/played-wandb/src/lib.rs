//! A simulated server of Weights & Biases on a local socket, for tests: the GraphQL operations and the `file_stream`
//! that clients use to make, continue and end a run. It keeps each run as the service would show it.
//!
//! `make check-trackers` runs the official SDK against it: what the SDK needs of a server is here, and other operations
//! get an error and are recorded ([`PlayedWandb::unknown`]).

mod run;

pub use run::PlayedRun;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The API key that the server accepts. The SDK refuses keys of another length.
pub const KEY: &str = "0123456789abcdef0123456789abcdef01234567";
/// The team of runs that name none.
pub const ENTITY: &str = "key-owner";

/// A server. It ends when this value is dropped.
pub struct PlayedWandb {
    pub url: String,
    shared: Shared,
    serving: JoinHandle<()>,
}

type Shared = Arc<Mutex<Backend>>;
/// Entity, project, id.
type Name = (String, String, String);

#[derive(Default)]
struct Backend {
    runs: BTreeMap<Name, PlayedRun>,
    /// The next requests get this status, and do nothing.
    refusing: (u16, u32),
    /// Kinds of requests whose next answer is lost after the work is done, unless they are in the set.
    losing: Option<BTreeSet<String>>,
    counting: Counting,
    unknown: Vec<String>,
    refused: Vec<String>,
}

/// How the count that clients get differs from the rows that are there.
#[derive(Clone, Copy, Default)]
struct Counting {
    behind: usize,
    ahead: usize,
}

impl Counting {
    fn of(self, rows: usize) -> usize {
        rows.saturating_sub(self.behind) + self.ahead
    }
}

impl Drop for PlayedWandb {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl PlayedWandb {
    /// Listens on a port of this address.
    pub async fn start(address: &str) -> io::Result<Self> {
        let shared = Shared::default();
        let router = Router::new()
            .route("/graphql", post(graphql))
            .route("/files/{entity}/{project}/{run}/file_stream", post(file_stream))
            .route("/upload/{*path}", put(upload))
            .layer(DefaultBodyLimit::disable())
            .with_state(shared.clone());
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, shared, serving })
    }

    /// Answers the next requests with this status, and does nothing of what they ask.
    pub fn refuse(&self, status: u16, requests: u32) {
        lock(&self.shared).refusing = (status, requests);
    }

    /// Answers 503 from now on, or works again.
    pub fn set_away(&self, is_away: bool) {
        self.refuse(503, if is_away { u32::MAX } else { 0 });
    }

    /// Loses the next answer to each kind of request: does what it asks, and answers 502.
    pub fn lose_one_of_each(&self) {
        lock(&self.shared).losing = Some(BTreeSet::new());
    }

    /// Tells clients that it has fewer rows than it has, as a service that counts later.
    pub fn count_behind(&self, rows: usize) {
        lock(&self.shared).counting = Counting { behind: rows, ahead: 0 };
    }

    /// Tells clients that it has more rows than it has, as a service that counts rows of somebody else.
    pub fn count_ahead(&self, rows: usize) {
        lock(&self.shared).counting = Counting { behind: 0, ahead: rows };
    }

    /// A run as it is there now.
    pub fn run(&self, entity: &str, project: &str, id: &str) -> Option<PlayedRun> {
        let name = (entity.to_owned(), project.to_owned(), id.to_owned());
        lock(&self.shared).runs.get(&name).cloned()
    }

    /// How many runs are there.
    pub fn runs(&self) -> usize {
        lock(&self.shared).runs.len()
    }

    /// Operations that the server does not know, one for each request.
    pub fn unknown(&self) -> Vec<String> {
        lock(&self.shared).unknown.clone()
    }

    /// Why requests to `file_stream` were refused for their content.
    pub fn refused(&self) -> Vec<String> {
        lock(&self.shared).refused.clone()
    }
}

fn lock(shared: &Mutex<Backend>) -> MutexGuard<'_, Backend> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn error(status: StatusCode, message: &str) -> Response {
    answer(status, &json!({"errors": [{"message": message}]}))
}

/// The error for a request that is not worked on.
fn turned_away(backend: &mut Backend, headers: &HeaderMap) -> Option<Response> {
    let (status, left) = &mut backend.refusing;
    if *left > 0 {
        *left = if *left == u32::MAX { u32::MAX } else { *left - 1 };
        let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        return Some(error(status, "the simulated server is away"));
    }
    let expected = format!("Basic {}", STANDARD.encode(format!("api:{KEY}")));
    let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    (sent != Some(expected.as_str())).then(|| error(StatusCode::UNAUTHORIZED, "user is not logged in"))
}

/// The answer to a request of this kind, unless it is lost.
fn arrived(backend: &mut Backend, kind: &str, body: &Value) -> Response {
    if backend.losing.as_mut().is_some_and(|lost| lost.insert(kind.to_owned())) {
        return error(StatusCode::BAD_GATEWAY, "the answer is lost");
    }
    answer(StatusCode::OK, body)
}

/// The name of an operation; empty for one without a name.
fn operation(query: &str) -> &str {
    let query = query.trim_start();
    let named = query.strip_prefix("query").or_else(|| query.strip_prefix("mutation"));
    let mut words = named
        .unwrap_or_default()
        .trim_start()
        .split(|one: char| !one.is_alphanumeric());
    words.next().unwrap_or_default()
}

async fn graphql(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let mut backend = lock(&shared);
    if let Some(refusal) = turned_away(&mut backend, &headers) {
        return refusal;
    }
    let body: Value = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(wrong) => return error(StatusCode::BAD_REQUEST, &wrong.to_string()),
    };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let (query, variables) = (body["query"].as_str().unwrap_or_default(), &body["variables"]);
    let kind = operation(query);
    let data = match kind {
        "UpsertBucket" => match backend.upsert(variables) {
            Ok(data) => data,
            Err(wrong) => return error(StatusCode::BAD_REQUEST, &wrong),
        },
        "RunResumeStatus" => backend.resume_status(variables),
        "CreateRunFiles" => run_files(variables, host.unwrap_or_default()),
        "RunStoppedStatus" => json!({"project": {"run": {"stopped": false}}}),
        "ServerFeaturesQuery" => json!({"serverInfo": {"features": []}}),
        // Fields of the schema, by which the SDK chooses its later queries.
        "ProbeServerCapabilities" => json!({
            "QueryType": {"fields": []}, "MutationType": {"fields": [{"name": "createRunFiles"}]},
            "ServerInfoType": {"fields": []},
        }),
        "ProbeServerSettings" => json!({"ServerSettingsType": {"fields": []}}),
        "Viewer" => viewer(),
        "" if query.contains("viewer") => viewer(),
        other => {
            let other = if other.is_empty() { query } else { other }.to_owned();
            let message = format!("the simulated server does not know {other}");
            backend.unknown.push(other);
            return error(StatusCode::OK, &message);
        }
    };
    arrived(&mut backend, kind, &json!({"data": data}))
}

fn viewer() -> Value {
    json!({"viewer": {
        "id": "1", "entity": ENTITY, "username": ENTITY, "email": null, "flags": "{}", "teams": {"edges": []},
    }})
}

/// Where the SDK uploads files of a run.
fn run_files(variables: &Value, host: &str) -> Value {
    let files: Vec<Value> = (variables["files"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .map(|name| json!({"name": name, "uploadUrl": format!("http://{host}/upload/{name}")}))
        .collect();
    json!({"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}})
}

/// Takes a file, which no test looks at.
async fn upload(body: Bytes) -> StatusCode {
    drop(body);
    StatusCode::OK
}

async fn file_stream(
    State(shared): State<Shared>,
    Path(name): Path<Name>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut backend = lock(&shared);
    if let Some(refusal) = turned_away(&mut backend, &headers) {
        return refusal;
    }
    let Some(run) = backend.runs.get_mut(&name) else {
        return error(StatusCode::NOT_FOUND, "there is no such run");
    };
    let read = serde_json::from_slice::<Value>(&body).map_err(|wrong| wrong.to_string());
    let taken = read.and_then(|body| run.take(&body));
    let kind = if run.exit_code.is_some() { "end" } else { "file_stream" };
    match taken {
        Ok(()) => arrived(&mut backend, kind, &json!({"exitcode": null, "limits": {}})),
        Err(wrong) => {
            backend.refused.push(wrong.clone());
            error(StatusCode::BAD_REQUEST, &wrong)
        }
    }
}

impl Backend {
    /// Project and entity of variables, and the run's id.
    fn name(variables: &Value) -> Name {
        let of = |variable: &str, default: &str| variables[variable].as_str().unwrap_or(default).to_owned();
        (of("entity", ENTITY), of("project", "uncategorized"), of("name", ""))
    }

    fn id((entity, project, id): &Name) -> String {
        format!("Run:{entity}/{project}/{id}")
    }

    fn upsert(&mut self, variables: &Value) -> Result<Value, String> {
        let name = Self::name(variables);
        if name.2.is_empty() || name.2.contains(['/', '\\', '#', '?', '%', ':']) {
            return Err(format!("{:?} is no id of a run", name.2));
        }
        let id = Self::id(&name);
        if variables["id"].as_str().is_some_and(|sent| sent != id) {
            return Err(format!("{} is the id of another run", variables["id"]));
        }
        let counting = self.counting;
        let is_new = !self.runs.contains_key(&name);
        let run = self.runs.entry(name.clone()).or_default();
        run.upsert(variables)?;
        let (entity, project, uid) = &name;
        Ok(json!({"upsertBucket": {
            "bucket": {
                "id": id, "name": uid, "displayName": run.display_name, "description": null,
                "config": run.config.to_string(), "sweepName": null,
                "historyLineCount": counting.of(run.lines().len()),
                "project": {"id": project, "name": project, "entity": {"id": entity, "name": entity}},
            },
            "inserted": is_new,
        }}))
    }

    fn resume_status(&self, variables: &Value) -> Value {
        let name = Self::name(variables);
        let bucket = self.runs.get(&name).map(|run| {
            let tail: Vec<&String> = run.lines().last().into_iter().collect();
            json!({
                "id": Self::id(&name), "name": name.2, "displayName": run.display_name, "tags": [],
                "summaryMetrics": run.summary.to_string(), "config": run.config.to_string(),
                "wandbConfig": run.wandb_config().to_string(),
                "historyLineCount": self.counting.of(run.lines().len()),
                "historyTail": json!(tail).to_string(), "eventsLineCount": run.events, "eventsTail": "[]", "logLineCount": run.output,
            })
        });
        let (entity, project, _) = &name;
        json!({"model": {
            "id": project, "name": project, "entity": {"id": entity, "name": entity}, "bucket": bucket,
        }})
    }
}
