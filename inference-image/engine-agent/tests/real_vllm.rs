//! The agent with a real vLLM, which `e2e/engines/vllm.sh` starts with a tiny random model.
//!
//! These tests check the agent's answers: ids with logprobs, and their version. Afterwards transformers checks the
//! logprobs against that version's weights (`e2e/engines/tiny_qwen3.py compare`), from the rows recorded here.

use crate::support::{Agent, Source};
use grpo_engine_agent::Kind;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{AgentState, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, WeightsOrder};
use grpo_records::weights::Canary;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const FULL: [&str; 2] = ["config.json", "model.safetensors"];

/// vLLM compiles parts of its sampler at the first row: seconds on an idle machine, more than a minute on a busy one.
const PATIENCE: Duration = Duration::from_secs(300);

/// vLLM's agent, and the source of its weights.
struct RealVllm {
    agent: Agent,
    source: Source,
    tiny: PathBuf,
    rows: Mutex<File>,
}

/// A canary of other weights than the engine gets.
fn lowered(canary: &mut Option<Canary>) {
    let logprobs = &mut canary.as_mut().unwrap().logprobs;
    logprobs.iter_mut().for_each(|logprob| *logprob -= 3.0);
}

type Running = JoinHandle<Result<CompletionResponse, ErrorBody>>;

impl RealVllm {
    async fn new() -> Self {
        // As the operator starts the agent of such a pool: `--kind vllm --cpu`.
        let kind = Kind::Vllm {
            no_folders: None,
            cpu: true,
        };
        let place = |name: &str| PathBuf::from(std::env::var(name).unwrap());
        let real = Self {
            agent: Agent::patient(kind, &std::env::var("GRPO_VLLM_URL").unwrap(), None, 16, PATIENCE).await,
            source: Source::start().await,
            tiny: place("GRPO_VLLM_TINY"),
            rows: Mutex::new(File::create(place("GRPO_VLLM_ROWS")).unwrap()),
        };
        real.agent.wait_until_serving("base").await;
        real
    }

    /// Publishes the files of a folder of the tiny model as `version`, with its logprobs by transformers as canary.
    fn publish(
        &self,
        folder: &str,
        names: &[&str],
        version: &str,
        change: impl FnOnce(&mut Option<Canary>),
    ) -> WeightsOrder {
        let read = |name: &str| std::fs::read(self.tiny.join(folder).join(name)).unwrap();
        let files = names.iter().map(|name| (*name, read(name))).collect();
        let mut canary = Some(serde_json::from_slice(&read("canary.json")).unwrap());
        change(&mut canary);
        self.source
            .publish_files(version, files, &sha256(folder.as_bytes()), |manifest| {
                manifest.canary = canary
            })
    }

    /// Loads the files of a folder of the tiny model as `version`.
    async fn bring(&self, folder: &str, names: &[&str], version: &str) {
        self.order(&self.publish(folder, names, version, |_| {})).await;
    }

    async fn order(&self, order: &WeightsOrder) {
        let (version, begun) = (&order.version, Instant::now());
        self.agent.order(order).await;
        let status = self.agent.wait_until_serving(version).await;
        assert_eq!(status.changed, Some(true));
        println!(
            "{version} serves {:.2} s after it was ordered",
            begun.elapsed().as_secs_f32()
        );
    }

    /// Checks an answer without its weights, and records the rows for the check with them. `files`: the version's
    /// source.
    fn keep(&self, asked: &CompletionRequest, answer: &CompletionResponse, version: &str, files: &str) {
        let prompts = match &asked.prompt {
            Prompt::Tokens(tokens) => vec![tokens.clone()],
            Prompt::Batch(prompts) => prompts.clone(),
            text => panic!("{text:?} is no ids"),
        };
        assert_eq!(answer.weights_version, version);
        assert_eq!(answer.choices.len(), prompts.len() * asked.n as usize);
        for (index, row) in (0..).zip(&answer.choices) {
            let logprobs = &row.logprobs.as_ref().unwrap().token_logprobs;
            assert_eq!((row.index, row.weights_version.as_str()), (index, version));
            assert_eq!(
                (row.token_ids.len(), logprobs.len()),
                (asked.max_tokens as usize, row.token_ids.len())
            );
            let row = json!({
                "version": version,
                "files": files,
                "temperature": asked.temperature,
                "prompt": prompts[index as usize / asked.n as usize],
                "token_ids": row.token_ids,
                "token_logprobs": logprobs,
            });
            writeln!(self.rows.lock().unwrap(), "{row}").unwrap();
        }
    }

    /// Greedy rows and sampled ones, at a temperature.
    async fn sample(&self, version: &str, files: &str) {
        let sampled = CompletionRequest {
            prompt: Prompt::Batch(vec![(5..60).collect(), vec![8, 9]]),
            n: 2,
            temperature: 0.7,
            ..endless(24, 7)
        };
        let greedy = CompletionRequest {
            temperature: 0.0,
            ..endless(16, 7)
        };
        for asked in [greedy, sampled] {
            let answer = self.agent.complete(&asked, Some(version)).await.unwrap();
            self.keep(&asked, &answer, version, files);
        }
    }

    /// Begins to sample long rows, and returns when vLLM has started.
    async fn begin(&self, asked: &CompletionRequest, version: &'static str) -> Running {
        let before = self.prompts_read().await;
        let (agent, asked) = (self.agent.clone(), asked.clone());
        let running = tokio::spawn(async move { agent.complete(&asked, Some(version)).await });
        while self.prompts_read().await <= before {
            assert!(!running.is_finished(), "it ended at once: {:?}", running.await);
            tokio::task::yield_now().await;
        }
        running
    }

