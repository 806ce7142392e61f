# Made from operator/python/schemas/views.json by operator/python/generate.py; do not edit.
# inputs sha256: 2cf6ac043cf9532a09b570be08b15b4a095163634e2c566af2be7c56897f57cf
"""The views of a run's records."""

from __future__ import annotations

from typing import Literal

from grpo.base import Number, View


class CallView(View):
    """A tool call."""

    id: str
    name: str
    arguments: Text


class Count(View):
    """A number of things of one name."""

    name: str
    count: int


class Curve(View):
    """One metric over the iterations or steps of a run."""

    name: str
    """As in Prometheus and TensorBoard."""
    of: str
    """`iteration`, `step`, or the name of an evaluation set."""
    x: list[int]
    """Iterations or steps, ascending."""
    y: list[Number]


class Divergence(View):
    """The first sampled token that differs from the sample that the group is compared with."""

    turn: int
    """The turn, from 0, and the token in its answer, from 0."""
    token: int
    offset: int | None = None
    """The place in the turn's text, in UTF-16 units; absent without a tokenizer."""


class EpisodeDetail(View):
    """`<run>/episode/<folder>`: one episode."""

    episode: EpisodeLine
    scope: str
    turns: list[TurnView]
    rows: list[RowLine]
    reward: list[RewardPart]
    """What the reward is made of."""
    flags: list[Flag]
    grade: GradeView | None = None
    image: str | None = None
    patch: Text | None = None
    process: ProcessView | None = None


class EpisodeLine(View):
    """One episode in a table."""

    path: str
    name: str
    instance: str
    group: int
    sample: int
    attempt: int
    outcome: str
    """`Resolved`, `Unresolved`, `Void` or `Unfinished`."""
    end: str
    turns: int
    tokens: int
    sampled_tokens: int
    format_errors: int
    truncated: bool
    weights: list[str]
    untrainable: bool
    """Answered by a server that speaks only text: no batch takes it."""
    patch_bytes: int
    patch_sha256: str
    """Empty without a patch."""
    same_patch: int
    """How many other episodes of the group have the same patch, if it is not empty."""
    waited_millis: int
    agent_millis: int
    grade_millis: int
    at: int
    """Unix time in seconds."""
    advantage: float | None = None
    """As used in the step."""
    message: str | None = None
    reused_from: str | None = None
    """The episode whose verdict was taken over."""
    reward: float | None = None
    void_reason: str | None = None


class EvaluationLine(View):
    """One evaluation of a set."""

    set: str
    weights: str
    scope: str
    verdicts: int
    resolved: int
    voids: int
    done: bool
    step: int | None = None


class Flag(View):
    """Something in an episode that a person should look at."""

    kind: Literal['TestsRead', 'GitHistory', 'Network', 'TestsChanged', 'RepeatedPatch']
    """
    The kinds of flags.
    TestsRead: A command names files of tests.
    GitHistory: A command reads the repository's history, which may hold the solution.
    Network: A command tries to reach the network.
    TestsChanged: The patch changes files of tests, or what a test runner reads.
    RepeatedPatch: Other samples of the group have the same patch.
    """
    what: str
    """The command, path or host."""
    turn: int | None = None
    """Absent for the patch."""


class Found(View):
    """An episode that a search found."""

    path: str
    outcome: str
    note: str | None = None
    reward: float | None = None


class GradeView(View):
    """The verdict."""

    status: str
    tries: int
    fail_to_pass: tuple[int, int]
    pass_to_pass: tuple[int, int]
    notes: list[str]
    reused_from: str | None = None


class GroupLine(View):
    """The samples of one task."""

    group: int
    instance: str
    episodes: list[EpisodeLine]
    dropped: str | None = None
    """Why it is not in the batch."""
    reward_mean: float | None = None
    reward_std: float | None = None
    """Population standard deviation."""


class GroupView(View):
    """`<run>/group/<folder>/<group>`: the samples of a task beside each other."""

    scope: str
    group: int
    instance: str
    samples: list[SampleView]
    compared_with: str | None = None
    """The episode that the others are compared with."""


class IterationLine(View):
    """One iteration in a table."""

    iteration: int
    scope: str
    """The folder of its episodes."""
    weights: str
    """The version wanted at its start."""
    groups: int
    dropped: int
    """Groups that are not in the batch."""
    verdicts: int
    resolved: int
    voids: int
    began: int
    """Unix times in seconds: its start, its batch, and the end of its step."""
    batch: int | None = None
    reward_mean: float | None = None
    step: int | None = None
    stepped: int | None = None


class LogView(View):
    """`<run>/log/<folder>`: a part of the grader's log."""

    text: str
    from_: int
    """The first byte of this part, and the first after it."""
    to: int
    more: bool
    """Whether bytes follow."""


class MessageView(View):
    """A message of a prompt."""

    role: str
    content: Text


class Problem(View):
    """An error, in place of any view."""

    message: str


class ProcessView(View):
    """The process of a command-line agent."""

    end: str
    log: Text
    replays: int


class RewardPart(View):
    """A summand of a reward."""

    name: str
    value: Number


class RowLine(View):
    """A row of an episode."""

    row: int
    turns: list[int]
    tokens: int
    sampled: int


