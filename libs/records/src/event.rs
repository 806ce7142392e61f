//! One entry of the journal: a decision of the driver, or the end of a piece of work.

use crate::judged::ProcessRule;
use crate::outcome::{Outcome, VoidReason};
use crate::record::{Record, Writer};
use crate::reward::RewardRule;
use crate::settings::LiveSettings;
use crate::side::side_rows;
use crate::turn::TurnRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `journal/<seq>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalEntry {
    pub schema: u32,
    pub writer: Writer,
    pub sequence: u64,
    /// Unix time in seconds.
    pub at: i64,
    #[serde(flatten)]
    pub event: Event,
}

impl Record for JournalEntry {}

/// The agent of a run, with the settings that decide how an answer of the policy is parsed. `format`: how a tool call
/// is written, by its name in the API: `Hermes` or `Qwen3Coder`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunAgent {
    #[default]
    Bash,
    Tools {
        format: String,
    },
    Cli {
        format: String,
        /// Side conversations are not trained on.
        #[serde(default, rename = "skipsSideConversations")]
        skips_side_conversations: bool,
    },
}

impl RunAgent {
    /// The rows of an episode that are left out of batches. `turns`: the episode's turns, in order.
    pub fn skipped_rows(&self, turns: &[TurnRecord]) -> BTreeSet<u32> {
        match self {
            Self::Cli {
                skips_side_conversations: true,
                ..
            } => side_rows(turns),
            _ => BTreeSet::new(),
        }
    }
}

/// How an iteration with dynamic sampling began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicStart {
    /// The number of groups that its batch needs.
    pub wanted: u32,
    /// The place of each group's task in the endless sequence of passes over the dataset. The next iteration continues
    /// after the places of the groups that this one needed.
    pub places: Vec<u64>,
}

/// Why a group is not in the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// Fewer than two of its episodes are valid.
    #[default]
    TooFewValid,
    /// Dynamic sampling: its rewards are all equal.
    NoSignal,
    /// Dynamic sampling: earlier groups filled the batch.
    Surplus,
}

impl DropReason {
    pub const ALL: [Self; 3] = [Self::TooFewValid, Self::NoSignal, Self::Surplus];
}

/// The decision or the end of work that an entry records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    /// First entry: this store belongs to this run.
    RunStarted {
        run: String,
        namespace: String,
        name: String,
        seed: u64,
        /// Checksum of the tasks' rows in order. It detects another dataset under the same path.
        tasks_sha256: String,
        tasks: u32,
        /// How the answers of its episodes are parsed. Stores from before this field used the bash loop.
        #[serde(default)]
        agent: RunAgent,
        /// Each turn is a separate training row.
        #[serde(default)]
        rows_per_turn: bool,
        /// How rewards follow from the judge's scores; absent without a judge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessRule>,
        /// How a verdict becomes a reward; absent in stores from before this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reward: Option<RewardRule>,
        /// Checksum of the task sets: the name of each, and its rows in order. `tasks_sha256` is over all rows alone,
        /// so that earlier drivers can continue the store; it does not show which set has a row. Absent in stores from
        /// before this field, and in mode Finetune.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sets_sha256: Option<String>,
        /// In mode Evaluate: checksum of the settings that decide the numbers, apart from tasks and sampling. Absent in
        /// other modes, and in stores from before this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inputs_sha256: Option<String>,
    },
    /// A driver begins to work on the run, which is not finished from then on, even if an earlier driver finished it.
    /// If a driver of an earlier epoch is still alive, it finds the number of its next entry taken, and stops.
    DriverStarted { epoch: u32 },
    /// From now on these live settings apply. An iteration keeps the sampling settings that it started with.
    SettingsTaken { settings: LiveSettings },
    /// The groups of an iteration are fixed.
    IterationStarted {
        iteration: u32,
        weights: String,
        /// Positions in the dataset, one for each group.
        tasks: Vec<u32>,
        /// Absent without dynamic sampling.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dynamic: Option<DynamicStart>,
    },
    /// Dynamic sampling: more groups begin, to replace groups without a signal.
    GroupsAdded {
        iteration: u32,
        /// As in [`Event::IterationStarted`].
        tasks: Vec<u32>,
        /// As in [`DynamicStart`].
        places: Vec<u64>,
    },
    /// An episode has its verdict (`meta.json` existed before this entry).
    Verdict {
        episode: String,
        outcome: Outcome,
        reward: f32,
    },
    /// An attempt failed because of the infrastructure, not the policy.
    EpisodeVoided {
        episode: String,
        reason: VoidReason,
        turns: u32,
        tokens: usize,
        message: String,
    },
    /// A group is not in the batch.
    GroupDropped {
        iteration: u32,
        group: u32,
        /// The number of its valid episodes.
        valid: u32,
        /// Entries from before this field are about groups with too few valid episodes.
        #[serde(default)]
        reason: DropReason,
    },
    /// The batch of a step is in the store.
    BatchWritten {
        iteration: u32,
        step: u32,
        sha256: String,
        rows: u32,
    },
    /// The trainer finished a step and published its weights. In mode Finetune only a step with a checkpoint publishes;
    /// the other steps name the weights that were published last.
    StepDone {
        step: u32,
        weights: String,
        manifest_sha256: String,
    },
    /// From now on engines sample from this version. This entry is authoritative; engines follow it.
    Promoted {
        weights: String,
        manifest_sha256: String,
        step: u32,
    },
    /// The evaluation of a set is complete; it is not repeated for these weights.
    EvaluationDone {
        set: String,
        weights: String,
        resolved: u32,
        episodes: u32,
        voids: u32,
    },
    /// The run's work is complete, or it cannot continue.
    RunFinished {
        succeeded: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}
