//! The peers' processes: the passthrough, LiteLLM's proxy, and mini-swe-agent.

use super::engine::{CHAT, PlayedEngine, STREAM};
use super::{DriverBenchError, Place};
use crate::sandbox_bench::caller::Caller;
use bytes::Bytes;
use grpo_testing::control_plane::{Part, free_port};
use grpo_testing::repository;
use hyper::Method;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// On a busy machine LiteLLM takes half a minute to import.
const READY_WITHIN: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(100);
const SCRIPT: &str = "bench/src/driver_bench/mini_swe_agent.py";

/// A peer that answers chat completions.
pub struct Proxy {
    part: Part,
    /// `http://host:port`
    pub url: String,
}

impl Proxy {
    /// The passthrough is this same program in another mode.
    pub async fn passthrough(engine: &PlayedEngine, folder: &Path) -> Result<Self, DriverBenchError> {
        let own = std::env::current_exe().map_err(DriverBenchError::io("looking for this program"))?;
        let listen = format!("127.0.0.1:{}", free_port()?);
        let arguments = vec![
            "passthrough".to_owned(),
            listen.clone(),
            format!("http://{}", engine.address),
        ];
        let part = Part::start("passthrough", &own, arguments, folder)?;
        Self::ready(part, listen, "/").await
    }

    /// One worker for each processor, as its documentation recommends.
    pub async fn litellm(place: &Place, engine: &PlayedEngine, folder: &Path) -> Result<Self, DriverBenchError> {
        let base = format!("http://{}{}", engine.address, folder_of(STREAM));
        let config = json!({
            "model_list": [{
                "model_name": "policy",
                "litellm_params": {"model": "openai/policy", "api_base": base, "api_key": "none"},
            }],
            // Only this process calls it, and checking a key would add work.
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": true},
        });
        let file = folder.join("litellm.yaml");
        std::fs::write(&file, config.to_string()).map_err(DriverBenchError::io("writing LiteLLM's configuration"))?;
        let port = free_port()?;
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let arguments = [
            "--config".to_owned(),
            file.display().to_string(),
            "--host".to_owned(),
            "127.0.0.1".to_owned(),
            "--port".to_owned(),
            port.to_string(),
            "--num_workers".to_owned(),
            workers.to_string(),
        ];
        let program = place.python.with_file_name("litellm");
        let environment = offline(folder);
        let part = Part::start_with("litellm", &program, arguments.to_vec(), environment, folder)?;
        Self::ready(part, format!("127.0.0.1:{port}"), "/health/liveliness").await
    }

    async fn ready(mut part: Part, listen: String, path: &str) -> Result<Self, DriverBenchError> {
        let url = format!("http://{listen}");
        let caller = Caller::new(url.clone());
        let began = Instant::now();
        while caller.send(Method::GET, path, Bytes::new()).await.is_err() {
            part.runs()?;
            if began.elapsed() > READY_WITHIN {
                return Err(part.useless(format!("no answer within {READY_WITHIN:?}")).into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Self { part, url })
    }

    pub fn runs(&mut self) -> Result<(), DriverBenchError> {
        Ok(self.part.runs()?)
    }

    pub async fn stop(&mut self) -> Result<(), DriverBenchError> {
        Ok(self.part.stop().await?)
    }
}

/// Runs mini-swe-agent episodes without end, in this many threads. They wait while the engine's tap is closed.
pub fn mini_swe_agent(
    place: &Place,
    engine: &PlayedEngine,
    scale: (usize, usize),
    output: &str,
    folder: &Path,
) -> Result<Part, DriverBenchError> {
    let (threads, turns) = scale;
    let file = folder.join("output.txt");
    std::fs::write(&file, output).map_err(DriverBenchError::io("writing a command's output"))?;
    let arguments = [
        repository().join(SCRIPT).display().to_string(),
        format!("http://{}{}", engine.address, folder_of(CHAT)),
        threads.to_string(),
        turns.to_string(),
        file.display().to_string(),
        folder.join("trajectories").display().to_string(),
    ];
    let environment = offline(folder);
    Ok(Part::start_with(
        "mini-swe-agent",
        &place.python,
        arguments.to_vec(),
        environment,
        folder,
    )?)
}

/// Variables that keep the peers offline, and their settings out of the user's home.
fn offline(folder: &Path) -> Vec<(String, String)> {
    let variables = [
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True".to_owned()),
        ("LITELLM_TELEMETRY", "False".to_owned()),
        ("LITELLM_LOG", "ERROR".to_owned()),
        ("MSWEA_SILENT_STARTUP", "1".to_owned()),
        ("MSWEA_GLOBAL_CONFIG_DIR", folder.display().to_string()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
        ("no_proxy", "127.0.0.1".to_owned()),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// The path that clients take as the API's root.
fn folder_of(path: &'static str) -> &'static str {
    path.trim_end_matches("/chat/completions")
}