class RunEnd(View):
    """How a run ended."""

    succeeded: bool
    message: str | None = None
    reason: str | None = None


class RunView(View):
    """`<run>/run`: the run as a whole."""

    namespace: str
    name: str
    uid: str
    agent: str
    seed: int
    tasks: int
    sequence: int
    """The last journal entry that is part of this view."""
    reading: bool
    """Earlier entries are still being read."""
    began: int
    """Unix time of the first and of the last entry, in seconds."""
    last: int
    drivers: int
    """How often a driver began."""
    iterations: list[IterationLine]
    evaluations: list[EvaluationLine]
    versions: list[VersionLine]
    voids: list[Count]
    """Attempts that became void, by reason."""
    voided_tokens: int
    """Tokens of void attempts."""
    curves: list[Curve]
    damaged: list[str]
    """Files of metrics that cannot be read, with the cause: their numbers are missing."""
    end: RunEnd | None = None
    """Absent while the run works."""


class RunsView(View):
    """`runs`: what this viewer shows."""

    runs: list[str]
    """Names, in the order of their numbers in paths."""
    live: bool
    """The records may still grow: the page follows them."""
    bundle: bool
    """Records are files of a bundle: there is no server that searches."""


class SampleView(View):
    """One sample in a group."""

    episode: EpisodeLine
    turns: list[TurnView]
    diverges: Divergence | None = None
    """Absent for the sample that others are compared with, and for one with the same tokens."""


class ScopeView(View):
    """`<run>/scope/<folder>`: an iteration or an evaluation."""

    scope: str
    title: str
    """`iteration 3`."""
    groups: list[GroupLine]
    voids: list[VoidLine]
    """Attempts that became void and have no verdict."""
    cut: bool
    """More episodes than are shown."""


class SearchView(View):
    """The answer to a search."""

    found: list[Found]
    all: int
    """All episodes that fit, shown or not."""
    read: int
    """Episodes whose text is searched, and episodes that have ended."""
    ended: int
    reading: bool
    """Texts are still being read: there may be more."""


class TaskScope(View):
    """The episodes of one task in an iteration or evaluation."""

    scope: str
    title: str
    group: int
    episodes: list[Found]


class TaskView(View):
    """`<run>/task/<instance>`: the episodes of one task over the run."""

    instance: str
    scopes: list[TaskScope]


class Text(View):
    """Text of a sandbox or of the policy: at most so much of it is shown."""

    text: str
    omitted: int
    """Bytes that are left out at the end."""


class TokensView(View):
    """One of `<run>/tokens/<folder>`: the sampled tokens of a turn."""

    turn: int
    weights: str
    has_text: bool
    """Whether a tokenizer was found that gives tokens their text."""
    ids: list[int]
    logprobs: list[Number]
    """The engine's."""
    texts: list[str]
    """Empty without a tokenizer."""
    problem: str | None = None
    """Why the trainer's numbers cannot be read."""
    trainer: TrainerTokens | None = None
    """Absent if the episode is in no batch, if its step is not done, and in evaluations."""


class TrainerTokens(View):
    """What the trainer computed for the sampled tokens of a turn; null for a token whose loss was not computed."""

    step: int
    logprobs: list[float | None]
    """Under the weights that the step began with, or in the first optimizer step that had the token."""
    entropies: list[float | None]
    """In the first optimizer step that had the token, in nats."""
    ratios: list[float | None]
    """New to old probability in the last optimizer step that had the token: its own, or its sequence's."""
    clipped: list[bool]
    """Whether the ratio was clipped."""
    left_out: list[bool]
    """Whether a correction left the token out."""
    advantage: float | None = None
    """Absent if the turn was not trained on."""


class TurnView(View):
    """One turn."""

    turn: int
    row: int
    opening: list[MessageView]
    text: Text
    action: str
    calls: list[CallView]
    result: str
    """`exit 1 in 120 ms`."""
    failed: bool
    """Whether the command failed or could not be run."""
    observation: Text
    weights: str
    prompt_tokens: int
    sampled_tokens: int
    observation_tokens: int
    logprob: Number
    """Sum of the engine's logprobs."""
    sample_millis: int
    exec_millis: int
    waited_millis: int
    votes: list[VoteView]
    overruled: list[str]
    """Settings that the agent asked for and did not get."""
    injected: int
    """Messages that the agent added."""
    at: int
    branch: str | None = None
    """Why it opened a row."""
    command: Text | None = None
    end: str | None = None
    omitted_turns: tuple[int, int] | None = None
    """The first and the last of the turns that its history lacks."""
    score: float | None = None


class VersionLine(View):
    """One version of the weights."""

    version: str
    lineage: str
    step: int
    iterations: list[int]
    """Iterations that began with it."""
    evaluations: list[str]
    manifest_sha256: str
    from_iteration: int | None = None
    """The iteration whose batch made it."""
    promoted: int | None = None
    published: int | None = None
    """Unix times in seconds."""
    staleness: int | None = None
    """Largest staleness of the step's batch."""


class VoidLine(View):
    """A void attempt."""

    path: str
    reason: str
    message: str
    turns: int
    tokens: int
    at: int


class VoteView(View):
    """A vote of the judge of turns."""

    text: Text
    missing: str | None = None
    """Why there is no vote."""
    vote: int | None = None
