//! A tracking server of MLflow, by its REST API 2.0 (<https://mlflow.org/docs/latest/api_reference/rest-api.html>).
//!
//! The run there is found by the tag `grpo.uid`, so a driver that is started again continues it. The tag
//! `grpo.journal` is the number of the last journal entry whose points it has.

use super::http::Server;
use super::points::Point;
use super::{Standing, Tracker, TrackerError};
use futures::future::BoxFuture;
use grpo_contracts::RunConfig;
use grpo_crds::grpo_run::MlflowTracker;
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use std::path::Path;

/// Points in one request: the server's limit.
const POINTS: usize = 1000;
/// Characters of a parameter that the server takes.
const PARAMETER: usize = 6000;
const UID: &str = "grpo.uid";
const JOURNAL: &str = "grpo.journal";
const RUNNING: &str = "RUNNING";

pub struct Mlflow {
    server: Server,
    experiment: String,
    name: String,
    uid: String,
    namespace: String,
    /// What people compare runs by.
    parameters: Vec<(&'static str, Value)>,
    /// The run's id there, once it is known.
    run: Option<String>,
    /// The run's status there.
    status: String,
}

impl Mlflow {
    pub fn of(wanted: &MlflowTracker, config: &RunConfig) -> Self {
        let token = wanted.token_secret_ref.as_ref();
        let token = token.map(|_| Path::new(RunConfig::MLFLOW_TOKEN_MOUNT).join(RunConfig::MLFLOW_TOKEN_FILE));
        let experiment = wanted.experiment.clone().unwrap_or_else(|| config.namespace.clone());
        Self {
            server: Server::new(&wanted.url, "MLflow's", token),
            experiment,
            name: config.name.clone(),
            uid: config.uid.clone(),
            namespace: config.namespace.clone(),
            parameters: super::parameters(config),
            run: None,
            status: String::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn with_token(mut self, file: &Path) -> Self {
        self.server.use_secret(file.to_owned());
        self
    }

    fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder, TrackerError> {
        let Some(token) = self.server.secret()? else {
            return Ok(request);
        };
        Ok(match token.split_once(':') {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request.bearer_auth(&token),
        })
    }

    async fn send(&self, doing: &str, request: RequestBuilder) -> Result<Value, TrackerError> {
        self.server.send(doing, self.authorized(request)?).await
    }

    fn id(&self, doing: &str, value: &Value, answer: &Value) -> Result<String, TrackerError> {
        let id = value.as_str().map(str::to_owned);
        id.ok_or_else(|| self.server.foreign(doing, &answer.to_string()))
    }

    fn at(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.server.url)
    }

    async fn post(&self, doing: &str, path: &str, body: &Value) -> Result<Value, TrackerError> {
        self.send(doing, self.server.http.post(self.at(path)).json(body)).await
    }

    async fn experiment(&self) -> Result<String, TrackerError> {
        let by_name = self.server.http.get(self.at("experiments/get-by-name"));
        let by_name = by_name.query(&[("experiment_name", &self.experiment)]);
        let doing = format!("finding the experiment {}", self.experiment);
        match self.send(&doing, by_name).await {
            Ok(found) => return self.id(&doing, &found["experiment"]["experiment_id"], &found),
            Err(TrackerError::Refused { status, .. }) if status == StatusCode::NOT_FOUND.as_u16() => {}
            Err(error) => return Err(error),
        }
        let doing = format!("creating the experiment {}", self.experiment);
        let made = self
            .post(&doing, "experiments/create", &json!({"name": self.experiment}))
            .await?;
        self.id(&doing, &made["experiment_id"], &made)
    }

    /// The run of this uid, made if it does not exist; and the number of the last entry that it has.
    async fn find(&mut self, began: i64) -> Result<u64, TrackerError> {
        let experiment = self.experiment().await?;
        let search = json!({
            "experiment_ids": [experiment], "filter": format!("tags.`{UID}` = '{}'", self.uid), "max_results": 1,
        });
        let found = self.post("finding the run", "runs/search", &search).await?;
        let there = &found["runs"][0];
        if there.is_object() {
            self.run = Some(self.id("finding the run", &there["info"]["run_id"], &found)?);
            self.status = there["info"]["status"].as_str().unwrap_or_default().to_owned();
            // The answer to its creation was lost. Later they stay: the server refuses changes.
            if there["data"]["params"].as_array().is_none_or(Vec::is_empty) {
                self.add_parameters().await?;
            }
            let tags = there["data"]["tags"].as_array();
            let journal = tags.into_iter().flatten().find(|tag| tag["key"] == JOURNAL);
            return Ok(journal.and_then(|tag| tag["value"].as_str()?.parse().ok()).unwrap_or(0));
        }
        let tag = |key: &str, value: &str| json!({"key": key, "value": value});
        let run = json!({
            "experiment_id": experiment, "run_name": self.name, "start_time": began * 1000,
            "tags": [tag(UID, &self.uid), tag("grpo.namespace", &self.namespace), tag("grpo.run", &self.name)],
        });
        let made = self.post("creating the run", "runs/create", &run).await?;
        self.run = Some(self.id("creating the run", &made["run"]["info"]["run_id"], &made)?);
        RUNNING.clone_into(&mut self.status);
        self.add_parameters().await?;
        Ok(0)
    }

    async fn add_parameters(&self) -> Result<(), TrackerError> {
        let parameters: Vec<Value> = (self.parameters.iter())
            .map(|(key, value)| json!({"key": key, "value": text(value).chars().take(PARAMETER).collect::<String>()}))
            .collect();
        let body = json!({"run_id": self.run, "params": parameters});
        self.post("adding the parameters", "runs/log-batch", &body)
            .await
            .map(drop)
    }
}

/// Texts without quotes, other values as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Tracker for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn begin(&mut self, began: i64) -> BoxFuture<'_, Result<u64, TrackerError>> {
        Box::pin(self.find(began))
    }

    fn add<'a>(&'a mut self, upto: u64, points: &'a [Point]) -> BoxFuture<'a, Result<(), TrackerError>> {
        Box::pin(async move {
            for part in points.chunks(POINTS) {
                let metrics: Vec<Value> = part
                    .iter()
                    .map(|one| json!({"key": one.curve, "value": one.value, "timestamp": one.at * 1000, "step": one.step}))
                    .collect();
                let body = json!({"run_id": self.run, "metrics": metrics});
                self.post("adding points", "runs/log-batch", &body).await?;
            }
            // Afterwards: an answer that was lost makes the same points once more, which the server has once.
            let tag = json!({"run_id": self.run, "key": JOURNAL, "value": upto.to_string()});
            self.post("noting the journal's entry", "runs/set-tag", &tag)
                .await
                .map(drop)
        })
    }

    fn stand(&mut self, standing: Standing) -> BoxFuture<'_, Result<(), TrackerError>> {
        Box::pin(async move {
            let status = match standing {
                Standing::Working => RUNNING,
                Standing::Ended { succeeded: true } => "FINISHED",
                Standing::Ended { succeeded: false } => "FAILED",
            };
            if self.status == status {
                return Ok(());
            }
            let mut body = json!({"run_id": self.run, "status": status});
            if status != RUNNING {
                body["end_time"] = json!(jiff::Timestamp::now().as_millisecond());
            }
            self.post("setting the run's status", "runs/update", &body).await?;
            status.clone_into(&mut self.status);
            Ok(())
        })
    }
}
