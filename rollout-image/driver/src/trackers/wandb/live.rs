//! A run's rows at a server of Weights & Biases while the run works, by the protocol of the SDK's own core
//! (<https://github.com/wandb/wandb/tree/main/core/internal>): GraphQL for the run and its config, `file_stream` for
//! the history, the table of runs and the end.
//!
//! The run's id there is the uid. After a failure, and in the next driver, the server is asked how many rows it has,
//! as the SDK does with `resume`, and gets the rows from there on. A row's number and content follow from the journal
//! alone ([`super::rows`]), so a count that is behind only repeats rows: the server puts a row at its number. To send
//! all rows again would be as correct, but it would cost a long run thousands of rows for each outage, of a server
//! that limits requests.
//!
//! Rows that the server did not accept stay in memory, up to a limit, and are sent again. The journal is read from its
//! start only by the next driver, after more rows than that, and if the server has lost the run.
//!
//! The file in the store has the same rows under the same id: if the server is away until the driver ends, the next
//! driver or `wandb sync` adds what is missing.

use super::rows::{AXIS, Rows};
use crate::trackers::http::{Server, quoted};
use crate::trackers::points::Point;
use crate::trackers::{Standing, Tracker, TrackerError, parameters};
use futures::future::BoxFuture;
use grpo_contracts::RunConfig;
use grpo_crds::grpo_run::{WandbTracker, WandbUpload};
use reqwest::{RequestBuilder, StatusCode, Url};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Rows in one request. They are some kilobytes each, the server's limit is 10 MiB.
const ROWS: usize = 100;
/// Rows that are kept after a failure, some megabytes. Of more, the journal has all.
const KEPT: usize = 1000;
/// Between two requests to `file_stream`: the server limits how many there are.
const EVERY: Duration = Duration::from_secs(3);
/// A request this often, also without rows: the server takes a silent run for one that crashed.
const HEARTBEAT: Duration = Duration::from_secs(30);
const HISTORY: &str = "wandb-history.jsonl";
const SUMMARY: &str = "wandb-summary.json";
const ADVICE: &str = "check the API key in the Secret of trackers.wandb.upload.apiKeySecretRef, \
                      and that its user may write to the project";

/// The run, if it is there, and how many rows it has.
const RESUME: &str = "query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { id historyLineCount } }
}";
/// Makes the run, or changes it; a value that is null stays as it is.
const UPSERT: &str = "mutation UpsertBucket(
  $id: String, $name: String, $project: String, $entity: String, $displayName: String, $config: JSONString
) {
  upsertBucket(input: {
    id: $id, name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config
  }) { bucket { id project { name entity { name } } } inserted }
}";

pub struct Live {
    server: Server,
    project: String,
    /// `None`: the server takes the default of the key's user.
    entity: Option<String>,
    uid: String,
    name: String,
    /// What people compare runs by.
    parameters: Vec<(&'static str, Value)>,
    /// The server's own id of the run, which it checks when a run is continued.
    id: Option<String>,
    /// The address of the run's `file_stream`, once the server named entity and project.
    stream: Option<Url>,
    rows: Rows,
    /// The points of entries up to this one are in `rows`.
    taken: u64,
    /// The server has the rows before this one.
    has: i64,
    /// The server has counted rows that are not of this journal, so its count does not say which ones it accepted.
    has_others: bool,
    /// Rows from `has` on, in JSON.
    waiting: Vec<String>,
    kept: usize,
    /// The newest values of all curves.
    summary: Map<String, Value>,
    summary_changed: bool,
    config_changed: bool,
    /// The server knows that the run ended.
    ended: bool,
    every: Duration,
    last_post: Option<Instant>,
}

impl Live {
    pub fn of(wanted: &WandbTracker, upload: &WandbUpload, config: &RunConfig) -> Self {
        let key = Path::new(RunConfig::WANDB_KEY_MOUNT).join(RunConfig::WANDB_KEY_FILE);
        Self {
            server: Server::new(&upload.url, "that of Weights & Biases", Some(key)),
            project: super::project(wanted, config),
            entity: wanted.entity.clone(),
            uid: config.uid.clone(),
            name: config.name.clone(),
            parameters: parameters(config),
            id: None,
            stream: None,
            rows: Rows::since(0),
            taken: 0,
            has: 0,
            has_others: false,
            waiting: Vec::new(),
            kept: KEPT,
            summary: Map::new(),
            summary_changed: false,
            config_changed: false,
            ended: false,
            every: EVERY,
            last_post: None,
        }
    }

