//! `GrpoRun`: one reinforcement learning run of a coding agent. The spec says what is particular to it, the status
//! where it is.
//!
//! The status has two writers with separate fields: the operator owns everything but `progress`, the driver owns
//! `progress`.
//!
//! What may change: at any time `suspend`, `ttlSecondsAfterFinished`, `rollout.iterations`, `rollout.sampling`,
//! `checkpoint`, the cadence of `tasks.evaluate` and the pools described in place; while the run is suspended or Failed
//! also `trainer`, `algorithm.learningRate` and how its processes run; nothing else, ever. The API server judges all of
//! it ([`rules`]), the phase as its status has it at that moment: the controller must still cope with a change that
//! overtakes the phase.

mod lifecycle;
mod reward;
mod rollout;
mod rules;
mod status;
mod store;
mod tasks;
mod trackers;
mod trainer;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use lifecycle::{Checkpoint, FailurePolicy, Finetune, FinetuneValidation, Mode, Overlong, Resume, ResumeFrom};
pub use reward::{CallCost, Cost, HttpReward, JudgeLengths, ProcessReward, Reward, Shaping};
pub use rollout::{Dynamic, GroupFilter, OnSync, PassRateBand, Rollout, Sampling};
pub use status::{Attempts, GrpoRunStatus, Phase, PlannedPods};
pub use store::{AccessMode, ClaimRequests, ClaimResources, ExistingClaim, Store, VolumeClaimTemplate};
pub use tasks::{
    Dataset, EvaluationSet, HiddenField, InstanceIds, PromptOverrides, RowFormat, Select, Slice, TaskOrder, TaskSet,
    Tasks,
};
pub use trackers::{MlflowTracker, Trackers, WandbTracker, WandbUpload};
pub use trainer::{Deadlines, Offload, Rdma, Shard, Trainer, TrainerNetwork};

use crate::{
    agent::Agent,
    algorithm::Algorithm,
    cel,
    common::{NamespacedRef, ObjectRef, ProcessOptions},
    inference_pool::InferencePoolTemplate,
    sandbox_pool::SandboxPoolSpec,
    sources::PolicyModel,
};