    /// Prompt tokens that vLLM has read so far. The number of its rows would not do: it may still count answered rows.
    async fn prompts_read(&self) -> f64 {
        let metrics = self.agent.get("/engine/metrics").await.text().await.unwrap();
        // Before the first row the page may lack them.
        let line = metrics
            .lines()
            .find(|line| line.starts_with("vllm:prompt_tokens_total{"));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
    }

    async fn models(&self) -> Vec<String> {
        let models: Value = self.agent.get("/v1/models").await.json().await.unwrap();
        let cards = models["data"].as_array().unwrap().iter();
        cards.map(|card| card["id"].as_str().unwrap().to_owned()).collect()
    }
}

/// A request whose rows end at their length only.
fn endless(max_tokens: u32, seed: u64) -> CompletionRequest {
    CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", (5..60).collect(), max_tokens, seed)
    }
}

/// Long enough to run while versions change.
fn long(max_tokens: u32) -> CompletionRequest {
    CompletionRequest {
        n: 2,
        ..endless(max_tokens, 3)
    }
}

#[tokio::test]
#[ignore = "needs a vLLM: e2e/engines/vllm.sh starts one"]
async fn a_real_vllm_swaps_adapters_under_rows_that_go_on_as_they_began() {
    let real = RealVllm::new().await;
    real.sample("base", "model").await;
    let (brief, asked) = (long(400), long(3900));
    let mut running: Vec<(Running, &'static str, &str)> = Vec::new();
    let mut now = ("base", "model");
    for (version, files) in [
        ("a-v1", "adapters/a-v1"),
        ("a-v2", "adapters/a-v2"),
        ("a-v3", "adapters/a-v3"),
    ] {
        // On a CPU, rows of the base model must end before the first adapter is loaded.
        let asked = if now.0 == "base" { &brief } else { &asked };
        running.push((real.begin(asked, now.0).await, now.0, now.1));
        // Rows of two adapters are running when the third is loaded: the rows of its canary would wait for them.
        let compared = |canary: &mut Option<Canary>| *canary = canary.take().filter(|_| version != "a-v3");
        real.order(&real.publish(files, &ADAPTER, version, compared)).await;
        // Rows of the previous version and, if loading is quick, of the one before it, which is unloaded.
        for (age, (row, old, _)) in (1..)
            .zip(running.iter().rev().take(2))
            .filter(|(_, (_, old, _))| *old != "base")
        {
            assert!(
                age > 1 || !row.is_finished(),
                "rows of {old} ended before {version} was there"
            );
            println!(
                "rows of {old} {} when {version} serves",
                if row.is_finished() { "have ended" } else { "go on" }
            );
        }
        let late = real.agent.complete(&endless(1, 0), Some(now.0)).await.unwrap_err();
        assert_eq!(
            (late.code, late.serving.as_deref()),
            (ErrorCode::WrongWeights, Some(version))
        );
        now = (version, files);
        // There is room for two adapters at once: rows of a third wait until those of another have ended.
        if version != "a-v3" {
            real.sample(version, files).await;
        }
    }
    assert_eq!(
        real.models().await,
        ["policy", "a-v2", "a-v3"],
        "the first is still loaded"
    );
    for (row, version, files) in running {
        let answer = row.await.unwrap().unwrap();
        let asked = if version == "base" { &brief } else { &asked };
        real.keep(asked, &answer, version, files);
    }
    real.sample("a-v3", "adapters/a-v3").await;
    real.agent
        .order(&real.publish("adapters/a-v2", &ADAPTER, "a-v4", lowered))
        .await;
    let status = real.agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("a-v3"));
    let message = status.message.unwrap();
    assert!(message.contains("differ from the trainer's by 3.0"), "{message}");
    // A trainer's published version of such a model, as in the run's store.
    let (version, files) = ("l1-v3", "adapters/l1-v3");
    real.order(&real.source.serve_version(&real.tiny.join(files))).await;
    real.sample(version, files).await;
    let asked = long(400);
    let answer = real.agent.complete(&asked, Some(version)).await.unwrap();
    real.keep(&asked, &answer, version, files);
    // vLLM would shorten it to fit with the prompt.
    let refused = real.agent.complete(&endless(5000, 0), Some(version)).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::ContextTooLong);
}

#[tokio::test]
#[ignore = "needs a vLLM: e2e/engines/vllm.sh starts one"]
async fn a_real_vllm_ends_its_rows_before_it_takes_full_weights() {
    let real = RealVllm::new().await;
    let mut now = ("base", "model");
    // The last has the boot weights: no trace of the versions in between may remain.
    for (version, files) in [("w-v1", "weights/w-v1"), ("w-v2", "weights/w-v2"), ("w-v3", "model")] {
        real.sample(now.0, now.1).await;
        let asked = long(2000);
        let running = real.begin(&asked, now.0).await;
        real.bring(files, &FULL, version).await;
        real.keep(&asked, &running.await.unwrap().unwrap(), now.0, now.1);
        let late = real.agent.complete(&endless(1, 0), Some(now.0)).await.unwrap_err();
        assert_eq!(
            (late.code, late.serving.as_deref()),
            (ErrorCode::WrongWeights, Some(version))
        );
        now = (version, files);
    }
    real.sample(now.0, now.1).await;
    real.agent
        .order(&real.publish("weights/w-v1", &FULL, "w-v4", lowered))
        .await;
    let status = real.agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("unverified"));
    assert!(status.message.unwrap().contains("differ from the trainer's by 3.0"));
}