    #[cfg(test)]
    fn with(mut self, key: &Path, every: Duration) -> Self {
        self.server.use_secret(key.to_owned());
        self.every = every;
        self
    }

    async fn send(&self, doing: &str, request: RequestBuilder) -> Result<Value, TrackerError> {
        let key = self.server.secret()?;
        let sent = self.server.send(doing, request.basic_auth("api", key)).await;
        sent.map_err(|error| match error {
            TrackerError::Refused {
                doing, status, says, ..
            } if is_about_the_key(status) => TrackerError::Unauthorized {
                doing,
                status,
                says,
                advice: ADVICE,
            },
            other => other,
        })
    }

    /// Returns the `data` of the answer.
    async fn graphql(&self, doing: &str, query: &str, variables: Value) -> Result<Value, TrackerError> {
        let request = self.server.http.post(format!("{}/graphql", self.server.url));
        let body = json!({"query": query, "variables": variables});
        let answer = self.send(doing, request.json(&body)).await?;
        let errors = answer["errors"].as_array().filter(|errors| !errors.is_empty());
        if let Some(errors) = errors {
            let says: Vec<&str> = errors.iter().filter_map(|error| error["message"].as_str()).collect();
            return Err(TrackerError::Declined {
                doing: self.server.at(doing),
                says: quoted(&says.join("; ")),
            });
        }
        Ok(answer["data"].clone())
    }

    /// Makes or changes the run, and learns where its rows go.
    async fn upsert(&mut self, doing: &str, name: Option<&str>, config: Option<String>) -> Result<(), TrackerError> {
        let variables = json!({
            "id": self.id, "name": self.uid, "project": self.project, "entity": self.entity,
            "displayName": name, "config": config,
        });
        let answer = self.graphql(doing, UPSERT, variables).await?;
        let bucket = &answer["upsertBucket"]["bucket"];
        let project = &bucket["project"];
        let stream = match (project["entity"]["name"].as_str(), project["name"].as_str()) {
            (Some(entity), Some(project)) => self.stream_of(entity, project),
            _ => None,
        };
        self.stream = Some(stream.ok_or_else(|| self.server.foreign(doing, &answer.to_string()))?);
        self.id = bucket["id"].as_str().map(str::to_owned).or(self.id.take());
        Ok(())
    }

    fn stream_of(&self, entity: &str, project: &str) -> Option<Url> {
        let mut url = Url::parse(&self.server.url).ok()?;
        let path = ["files", entity, project, self.uid.as_str(), "file_stream"];
        url.path_segments_mut().ok()?.pop_if_empty().extend(path);
        Some(url)
    }

    async fn find(&mut self, began: i64) -> Result<u64, TrackerError> {
        let variables = json!({"project": self.project, "entity": self.entity, "name": self.uid});
        let answer = self.graphql("finding the run", RESUME, variables).await?;
        let there = &answer["model"]["bucket"];
        self.id = there["id"].as_str().map(str::to_owned);
        let counted = there["historyLineCount"].as_i64().unwrap_or(0);
        if there.is_null() {
            // It was deleted, or was never made: the server has no row.
            (self.has, self.has_others) = (0, false);
            self.read_again(began);
        } else if self.taken == 0 || self.waiting.len() > self.kept {
            self.read_again(began);
        }
        let name = self.name.clone();
        // Its config follows with the curves, which the journal has yet to name: a shorter config would hide axes.
        self.upsert("making the run", Some(&name), None).await?;
        self.ended = false;
        self.has_up_to(counted);
        Ok(self.taken)
    }

    /// Makes all rows from the journal's start: their numbers and the summary come from all points.
    fn read_again(&mut self, began: i64) {
        self.rows = Rows::since(began);
        self.taken = 0;
        self.waiting.clear();
        self.summary.clear();
        (self.summary_changed, self.config_changed) = (false, true);
    }

    /// The server counts so many rows: those that it accepted before an answer was lost need not be sent again. It may
    /// count later than it accepts, so a smaller count says nothing.
    fn has_up_to(&mut self, counted: i64) {
        // Rows that another client sent to this run are not ours.
        self.has_others |= self.taken > 0 && counted > self.rows.count();
        if counted > self.has && !self.has_others {
            let accepted = usize::try_from(counted - self.has).unwrap_or(usize::MAX);
            self.waiting.drain(..accepted.min(self.waiting.len()));
            self.has = counted;
        }
    }

