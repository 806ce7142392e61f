//! What fields of a GrpoRun's spec ask of each other, and what may change when.
//!
//! Each function is one CEL rule of [`super::GrpoRunSpec`] or, where it has to know whether the run is at rest, of the
//! whole GrpoRun. Messages name path, value and remedy.

use kube::core::Rule;

use crate::cel;
use crate::inference_pool::engines::{WHAT_EXPERTS_NEED, can_report_experts};

/// Is the mode one of those that roll out episodes?
const ROLLS_OUT: &str = "self.mode in ['Train', 'Evaluate']";

pub(super) fn train_needs_trainer_and_tasks() -> Rule {
    Rule::new("self.mode != 'Train' || (has(self.trainer) && has(self.tasks.train))")
        .message("mode Train needs trainer and tasks.train")
}

pub(super) fn evaluate_needs_sets() -> Rule {
    Rule::new("self.mode != 'Evaluate' || (has(self.tasks.evaluate) && self.tasks.evaluate.size() > 0)")
        .message("mode Evaluate needs at least one set in tasks.evaluate")
}

pub(super) fn validate_needs_tasks() -> Rule {
    Rule::new("self.mode != 'Validate' || has(self.tasks.train) || (has(self.tasks.evaluate) && self.tasks.evaluate.size() > 0)")
        .message("mode Validate needs the tasks it validates: give tasks.train or a set in tasks.evaluate")
}

pub(super) fn finetune_needs_trainer_and_rows() -> Rule {
    Rule::new("self.mode != 'Finetune' || (has(self.trainer) && has(self.finetune))")
        .message("mode Finetune needs trainer and finetune.dataset")
}

pub(super) fn finetune_only_in_its_mode() -> Rule {
    cel::rule(
        "self.mode == 'Finetune' || !has(self.finetune)",
        "finetune is given, but mode is {self.mode}: set mode: Finetune or leave finetune out",
    )
}

pub(super) fn rollouts_need_an_agent() -> Rule {
    cel::rule(
        format!("!({ROLLS_OUT}) || has(self.agent.bash) || has(self.agent.tools) || has(self.agent.cli)"),
        "mode {self.mode} needs an agent: give exactly one of agent.bash, agent.tools and agent.cli",
    )
}

pub(super) fn rollouts_need_engines() -> Rule {
    cel::rule(
        format!("!({ROLLS_OUT}) || has(self.inference.pool) || has(self.inference.poolRef)"),
        "mode {self.mode} needs engines: give exactly one of inference.pool and inference.poolRef",
    )
}

pub(super) fn all_but_finetune_need_sandboxes() -> Rule {
    cel::rule(
        "self.mode == 'Finetune' || has(self.sandboxes.pool) || has(self.sandboxes.poolRef)",
        "mode {self.mode} needs sandboxes: give exactly one of sandboxes.pool and sandboxes.poolRef",
    )
}

/// The trainer computes the probability of a token under the whole distribution.
pub(super) fn train_samples_the_whole_distribution() -> Rule {
    cel::rule(
        "self.mode != 'Train' || (self.rollout.sampling.topP == 1.0 && self.rollout.sampling.topK == 0 && self.rollout.sampling.minP == 0.0 && self.rollout.sampling.presencePenalty == 0.0 && self.rollout.sampling.frequencyPenalty == 0.0 && self.rollout.sampling.repetitionPenalty == 1.0)",
        "mode Train samples from the whole distribution, but rollout.sampling has topP {self.rollout.sampling.topP}, topK {self.rollout.sampling.topK}, minP {self.rollout.sampling.minP} or a penalty: the trainer could not reproduce what they cut; leave them out",
    )
}

pub(super) fn train_samples_at_a_temperature() -> Rule {
    Rule::new("self.mode != 'Train' || self.rollout.sampling.temperature > 0.0").message(
        "rollout.sampling.temperature is 0, so that all episodes of a group would be the same: mode Train needs more than 0",
    )
}

pub(super) fn steps_need_rewards_of_their_own() -> Rule {
    Rule::new("self.algorithm.advantage.estimator != 'StepWise' || has(self.reward.process)").message(
        "algorithm.advantage.estimator is StepWise, but no turn has a reward: give reward.process, or set estimator: Group",
    )
}

pub(super) fn steps_need_rows_of_their_own() -> Rule {
    Rule::new("self.algorithm.advantage.estimator != 'StepWise' || (has(self.agent.context.rows) && self.agent.context.rows == 'PerTurn')").message(
        "algorithm.advantage.estimator is StepWise, which rewards turns one by one: set agent.context.rows: PerTurn, or estimator: Group",
    )
}

