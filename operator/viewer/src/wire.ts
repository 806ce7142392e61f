// Made from operator/kubectl-grpo/src/ui/wire.rs by a test: UPDATE_SCREENS=1 cargo test -p kubectl-grpo --lib ui::wire

export type RunsView = { 
/**
 * Names, in the order of their numbers in paths.
 */
runs: Array<string>, 
/**
 * The records may still grow: the page follows them.
 */
live: boolean, 
/**
 * Records are files of a bundle: there is no server that searches.
 */
bundle: boolean, };

export type RunView = { namespace: string, name: string, uid: string, agent: string, seed: number, tasks: number, 
/**
 * The last journal entry that is part of this view.
 */
sequence: number, 
/**
 * Earlier entries are still being read.
 */
reading: boolean, 
/**
 * Unix time of the first and of the last entry, in seconds.
 */
began: number, last: number, 
/**
 * How often a driver began.
 */
drivers: number, 
/**
 * Absent while the run works.
 */
end: RunEnd | null, iterations: Array<IterationLine>, evaluations: Array<EvaluationLine>, versions: Array<VersionLine>, 
/**
 * Attempts that became void, by reason.
 */
voids: Array<Count>, 
/**
 * Tokens of void attempts.
 */
voidedTokens: number, curves: Array<Curve>, 
/**
 * Files of metrics that cannot be read, with the cause: their numbers are missing.
 */
damaged: Array<string>, };

export type RunEnd = { succeeded: boolean, reason: string | null, message: string | null, };

export type Count = { name: string, count: number, };

export type Curve = { 
/**
 * As in Prometheus and TensorBoard.
 */
name: string, 
/**
 * `iteration`, `step`, or the name of an evaluation set.
 */
of: string, 
/**
 * Iterations or steps, ascending.
 */
x: Array<number>, y: Array<number>, };

export type IterationLine = { iteration: number, 
/**
 * The folder of its episodes.
 */
scope: string, 
/**
 * The version wanted at its start.
 */
weights: string, groups: number, 
/**
 * Groups that are not in the batch.
 */
dropped: number, verdicts: number, resolved: number, voids: number, rewardMean: number | null, step: number | null, 
/**
 * Unix times in seconds: its start, its batch, and the end of its step.
 */
began: number, batch: number | null, stepped: number | null, };

export type EvaluationLine = { set: string, weights: string, scope: string, step: number | null, verdicts: number, resolved: number, voids: number, done: boolean, };

export type VersionLine = { version: string, lineage: string, step: number, 
/**
 * Unix times in seconds.
 */
published: number | null, promoted: number | null, 
/**
 * The iteration whose batch made it.
 */
fromIteration: number | null, 
/**
 * Iterations that began with it.
 */
iterations: Array<number>, evaluations: Array<string>, 
/**
 * Largest staleness of the step's batch.
 */
staleness: number | null, manifestSha256: string, };

export type ScopeView = { scope: string, 
/**
 * `iteration 3`.
 */
title: string, groups: Array<GroupLine>, 
/**
 * Attempts that became void and have no verdict.
 */
voids: Array<VoidLine>, 
/**
 * More episodes than are shown.
 */
cut: boolean, };

export type GroupLine = { group: number, instance: string, episodes: Array<EpisodeLine>, rewardMean: number | null, 
/**
 * Population standard deviation.
 */
rewardStd: number | null, 
/**
 * Why it is not in the batch.
 */
dropped: string | null, };

export type VoidLine = { path: string, reason: string, message: string, turns: number, tokens: number, at: number, };

export type EpisodeLine = { path: string, name: string, instance: string, group: number, sample: number, attempt: number, 
/**
 * `Resolved`, `Unresolved`, `Void` or `Unfinished`.
 */
outcome: string, voidReason: string | null, message: string | null, reward: number | null, 
/**
 * As used in the step.
 */
advantage: number | null, end: string, turns: number, tokens: number, sampledTokens: number, formatErrors: number, truncated: boolean, weights: Array<string>, 
/**
 * Answered by a server that speaks only text: no batch takes it.
 */
untrainable: boolean, patchBytes: number, 
/**
 * Empty without a patch.
 */
patchSha256: string, 
/**
 * How many other episodes of the group have the same patch, if it is not empty.
 */
samePatch: number, 
/**
 * The episode whose verdict was taken over.
 */
reusedFrom: string | null, waitedMillis: number, agentMillis: number, gradeMillis: number, 
/**
 * Unix time in seconds.
 */
at: number, };

export type GroupView = { scope: string, group: number, instance: string, 
/**
 * The episode that the others are compared with.
 */
comparedWith: string | null, samples: Array<SampleView>, };

