//! The replicas: an engine agent as a process in each namespace, before a simulated engine.

use super::links::{Links, REPLICAS, SOURCE};
use crate::support::Result;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use grpo_engine_protocol::{AgentStatus, BASE_VERSION, EngineState, LoadRequest, LoadResponse, Relay, WeightsOrder};
use grpo_testing::program;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);

/// What a simulated engine has loaded.
type Loaded = Arc<Mutex<EngineState>>;

async fn load(State(loaded): State<Loaded>, Json(request): Json<LoadRequest>) -> Json<LoadResponse> {
    let (version, sha256) = (request.version, request.sha256.unwrap_or_default());
    if let Ok(mut loaded) = loaded.lock() {
        (loaded.version, loaded.sha256) = (version.clone(), sha256.clone());
    }
    Json(LoadResponse { version, sha256 })
}

async fn loaded(State(loaded): State<Loaded>) -> Json<Option<EngineState>> {
    Json(loaded.lock().map(|loaded| loaded.clone()).ok())
}

/// An engine that has loaded what it is told to load; its URL.
async fn played_engine(replica: usize) -> Result<String> {
    let router = Router::new()
        .route("/admin/load", post(load))
        .route("/admin/state", get(loaded))
        .with_state(Arc::new(Mutex::new(EngineState {
            version: BASE_VERSION.to_owned(),
            sha256: String::new(),
            draining: Vec::new(),
            asleep: false,
            running: 0,
            waiting: 0,
            max_rows: 1,
            max_context: 1024,
        })));
    let listener = tokio::net::TcpListener::bind((SOURCE, 9000 + replica as u16)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}

/// Engine agents.
pub struct Replicas {
    http: reqwest::Client,
    token: String,
    processes: Vec<Child>,
}

impl Drop for Replicas {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Replicas {
    pub async fn start(_links: &Links, work: &Path, issuer: &LocalIssuer) -> Result<Self> {
        let (driver, engines) = (
            ServiceAccount::new("team", "run-driver"),
            ServiceAccount::new("team", "run-engines"),
        );
        let (tokens, keys) = (work.join("tokens"), work.join("issuer.json"));
        issuer
            .write_tokens(&tokens, &engines, &[Service::EngineAgent])
            .map_err(|error| error.to_string())?;
        std::fs::write(&keys, issuer.file())?;
        let of = |name: &str| program(name).ok_or_else(|| format!("{name} is not built (make build)"));
        let agent = of("grpo-engine-agent")?;
        let mut replicas = Self {
            http: reqwest::Client::builder().no_proxy().build()?,
            token: issuer.token(&driver, Service::EngineAgent)?,
            processes: Vec::new(),
        };
        for replica in 0..REPLICAS {
            let space = format!("replica-{replica}");
            let inside = |program: &Path| {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &space]).arg(program);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command
            };
            let mut agent = inside(&agent);
            agent.args(["--engine", &played_engine(replica).await?]);
            agent.arg("--cache-dir").arg(work.join(&space));
            agent.arg("--tokens").arg(&tokens);
            agent.arg("--issuer-file").arg(&keys);
            agent.args(["--allow", "team/run-driver", "--allow", "team/run-engines"]);
            replicas.processes.push(agent.spawn()?);
        }
        for replica in 0..REPLICAS {
            replicas.until(replica, |status| status.serving.is_some()).await?;
        }
        Ok(replicas)
    }

    fn url(replica: usize) -> String {
        format!("http://{}:8000", Links::address(replica))
    }

    async fn get(&self, replica: usize, path: &str) -> Result<reqwest::Response> {
        let call = self.http.get(format!("{}{path}", Self::url(replica)));
        Ok(call.bearer_auth(&self.token).send().await?.error_for_status()?)
    }

    /// Asks an agent until its status is as wanted.
    async fn until(&self, replica: usize, wanted: impl Fn(&AgentStatus) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let last = match self.get(replica, "/agent/v1/status").await {
                Ok(answer) => {
                    let status: AgentStatus = answer.json().await?;
                    if wanted(&status) {
                        return Ok(());
                    }
                    format!("{status:?}")
                }
                Err(error) => error.to_string(),
            };
            if began.elapsed() > PATIENCE {
                return Err(format!("replica {replica} stays at {last}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Has all of them pull a version; the seconds until the last one has it.
    pub async fn pull(&self, order: &WeightsOrder, relay: bool) -> Result<f64> {
        let has = |status: &AgentStatus| status.pulled.as_ref() == Some(&order.version);
        self.tell("prefetch", order, relay, has).await
    }

    /// Has all of them serve a version that they have; the seconds until the last one does.
    pub async fn switch(&self, order: &WeightsOrder) -> Result<f64> {
        let serves = |status: &AgentStatus| status.serving.as_ref() == Some(&order.version);
        self.tell("weights", order, false, serves).await
    }

    async fn tell(
        &self,
        what: &str,
        order: &WeightsOrder,
        relay: bool,
        done: impl Fn(&AgentStatus) -> bool,
    ) -> Result<f64> {
        let members: Vec<String> = (0..REPLICAS).map(Self::url).collect();
        let began = Instant::now();
        for own in 0..REPLICAS {
            let relay = relay.then(|| Relay {
                members: members.clone(),
                own,
            });
            let order = WeightsOrder { relay, ..order.clone() };
            let call = self.http.put(format!("{}/agent/v1/{what}", Self::url(own)));
            let call = call.bearer_auth(&self.token).json(&order);
            call.send().await?.error_for_status()?;
        }
        for replica in 0..REPLICAS {
            self.until(replica, &done).await?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Bytes that all of them got from the source so far.
    pub async fn sent_by_source(&self) -> Result<f64> {
        let mut bytes = 0.0;
        for replica in 0..REPLICAS {
            let metrics = self.get(replica, "/metrics").await?.text().await?;
            let line = metrics
                .lines()
                .find_map(|line| line.strip_prefix("grpo_agent_pulled_source_bytes_total "));
            bytes += line.ok_or("an agent counts no bytes")?.parse::<f64>()?;
        }
        Ok(bytes)
    }
}
