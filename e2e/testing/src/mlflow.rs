//! MLflow's own tracking server, for tests of trackers: what it has of a run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::test_server::{Program, TestServer, TestServerError};

/// A server that ends when the value is dropped.
pub struct MlflowServer {
    server: TestServer,
    pub url: String,
}

/// A run as the server has it.
#[derive(Clone, Debug, Default)]
pub struct MlflowRun {
    pub status: String,
    pub parameters: BTreeMap<String, String>,
    /// Values of each curve at each step, in the server's order.
    pub points: BTreeMap<(String, u64), Vec<f64>>,
}

impl MlflowServer {
    /// Starts one on a free port of this address, with its database in `folder`.
    pub async fn start(address: &str, folder: &Path) -> Result<Self, TestServerError> {
        let program = Program {
            name: "mlflow",
            path: "venv-mlflow/bin/mlflow",
            installer: "e2e/trackers/install.sh",
            folder,
            environment: vec![("MLFLOW_DISABLE_TELEMETRY".to_owned(), "true".to_owned())],
        };
        let database = format!("sqlite:///{}", folder.join("mlflow.db").display());
        let artifacts = folder.join("artifacts").display().to_string();
        let arguments = |port: u16| {
            [
                "server",
                "--host",
                address,
                "--port",
                &port.to_string(),
                "--workers",
                "1",
                "--backend-store-uri",
                &database,
                "--default-artifact-root",
                &artifacts,
                "--allowed-hosts",
                "*",
            ]
            .map(str::to_owned)
            .to_vec()
        };
        let server = TestServer::start(&program, address, arguments).await?;
        Ok(Self {
            url: format!("http://{}", server.at),
            server,
        })
    }

    /// Kills it without notice.
    pub async fn kill(&mut self) -> Result<(), TestServerError> {
        self.server.kill().await
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) -> Result<(), TestServerError> {
        self.server.again()
    }

    /// The run with this tag `grpo.uid` in an experiment; `None` if there is no such run.
    pub async fn run(&self, experiment: &str, uid: &str) -> Result<Option<MlflowRun>, reqwest::Error> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let at = |path: &str| format!("{}/api/2.0/mlflow/{path}", self.url);
        let named = http
            .get(at("experiments/get-by-name"))
            .query(&[("experiment_name", experiment)]);
        let found: Value = named.send().await?.json().await?;
        let search = json!({
            "experiment_ids": [found["experiment"]["experiment_id"]], "filter": format!("tags.`grpo.uid` = '{uid}'"),
        });
        let found: Value = http.post(at("runs/search")).json(&search).send().await?.json().await?;
        let run = &found["runs"][0];
        let Some(id) = run["info"]["run_id"].as_str() else {
            return Ok(None);
        };
        let mut came = MlflowRun {
            status: run["info"]["status"].as_str().unwrap_or_default().to_owned(),
            ..MlflowRun::default()
        };
        let pairs = |of: &Value| of.as_array().cloned().unwrap_or_default();
        for parameter in pairs(&run["data"]["params"]) {
            let text = |key: &str| parameter[key].as_str().unwrap_or_default().to_owned();
            came.parameters.insert(text("key"), text("value"));
        }
        for metric in pairs(&run["data"]["metrics"]) {
            let curve = metric["key"].as_str().unwrap_or_default();
            let history = http.get(at("metrics/get-history"));
            let history = history.query(&[("run_id", id), ("metric_key", curve), ("max_results", "1000")]);
            let history: Value = history.send().await?.json().await?;
            for point in pairs(&history["metrics"]) {
                let step = point["step"].as_u64().unwrap_or_default();
                let value = point["value"].as_f64().unwrap_or(f64::NAN);
                came.points.entry((curve.to_owned(), step)).or_default().push(value);
            }
        }
        Ok(Some(came))
    }
}