/// One GRPO run: a policy, tasks, an agent, a reward, and the pools and trainer it needs.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "grpo.dev",
    version = "v1alpha1",
    kind = "GrpoRun",
    plural = "grporuns",
    shortname = "grun",
    category = "grpo",
    namespaced,
    status = "GrpoRunStatus",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40").message("the name has at most 40 characters, begins with a letter and has no dots: the names of its services are made from it"),
    validation = rules::trainer_is_fixed_while_running(),
    validation = rules::shares_of_devices_are_fixed_while_running(),
    validation = rules::learning_rate_is_fixed_while_running(),
    validation = rules::processes_are_fixed_while_running(),
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Stage","type":"string","jsonPath":".status.progress.stage"}"#,
    printcolumn = r#"{"name":"Iteration","type":"string","jsonPath":".status.progress.display.iteration"}"#,
    printcolumn = r#"{"name":"Episodes","type":"string","jsonPath":".status.progress.display.episodes"}"#,
    printcolumn = r#"{"name":"Resolved","type":"string","jsonPath":".status.progress.display.resolved","description":"share of resolved episodes in the last finished iteration"}"#,
    printcolumn = r#"{"name":"Reward","type":"string","jsonPath":".status.progress.display.reward"}"#,
    printcolumn = r#"{"name":"Weights","type":"string","jsonPath":".status.progress.weights"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Loss","type":"string","jsonPath":".status.progress.display.loss","priority":1}"#,
    printcolumn = r#"{"name":"Void","type":"integer","jsonPath":".status.progress.void","priority":1}"#,
    printcolumn = r#"{"name":"Staleness","type":"integer","jsonPath":".status.progress.staleness","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::train_needs_trainer_and_tasks(),
    validation = rules::evaluate_needs_sets(),
    validation = rules::validate_needs_tasks(),
    validation = rules::finetune_needs_trainer_and_rows(),
    validation = rules::finetune_only_in_its_mode(),
    validation = rules::rollouts_need_an_agent(),
    validation = rules::rollouts_need_engines(),
    validation = rules::all_but_finetune_need_sandboxes(),
    validation = rules::train_samples_the_whole_distribution(),
    validation = rules::train_samples_at_a_temperature(),
    validation = rules::steps_need_rewards_of_their_own(),
    validation = rules::steps_need_rows_of_their_own(),
    validation = rules::the_judge_is_not_the_policy(),
    validation = rules::trimming_leaves_room_for_an_answer(),
    validation = rules::the_context_fits_vllm(),
    validation = rules::the_context_fits_sglang(),
    validation = rules::the_adapter_fits_the_engines(),
    validation = rules::sglang_with_an_adapter_is_one_copy(),
    validation = rules::the_engines_report_experts(),
    validation = rules::a_frozen_sampler_is_asked_for(),
    validation = rules::a_chat_server_is_for_evaluation(),
    validation = rules::colocation_takes_turns_with_a_pool_of_its_own(),
    validation = rules::colocated_engines_have_the_trainers_devices(),
    validation = rules::the_sandboxes_hold_the_episodes(),
    validation = rules::another_runs_checkpoint_is_for_training(),
    validation = rules::identity_is_immutable(),
    validation = cel::immutable(&["model"], "model is immutable: make another run"),
    validation = cel::immutable(&["agent"], "agent is immutable: make another run"),
    validation = cel::immutable(&["reward"], "reward is immutable: make another run")
)]
pub struct GrpoRunSpec {
    /// Train: rollouts, steps, and the evaluations in between. Evaluate: only the sets in `tasks.evaluate`, no trainer.
    /// Validate: which tasks are fit for training, by their gold patches and the empty patch, no engines. Finetune:
    /// supervised training on the conversations of `finetune.dataset`.
    #[serde(default)]
    pub mode: Mode,
    /// True ends the run's pods and frees its GPUs. Finished work stays in the store; false resumes the run from there.
    #[serde(default)]
    pub suspend: bool,
    /// So many seconds after the run has ended it is deleted, and with it a volume of its own that is not retained.
    /// Left out: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315360000))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// LocalQueue of Kueue in the run's namespace: Kueue then decides when the pods start. Left out: the operator
    /// starts a run when all of it fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub queue_name: Option<String>,
    /// PriorityClass of all pods of the run, unless a `podTemplate` names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Secrets with which images are pulled for all pods of the run and of pools of its own, beside those that a
    /// `podTemplate` names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<ObjectRef>,
    /// Seeds everything random in the run. The same seed, spec and images give the same samples.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: u64,
    /// The policy before the first step.
    pub model: PolicyModel,
    /// What the agent works on.
    #[serde(default)]
    pub tasks: Tasks,
    /// Who works on it.
    #[serde(default)]
    pub agent: Agent,
    /// How many episodes, and how they are sampled.
    #[serde(default)]
    pub rollout: Rollout,
    /// What an episode is worth.
    #[serde(default)]
    #[x_kube(validation = cel::rule("self.resolved > self.unresolved", "reward.resolved is {self.resolved}, not more than reward.unresolved {self.unresolved}: resolved is worth more than unresolved"))]
    pub reward: Reward,
    /// The objective and the optimizer.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Supervised training on conversations: what mode Finetune does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finetune: Option<Finetune>,
    /// Pods that train. Needed by modes Train and Finetune.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<Trainer>,
    /// When the state of the training is kept.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Engines that sample. Needed by modes Train and Evaluate.
    #[serde(default)]
    pub inference: InferenceSource,
    /// Sandboxes that the agent and the graders work in. Needed by all modes but Finetune.
    #[serde(default)]
    pub sandboxes: SandboxSource,
    /// Where everything that is finished is kept.
    pub store: Store,
    /// What a run does when its store already has content at the start. Auto: it continues after the last finished
    /// work. Never: it refuses a store that is not empty.
    #[serde(default)]
    pub resume: Resume,
    /// Begin with a checkpoint of another run instead of `model`'s weights. Left out: with the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,
    /// When faults end the run.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Where the curves are shown beside the viewer. Left out: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trackers: Option<Trackers>,
    /// How the driver is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<ProcessOptions>,
}

impl GrpoRunSpec {
    /// Tokens of a row that is trained on at most, where the spec says it.
    pub fn longest_row(&self) -> Option<u32> {
        match &self.finetune {
            Some(finetune) => finetune.max_tokens,
            None => self.agent.limits.context_tokens,
        }
    }
}

/// Engines that sample: a pool described in place and owned by the run, or one that exists.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.pool) && has(self.poolRef))").message("give exactly one of pool and poolRef"),
    validation = cel::immutable(&["poolRef?"], "the pool is immutable: make another run")
)]
pub struct InferenceSource {
    /// A pool of the run's own, which serves the run's model and is deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<InferencePoolTemplate>,
    /// An InferencePool (`grpo.dev`) of the same namespace. The run claims it: it serves this run's weights until the
    /// run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<ObjectRef>,
}

/// Sandboxes that the agent and the graders work in: a pool described in place and owned by the run, or one that
/// exists.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.pool) && has(self.poolRef))").message("give exactly one of pool and poolRef"),
    validation = cel::rule("!has(self.pool) || !has(self.pool.allowedNamespaces)", "pool.allowedNamespaces is given, but a pool of a run's own serves that run only: make a SandboxPool (grpo.dev), and name it as poolRef"),
    validation = cel::rule("!has(self.pool) || !has(self.pool.agentImage)", "pool.agentImage is given, but a pool of a run's own has the image of the run's agent: give agent.cli.image instead"),
    validation = cel::immutable(&["poolRef?"], "the pool is immutable: make another run")
)]
pub struct SandboxSource {
    /// A pool of the run's own, deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<SandboxPoolSpec>,
    /// A SandboxPool (`grpo.dev`) of the same namespace, which several runs may share. One of another namespace must
    /// allow this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<NamespacedRef>,
}
