//! Pools as users write them, and the exact objects created from them: `golden/<name>/pool.yaml` and
//! `golden/<name>/objects.yaml`.
//!
//! `make golden` writes the latter; otherwise they are compared.

use std::{fs, path::PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::seeing;
use crate::{
    desired_object::DesiredObject, fixtures::assert_understood, inference_pool::decide::decide, settings::Settings,
};

fn golden(name: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/inference_pool/golden")
        .join(name);
    let pool = fs::read_to_string(folder.join("pool.yaml")).unwrap();
    let seen = seeing(&pool);
    let decision = decide(&seen, &Settings::for_tests());
    let objects: Vec<&DesiredObject> = decision
        .objects
        .iter()
        .chain(decision.create.iter().map(|(pod, _)| pod))
        .collect();
    objects.iter().copied().for_each(assert_understood);
    let objects: Vec<&Value> = objects.iter().map(|desired| &desired.object).collect();
    let made = yaml(&objects);
    let file = folder.join("objects.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, made).unwrap();
        return;
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let difference = written
        .lines()
        .zip(made.lines())
        .position(|(written, made)| written != made);
    assert!(
        written == made,
        "{} differs from what is made now, first in line {:?}; if that is meant, make golden, and read the difference",
        file.display(),
        difference.map(|line| line + 1),
    );
}

fn yaml(objects: &[&impl Serialize]) -> String {
    let documents: Vec<String> = objects
        .iter()
        .map(|object| serde_yaml_ng::to_string(object).unwrap())
        .collect();
    format!(
        "# What the operator makes of pool.yaml; written by its test.\n{}",
        documents.join("---\n")
    )
}

#[test]
fn golden_embedded() {
    golden("embedded");
}

#[test]
fn golden_embedded_with_a_model_of_the_hub() {
    golden("embedded-hub");
}

#[test]
fn golden_vllm_with_a_model_of_a_bucket() {
    golden("vllm-object-store");
}

#[test]
fn golden_vllm_on_eight_gpus() {
    golden("vllm-tp8");
}

#[test]
fn golden_vllm_twice_on_two_gpus() {
    golden("vllm-tp2-twice");
}

#[test]
fn golden_vllm_with_adapters() {
    golden("vllm-lora");
}

#[test]
fn golden_vllm_on_two_nodes() {
    golden("vllm-two-nodes");
}

#[test]
fn golden_sglang_eight_times_on_four_gpus() {
    golden("sglang-tp4-eight-times");
}

#[test]
fn golden_sglang_with_adapters() {
    golden("sglang-lora");
}

#[test]
fn golden_sglang_on_two_nodes() {
    golden("sglang-two-nodes");
}

#[test]
fn golden_vllm_on_cpus() {
    golden("vllm-cpu");
}

#[test]
fn golden_vllm_on_cpus_with_adapters() {
    golden("vllm-cpu-lora");
}

#[test]
fn golden_vllm_with_every_field() {
    golden("vllm-every-field");
}

#[test]
fn golden_sglang_with_every_field() {
    golden("sglang-every-field");
}

#[test]
fn golden_vllm_that_reports_experts() {
    golden("vllm-experts");
}

#[test]
fn golden_sglang_that_reports_experts() {
    golden("sglang-experts");
}

#[test]
fn golden_vllm_that_takes_turns_with_a_trainer() {
    golden("vllm-colocated");
}

#[test]
fn golden_sglang_that_takes_turns_with_a_trainer() {
    golden("sglang-colocated");
}

#[test]
fn golden_external() {
    golden("external");
}
