//! The agent before vLLM itself, which `e2e/engines/vllm.sh` starts with a tiny model whose logprobs transformers computed.

#![allow(clippy::unwrap_used)]

mod support;

use grpo_engine_agent::Kind;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{CompletionRequest, CompletionResponse, ErrorCode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::{Agent, Source};

fn request() -> CompletionRequest {
    CompletionRequest::of_tokens("policy", vec![5, 6, 7], 3, u64::MAX)
}

/// An agent before it, and what is brought to it.
struct RealVllm {
    agent: Agent,
    source: Source,
    tiny: PathBuf,
    reference: BTreeMap<String, Vec<f32>>,
}

/// How far vLLM, which computes in 16 bits, may be from transformers in 32. Versions differ by more than one.
const TOLERANCE: f32 = 0.1;

impl RealVllm {
    async fn new() -> Self {
        let tiny = PathBuf::from(std::env::var("GRPO_VLLM_TINY").unwrap());
        let kind = Kind::Vllm {
            no_folders: None,
            adapters_only: None,
        };
        let real = Self {
            agent: Agent::guarding(kind, &std::env::var("GRPO_VLLM_URL").unwrap(), None, 16).await,
            source: Source::start().await,
            reference: serde_json::from_slice(&std::fs::read(tiny.join("reference.json")).unwrap()).unwrap(),
            tiny,
        };
        real.agent.wait_until_serving("base").await;
        real
    }

    /// Brings the files of a folder of the tiny model's as `version`; returns how long that took.
    async fn bring(&self, folder: &str, names: &[&str], version: &str) -> Duration {
        let files = names
            .iter()
            .map(|name| (*name, std::fs::read(self.tiny.join(folder).join(name)).unwrap()));
        let order = self
            .source
            .publish_files(version, files.collect(), &sha256(folder.as_bytes()), |_| {});
        let begun = Instant::now();
        self.agent.order(&order).await;
        let status = self.agent.wait_until_serving(version).await;
        assert_eq!(status.changed, Some(true));
        begun.elapsed()
    }

    /// The likeliest token after the canary prompt and its logprob, sampled from `version`, are those of `reference`.
    async fn samples_as(&self, version: &str, reference: &str) -> CompletionResponse {
        let greedy = CompletionRequest {
            temperature: 0.0,
            ignore_eos: true,
            ..CompletionRequest::of_tokens("policy", (5..60).collect(), 8, 7)
        };
        let answer = self.agent.complete(&greedy, Some(version)).await.unwrap();
        let row = &answer.choices[0];
        assert_eq!((row.weights_version.as_str(), row.token_ids.len()), (version, 8));
        let expected = &self.reference[reference];
        let likeliest = (0..expected.len())
            .max_by(|a, b| expected[*a].total_cmp(&expected[*b]))
            .unwrap();
        let logprob = row.logprobs.as_ref().unwrap().token_logprobs[0];
        println!(
            "{version}: token {} with logprob {logprob:.4}, transformers has {likeliest} with {:.4}",
            row.token_ids[0], expected[likeliest]
        );
        let sampled = expected[row.token_ids[0] as usize];
        // The second likeliest may win where both are within the tolerance.
        assert!(
            (logprob - sampled).abs() < TOLERANCE && expected[likeliest] - sampled < TOLERANCE,
            "{version} is not sampled from as {reference}"
        );
        answer
    }
}

const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const FULL: [&str; 2] = ["config.json", "model.safetensors"];

#[tokio::test]
#[ignore = "needs a vLLM: e2e/engines/vllm.sh starts one"]
async fn a_real_vllm_swaps_adapters() {
    let real = RealVllm::new().await;
    real.samples_as("base", "base").await;
    for version in ["a-v1", "a-v2", "a-v3"] {
        let took = real.bring(&format!("adapters/{version}"), &ADAPTER, version).await;
        println!("{version} served after {took:?}");
        real.samples_as(version, version).await;
        let old = real.agent.complete(&request(), Some("base")).await.unwrap_err();
        assert_eq!(old.code, ErrorCode::WrongWeights);
    }
    let models: Value = real.agent.get("/v1/models").await.json().await.unwrap();
    let ids: Vec<&str> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["policy", "a-v2", "a-v3"], "the first adapter is still loaded");
    let sampled = CompletionRequest {
        prompt: Prompt::Batch(vec![vec![5, 6, 7], vec![8, 9]]),
        n: 2,
        ignore_eos: true,
        ..request()
    };
    let answer = real.agent.complete(&sampled, Some("a-v3")).await.unwrap();
    assert_eq!(
        answer.choices.iter().map(|row| row.index).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    for row in &answer.choices {
        let logprobs = &row.logprobs.as_ref().unwrap().token_logprobs;
        assert_eq!((row.token_ids.len(), logprobs.len()), (3, 3));
        assert!(logprobs.iter().all(|logprob| logprob.is_finite() && *logprob <= 0.0));
    }
    let long = CompletionRequest {
        max_tokens: 1000,
        ..request()
    };
    let refused = real.agent.complete(&long, Some("a-v3")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ContextTooLong, "{refused}");
}

#[tokio::test]
#[ignore = "needs a vLLM: e2e/engines/vllm.sh starts one"]
async fn a_real_vllm_takes_full_weights() {
    let real = RealVllm::new().await;
    let booted = real.samples_as("base", "base").await;
    // The last is what it booted with: nothing of those between may be left.
    for (folder, version, reference) in [
        ("weights/w-v1", "w-v1", "w-v1"),
        ("weights/w-v2", "w-v2", "w-v2"),
        ("model", "w-v3", "base"),
    ] {
        let took = real.bring(folder, &FULL, version).await;
        println!("{version} served after {took:?}");
        let answer = real.samples_as(version, reference).await;
        if folder == "model" {
            assert_eq!(answer.choices[0].token_ids, booted.choices[0].token_ids);
            assert_eq!(answer.choices[0].logprobs, booted.choices[0].logprobs);
        }
    }
    let gone = real.agent.complete(&request(), Some("w-v1")).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::WrongWeights);
}