pub(super) fn the_judge_is_not_the_policy() -> Rule {
    cel::rule(
        "!has(self.reward.process) || !has(self.inference.poolRef) || self.reward.process.poolRef.name != self.inference.poolRef.name",
        "reward.process.poolRef and inference.poolRef are both {self.reward.process.poolRef.name}: a judge that follows the policy would judge itself; name another InferencePool (grpo.dev)",
    )
}

pub(super) fn trimming_leaves_room_for_an_answer() -> Rule {
    cel::rule(
        "!has(self.agent.context.trim) || !has(self.agent.limits.contextTokens) || self.rollout.sampling.maxTokensPerCall < self.agent.limits.contextTokens",
        "rollout.sampling.maxTokensPerCall is {self.rollout.sampling.maxTokensPerCall}, which leaves nothing of agent.limits.contextTokens {self.agent.limits.contextTokens} for the history that agent.context.trim keeps: lower it",
    )
}

pub(super) fn the_context_fits_vllm() -> Rule {
    cel::rule(
        "!has(self.agent.limits.contextTokens) || !has(self.inference.pool) || !has(self.inference.pool.engine.vllm) || !has(self.inference.pool.engine.vllm.maxModelLen) || self.agent.limits.contextTokens <= self.inference.pool.engine.vllm.maxModelLen",
        "agent.limits.contextTokens is {self.agent.limits.contextTokens}, but inference.pool.engine.vllm.maxModelLen only {self.inference.pool.engine.vllm.maxModelLen}: lower the one or raise the other",
    )
}

pub(super) fn the_context_fits_sglang() -> Rule {
    cel::rule(
        "!has(self.agent.limits.contextTokens) || !has(self.inference.pool) || !has(self.inference.pool.engine.sglang) || !has(self.inference.pool.engine.sglang.contextLength) || self.agent.limits.contextTokens <= self.inference.pool.engine.sglang.contextLength",
        "agent.limits.contextTokens is {self.agent.limits.contextTokens}, but inference.pool.engine.sglang.contextLength only {self.inference.pool.engine.sglang.contextLength}: lower the one or raise the other",
    )
}

pub(super) fn the_adapter_fits_the_engines() -> Rule {
    cel::rule(
        "!has(self.model.lora) || !has(self.inference.pool) || !has(self.inference.pool.lora) || self.model.lora.rank <= self.inference.pool.lora.maxRank",
        "model.lora.rank is {self.model.lora.rank}, but inference.pool.lora.maxRank only {self.inference.pool.lora.maxRank}: raise maxRank, or leave inference.pool.lora out",
    )
}

/// As in a pool with `lora`, which this pool gets from `model.lora`.
pub(super) fn sglang_with_an_adapter_is_one_copy() -> Rule {
    let sglang = "self.inference.pool.engine.sglang";
    cel::rule(
        format!(
            "!has(self.model.lora) || !has(self.inference.pool) || !has({sglang}) || !has({sglang}.dataParallel) || {sglang}.dataParallel == 1"
        ),
        "SGLang with dataParallel loads no adapters: leave inference.pool.engine.sglang.dataParallel out and raise replicas instead, or remove model.lora",
    )
}

/// An engine behind an agent of its own is told by its own pool.
pub(super) fn the_engines_report_experts() -> Rule {
    let can = can_report_experts("self.inference.pool.engine");
    Rule::new(format!(
        "!has(self.algorithm.routerReplay) || !self.algorithm.routerReplay || !has(self.inference.pool) || (has(self.inference.pool.engine.external) && self.inference.pool.engine.external.weights == 'Agent') || {can}"
    ))
    .message(
        format!(
            "algorithm.routerReplay is true, but inference.pool.engine reports no experts: {WHAT_EXPERTS_NEED}; change the engine, or set routerReplay: false"
        )
        .as_str(),
    )
}

pub(super) fn a_frozen_sampler_is_asked_for() -> Rule {
    Rule::new(
        "self.mode != 'Train' || self.algorithm.allowFrozenSampler || !has(self.inference.pool) || !has(self.inference.pool.engine.external) || self.inference.pool.engine.external.weights != 'Frozen'",
    )
    .message(
        "inference.pool.engine.external.weights is Frozen: the engine never samples what was trained; set algorithm.allowFrozenSampler: true if that is meant, or weights: Agent",
    )
}

pub(super) fn a_chat_server_is_for_evaluation() -> Rule {
    cel::rule(
        "self.mode == 'Evaluate' || !has(self.inference.pool) || !has(self.inference.pool.engine.external) || self.inference.pool.engine.external.api != 'Chat'",
        "inference.pool.engine.external.api is Chat, and without token ids and logprobs its episodes serve only mode Evaluate, here {self.mode}: set mode: Evaluate, or take a server that returns token ids, with api: Tokens",
    )
}