export type SampleView = { episode: EpisodeLine, turns: Array<TurnView>, 
/**
 * Absent for the sample that others are compared with, and for one with the same tokens.
 */
diverges: Divergence | null, };

export type Divergence = { 
/**
 * The turn, from 0, and the token in its answer, from 0.
 */
turn: number, token: number, 
/**
 * The place in the turn's text, in UTF-16 units; absent without a tokenizer.
 */
offset: number | null, };

export type EpisodeDetail = { episode: EpisodeLine, scope: string, image: string | null, turns: Array<TurnView>, rows: Array<RowLine>, patch: Text | null, grade: GradeView | null, 
/**
 * What the reward is made of.
 */
reward: Array<RewardPart>, flags: Array<Flag>, process: ProcessView | null, };

export type Text = { text: string, 
/**
 * Bytes that are left out at the end.
 */
omitted: number, };

export type TurnView = { turn: number, row: number, 
/**
 * Why it opened a row.
 */
branch: string | null, 
/**
 * The first and the last of the turns that its history lacks.
 */
omittedTurns: [number, number] | null, opening: Array<MessageView>, text: Text, action: string, command: Text | null, calls: Array<CallView>, 
/**
 * `exit 1 in 120 ms`.
 */
result: string, 
/**
 * Whether the command failed or could not be run.
 */
failed: boolean, observation: Text, weights: string, promptTokens: number, sampledTokens: number, observationTokens: number, 
/**
 * Sum of the engine's logprobs.
 */
logprob: number, sampleMillis: number, execMillis: number, waitedMillis: number, end: string | null, votes: Array<VoteView>, score: number | null, 
/**
 * Settings that the agent asked for and did not get.
 */
overruled: Array<string>, 
/**
 * Messages that the agent added.
 */
injected: number, at: number, };

export type MessageView = { role: string, content: Text, };

export type CallView = { id: string, name: string, arguments: Text, };

export type VoteView = { vote: number | null, text: Text, 
/**
 * Why there is no vote.
 */
missing: string | null, };

export type RowLine = { row: number, turns: Array<number>, tokens: number, sampled: number, };

export type GradeView = { status: string, tries: number, reusedFrom: string | null, failToPass: [number, number], passToPass: [number, number], notes: Array<string>, };

export type RewardPart = { name: string, value: number, };

export type Flag = { kind: FlagKind, 
/**
 * Absent for the patch.
 */
turn: number | null, 
/**
 * The command, path or host.
 */
what: string, };

export type FlagKind = "TestsRead" | "GitHistory" | "Network" | "TestsChanged" | "RepeatedPatch";

export type ProcessView = { end: string, log: Text, replays: number, };

export type TokensView = { turn: number, weights: string, 
/**
 * Whether a tokenizer was found that gives tokens their text.
 */
hasText: boolean, ids: Array<number>, 
/**
 * The engine's.
 */
logprobs: Array<number>, 
/**
 * Empty without a tokenizer.
 */
texts: Array<string>, 
/**
 * Absent if the episode is in no batch, if its step is not done, and in evaluations.
 */
trainer: TrainerTokens | null, 
/**
 * Why the trainer's numbers cannot be read.
 */
problem: string | null, };

export type TrainerTokens = { step: number, 
/**
 * Absent if the turn was not trained on.
 */
advantage: number | null, 
/**
 * Under the weights that the step began with, or in the first optimizer step that had the token.
 */
logprobs: Array<number | null>, 
/**
 * In the first optimizer step that had the token, in nats.
 */
entropies: Array<number | null>, 
/**
 * New to old probability in the last optimizer step that had the token: its own, or its sequence's.
 */
ratios: Array<number | null>, 
/**
 * Whether the ratio was clipped.
 */
clipped: Array<boolean>, 
/**
 * Whether a correction left the token out.
 */
leftOut: Array<boolean>, };

export type TaskView = { instance: string, scopes: Array<TaskScope>, };

export type TaskScope = { scope: string, title: string, group: number, episodes: Array<Found>, };

export type Found = { path: string, outcome: string, reward: number | null, note: string | null, };

export type SearchView = { found: Array<Found>, 
/**
 * All episodes that fit, shown or not.
 */
all: number, 
/**
 * Episodes whose text is searched, and episodes that have ended.
 */
read: number, ended: number, 
/**
 * Texts are still being read: there may be more.
 */
reading: boolean, };

export type LogView = { text: string, 
/**
 * The first byte of this part, and the first after it.
 */
from: number, to: number, 
/**
 * Whether bytes follow.
 */
more: boolean, };

export type Problem = { message: string, };