    /// The config as the SDK writes it: a value of each parameter, and in `_wandb` the axis of each curve, by numbers
    /// of fields of `MetricRecord` (1: name, 5: place of the axis in the list, from 1).
    fn config(&self) -> String {
        let axis = json!({"1": AXIS});
        let curves = self.rows.curves.iter().map(|curve| json!({"1": curve, "5": 1}));
        let metrics: Vec<Value> = std::iter::once(axis).chain(curves).collect();
        let mut config: Map<String, Value> = (self.parameters.iter())
            .map(|(name, value)| ((*name).to_owned(), json!({"value": value})))
            .collect();
        // Without `t`, telemetry, the SDK takes a run for one that never began.
        let own = json!({"start_time": self.rows.began, "t": {}, "m": metrics});
        config.insert("_wandb".to_owned(), json!({"value": own}));
        Value::Object(config).to_string()
    }

    /// Sends what waits, [`ROWS`] at most, and with it the end. Without anything it is a heartbeat.
    async fn post(&mut self, exit: Option<i32>) -> Result<(), TrackerError> {
        if let Some(last) = self.last_post {
            tokio::time::sleep_until(last + self.every).await;
        }
        let rows = &self.waiting[..self.waiting.len().min(ROWS)];
        let mut files = Map::new();
        if !rows.is_empty() {
            files.insert(HISTORY.to_owned(), json!({"offset": self.has, "content": rows}));
        }
        if self.summary_changed {
            let summary = Value::Object(self.summary.clone()).to_string();
            files.insert(SUMMARY.to_owned(), json!({"offset": 0, "content": [summary]}));
        }
        let mut body = Map::new();
        if !files.is_empty() {
            body.insert("files".to_owned(), Value::Object(files));
        }
        if let Some(code) = exit {
            body.extend([
                ("complete".to_owned(), json!(true)),
                ("exitcode".to_owned(), json!(code)),
            ]);
        }
        let sent = rows.len();
        let stream = self.stream.clone();
        let stream = stream.ok_or_else(|| self.server.foreign("adding rows", "no name of the project"))?;
        self.last_post = Some(Instant::now());
        let request = self.server.http.post(stream).json(&body);
        self.send("adding rows", request).await?;
        self.waiting.drain(..sent);
        self.has += sent as i64;
        self.summary_changed = false;
        self.ended = exit.is_some();
        Ok(())
    }

    async fn finish(&mut self, standing: Standing) -> Result<(), TrackerError> {
        while self.waiting.len() > ROWS {
            self.post(None).await?;
        }
        // The whole journal was read. Rows that it does not have come from elsewhere; the next ones replace them.
        self.has_others |= self.has > self.rows.count();
        self.has = self.has.min(self.rows.count());
        // Before the end, after which the run should not change.
        if self.config_changed {
            let config = self.config();
            self.upsert("writing the run's config", None, Some(config)).await?;
            self.config_changed = false;
        }
        let exit = match standing {
            Standing::Ended { succeeded } if !self.ended => Some(i32::from(!succeeded)),
            _ => None,
        };
        let is_silent = self.last_post.is_none_or(|last| last.elapsed() >= HEARTBEAT);
        let is_due = match standing {
            Standing::Working => is_silent,
            Standing::Ended { .. } => exit.is_some(),
        };
        if is_due || !self.waiting.is_empty() || self.summary_changed {
            self.post(exit).await?;
        }
        Ok(())
    }
}

fn is_about_the_key(status: u16) -> bool {
    [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]
        .map(|one| one.as_u16())
        .contains(&status)
}

impl Tracker for Live {
    fn name(&self) -> &'static str {
        "wandb upload"
    }

    fn begin(&mut self, began: i64) -> BoxFuture<'_, Result<u64, TrackerError>> {
        Box::pin(self.find(began))
    }

    fn add<'a>(&'a mut self, upto: u64, points: &'a [Point]) -> BoxFuture<'a, Result<(), TrackerError>> {
        Box::pin(async move {
            let added = self.rows.add(points);
            self.config_changed |= !added.curves.is_empty();
            self.summary.extend(added.newest);
            let has = self.has;
            for row in added.rows.into_iter().filter(|row| row.number >= has) {
                let row: Map<String, Value> = row.values.into_iter().collect();
                self.waiting.push(Value::Object(row).to_string());
                self.summary_changed = true;
            }
            // Also if the next requests fail.
            self.taken = upto;
            while self.waiting.len() > ROWS {
                self.post(None).await?;
            }
            Ok(())
        })
    }

    fn stand(&mut self, standing: Standing) -> BoxFuture<'_, Result<(), TrackerError>> {
        Box::pin(self.finish(standing))
    }
}

#[cfg(test)]
mod tests;
