//! One episode: its folder, its record, and its verdict.

use crate::graded::GradedTask;
use crate::judged::ProcessScores;
use crate::outcome::{Outcome, VoidReason};
use crate::paths;
use crate::record::{Record, Writer};
use crate::scope::EpisodeScope;
use crate::turn::{EpisodeEnd, TurnRecord};
use serde::{Deserialize, Serialize};

/// Names an episode: a sample of a group of an iteration or of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeKey {
    pub scope: EpisodeScope,
    pub instance: String,
    pub group: u32,
    pub sample: u32,
}

impl EpisodeKey {
    /// `<instance>__g<group>__i<sample>`: unique within its scope.
    pub fn name(&self) -> String {
        format!("{}__g{}__i{}", self.instance, self.group, self.sample)
    }

    /// The group in an episode's name, with or without the attempt number.
    pub fn group_of(name: &str) -> Option<u32> {
        let mut parts = name.rsplit("__");
        parts.find_map(|part| part.strip_prefix('g')?.parse().ok())
    }

    /// The folder of the given attempt (from 1). A failed attempt keeps its folder; the next attempt has its own.
    pub fn dir(&self, attempt: u32) -> String {
        paths::episode(&self.scope, &self.name(), attempt)
    }
}

/// `…/traj.json`: the whole episode as readable text. Its ids are in `rows.safetensors` beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeRecord {
    pub schema: u32,
    pub writer: Writer,
    pub run: String,
    #[serde(flatten)]
    pub key: EpisodeKey,
    /// The number of the episode attempt, from 1.
    pub attempt: u32,
    pub task: u32,
    pub image: String,
    pub end: EpisodeEnd,
    /// Why it was aborted; set exactly if `end` is `Aborted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted: Option<AbortCause>,
    /// The policy's patch was too long to be graded, so none is stored. Not set by drivers from before this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub patch_too_large: bool,
    /// In order, without ids.
    pub turns: Vec<TurnRecord>,
    /// The command-line agent, if the episode had one and its process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<AgentProcess>,
    /// The file of its ids; absent if nothing was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowsFile>,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i64,
    pub truncated: bool,
    /// Unix time in seconds.
    pub started_at: i64,
    pub finished_at: i64,
}

impl Record for EpisodeRecord {}

/// How the process of a command-line agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentProcess {
    /// Absent if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The limit that killed it; `Request` if the driver ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<String>,
    /// Its output: the end and, if there is room, the beginning.
    pub log: String,
    /// Bytes of the output that are left out.
    pub omitted_bytes: u64,
    pub duration_millis: u64,
    /// How often it received a recorded answer again.
    pub replays: u32,
}

/// The void that ends an aborted attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AbortCause {
    pub reason: VoidReason,
    pub message: String,
}

/// The contents of `rows.safetensors` beside the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RowsFile {
    /// SHA-256 of the whole file.
    pub sha256: String,
    pub rows: usize,
    /// Tokens of all rows together.
    pub tokens: usize,
}

/// `…/meta.json`: written last, created once. An episode is finished if this file exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeMeta {
    pub schema: u32,
    pub writer: Writer,
    pub run: String,
    #[serde(flatten)]
    pub key: EpisodeKey,
    pub attempt: u32,
    pub outcome: Outcome,
    /// Absent for a void.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f32>,
    /// Set in a run that judges turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessScores>,
    pub end: EpisodeEnd,
    pub turns: u32,
    pub tokens: usize,
    pub sampled_tokens: usize,
    pub format_errors: u32,
    pub truncated: bool,
    /// Every version that sampled a token of the episode.
    pub weights: Vec<String>,
    /// Some answers came as text, so their ids and logprobs are not a policy's: no batch takes this episode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untrainable: bool,
    pub patch_bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_sha256: Option<String>,
    /// The task that the verdict applies to. Absent in stores from before this field: such a verdict is not reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graded: Option<GradedTask>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<GradeRecord>,
    /// The cause in words; for a void, what to look at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub agent_millis: u64,
    pub grade_millis: u64,
    pub waited_millis: u64,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for EpisodeMeta {}

/// How the verdict was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GradeRecord {
    /// The folder of the episode whose verdict on the same patch of the same task is reused here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused_from: Option<String>,
    /// How the grading ended: `Judged`, `PatchRefused`, `NoReport`, `TimedOut`, `Exhausted`, `WorkerFailed`, `Silent`,
    /// `Lost`, `EmptyPatch`, `NoPatch` or `PatchTooLarge`.
    pub status: String,
    pub fail_to_pass: TestCounts,
    pub pass_to_pass: TestCounts,
    /// How often the patch was given to a grader.
    pub tries: u32,
    /// Errors before the verdict, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestCounts {
    pub passed: u32,
    pub failed: u32,
}

#[cfg(test)]
mod tests;
