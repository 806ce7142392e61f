//! What the viewer's page receives: the answers of the server, and the files of a bundle. Both have the same paths.
//!
//! `operator/viewer/src/wire.ts` and `operator/python/schemas/views.json` are made from these types by tests of this
//! module, so that page, server and the Python client cannot disagree.

mod episode;

pub use self::episode::{
    CallView, EpisodeDetail, Flag, FlagKind, GradeView, MessageView, ProcessView, RewardPart, RowLine, Text,
    TokensView, TrainerTokens, TurnView, VoteView,
};

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
#[cfg(test)]
use ts_rs::TS;

/// `runs`: what this viewer shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunsView {
    /// Names, in the order of their numbers in paths.
    pub runs: Vec<String>,
    /// The records may still grow: the page follows them.
    pub live: bool,
    /// Records are files of a bundle: there is no server that searches.
    pub bundle: bool,
}

/// `<run>/run`: the run as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub agent: String,
    pub seed: u64,
    pub tasks: u32,
    /// The last journal entry that is part of this view.
    pub sequence: u64,
    /// Earlier entries are still being read.
    pub reading: bool,
    /// Unix time of the first and of the last entry, in seconds.
    pub began: i64,
    pub last: i64,
    /// How often a driver began.
    pub drivers: u32,
    /// Absent while the run works.
    pub end: Option<RunEnd>,
    pub iterations: Vec<IterationLine>,
    pub evaluations: Vec<EvaluationLine>,
    pub versions: Vec<VersionLine>,
    /// Attempts that became void, by reason.
    pub voids: Vec<Count>,
    /// Tokens of void attempts.
    pub voided_tokens: u64,
    pub curves: Vec<Curve>,
    /// Files of metrics that cannot be read, with the cause: their numbers are missing.
    pub damaged: BTreeSet<String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunEnd {
    pub succeeded: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// A number of things of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Count {
    pub name: String,
    pub count: u64,
}

/// One metric over the iterations or steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Curve {
    /// As in Prometheus and TensorBoard.
    pub name: String,
    /// `iteration`, `step`, or the name of an evaluation set.
    pub of: String,
    /// Iterations or steps, ascending.
    pub x: Vec<u32>,
    pub y: Vec<f64>,
}

/// One iteration in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IterationLine {
    pub iteration: u32,
    /// The folder of its episodes.
    pub scope: String,
    /// The version wanted at its start.
    pub weights: String,
    pub groups: u32,
    /// Groups that are not in the batch.
    pub dropped: u32,
    pub verdicts: u32,
    pub resolved: u32,
    pub voids: u32,
    pub reward_mean: Option<f64>,
    pub step: Option<u32>,
    /// Unix times in seconds: its start, its batch, and the end of its step.
    pub began: i64,
    pub batch: Option<i64>,
    pub stepped: Option<i64>,
}

/// One evaluation of a set.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EvaluationLine {
    pub set: String,
    pub weights: String,
    pub scope: String,
    pub step: Option<u32>,
    pub verdicts: u32,
    pub resolved: u32,
    pub voids: u32,
    pub done: bool,
}

/// One version of the weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionLine {
    pub version: String,
    pub lineage: String,
    pub step: u32,
    /// Unix times in seconds.
    pub published: Option<i64>,
    pub promoted: Option<i64>,
    /// The iteration whose batch made it.
    pub from_iteration: Option<u32>,
    /// Iterations that began with it.
    pub iterations: Vec<u32>,
    pub evaluations: Vec<String>,
    /// Largest staleness of the step's batch.
    pub staleness: Option<u32>,
    pub manifest_sha256: String,
}

/// `<run>/scope/<folder>`: an iteration or an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScopeView {
    pub scope: String,
    /// `iteration 3`.
    pub title: String,
    pub groups: Vec<GroupLine>,
    /// Attempts that became void and have no verdict.
    pub voids: Vec<VoidLine>,
    /// More episodes than are shown.
    pub cut: bool,
}

/// The samples of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupLine {
    pub group: u32,
    pub instance: String,
    pub episodes: Vec<EpisodeLine>,
    pub reward_mean: Option<f64>,
    /// Population standard deviation.
    pub reward_std: Option<f64>,
    /// Why it is not in the batch.
    pub dropped: Option<String>,
}

/// A void attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VoidLine {
    pub path: String,
    pub reason: String,
    pub message: String,
    pub turns: u32,
    pub tokens: u64,
    pub at: i64,
}

/// One episode in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EpisodeLine {
    pub path: String,
    pub name: String,
    pub instance: String,
    pub group: u32,
    pub sample: u32,
    pub attempt: u32,
    /// `Resolved`, `Unresolved`, `Void` or `Unfinished`.
    pub outcome: String,
    pub void_reason: Option<String>,
    pub message: Option<String>,
    pub reward: Option<f64>,
    /// As used in the step.
    pub advantage: Option<f64>,
    pub end: String,
    pub turns: u32,
    pub tokens: u64,
    pub sampled_tokens: u64,
    pub format_errors: u32,
    pub truncated: bool,
    pub weights: Vec<String>,
    /// Answered by a server that speaks only text: no batch takes it.
    pub untrainable: bool,
    pub patch_bytes: u64,
    /// Empty without a patch.
    pub patch_sha256: String,
    /// How many other episodes of the group have the same patch, if it is not empty.
    pub same_patch: u32,
    /// The episode whose verdict was taken over.
    pub reused_from: Option<String>,
    pub waited_millis: u64,
    pub agent_millis: u64,
    pub grade_millis: u64,
    /// Unix time in seconds.
    pub at: i64,
}

/// `<run>/group/<folder>/<group>`: the samples of a task beside each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GroupView {
    pub scope: String,
    pub group: u32,
    pub instance: String,
    /// The episode that the others are compared with.
    pub compared_with: Option<String>,
    pub samples: Vec<SampleView>,
}

/// One sample in a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SampleView {
    pub episode: EpisodeLine,
    pub turns: Vec<TurnView>,
    /// Absent for the sample that others are compared with, and for one with the same tokens.
    pub diverges: Option<Divergence>,
}

/// The first sampled token that differs from the sample that the group is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Divergence {
    /// The turn, from 0, and the token in its answer, from 0.
    pub turn: u32,
    pub token: u32,
    /// The place in the turn's text, in UTF-16 units; absent without a tokenizer.
    pub offset: Option<u32>,
}

/// `<run>/task/<instance>`: the episodes of one task over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    pub instance: String,
    pub scopes: Vec<TaskScope>,
}

/// The episodes of one task in an iteration or evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskScope {
    pub scope: String,
    pub title: String,
    pub group: u32,
    pub episodes: Vec<Found>,
}

/// An episode that a search found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub path: String,
    pub outcome: String,
    pub reward: Option<f64>,
    pub note: Option<String>,
}

/// The answer to a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchView {
    pub found: Vec<Found>,
    /// All episodes that fit, shown or not.
    pub all: u64,
    /// Episodes whose text is searched, and episodes that have ended.
    pub read: u64,
    pub ended: u64,
    /// Texts are still being read: there may be more.
    pub reading: bool,
}

/// `<run>/log/<folder>`: a part of the grader's log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogView {
    pub text: String,
    /// The first byte of this part, and the first after it.
    pub from: u64,
    pub to: u64,
    /// Whether bytes follow.
    pub more: bool,
}

/// An error, in place of any view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub message: String,
}

#[cfg(test)]
mod tests;
