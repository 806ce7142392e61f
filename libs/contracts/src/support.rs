//! The fields of a GrpoRun that this version's driver and trainer do not execute yet.
//!
//! The operator calls [`unsupported`] before it creates anything, driver and trainer before any other work. The error
//! names field, value and remedy: a field is executed or refused, never ignored. A change that implements a field
//! removes its line here, its case in `tests/unsupported.yaml`, and the word `Refused:` from its description in the
//! CRD.

use serde::Serialize;
use serde_json::Value;

use grpo_crds::{
    agent::{Agent, Thinking},
    algorithm::Algorithm,
    grpo_run::{GrpoRunSpec, Mode, Sampling},
    inference_pool::ExternalWeights,
};

/// A field that no component implements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Path below `spec`.
    pub path: String,
    /// As written in the manifest.
    pub value: String,
    /// What to write instead.
    pub remedy: &'static str,
}

/// Every field that a run sets and no component implements, in the order of the spec.
pub fn unsupported(spec: &GrpoRunSpec) -> Vec<Unsupported> {
    let mut found = Found::default();
    agent(&mut found, &spec.agent);
    rollout(&mut found, spec);
    judge(&mut found, spec);
    let frozen = spec.algorithm.allow_frozen_sampler;
    found.unless(
        !frozen || !spec.mode.needs_trainer() || samples_frozen(spec),
        "algorithm.allowFrozenSampler",
        &frozen,
        "describe the external server in inference.pool, or leave it out: other engines take new weights",
    );
    if spec.mode == Mode::Finetune {
        supervised(&mut found, &spec.algorithm);
    }
    engines(&mut found, spec);
    if let Some(bucket) = &spec.store.object_store {
        // An aborted upload to Azure can still be completed, so a replaced attempt could still write.
        found.unless(
            !bucket.url.starts_with("az://") || !spec.mode.needs_trainer(),
            "store.objectStore.url",
            &bucket.url,
            "use s3:// or gs://, or a volume: an az:// store serves modes Evaluate and Validate only",
        );
    }
    found.0
}

/// True if a run trains on samples of a server that never takes new weights, and the spec says that this is intended.
/// The server serves the base model; its tokens do not count as stale, since the run trains on them by intention.
pub fn samples_frozen(spec: &GrpoRunSpec) -> bool {
    let pool = spec.inference.pool.as_ref();
    let external = pool.and_then(|pool| pool.engine.external.as_ref());
    spec.mode == Mode::Train
        && spec.algorithm.allow_frozen_sampler
        && external.is_some_and(|external| external.weights == ExternalWeights::Frozen)
}

/// All of them in one message.
pub fn in_words(unsupported: &[Unsupported]) -> String {
    let words = |one: &Unsupported| {
        format!(
            "spec.{}: {} is not executed by this version: {}",
            one.path, one.value, one.remedy
        )
    };
    unsupported.iter().map(words).collect::<Vec<_>>().join("; ")
}

fn agent(found: &mut Found, agent: &Agent) {
    if agent.cli.is_some() {
        let remedy = "use contextTokens: what a command-line agent asks first is known when it asks";
        found.given("agent.limits.promptTokens", &agent.limits.prompt_tokens, remedy);
        let context = &agent.context;
        found.unless(
            context.thinking != Thinking::Strip,
            "agent.context.thinking",
            &context.thinking,
            "use Keep or Off: a command-line agent keeps its own history",
        );
        let remedy = "leave it out: a command-line agent keeps its own history";
        found.given("agent.context.trim", &context.trim, remedy);
    }
}

fn rollout(found: &mut Found, spec: &GrpoRunSpec) {
    let rollout = &spec.rollout;
    if spec.mode == Mode::Train {
        sampling(found, "rollout.sampling", &rollout.sampling);
    }
}

/// The trainer computes the full distribution from logits and temperature only. With these settings its logprobs would
/// be those of another distribution.
fn sampling(found: &mut Found, path: &str, sampling: &Sampling) {
    let Sampling {
        top_p,
        top_k,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        ..
    } = *sampling;
    for (name, value, off) in [
        ("topP", Value::from(top_p), Value::from(1.0)),
        ("topK", Value::from(top_k), Value::from(0_u32)),
        ("minP", Value::from(min_p), Value::from(0.0)),
        ("presencePenalty", Value::from(presence_penalty), Value::from(0.0)),
        ("frequencyPenalty", Value::from(frequency_penalty), Value::from(0.0)),
        ("repetitionPenalty", Value::from(repetition_penalty), Value::from(1.0)),
    ] {
        found.unless(
            value == off,
            &format!("{path}.{name}"),
            &value,
            "leave it out: the trainer computes no such distribution; mode Evaluate takes it",
        );
    }
}

fn judge(found: &mut Found, spec: &GrpoRunSpec) {
    if spec.agent.cli.is_some() {
        let remedy = "leave it out: what came of a command-line agent's calls is not known turn by turn";
        found.given("reward.process", &spec.reward.process, remedy);
    }
}

/// Supervised training minimises only the negative logprob of the marked tokens.
fn supervised(found: &mut Found, algorithm: &Algorithm) {
    let remedy = "leave it out: supervised training has no policy to stay close to";
    found.given("algorithm.kl", &algorithm.kl, remedy);
    let remedy = "leave it out: supervised training has no ratio";
    found.given("algorithm.correction", &algorithm.correction, remedy);
    let entropy = algorithm.entropy_coefficient;
    let remedy = "leave it out: supervised training has no entropy bonus";
    found.unless(entropy == 0.0, "algorithm.entropyCoefficient", &entropy, remedy);
    let remedy = "leave it out: supervised training has no rewards to shuffle";
    found.given("algorithm.control", &algorithm.control, remedy);
}

/// The engine agent downloads new weights to the disk of its own pod.
fn engines(found: &mut Found, spec: &GrpoRunSpec) {
    let Some(pool) = spec.inference.pool.as_ref().filter(|_| spec.mode == Mode::Train) else {
        return;
    };
    let remedy = "use 1: new weights reach the disk of a replica's first pod only";
    let engine = &pool.engine;
    let vllm = engine.vllm.as_ref().map(|vllm| ("vllm", vllm.nodes));
    let sglang = engine.sglang.as_ref().map(|sglang| ("sglang", sglang.nodes));
    for (name, nodes) in vllm.into_iter().chain(sglang) {
        found.unless(
            nodes == 1,
            &format!("inference.pool.engine.{name}.nodes"),
            &nodes,
            remedy,
        );
    }
}

/// The fields found so far.
#[derive(Default)]
struct Found(Vec<Unsupported>);

impl Found {
    fn unless(&mut self, executed: bool, path: &str, value: &(impl Serialize + ?Sized), remedy: &'static str) {
        if !executed {
            // A field of the spec can always be written as JSON.
            let value = serde_json::to_string(value).unwrap_or_default();
            let path = path.to_owned();
            self.0.push(Unsupported { path, value, remedy });
        }
    }

    fn given(&mut self, path: &str, value: &Option<impl Serialize>, remedy: &'static str) {
        if let Some(value) = value {
            self.unless(false, path, value, remedy);
        }
    }
}
