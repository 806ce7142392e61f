//! The views of one episode.

use super::EpisodeLine;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
#[cfg(test)]
use ts_rs::TS;

/// `<run>/episode/<folder>`: one episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EpisodeDetail {
    pub episode: EpisodeLine,
    pub scope: String,
    pub image: Option<String>,
    pub turns: Vec<TurnView>,
    pub rows: Vec<RowLine>,
    pub patch: Option<Text>,
    pub grade: Option<GradeView>,
    /// What the reward is made of.
    pub reward: Vec<RewardPart>,
    pub flags: Vec<Flag>,
    pub process: Option<ProcessView>,
}

/// Text of a sandbox or of the policy: at most so much of it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Text {
    pub text: String,
    /// Bytes that are left out at the end.
    pub omitted: u64,
}

/// One turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TurnView {
    pub turn: u32,
    pub row: u32,
    /// Why it opened a row.
    pub branch: Option<String>,
    /// The first and the last of the turns that its history lacks.
    pub omitted_turns: Option<(u32, u32)>,
    pub opening: Vec<MessageView>,
    pub text: Text,
    pub action: String,
    pub command: Option<Text>,
    pub calls: Vec<CallView>,
    /// `exit 1 in 120 ms`.
    pub result: String,
    /// Whether the command failed or could not be run.
    pub failed: bool,
    pub observation: Text,
    pub weights: String,
    pub prompt_tokens: u64,
    pub sampled_tokens: u32,
    pub observation_tokens: u32,
    /// Sum of the engine's logprobs.
    pub logprob: f64,
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
    pub end: Option<String>,
    pub votes: Vec<VoteView>,
    pub score: Option<f64>,
    /// Settings that the agent asked for and did not get.
    pub overruled: Vec<String>,
    /// Messages that the agent added.
    pub injected: u32,
    pub at: i64,
}

/// A message of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MessageView {
    pub role: String,
    pub content: Text,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallView {
    pub id: String,
    pub name: String,
    pub arguments: Text,
}

/// A vote of the judge of turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VoteView {
    pub vote: Option<i8>,
    pub text: Text,
    /// Why there is no vote.
    pub missing: Option<String>,
}

/// A row of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RowLine {
    pub row: u32,
    pub turns: Vec<u32>,
    pub tokens: u64,
    pub sampled: u64,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GradeView {
    pub status: String,
    pub tries: u32,
    pub reused_from: Option<String>,
    pub fail_to_pass: (u32, u32),
    pub pass_to_pass: (u32, u32),
    pub notes: Vec<String>,
}

/// A summand of a reward.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RewardPart {
    pub name: String,
    pub value: f64,
}

/// Something in an episode that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Flag {
    pub kind: FlagKind,
    /// Absent for the patch.
    pub turn: Option<u32>,
    /// The command, path or host.
    pub what: String,
}

/// The kinds of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
pub enum FlagKind {
    /// A command names files of tests.
    TestsRead,
    /// A command reads the repository's history, which may hold the solution.
    GitHistory,
    /// A command tries to reach the network.
    Network,
    /// The patch changes files of tests, or what a test runner reads.
    TestsChanged,
    /// Other samples of the group have the same patch.
    RepeatedPatch,
}

/// The process of a command-line agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    pub end: String,
    pub log: Text,
    pub replays: u32,
}

/// One of `<run>/tokens/<folder>`: the sampled tokens of a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TokensView {
    pub turn: u32,
    pub weights: String,
    /// Whether a tokenizer was found that gives tokens their text.
    pub has_text: bool,
    pub ids: Vec<u32>,
    /// The engine's.
    pub logprobs: Vec<f32>,
    /// Empty without a tokenizer.
    pub texts: Vec<String>,
    /// Absent if the episode is in no batch, if its step is not done, and in evaluations.
    pub trainer: Option<TrainerTokens>,
    /// Why the trainer's numbers cannot be read.
    pub problem: Option<String>,
}

/// What the trainer computed for the sampled tokens of a turn; null for a token whose loss was not computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(TS, JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TrainerTokens {
    pub step: u32,
    /// Absent if the turn was not trained on.
    pub advantage: Option<f64>,
    /// Under the weights that the step began with, or in the first optimizer step that had the token.
    pub logprobs: Vec<Option<f32>>,
    /// In the first optimizer step that had the token, in nats.
    pub entropies: Vec<Option<f32>>,
    /// New to old probability in the last optimizer step that had the token: its own, or its sequence's.
    pub ratios: Vec<Option<f32>>,
    /// Whether the ratio was clipped.
    pub clipped: Vec<bool>,
    /// Whether a correction left the token out.
    pub left_out: Vec<bool>,
}