pub(super) fn colocation_takes_turns_with_a_pool_of_its_own() -> Rule {
    cel::rule(
        "!has(self.trainer) || !self.trainer.colocate || (has(self.inference.pool) && !has(self.inference.pool.engine.external) && self.rollout.maxStaleness == 0)",
        "trainer.colocate takes turns with the engines of inference.pool (embedded, vllm or sglang) and needs rollout.maxStaleness 0, here {self.rollout.maxStaleness}: give such a pool and maxStaleness: 0, or leave colocate out",
    )
}

/// Each trainer pod shares its devices with whole replicas. On CPUs no device is shared, and only the embedded engine
/// gives its memory back.
pub(super) fn colocated_engines_have_the_trainers_devices() -> Rule {
    let pool = "self.inference.pool";
    let ranks_of = |kind: &str| {
        let engine = format!("{pool}.engine.{kind}");
        format!(
            "{engine}.tensorParallel * {engine}.pipelineParallel * (has({engine}.dataParallel) ? {engine}.dataParallel : 1)"
        )
    };
    let shares = |kind: &str| {
        let ranks = ranks_of(kind);
        format!(
            "(has({pool}.engine.{kind}) && {pool}.engine.{kind}.nodes == 1 && self.trainer.gpusPerNode % ({ranks}) == 0 && {pool}.replicas * {ranks} == self.trainer.nodes * self.trainer.gpusPerNode)"
        )
    };
    cel::rule(
        format!(
            "!has(self.trainer) || !self.trainer.colocate || !has({pool}) || (self.trainer.gpusPerNode == 0 ? has({pool}.engine.embedded) : ((has({pool}.engine.vllm) && {pool}.engine.vllm.device == 'Gpu' || has({pool}.engine.sglang)) && ({} || {})))",
            shares("vllm"),
            shares("sglang")
        ),
        "trainer.colocate shares the GPUs of {self.trainer.nodes} trainer pods, {self.trainer.gpusPerNode} each: give inference.pool replicas of one node with tensorParallel x pipelineParallel x dataParallel GPUs, a divisor of gpusPerNode, and as many replicas as use all of them; without GPUs the engine must be embedded",
    )
}

pub(super) fn the_sandboxes_hold_the_episodes() -> Rule {
    cel::rule(
        "!has(self.rollout.concurrency) || !has(self.sandboxes.pool) || self.rollout.concurrency <= self.sandboxes.pool.max",
        "rollout.concurrency is {self.rollout.concurrency}, but sandboxes.pool.max only {self.sandboxes.pool.max}: every episode has a sandbox of its own; raise max or lower concurrency",
    )
}

pub(super) fn another_runs_checkpoint_is_for_training() -> Rule {
    cel::rule(
        "!has(self.resumeFrom) || self.mode in ['Train', 'Finetune']",
        "resumeFrom is given, but mode {self.mode} has no trainer to load it: leave it out, or evaluate the weights as model",
    )
}

pub(super) fn identity_is_immutable() -> Rule {
    cel::immutable(
        &["mode", "seed", "resume", "resumeFrom?", "finetune?"],
        "mode and seed, resume, resumeFrom and finetune are immutable: make another run",
    )
}

pub(super) fn trainer_is_fixed_while_running() -> Rule {
    cel::fixed_while_running(
        &["trainer?"],
        "the trainer's size and settings (spec.trainer) change only while the run is suspended or Failed: set suspend: true, change them, and set suspend: false",
    )
}

/// The claims of their devices are made once.
pub(super) fn shares_of_devices_are_fixed_while_running() -> Rule {
    cel::fixed_while_running_if(
        "has(self.spec.trainer) && self.spec.trainer.colocate && self.spec.trainer.gpusPerNode > 0 && has(self.spec.inference.pool) && has(oldSelf.spec.inference.pool)",
        &["inference.pool.replicas"],
        "inference.pool.replicas of a run with trainer.colocate changes only while the run is suspended or Failed, because its replicas and its trainer share GPUs: set suspend: true, change them, and set suspend: false",
    )
}

pub(super) fn learning_rate_is_fixed_while_running() -> Rule {
    cel::fixed_while_running(
        &["algorithm.learningRate"],
        "spec.algorithm.learningRate changes only while the run is suspended or Failed: set suspend: true, change it, and set suspend: false",
    )
}

pub(super) fn processes_are_fixed_while_running() -> Rule {
    cel::fixed_while_running(
        &[
            "driver?",
            "failurePolicy",
            "queueName?",
            "priorityClassName?",
            "imagePullSecrets?",
            "rollout.concurrency?",
            "trackers?",
        ],
        "driver, failurePolicy, queueName, priorityClassName, imagePullSecrets, rollout.concurrency and trackers change only while the run is suspended or Failed: set suspend: true, change them, and set suspend: false",
    )
}
