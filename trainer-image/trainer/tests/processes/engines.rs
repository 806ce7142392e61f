//! A run that trains an adapter, and a real engine that samples from it: what the trainer publishes, and its logprobs
//! for the engine's rows.
//!
//! `e2e/engines/vllm.sh` runs one of these tests before a vLLM serves behind an agent, and the other afterwards. The
//! run's store carries the state between them, as between a trainer's attempts.

use std::path::{Path, PathBuf};

use crate::common::process::{Attempt, Run};
use grpo_records::batch::{Batch, Row, StoredRow};
use grpo_records::outcome::Outcome;
use grpo_records::{WeightsSpan, Writer, fixture, paths};
use serde::Deserialize;

/// The last step before the engine samples.
const STEPS: u32 = 3;
/// The promised agreement of engine and trainer in 32 bits.
const TOLERANCE: f64 = 1e-3;

/// A row as the agent's test records it.
#[derive(Deserialize)]
struct Sampled {
    version: String,
    temperature: f32,
    prompt: Vec<u32>,
    token_ids: Vec<u32>,
    token_logprobs: Vec<f32>,
}

fn tiny() -> PathBuf {
    PathBuf::from(std::env::var("GRPO_VLLM_TINY").unwrap())
}

/// A run of the engine's model, with an adapter on every possible layer.
fn run() -> Run {
    let run = Run::with(
        1,
        serde_json::json!({
            "model": {"image": {"reference": "example.com/model:1"}, "lora": {"rank": 8}},
            "inference": {"pool": {"engine": {"vllm": {}}}},
            "algorithm": {"learningRate": 3e-2}
        }),
    );
    copy(&tiny().join("model"), &run.root.join("model"));
    run
}

/// Copies a folder with its subfolders.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(std::fs::copy(&from, &to).unwrap()),
        }
    }
}

#[test]
#[ignore = "publishes for e2e/engines/vllm.sh"]
fn an_adapter_is_published_for_a_real_vllm() {
    let run = run();
    let attempt = Attempt::start(&run, 1, 2);
    for step in 1..=STEPS {
        attempt.step(&run, step);
    }
    crate::common::process::until(|| attempt.state().checkpoint_step == STEPS);
    drop(attempt);
    let version = paths::weights_version("l1", STEPS);
    let published = run.at(&paths::weights(&version));
    copy(&published, &tiny().join("adapters").join(version));
    copy(&run.root.join("store"), &tiny().join("store"));
}

#[test]
#[ignore = "reads what e2e/engines/vllm.sh had sampled"]
fn rows_of_a_real_vllm_have_the_logprobs_of_the_trainer_that_published_for_it() {
    let run = run();
    copy(&tiny().join("store"), &run.root.join("store"));
    let version = paths::weights_version("l1", STEPS);
    let rows = std::fs::read_to_string(std::env::var("GRPO_VLLM_ROWS").unwrap()).unwrap();
    let rows = rows.lines().map(|line| serde_json::from_str::<Sampled>(line).unwrap());
    // A greedy row has logprobs of another temperature than it was sampled at, so runs never use one.
    let rows: Vec<Sampled> = rows
        .filter(|row| row.version == version && row.temperature > 0.0)
        .collect();
    let tokens: usize = rows.iter().map(|row| row.token_ids.len()).sum();
    let mut batch = Batch::new(Writer::driver(1), "run", STEPS, STEPS + 1);
    batch.rows = (0..).zip(rows).map(|(at, row)| trained(at, row)).collect();
    fixture::write_batch(&run.root.join("store"), &mut batch);

    let attempt = Attempt::start(&run, 2, 2);
    assert_eq!(attempt.state().weights, version, "the run does not go on where it was");
    let metrics = attempt.step(&run, STEPS + 1).metrics.unwrap();
    assert_eq!(metrics.trained_tokens as usize, tokens);
    assert!(tokens > 500 && metrics.logprob_gap_max < TOLERANCE, "{metrics:?}");
    println!(
        "{tokens} tokens of {version}, largest gap {:.1e} from the trainer (tolerance {TOLERANCE})",
        metrics.logprob_gap_max
    );
}

/// The row as a run's driver writes it.
fn trained(at: u32, row: Sampled) -> Row {
    let (begin, more) = (row.prompt.len(), row.token_ids.len());
    let behind = |none: Vec<f32>| none.into_iter().chain(row.token_logprobs.iter().copied()).collect();
    Row {
        group: 0,
        episode: format!("i0__g0__i{at}"),
        task: 0,
        instance: "i0".to_owned(),
        turn: None,
        stored: StoredRow::default(),
        logprobs: behind(vec![0.0; begin]),
        mask: [vec![0; begin], vec![1; more]].concat(),
        experts: Vec::new(),
        weights: vec![WeightsSpan {
            from: 0,
            to: begin + more,
            version: row.version,
        }],
        tokens: [row.prompt, row.token_ids].concat(),
        temperature: row.temperature,
        reward: f64::from(at % 2) as f32,
        outcome: Outcome::Resolved,
        truncated: false,
    }
}
