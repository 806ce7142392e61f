//! `grpo-driver tasks`: lists the tasks of a run before the run exists.
//!
//! The answer to a POST of a `run.json` is, line by line, the report and the rows of each set, read, completed and
//! selected by the same functions as in a run. There is no store: pins and downloads go into a scratch folder. Like the
//! server for records, this one listens on loopback: clients come through the API server's port-forward.

use crate::config;
use crate::downloads::Downloads;
use crate::fault::{DriverError, TerminalFault};
use crate::grader_worker::GraderWorker;
use crate::progress::Board;
use crate::tasks::{self, imports::Unasked};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use grpo_contracts::task_sets::{ROUTE, TasksLine, TasksQuestion};
use grpo_hub::HubSettings;
use grpo_records::{RunStore, paths};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// The interval of progress lines, which also keep the connection from looking idle.
const SAY: Duration = Duration::from_secs(2);
/// The number of lines that wait for a slow reader.
const LINES_AHEAD: usize = 64;
/// The longest `run.json` that is taken, in bytes: the API server takes objects of this length.
const LONGEST_QUESTION: usize = 4 << 20;
/// The reason of a fault that a retry may avoid.
const PASSING: &str = "AttemptFailed";

/// The settings of this process for answers.
#[derive(Clone, Debug)]
pub struct Lister {
    pub grader_worker: PathBuf,
    pub grader_site: PathBuf,
    pub hub: HubSettings,
    /// A folder for pins and downloads.
    pub scratch: PathBuf,
}

type Lines = mpsc::Sender<TasksLine>;

/// The reader of the answer is gone.
#[derive(Debug)]
struct ReaderGone;

pub fn router(lister: Lister) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route(ROUTE, post(answer))
        .layer(DefaultBodyLimit::max(LONGEST_QUESTION))
        .with_state(lister)
}

/// Serves until the process ends.
pub async fn serve(lister: Lister, listen: SocketAddr) -> Result<(), DriverError> {
    let listener = grpo_contracts::listen::listen(listen)
        .and_then(tokio::net::TcpListener::from_std)
        .map_err(DriverError::io(format!("listening on {listen}")))?;
    tracing::info!(%listen, "answering which tasks a run would have");
    axum::serve(listener, router(lister))
        .await
        .map_err(DriverError::io("answering which tasks a run would have"))
}

async fn answer(State(lister): State<Lister>, Json(question): Json<TasksQuestion>) -> Response {
    let (lines, written) = mpsc::channel(LINES_AHEAD);
    // On a separate thread: rows are read from a disk there, as in a run.
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(lister.tell(&question, &lines)));
    let stream = futures::stream::unfold(written, async |mut written| {
        let line = written.recv().await?;
        Some((Ok::<_, Infallible>(bytes_of(&line)), written))
    });
    Body::from_stream(stream).into_response()
}

fn bytes_of(line: &TasksLine) -> Bytes {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

impl Lister {
    /// Sends the whole answer.
    async fn tell(&self, question: &TasksQuestion, lines: &Lines) {
        let last = match self.list(question, lines).await {
            Ok(Ok(())) => TasksLine::Done,
            Ok(Err(DriverError::Terminal(TerminalFault { reason, message }))) => TasksLine::Fault {
                reason: reason.into(),
                message,
            },
            Ok(Err(error)) => TasksLine::Fault {
                reason: PASSING.to_owned(),
                message: error.to_string(),
            },
            Err(ReaderGone) => return,
        };
        // A reader that is gone needs no last line.
        let _ = send(lines, last).await;
    }

    /// Sends every line but the last.
    async fn list(&self, question: &TasksQuestion, lines: &Lines) -> Result<Result<(), DriverError>, ReaderGone> {
        let selections = match config::selections(&question.config) {
            Ok(selections) => selections,
            Err(fault) => return Ok(Err(fault.into())),
        };
        let board = Board::new(&question.config.uid, 0);
        let worker = GraderWorker::new(&self.grader_worker, &self.grader_site);
        let store = match RunStore::make(&self.scratch) {
            Ok(store) => store,
            Err(error) => return Ok(Err(error.into())),
        };
        let downloads = Downloads {
            settings: self.hub.clone(),
            store: &store,
            cache: self.scratch.join(paths::HUB),
            board: &board,
        };
        let is_asked = |name: &String| question.sets.is_empty() || question.sets.contains(name);
        for (name, selection) in selections.iter().filter(|(name, _)| is_asked(name)) {
            let read = async {
                let files = downloads.files(&selection.source).await?;
                let statements = downloads.statements(selection.overrides.as_ref()).await?;
                tasks::load(name, selection, &files, &statements, &worker, &Unasked).await
            };
            let set = match saying(name, &board, lines, read).await? {
                Ok(set) => set,
                Err(error) => return Ok(Err(error)),
            };
            tasks::report::log(&set.report);
            send(lines, TasksLine::Set(set.report)).await?;
            for task in set.tasks {
                let row = std::sync::Arc::unwrap_or_clone(task.row);
                send(lines, TasksLine::Row(row)).await?;
            }
        }
        Ok(Ok(()))
    }
}

/// Waits for the work and sends progress lines meanwhile. The work ends when the reader is gone.
async fn saying<T>(set: &str, board: &Board, lines: &Lines, work: impl Future<Output = T>) -> Result<T, ReaderGone> {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(SAY, &mut work).await {
            Ok(done) => return Ok(done),
            Err(_) => {
                let message = board.now().message;
                let message = message.unwrap_or_else(|| format!("Reading the rows of tasks.{set}"));
                send(lines, TasksLine::Progress(message)).await?;
            }
        }
    }
}

async fn send(lines: &Lines, line: TasksLine) -> Result<(), ReaderGone> {
    lines.send(line).await.map_err(|_| ReaderGone)
}
