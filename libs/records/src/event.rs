//! One entry of the journal: what the driver decided, or what came to an end.

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
    /// Seconds since the epoch.
    pub at: i64,
    #[serde(flatten)]
    pub event: Event,
}

impl Record for JournalEntry {}

/// The agent of a run, as far as it decides what an answer of the policy means. `format`: how a call of a tool is
/// written, by the name that the API gives it: `Hermes` or `Qwen3Coder`.
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
    /// The rows of an episode that no batch has. `turns`: those of the episode, in order.
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
    /// Groups that its batch is to have.
    pub wanted: u32,
    /// Where each group's task is in the endless sequence of passes over the dataset. The next iteration takes the
    /// places after those of the groups that this one needed.
    pub places: Vec<u64>,
}

/// Why a batch does not have a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// Fewer than two of its episodes are valid.
    #[default]
    TooFewValid,
    /// Dynamic sampling: its rewards are all equal.
    NoSignal,
    /// Dynamic sampling: the groups before it were enough.
    Surplus,
}

impl DropReason {
    pub const ALL: [Self; 3] = [Self::TooFewValid, Self::NoSignal, Self::Surplus];
}

/// What was decided or came to an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    /// First entry: this store belongs to this run.
    RunStarted {
        run: String,
        namespace: String,
        name: String,
        seed: u64,
        /// Checksum of the tasks' rows in order: another dataset under the same path is noticed.
        tasks_sha256: String,
        tasks: u32,
        /// How the answers of its episodes are read. Stores from before this field are of the bash loop.
        #[serde(default)]
        agent: RunAgent,
        /// Each turn is a training row of its own.
        #[serde(default)]
        rows_per_turn: bool,
        /// How rewards follow from the scores of a judge; absent without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessRule>,
        /// What verdicts are worth; absent in stores from before this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reward: Option<RewardRule>,
    },
    /// A driver begins to work on the run. One of an earlier epoch that still lives finds the number of its next entry
    /// taken, and stops.
    DriverStarted { epoch: u32 },
    /// What may change while the run runs is from now on as it says here. An iteration keeps the sampling that held
    /// when it started.
    SettingsTaken { settings: LiveSettings },
    /// The groups of an iteration are fixed.
    IterationStarted {
        iteration: u32,
        weights: String,
        /// Positions in the dataset, one a group.
        tasks: Vec<u32>,
        /// Absent without dynamic sampling.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dynamic: Option<DynamicStart>,
    },
    /// Dynamic sampling: more groups begin, in the place of those that teach nothing.
    GroupsAdded {
        iteration: u32,
        /// As in [`Event::IterationStarted`].
        tasks: Vec<u32>,
        /// As in [`DynamicStart`].
        places: Vec<u64>,
    },
    /// An episode has its verdict (`meta.json` was there before this entry).
    Verdict {
        episode: String,
        outcome: Outcome,
        reward: f32,
    },
    /// An attempt came to nothing through no fault of the policy.
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
        /// Its valid episodes.
        valid: u32,
        /// Entries from before this field are of groups with too few of them.
        #[serde(default)]
        reason: DropReason,
    },
    /// The batch of a step lies in the store.
    BatchWritten {
        iteration: u32,
        step: u32,
        sha256: String,
        rows: u32,
    },
    /// The trainer finished a step and published its weights. In mode Finetune only a step that is kept publishes; the
    /// others name the weights that were published last.
    StepDone {
        step: u32,
        weights: String,
        manifest_sha256: String,
    },
    /// From now on this version is the one to sample from. This entry is the truth; engines follow it.
    Promoted {
        weights: String,
        manifest_sha256: String,
        step: u32,
    },
    /// A set was evaluated; it is not evaluated again for these weights.
    EvaluationDone {
        set: String,
        weights: String,
        resolved: u32,
        episodes: u32,
        voids: u32,
    },
    /// Nothing is left to do, or nothing more can be done.
    RunFinished {
        succeeded: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}
