# Made from charts/grpo-operator/crds by operator/python/generate.py; do not edit.
# inputs sha256: 2cf6ac043cf9532a09b570be08b15b4a095163634e2c566af2be7c56897f57cf
"""The parts of GrpoRun, InferencePool and SandboxPool."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from grpo.base import Spec, Status
from pydantic import Field


class Agent(Spec):
    """Who works on it."""

    bash: AgentBash | None = None
    """Built-in loop: every turn the policy writes text with one bash block, which is run in the sandbox."""
    cli: AgentCli | None = None
    """A command-line agent, run unchanged in the sandbox against an endpoint that records what it samples."""
    context: AgentContext | None = None
    """
    What of its history the policy sees.
    Default: `{"thinking": "Keep"}`.
    """
    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """
    Variables of the policy's commands. A task's own stand above them. They stand above those that every run has:
    `PAGER=cat`, `MANPAGER=cat`, `LESS=-R`, `PIP_PROGRESS_BAR=off`, `TQDM_DISABLE=1`.
    """
    limits: AgentLimits | None = None
    """
    Where an episode ends at the latest.
    Default: `{"commandTimeout": "2m", "episodeTimeout": "30m", "turns": 50}`.
    """
    tools: AgentTools | None = None
    """
    Built-in loop: every turn the policy calls tools of a set. Its tasks need a test command (`test_command` in
    their rows; rows of KodCode have one).
    """


class AgentBash(Spec):
    """Built-in loop: every turn the policy writes text with one bash block, which is run in the sandbox."""

    edit_tool: bool | None = None
    """
    Gives the policy the command `edit_via_str_replace`, which replaces a text that a file has exactly once; also as
    `python edit_via_str_replace`. It lies outside the repository. Default: true with MiniSweAgentPlus, else false.
    """
    format_error: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of the answer to a turn without exactly one bash block. Variables: `blocks` (how many there were),
    `truncated`, `turnsLeft`.
    """
    observation: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of what the policy sees of a command. Variables: `command`, `output` (without line ends behind it),
    `rawOutput`, `exitCode` (none when it was killed), `signal`, `timedOut`, `killed`, `omittedBytes` (left out in
    the middle of more than 16 kB, with the presets of mini-swe-agent of 64 kB), `seconds`, `turnsLeft`.
    """
    preset: Literal['Plain', 'MiniSweAgent1', 'MiniSweAgentPlus'] | None = None
    """
    Whose texts the policy reads. Plain: short ones of our own, submitted with `COMPLETE_TASK_AND_SUBMIT`.
    MiniSweAgent1: those of mini-swe-agent 1.12.0 for SWE-bench. MiniSweAgentPlus: those of mini-swe-agent-plus,
    with its edit tool.
    Default: `"Plain"`.
    """
    submit_sentinel: Annotated[str | None, Field(max_length=256, min_length=1)] = None
    """
    The episode ends, and the repository as it is then is submitted, when a command succeeds whose output begins
    with this line.
    """
    system: Annotated[str | None, Field(max_length=16384)] = None
    """
    Template of the system message. Variables: `task` (the task's row, and the folder of its repository as
    `task.working_dir`). Empty: no system message.
    """
    task: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of the first user message. Variables: `task` (the task's row, for example `task.problem_statement`, and
    the folder of its repository as `task.working_dir`).
    """


class AgentCli(Spec):
    """A command-line agent, run unchanged in the sandbox against an endpoint that records what it samples."""

    image: Annotated[str, Field(max_length=512, min_length=1)]
    """
    Image that holds the agent and what it needs to run. It is mounted at `/opt/agent` of every sandbox, read-only,
    beside the task's own files, which stay as they are. A pool in `sandboxes.poolRef` has it as `agentImage`.
    """
    bare: bool | None = None
    """
    The shortest prompt that QwenCode has: 3 tools instead of 14 and no settings file. A first request has 33 kB
    instead of 78, and 13 with a short `system`.
    Default: `false`.
    """
    call_format: Literal['Hermes', 'Qwen3Coder'] | None = None
    """
    How the policy writes a tool call, and how its chat template shows one. Hermes: JSON between `<tool_call>` tags.
    Qwen3Coder: XML, one tag per argument.
    Default: `"Hermes"`.
    """
    command: Annotated[list[str] | None, Field(max_length=64, min_length=1)] = None
    """
    Command of an agent that is no preset, as templates (minijinja). Variables: `task`, `prompt`, `system`,
    `baseUrl`, `model`, `limits`.
    """
    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """Added to its environment."""
    preset: Literal['QwenCode', 'MiniSweAgent', 'MiniSweAgentTools'] | None = None
    """
    An agent whose command line and environment are known. QwenCode: qwen-code. MiniSweAgent: mini-swe-agent, one
    bash block in each answer. MiniSweAgentTools: mini-swe-agent with its tool `bash`.
    """
    side_conversations: Literal['Train', 'Skip'] | None = None
    """
    What it asks while another of its conversations waits, as a sub-agent does. Train: it is trained on like the
    rest of the episode. Skip: it is recorded, and not trained on.
    Default: `"Train"`.
    """
    system: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of the agent's system text (minijinja), `system` in `command`. Variables: `task`, `limits`. Default:
    the agent's own text.
    """
    task: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """Template of the prompt (minijinja), `prompt` in `command`. Default: the task's problem statement."""


class AgentContext(Spec):
    """What of its history the policy sees."""

    rows: Literal['PerEpisode', 'PerTurn'] | None = None
    """
    PerEpisode: turns whose history only grows are one row. PerTurn: each turn is a row of its own, with the history
    it saw; `algorithm.denominator` says whether a row or an episode counts. Default: PerTurn with `trim` or
    `thinking: Strip`, else PerEpisode.
    """
    thinking: Literal['Keep', 'Strip', 'Off'] | None = None
    """
    Reasoning of earlier turns. Keep: it stays in the history. Strip: later turns do not see it. Off: the chat
    template is told to switch reasoning off (`enable_thinking=false`); a run whose model's template has no such
    switch ends when it begins. Refused: Strip with `cli`; use Keep or Off: a command-line agent keeps its own
    history.
    Default: `"Keep"`.
    """
    trim: AgentContextTrim | None = None
    """
    Leaves out turns in the middle where history and answer do not fit together; the newest turn always stays. A
    user message says how many are missing. Left out: the episode ends there. Refused: with `cli`; leave it out: a
    command-line agent keeps its own history.
    """


class AgentContextTrim(Spec):
    """
    Leaves out turns in the middle where history and answer do not fit together; the newest turn always stays. A
    user message says how many are missing. Left out: the episode ends there. Refused: with `cli`; leave it out: a
    command-line agent keeps its own history.
    """

    head: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Share for the first turns.
    Default: `0.3`.
    """
    tail: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Share for the last turns.
    Default: `0.7`.
    """


class AgentLimits(Spec):
    """Where an episode ends at the latest."""

    command_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    Time limit of one command. At the limit, its processes are killed and the episode continues.
    Default: `"2m"`.
    """
    context_tokens: Annotated[int | None, Field(ge=64, le=10000000)] = None
    """Tokens of prompt and answer together. Default: what the model's `config.json` allows and the engine takes."""
    episode_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    Time of one episode, without grading.
    Default: `"30m"`.
    """
    episode_tokens: Annotated[int | None, Field(ge=1, le=100000000)] = None
    """
    Tokens of one episode after its first prompt, answers and observations together. The episode ends there with
    `TokenLimit`, and its patch is graded. Default: no limit but the context's.
    """
    prompt_tokens: Annotated[int | None, Field(ge=1, le=10000000)] = None
    """
    Tokens of the first prompt. A selected task whose prompt is longer is left out of its set, and the run's message
    counts it. Default: no limit but the context's. Refused: with `cli`; use `contextTokens`: what a command-line
    agent asks first is known when it asks.
    """
    turns: Annotated[int | None, Field(ge=1, le=10000)] = None
    """
    Turns of one episode: answers of the policy.
    Default: `50`.
    """


class AgentTools(Spec):
    """
    Built-in loop: every turn the policy calls tools of a set. Its tasks need a test command (`test_command` in
    their rows; rows of KodCode have one).
    """

    bash: bool | None = None
    """
    Offers a bash tool too.
    Default: `false`.
    """
    call_format: Literal['Hermes', 'Qwen3Coder'] | None = None
    """
    How a call is written. Hermes: JSON between `<tool_call>` tags. Qwen3Coder: XML, one tag per argument.
    Default: `"Hermes"`.
    """
    directory_tree: bool | None = None
    """
    Ends the system message with the files of the repository's folder.
    Default: `true`.
    """
    eval_after_rewrite: bool | None = None
    """
    Runs eval after each rewrite, and shows its output behind the diff.
    Default: `false`.
    """
    grep: bool | None = None
    """
    Offers grep.
    Default: `true`.
    """
    keep_breakpoints: bool | None = None
    """
    A debugging session begins with the breakpoints of the last one. Rewritten code moves them.
    Default: `true`.
    """
    list_after_continue: bool | None = None
    """
    Lists the code around the place where pdb's `c` has stopped.
    Default: `false`.
    """
    system: Annotated[str | None, Field(max_length=16384)] = None
    """Template of the system message (minijinja). Variables: `task`, `limits`. Default: the toolset's own."""
    task: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of the first user message (minijinja). Variables: `task`, `limits`. Default: the task's problem
    statement; for rows of KodCode an instruction to find and mend the bug.
    """
    toolset: Literal['Pdb', 'Rewrite'] | None = None
    """
    Pdb: view, listdir, eval, rewrite, pdb and grep. Rewrite: the same without pdb. An episode ends when eval runs
    the task's tests and all pass; its patch is then graded in a fresh sandbox.
    Default: `"Pdb"`.
    """


class Algorithm(Spec):
    """The objective and the optimizer."""

    advantage: AlgorithmAdvantage | None = None
    """
    Advantages of a group's episodes.
    Default: `{"epsilon": "1e-6", "estimator": "Group", "std": "Population"}`.
    """
    aggregation: Literal['TokenMean', 'SequenceMean', 'SequenceSum', 'TokenSum'] | None = (
        None
    )
    """
    How token losses are put together.
    Default: `"TokenMean"`.
    """
    aggregation_length: Annotated[int | None, Field(ge=1, le=10000000)] = None
    """
    With SequenceSum: each episode's token sum is divided by this number of tokens, the same for all (Dr. GRPO).
    Left out: 1.
    """
    allow_frozen_sampler: bool | None = None
    """
    Train although the engine cannot take new weights: every iteration then samples from the base. The run says so
    in a condition. Refused: with other engines; describe the external server in `inference.pool`, or leave it out:
    other engines take new weights.
    Default: `false`.
    """
    betas: Annotated[list[float] | None, Field(max_length=2, min_length=2)] = None
    """
    Decay rates of AdamW's first and second moments.
    Default: `[0.9, 0.999]`.
    """
    clip: AlgorithmClip | None = None
    """
    Clipping of the probability ratio.
    Default: `{"high": 0.2, "low": 0.2}`.
    """
    control: Literal['ShuffledRewards'] | None = None
    """
    For experiments only: a run that must not learn, to compare one that does with. Refused: in mode Finetune; leave
    it out: supervised training has no rewards to shuffle.
    """
    correction: AlgorithmCorrection | None = None
    """
    Weighs or leaves out tokens whose probability differs between engine and trainer. Left out: none. Refused: in
    mode Finetune; leave it out: supervised training has no ratio.
    """
    denominator: Literal['Episode', 'Row'] | None = None
    """
    What counts as a sequence where an episode has several rows. Episode: its rows together, so that long episodes
    weigh no more than short ones. Row: every row.
    Default: `"Episode"`.
    """
    entropy_coefficient: Annotated[float | None, Field(ge=0.0, le=100.0)] = None
    """
    Weight of the policy's entropy, which is added to the objective. 0: off. Refused: in mode Finetune; leave it
    out: supervised training has no entropy bonus.
    Default: `0.0`.
    """
    epochs: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Passes over one batch.
    Default: `1`.
    """
    gradient_clip: Annotated[float | None, Field(ge=0.0, le=1000000.0)] = None
    """
    Largest norm of the whole gradient; 0 does not clip.
    Default: `1.0`.
    """
    kl: AlgorithmKl | None = None
    """
    A penalty on the distance from the base model. Left out: none, and no base model is held. Refused: in mode
    Finetune; leave it out: supervised training has no policy to stay close to.
    """
    learning_rate: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Step size of AdamW.
    Default: `"1e-6"`.
    """
    loss: Literal['Clipped', 'Cispo'] | None = None
    """
    What a token's ratio and advantage become. Clipped: the smaller of ratio times advantage with and without the
    bounds of `clip` (PPO). Cispo: the logprob times the advantage, weighed by the ratio within those bounds, which
    is held constant: every token keeps a gradient.
    Default: `"Clipped"`.
    """
    mask_overlong: bool | None = None
    """
    Episodes cut by a limit are not trained on, but stay in their group's baseline.
    Default: `false`.
    """
    mini_batches: Annotated[int | None, Field(ge=1, le=1024)] = None
    """
    Optimizer steps that one batch is divided into.
    Default: `1`.
    """
    old_logprobs: Literal['Engine', 'Recompute'] | None = None
    """
    The probabilities that new ones are compared with. Engine: those recorded when the tokens were sampled.
    Recompute: the trainer's own, under the version that sampled.
    Default: `"Engine"`.
    """
    ratio: Literal['Token', 'Sequence'] | None = None
    """
    Which ratio of new to old probability. Token: each token's own. Sequence: the geometric mean over the sequence's
    trained tokens (GSPO), whose bounds are to be much narrower. What a sequence is, `denominator` says.
    Default: `"Token"`.
    """
    router_replay: bool | None = None
    """
    For a mixture of experts: the trainer sends each token through the experts that the engine chose. true: a pool
    described in the run has `routedExperts` by itself, one that is referred to needs it. false: the trainer's own
    router chooses. Left out: as true for such models, but that the operator, which does not see the model, does not
    change the pool.
    """
    schedule: AlgorithmSchedule | None = None
    """
    How the learning rate goes over the run's steps.
    Default: `{"decay": "Constant", "finalRatio": 0.0, "warmupSteps": 0}`.
    """
    weight_decay: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Decoupled weight decay of AdamW.
    Default: `0.0`.
    """


class AlgorithmAdvantage(Spec):
    """Advantages of a group's episodes."""

    epsilon: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Is added to the standard deviation before it divides.
    Default: `"1e-6"`.
    """
    estimator: Literal['Group', 'LeaveOneOut', 'StepWise'] | None = None
    """
    Group: reward minus the mean of its group. LeaveOneOut: minus the mean of the others. StepWise: rewards of
    single turns, compared within the group's turns of the same number; needs `reward.process`.
    Default: `"Group"`.
    """
    std: Literal['None', 'Population', 'Unbiased', 'Batch'] | None = None
    """
    Which standard deviation divides: None (no division), Population (n) or Unbiased (n - 1) of the group's rewards,
    or Batch, the unbiased one of all rewards of the batch.
    Default: `"Population"`.
    """


class AlgorithmClip(Spec):
    """Clipping of the probability ratio."""

    dual: Annotated[float | None, Field(ge=1.0, le=1000.0)] = None
    """Dual clip: for negative advantages the loss is at most this multiple of the advantage. Left out: off."""
    high: Annotated[float | None, Field(ge=0.0, le=100.0)] = None
    """
    Room above 1.
    Default: `0.2`.
    """
    low: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Room below 1.
    Default: `0.2`.
    """


class AlgorithmCorrection(Spec):
    """
    Weighs or leaves out tokens whose probability differs between engine and trainer. Left out: none. Refused: in
    mode Finetune; leave it out: supervised training has no ratio.
    """

    geometric_mask: CorrectionBounds | None = None
    """A sequence is left out when the geometric mean of its tokens' ratios lies outside the band."""
    ice_pop: CorrectionBounds | None = None
    """IcePop: a token whose ratio lies outside the band is left out, the others' losses are multiplied by their ratio."""
    level: Literal['Token', 'Sequence'] | None = None
    """
    Which ratio truncatedImportance and icePop take. Token: each token's own. Sequence: the product over the
    sequence's trained tokens.
    Default: `"Token"`.
    """
    sequence_mask: Annotated[float | None, Field(ge=0.0, le=100.0)] = None
    """
    A sequence with a negative advantage is left out when the engine found its tokens likelier than the policy now
    does by more than this: the mean over its tokens of the engine's logprob minus the policy's.
    """
    truncated_importance: CorrectionBounds | None = None
    """TIS: a token's loss is multiplied by the ratio, held in the band."""


class AlgorithmKl(Spec):
    """
    A penalty on the distance from the base model. Left out: none, and no base model is held. Refused: in mode
    Finetune; leave it out: supervised training has no policy to stay close to.
    """

    coefficient: Annotated[float | None, Field(ge=0.0, le=1000.0)] = None
    """
    Its weight.
    Default: `0.001`.
    """
    estimator: Literal['K1', 'K2', 'K3', 'Abs', 'SquaredRatio'] | None = None
    """
    K1: x. K2: x squared, halved. K3: exp(-x) - 1 + x. Abs: x without its sign. SquaredRatio: exp(-x) - 1, squared
    and halved.
    Default: `"K3"`.
    """
    gradient: Literal['Estimator', 'StraightThrough', 'ImportanceWeighted'] | None = (
        None
    )
    """
    How a term of the loss is differentiated. Estimator: as written; in expectation this is not the gradient of the
    KL divergence, and for K1 it is zero. StraightThrough: the value of the estimator with the gradient of K2; in
    expectation this is the divergence's gradient if the policy itself drew the samples. ImportanceWeighted: the
    estimator times the token's ratio of new to old probability; the whole product is differentiated.
    Default: `"Estimator"`.
    """
    placement: Literal['Loss', 'Reward'] | None = None
    """
    Loss: added to the loss. Reward: taken from the reward before advantages are computed.
    Default: `"Loss"`.
    """


class AlgorithmSchedule(Spec):
    """How the learning rate goes over the run's steps."""

    decay: Literal['Constant', 'Linear', 'Cosine'] | None = None
    """
    Constant, or down to `finalRatio` in a line or a half cosine.
    Default: `"Constant"`.
    """
    final_ratio: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Of Linear and Cosine: the last step's share of `learningRate`.
    Default: `0.0`.
    """
    warmup_ratio: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """The same as a share of all steps, rounded down. The longer of the two counts."""
    warmup_steps: Annotated[int | None, Field(ge=0, le=1000000)] = None
    """
    Steps over which it rises from 0 before.
    Default: `0`.
    """


class AttemptCounts(Status):
    """Attempts of a pod group, or of all groups of a pool."""

    avoid_nodes: Annotated[list[str] | None, Field(max_length=8)] = None
    """
    Nodes that later attempts avoid where they can: a rank hung there, or the kubelet refused to start a pod. The
    newest last.
    """
    consecutive_failures: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Attempts that failed since something was last finished.
    Default: `0`.
    """
    created: bool | None = None
    """
    Whether its pods have all been made: one that is missing afterwards was lost.
    Default: `false`.
    """
    current: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    The attempt that runs, counted from 1; 0 before the first.
    Default: `0`.
    """
    disruptions: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Attempts in a row that the cluster took away (preemption, drain, a kubelet's refusal) before their pods had
    started. They do not count as failures; from the second on there is a pause.
    """
    last_failure: Annotated[str | None, Field(max_length=4096)] = None
    """How the last failed attempt ended."""
    not_before: str | None = None
    """The next attempt begins then."""
    progress_mark: Annotated[str | None, Field(max_length=256)] = None
    """
    What had been finished when an attempt last failed. When it has changed at the next failure, the count begins
    anew.
    """


class Checkpoint(Spec):
    """When the state of the training is kept."""

    every: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    After every so many steps. What lies between is replayed from the stored batches.
    Default: `10`.
    """
    keep: Annotated[int | None, Field(ge=1, le=1000)] = None
    """
    So many are kept, the newest.
    Default: `2`.
    """


class Condition(Status):
    """Condition contains details for one aspect of the current state of this API Resource."""

    last_transition_time: str
    """lastTransitionTime is the last time the condition transitioned from one status to another. This should be when the underlying condition changed.  If that is not known, then using the time when the API field changed is acceptable."""
    message: str
    """message is a human readable message indicating details about the transition. This may be an empty string."""
    reason: str
    """reason contains a programmatic identifier indicating the reason for the condition's last transition. Producers of specific condition types may define expected values and meanings for this field, and whether the values are considered a guaranteed API. The value should be a CamelCase string. This field may not be empty."""
    status: str
    """status of the condition, one of True, False, Unknown."""
    type: str
    """type of condition in CamelCase or in foo.example.com/CamelCase."""
    observed_generation: int | None = None
    """observedGeneration represents the .metadata.generation that the condition was set based upon. For instance, if .metadata.generation is currently 12, but the .status.conditions[x].observedGeneration is 9, the condition is out of date with respect to the current state of the instance."""


class ConfigMapRef(Spec):
    """A text of a ConfigMap: a JSON object of names and statements, or rows as in a file."""

    key: Annotated[
        str, Field(max_length=253, min_length=1, pattern='^[-._a-zA-Z0-9]+$')
    ]
    """Which of its values."""
    name: Annotated[str, Field(max_length=253, min_length=1)]
    """Name of the ConfigMap."""


class CorrectionBounds(Spec):
    """A sequence is left out when the geometric mean of its tokens' ratios lies outside the band."""

    high: Annotated[float | None, Field(ge=0.0, le=1000.0)] = None
    """
    Upper end.
    Default: `2.0`.
    """
    low: Annotated[float | None, Field(ge=0.0, le=1000.0)] = None
    """
    Lower end.
    Default: `0.0`.
    """


class Dataset(Spec):
    """The conversations, one a row: `messages` with `tools`, as chat APIs have them, or `tokens` with a `mask`."""

    hub: DatasetHub | None = None
    """A split of a dataset of the Hugging Face Hub. It is downloaded once, into the run's store."""
    image: Image | None = None
    """The file lies in an image."""
    object_store: ObjectStore | None = None
    """A file of an object store. It is downloaded once, into the run's store."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """The file lies on a volume."""


class DatasetHub(Spec):
    """A split of a dataset of the Hugging Face Hub. It is downloaded once, into the run's store."""

    repo: Annotated[
        str,
        Field(
            max_length=193,
            min_length=1,
            pattern='^[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?$',
        ),
    ]
    """Owner and name, for example `SWE-bench/SWE-bench_Verified`."""
    config: Annotated[str | None, Field(max_length=96, min_length=1)] = None
    """Which of the repository's configurations. Default: the only one, or `default`."""
    revision: Annotated[str | None, Field(max_length=256, min_length=1)] = None
    """
    Branch, tag or commit. Default: the newest commit when the run starts; which one it was is recorded in the
    store.
    """
    split: Annotated[str | None, Field(max_length=96, min_length=1)] = None
    """
    Which split of it.
    Default: `"train"`.
    """
    token_secret_ref: SecretKey | None = None
    """Token for a repository that is private or gated."""


class Engine(Spec):
    """The engine."""

    embedded: dict[str, Any] | None = None
    """The operator's own engine: small models, CPU, the same model code as the trainer."""
    external: EngineExternal | None = None
    """A server outside of the pool. The pool has no engines then, only engine agents, which pass requests on to it."""
    sglang: EngineSglang | None = None
    """SGLang."""
    vllm: EngineVllm | None = None
    """vLLM."""


class EngineExternal(Spec):
    """A server outside of the pool. The pool has no engines then, only engine agents, which pass requests on to it."""

    url: Annotated[
        str,
        Field(
            max_length=1024,
            min_length=10,
            pattern='^https?://[^/?#\\s@]+(/[^?#\\s]*)?/v1/?$',
        ),
    ]
    """Its base URL with the `/v1` at the end, such as `https://example.com/v1`."""
    api: Literal['Tokens', 'Chat'] | None = None
    """
    How it is asked.
    Default: `"Tokens"`.
    """
    api_key_secret_ref: SecretKey | None = None
    """What is sent as `Authorization: Bearer`."""
    model: Annotated[str | None, Field(max_length=256, min_length=1)] = None
    """The name of the model in its requests. Default: the first of those the server lists."""
    probe: EngineExternalProbe | None = None
    """
    How it is found out that the server is fit for the runs of the pool.
    Default: `{"period": "1m", "timeout": "5m", "tokens": [1, 2, 3, 4, 5, 6, 7, 8]}`.
    """
    weights: Literal['Frozen', 'Agent'] | None = None
    """
    Whether it can be given new weights.
    Default: `"Frozen"`.
    """


class EngineExternalProbe(Spec):
    """How it is found out that the server is fit for the runs of the pool."""

    period: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    How often it is asked again.
    Default: `"1m"`.
    """
    timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    How long it may take. A server that was scaled to nothing has to start first.
    Default: `"5m"`.
    """
    tokens: Annotated[list[int] | None, Field(max_length=256, min_length=1)] = None
    """
    Token ids of the prompt that is asked. Default: ids 1 to 8, which every vocabulary has. Without effect with api
    Chat.
    Default: `[1, 2, 3, 4, 5, 6, 7, 8]`.
    """


class EngineSglang(Spec):
    """SGLang."""

    context_length: Annotated[int | None, Field(ge=16, le=10000000)] = None
    """Longest prompt and answer together, in tokens. Default: what the model's `config.json` says."""
    data_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """Copies of the model inside one replica, behind one server. Default: 1."""
    enable_prefix_caching: bool | None = None
    """
    Keep the cache of prompts' beginnings: the turns of an episode share theirs. Default: true.
    Default: `true`.
    """
    extra_args: Annotated[list[str] | None, Field(max_length=32)] = None
    """More flags of `sglang.launch_server`, each as one or two items. Those that the operator sets itself are refused."""
    image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """Image with `python3 -m sglang.launch_server`, of version 0.5.23 or near it. Default: SGLang's own of `version`."""
    max_running_requests: Annotated[int | None, Field(ge=1, le=65536)] = None
    """Sequences that are sampled at the same time. Default: as many as the cache holds."""
    memory_fraction: Annotated[float | None, Field(ge=0.05, le=0.99)] = None
    """
    Share of each GPU's memory for weights and cache (`--mem-fraction-static`). Default: SGLang's own, from the size
    of the GPU.
    """
    nodes: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Pods of a replica. Default: 1. They start, fail and end together. More than one serve the model they booted
    with. Refused: more than 1 in mode Train; use 1: new weights reach the disk of a replica's first pod only.
    Default: `1`.
    """
    pipeline_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Stages that the layers are divided into. Default: 1.
    Default: `1`.
    """
    quantization: Annotated[
        str | None, Field(max_length=64, min_length=1, pattern='^[a-z0-9][a-z0-9_-]*$')
    ] = None
    """
    A quantization of SGLang's, such as `fp8`. The trainer's policy is not quantized: expect a larger distance
    between its logprobs and the engine's. Default: what the model's `config.json` says.
    """
    tensor_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    GPUs that share each layer. Default: 1.
    Default: `1`.
    """
    version: Annotated[
        str | None,
        Field(
            max_length=64, min_length=1, pattern='^[0-9]+\\.[0-9]+\\.[0-9]+[-a-z0-9.]*$'
        ),
    ] = None
    """Version of SGLang. Default: 0.5.23, which the command line is made for."""


class EngineVllm(Spec):
    """vLLM."""

    data_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """Copies of the model inside one replica, behind one server. Default: 1."""
    device: Literal['Gpu', 'Cpu'] | None = None
    """
    What the engine computes on. Cpu needs an `image` with a CPU build, and asks for no GPUs.
    Default: `"Gpu"`.
    """
    enable_prefix_caching: bool | None = None
    """
    Keep the cache of prompts' beginnings: the turns of an episode share theirs. Default: true.
    Default: `true`.
    """
    extra_args: Annotated[list[str] | None, Field(max_length=32)] = None
    """More flags of `vllm serve`, each as one or two items. Those that the operator sets itself are refused."""
    gpu_memory_utilization: Annotated[float | None, Field(ge=0.05, le=0.99)] = None
    """
    Share of each GPU's memory that vLLM takes for weights and cache. Default: 0.9.
    Default: `0.9`.
    """
    image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """Image with the `vllm` command, of version 0.33 or near it. Default: vLLM's own of `version`."""
    max_model_len: Annotated[int | None, Field(ge=16, le=10000000)] = None
    """Longest prompt and answer together, in tokens. Default: what the model's `config.json` says."""
    max_num_seqs: Annotated[int | None, Field(ge=1, le=65536)] = None
    """Sequences that are sampled at the same time. Default: vLLM's own, which depends on the GPU."""
    nodes: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Pods of a replica. Default: 1. They start, fail and end together. More than one serve the model they booted
    with. Refused: more than 1 in mode Train; use 1: new weights reach the disk of a replica's first pod only.
    Default: `1`.
    """
    pipeline_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Stages that the layers are divided into, usually one for each node. Default: 1.
    Default: `1`.
    """
    quantization: Annotated[
        str | None, Field(max_length=64, min_length=1, pattern='^[a-z0-9][a-z0-9_-]*$')
    ] = None
    """
    A quantization of vLLM's, such as `fp8`. The trainer's policy is not quantized: expect a larger distance between
    its logprobs and the engine's. Default: what the model's `config.json` says.
    """
    tensor_parallel: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    GPUs that share each layer. Default: 1.
    Default: `1`.
    """
    version: Annotated[
        str | None,
        Field(
            max_length=64, min_length=1, pattern='^[0-9]+\\.[0-9]+\\.[0-9]+[-a-z0-9.]*$'
        ),
    ] = None
    """Version of vLLM. Default: 0.33.0, which the command line is made for."""


class EnvVar(Spec):
    """One environment variable."""

    name: Annotated[
        str, Field(max_length=128, min_length=1, pattern='^[A-Za-z_][A-Za-z0-9_]*$')
    ]
    """Its name."""
    value: Annotated[str | None, Field(max_length=4096)] = None
    """
    Its value, as it is.
    Default: `""`.
    """


class FailurePolicy(Spec):
    """When faults end the run."""

    max_consecutive_failures: Annotated[int | None, Field(ge=1, le=1000)] = None
    """
    The driver's or the trainer's pods may fail so many times in a row; what is finished in between resets the
    count, and pods that were preempted or drained do not count.
    Default: `6`.
    """
    void_retries: Annotated[int | None, Field(ge=0, le=100)] = None
    """
    An episode lost to a fault of the infrastructure is tried again so many times; then it is void, which is no
    reward.
    Default: `3`.
    """


class Finetune(Spec):
    """Supervised training on conversations: what mode Finetune does."""

    dataset: Dataset
    """The conversations, one a row: `messages` with `tools`, as chat APIs have them, or `tokens` with a `mask`."""
    batch: Annotated[int | None, Field(ge=1, le=65536)] = None
    """
    Rows of one step.
    Default: `32`.
    """
    epochs: Annotated[int | None, Field(ge=1, le=1000)] = None
    """
    Passes over the rows, each shuffled anew by the run's seed.
    Default: `1`.
    """
    max_tokens: Annotated[int | None, Field(ge=2, le=16777216)] = None
    """Tokens of a row at most. Default: what the model has positions for."""
    overlong: Literal['Refuse', 'Truncate', 'LeaveOut'] | None = None
    """
    What becomes of a row with more tokens. Refuse: the run ends and names the row. Truncate: the row ends there.
    LeaveOut: the run trains without the row and says how many there were.
    Default: `"Refuse"`.
    """
    resolved_only: bool | None = None
    """
    Leave out rows whose field `resolved` is false.
    Default: `true`.
    """
    thinking: bool | None = None
    """
    Whether rows without a field `enable_thinking` are rendered with reasoning switched on.
    Default: `true`.
    """
    validation: FinetuneValidation | None = None
    """Rows that are not trained on, to see the loss on."""


class FinetuneValidation(Spec):
    """Rows that are not trained on, to see the loss on."""

    dataset: Dataset
    """The conversations, in the form of `finetune.dataset`. All of them are measured."""
    every: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    After every so many steps, and after the last one.
    Default: `50`.
    """


class GrpoRunSpec(Spec):
    """One GRPO run: a policy, tasks, an agent, a reward, and the pools and trainer it needs."""

    model: Model
    """The policy before the first step."""
    store: Store
    """Where everything that is finished is kept."""
    agent: Agent | None = None
    """Who works on it."""
    algorithm: Algorithm | None = None
    """The objective and the optimizer."""
    checkpoint: Checkpoint | None = None
    """
    When the state of the training is kept.
    Default: `{"every": 10, "keep": 2}`.
    """
    driver: ProcessSettings | None = None
    """How the driver is run."""
    failure_policy: FailurePolicy | None = None
    """
    When faults end the run.
    Default: `{"maxConsecutiveFailures": 6, "voidRetries": 3}`.
    """
    finetune: Finetune | None = None
    """Supervised training on conversations: what mode Finetune does."""
    image_pull_secrets: Annotated[list[SecretName] | None, Field(max_length=8)] = None
    """
    Secrets with which images are pulled for all pods of the run and of pools of its own, beside those that a
    `podTemplate` names.
    """
    inference: Inference | None = None
    """
    Engines that sample. Needed by modes Train and Evaluate.
    Default: `{}`.
    """
    mode: Literal['Train', 'Evaluate', 'Validate', 'Finetune'] | None = None
    """
    Train: rollouts, steps, and the evaluations in between. Evaluate: only the sets in `tasks.evaluate`, no trainer.
    Validate: which tasks are fit for training, by their gold patches and the empty patch, no engines. Finetune:
    supervised training on the conversations of `finetune.dataset`.
    Default: `"Train"`.
    """
    priority_class_name: Annotated[str | None, Field(max_length=253, min_length=1)] = (
        None
    )
    """PriorityClass of all pods of the run, unless a `podTemplate` names another."""
    queue_name: Annotated[
        str | None,
        Field(max_length=63, min_length=1, pattern='^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'),
    ] = None
    """
    LocalQueue of Kueue in the run's namespace: Kueue then decides when the pods start. Left out: the operator
    starts a run when all of it fits.
    """
    resume: Literal['Auto', 'Never'] | None = None
    """
    What a run does when its store already has content at the start. Auto: it continues after the last finished
    work. Never: it refuses a store that is not empty.
    Default: `"Auto"`.
    """
    resume_from: ResumeFrom | None = None
    """Begin with a checkpoint of another run instead of `model`'s weights. Left out: with the model."""
    reward: Reward | None = None
    """
    What an episode is worth.
    Default: `{"gradeTimeout": "15m", "resolved": 1.0, "unresolved": 0.0}`.
    """
    rollout: Rollout | None = None
    """How many episodes, and how they are sampled."""
    sandboxes: Sandboxes | None = None
    """
    Sandboxes that the agent and the graders work in. Needed by all modes but Finetune.
    Default: `{}`.
    """
    seed: Annotated[int | None, Field(ge=0, le=9007199254740991)] = None
    """
    Seeds everything random in the run. The same seed, spec and images give the same samples.
    Default: `0`.
    """
    suspend: bool | None = None
    """
    True ends the run's pods and frees its GPUs. Finished work stays in the store; false resumes the run from there.
    Default: `false`.
    """
    tasks: Tasks | None = None
    """
    What the agent works on.
    Default: `{}`.
    """
    trackers: Trackers | None = None
    """Where the curves are shown beside the viewer. Left out: nowhere."""
    trainer: Trainer | None = None
    """Pods that train. Needed by modes Train and Finetune."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=315360000)] = None
    """
    So many seconds after the run has ended it is deleted, and with it a volume of its own that is not retained.
    Left out: never.
    """


class GrpoRunStatus(Status):
    """Where the run is."""

    attempts: StatusAttempts | None = None
    """Attempts of the pod groups."""
    conditions: Annotated[list[Condition] | None, Field(max_length=16)] = None
    """Admitted, Provisioned, Succeeded, Failed."""
    message: Annotated[str | None, Field(max_length=32768)] = None
    """The message of the condition that matters most now."""
    objective: Annotated[str | None, Field(max_length=2048)] = None
    """
    What is optimised, in one line: estimator, clipping, KL, aggregation, corrections, as presets and defaults
    resolve. None without training.
    """
    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    phase: Literal['Pending', 'Queued', 'Provisioning', 'Running', 'Suspended', 'Succeeded', 'Failed', 'Terminating'] | None = (
        None
    )
    """Coarse summary of a run."""
    plan: Annotated[list[StatusPlan] | None, Field(max_length=8)] = None
    """Pods that the run consists of, its own pools included."""
    progress: StatusProgress | None = None
    """What a running run is doing. Written by the driver."""


class Image(Spec):
    """An image that holds the model's files (`config.json`, `tokenizer.json`, `model.safetensors`, ...)."""

    reference: Annotated[str, Field(max_length=512, min_length=1)]
    """Reference of the image, as for a container."""
    path: Annotated[
        str | None, Field(max_length=512, min_length=1, pattern='^[^/].*$')
    ] = None
    """
    Path inside the image, without a leading slash. For a model the folder that holds `config.json`; for a dataset
    the file.
    """


class ImageRewrite(Spec):
    """One rewrite of image names."""

    from_: Annotated[str, Field(max_length=512, min_length=1)]
    """
    A registry (`docker.io/`), a folder of one (`swebench/`), or one image with its tag. Names are read as runtimes
    read them: `swebench/x` is `docker.io/swebench/x`, and `ubuntu` is `docker.io/library/ubuntu`.
    """
    to: Annotated[str, Field(max_length=512)]
    """What takes its place. The rest of the name, its tag and its digest stay."""


class Inference(Spec):
    """Engines that sample. Needed by modes Train and Evaluate."""

    pool: InferencePoolTemplate | None = None
    """A pool of the run's own, which serves the run's model and is deleted with it."""
    pool_ref: SecretName | None = None
    """
    An InferencePool (`grpo.dev`) of the same namespace. The run claims it: it serves this run's weights until the
    run ends.
    """


class InferencePoolClient(Spec):
    """A service account that may sample from a pool outside of a run."""

    service_account: Annotated[
        str,
        Field(max_length=253, min_length=1, pattern='^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'),
    ]
    """The ServiceAccount. A user who may create tokens for it may use the pool."""
    namespace: Annotated[
        str | None,
        Field(max_length=63, min_length=1, pattern='^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'),
    ] = None
    """Its namespace. Default: the pool's own."""


class InferencePoolColocated(Spec):
    """
    The engines take turns with the trainer of the run that the pool was made for. The operator sets it in such a
    pool; other pools leave it out.
    """

    claims: Annotated[list[str] | None, Field(max_length=256)] = None
    """ResourceClaims with the devices, one for each pod of the trainer. Empty: they compute on CPUs."""
    replicas_per_claim: Annotated[int | None, Field(ge=1, le=16)] = None
    """
    Replicas that share a claim. Replica `i` has the request `engine-<i % replicasPerClaim>` of the claim `i /
    replicasPerClaim`.
    Default: `1`.
    """


class InferencePoolModel(Spec):
    """What is served as version `base`."""

    hub: ModelHub | None = None
    """
    A repository of the Hugging Face Hub. It is downloaded once for each cache: the pool's `modelCache`, or the
    run's store.
    """
    image: Image | None = None
    """An image that holds the model's files (`config.json`, `tokenizer.json`, `model.safetensors`, ...)."""
    object_store: ObjectStore | None = None
    """A folder of an object store. It is downloaded once for each cache: the pool's `modelCache`, or the run's store."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A volume that holds the model's files."""


class InferencePoolSpec(Spec):
    """Engines that serve one model and follow the weights of the run that has claimed them."""

    engine: Engine
    """The engine."""
    model: InferencePoolModel
    """What is served as version `base`."""
    agent_resources: Resources | None = None
    """
    CPU and memory of each engine agent's container. A `weightsCache` with `medium: Memory` counts against its
    memory. Default: requests of 20m and 64Mi, with the size of such a cache; no limits.
    """
    clients: Annotated[list[InferencePoolClient] | None, Field(max_length=64)] = None
    """
    Service accounts that may sample from the pool outside of a run, each with a token for the audience
    `engine-agent.grpo.dev`. They may call `/v1/models`, `/v1/chat/completions` and `/v1/completions`, and nothing
    else. A change replaces the replicas. None: only runs use the pool.
    """
    colocated: InferencePoolColocated | None = None
    """
    The engines take turns with the trainer of the run that the pool was made for. The operator sets it in such a
    pool; other pools leave it out.
    """
    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """Added to the engines' environment; for an external engine, to its agent's. What the operator sets wins."""
    lora: Lora | None = None
    """
    LoRA adapters the engines hold beside the model. A pool described in a run whose `model.lora` is set has it by
    itself.
    """
    model_cache: ModelCache | None = None
    """
    Where a model from the hub and what engines compile is kept, so that it is not downloaded twice. A run's driver
    and trainer share the volume claim or folder of the pool described in it. Default: a scratch volume of each pod.
    """
    pod_template: PodTemplate | None = None
    """Laid over the pods."""
    replicas: Annotated[int | None, Field(ge=0, le=1024)] = None
    """
    Replicas, one engine each: a pod, or as many as the engine's `nodes`. 0 frees every device and keeps the pool.
    Default: `1`.
    """
    resources: Resources | None = None
    """
    CPU and memory of each engine container, and of the init container that downloads the model before it. GPUs
    (`nvidia.com/gpu`) are added from the engine's parallelism. Default: what the scheduler gives; no memory limit.
    """
    routed_experts: bool | None = None
    """
    The engines report which experts each token went through, for runs with `algorithm.routerReplay`; a pool
    described in such a run has it by itself. For mixtures of experts only: a dense model's engine does not start
    with it.
    """
    shared_memory: int | str | None = None
    """
    Size of `/dev/shm` in each engine container, through which the processes of tensor-parallel ranks and NCCL talk.
    It counts against the container's memory. Default: 16Gi for vllm and sglang.
    """
    startup_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    How long an engine of vllm or sglang may take from its start until it answers: reading the model, compiling.
    After that it is started again. Default: 1h. An embedded engine may take as long as it needs.
    """
    update: Update | None = None
    """
    How replicas are replaced when the spec changes, and how they end.
    Default: `{"maxSurge": 0, "maxUnavailable": 1}`.
    """
    weights_cache: WeightsCache | None = None
    """
    Where each replica keeps versions of the weights: the one that serves and the next. Default: a scratch volume
    without a limit.
    """


class InferencePoolStatus(Status):
    """How the pool is."""

    attempts: AttemptCounts | None = None
    """Attempts of its replicas: how often they failed since all of them were ready, and when the next are made."""
    claimed_by: RunReference | None = None
    """The GrpoRun whose weights the pool follows, until that run ends."""
    clients_url: Annotated[str | None, Field(max_length=512)] = None
    """
    Where `clients` sample inside the cluster: each connection goes to a replica that serves. `/v1` is the base URL
    of OpenAI's clients. Left out: the pool has no clients.
    """
    conditions: Annotated[list[Condition] | None, Field(max_length=16)] = None
    """
    Accepted (the spec can be made true), Ready (all replicas serve), Updated (all serve the ordered weights) and,
    for an external engine, Probed (it answered as its api requires).
    """
    engine: Annotated[str | None, Field(max_length=64)] = None
    """Which engine."""
    message: Annotated[str | None, Field(max_length=32768)] = None
    """The message of the condition that matters most now."""
    model: Annotated[str | None, Field(max_length=1024)] = None
    """Where the base model comes from."""
    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    ready: Annotated[str | None, Field(max_length=32)] = None
    """Ready of wanted replicas, `3/4`."""
    ready_replicas: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Replicas that serve.
    Default: `0`.
    """
    replicas: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Replicas that exist.
    Default: `0`.
    """
    selector: Annotated[str | None, Field(max_length=512)] = None
    """Selects the pod of each replica that its agent is in, for the scale subresource."""
    updated: Annotated[str | None, Field(max_length=32)] = None
    """Replicas that serve the newest ordered weights, of those wanted, `3/4`."""
    updated_replicas: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Replicas that serve the newest ordered weights.
    Default: `0`.
    """
    url: Annotated[str | None, Field(max_length=512)] = None
    """Where completions are taken inside the cluster. The name resolves to every replica."""
    weights: Annotated[str | None, Field(max_length=256)] = None
    """The version that the replicas serve; two with a comma between them while a new one is brought to them."""
    weights_of: RunReference | None = None
    """The GrpoRun that ordered the weights it serves, also after that run's claim. Left out: it serves its own model."""


class InferencePoolTemplate(Spec):
    """A pool of the run's own, which serves the run's model and is deleted with it."""

    engine: Engine
    """The engine."""
    agent_resources: Resources | None = None
    """
    CPU and memory of each engine agent's container. A `weightsCache` with `medium: Memory` counts against its
    memory. Default: requests of 20m and 64Mi, with the size of such a cache; no limits.
    """
    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """Added to the engines' environment; for an external engine, to its agent's. What the operator sets wins."""
    lora: Lora | None = None
    """
    LoRA adapters the engines hold beside the model. A pool described in a run whose `model.lora` is set has it by
    itself.
    """
    model_cache: ModelCache | None = None
    """
    Where a model from the hub and what engines compile is kept, so that it is not downloaded twice. A run's driver
    and trainer share the volume claim or folder of the pool described in it. Default: a scratch volume of each pod.
    """
    pod_template: PodTemplate | None = None
    """Laid over the pods."""
    replicas: Annotated[int | None, Field(ge=1, le=1024)] = None
    """
    Replicas, one engine each: a pod, or as many as the engine's `nodes`.
    Default: `1`.
    """
    resources: Resources | None = None
    """
    CPU and memory of each engine container, and of the init container that downloads the model before it. GPUs
    (`nvidia.com/gpu`) are added from the engine's parallelism. Default: what the scheduler gives; no memory limit.
    """
    routed_experts: bool | None = None
    """
    The engines report which experts each token went through, for runs with `algorithm.routerReplay`; a pool
    described in such a run has it by itself. For mixtures of experts only: a dense model's engine does not start
    with it.
    """
    shared_memory: int | str | None = None
    """
    Size of `/dev/shm` in each engine container, through which the processes of tensor-parallel ranks and NCCL talk.
    It counts against the container's memory. Default: 16Gi for vllm and sglang.
    """
    startup_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    How long an engine of vllm or sglang may take from its start until it answers: reading the model, compiling.
    After that it is started again. Default: 1h. An embedded engine may take as long as it needs.
    """
    update: Update | None = None
    """
    How replicas are replaced when the spec changes, and how they end.
    Default: `{"maxSurge": 0, "maxUnavailable": 1}`.
    """
    weights_cache: WeightsCache | None = None
    """
    Where each replica keeps versions of the weights: the one that serves and the next. Default: a scratch volume
    without a limit.
    """


class Lease(Spec):
    """Caps on what a lease may ask for."""

    idle_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    The lease of a sandbox in which nothing runs for so long ends, renewed or not. Longer than a driver waits for an
    engine that is away.
    Default: `"40m"`.
    """
    max_ttl: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    Longest time to live that a lease or a renewal may ask for.
    Default: `"2h"`.
    """


class Lora(Spec):
    """
    LoRA adapters the engines hold beside the model. A pool described in a run whose `model.lora` is set has it by
    itself.
    """

    max_adapters: Annotated[int | None, Field(ge=2, le=64)] = None
    """
    Adapters that can be sampled from at the same time: the one that serves and, while it is replaced, the next.
    Default: `2`.
    """
    max_rank: Annotated[int | None, Field(ge=1, le=512)] = None
    """
    Highest rank of an adapter. vLLM rounds it up to one of 1, 8, 16, 32, 64, 128, 256, 320 and 512.
    Default: `64`.
    """


class Model(Spec):
    """The policy before the first step."""

    hub: ModelHub | None = None
    """
    A repository of the Hugging Face Hub. It is downloaded once for each cache: the pool's `modelCache`, or the
    run's store.
    """
    image: Image | None = None
    """An image that holds the model's files (`config.json`, `tokenizer.json`, `model.safetensors`, ...)."""
    lora: ModelLora | None = None
    """Train a low-rank adapter and leave the weights frozen. Left out: all weights are trained."""
    object_store: ObjectStore | None = None
    """A folder of an object store. It is downloaded once for each cache: the pool's `modelCache`, or the run's store."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A volume that holds the model's files."""


class ModelCache(Spec):
    """
    Where a model from the hub and what engines compile is kept, so that it is not downloaded twice. A run's driver
    and trainer share the volume claim or folder of the pool described in it. Default: a scratch volume of each pod.
    """

    claim_name: Annotated[str | None, Field(max_length=253, min_length=1)] = None
    """A PersistentVolumeClaim of the namespace that all replicas write to: ReadWriteMany, unless they run on one node."""
    host_path: Annotated[
        str | None, Field(max_length=512, min_length=2, pattern='^/[A-Za-z0-9]')
    ] = None
    """
    A folder of each node, shared by all pods there that name it. The namespace's Pod Security level must be
    `privileged`, and the folder writable for user 65532.
    """
    size_limit: int | str | None = None
    """A scratch volume of each pod, not larger than this. The pod requests so much disk of its node."""


class ModelHub(Spec):
    """
    A repository of the Hugging Face Hub. It is downloaded once for each cache: the pool's `modelCache`, or the
    run's store.
    """

    repo: Annotated[
        str,
        Field(
            max_length=193,
            min_length=1,
            pattern='^[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?$',
        ),
    ]
    """Owner and name, for example `Qwen/Qwen3-8B`."""
    revision: Annotated[str | None, Field(max_length=256, min_length=1)] = None
    """
    Branch, tag or commit. Default: the newest commit when the run starts; which one it was is recorded in the
    store.
    """
    token_secret_ref: SecretKey | None = None
    """Token for a repository that is private or gated."""


class ModelLora(Spec):
    """Train a low-rank adapter and leave the weights frozen. Left out: all weights are trained."""

    alpha: Annotated[float | None, Field(ge=0.001, le=65536.0)] = None
    """Scale: the adapter's output is multiplied by alpha / rank. Default: twice the rank."""
    dropout: Annotated[float | None, Field(ge=0.0, le=0.9)] = None
    """
    Share of an adapter's inputs that are dropped while it is trained. All passes over a token within a step drop
    the same, so that ratios are the weights' doing; but the engine drops nothing, so its logprobs and the trainer's
    differ the more, the more is dropped.
    Default: `0.0`.
    """
    rank: Annotated[int | None, Field(ge=1, le=512)] = None
    """
    Rank of the two factors.
    Default: `16`.
    """
    target_modules: Annotated[list[str] | None, Field(max_length=32)] = None
    """
    Linear layers that get one, by the last part of their name, for example `q_proj`. Default: all of attention and
    MLP.
    """


class ObjectStore(Spec):
    """A folder of an object store. It is downloaded once for each cache: the pool's `modelCache`, or the run's store."""

    url: Annotated[
        str,
        Field(
            max_length=1024,
            min_length=6,
            pattern='^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^\\s?#]*)?$',
        ),
    ]
    """
    Bucket and prefix: `s3://`, `gs://` or `az://`. For a model the folder that holds `config.json`, for a dataset
    the file, for a store the folder. Refused: `az://` as the store of a run that trains; use `s3://` or `gs://`, or
    a volume: an `az://` store serves modes Evaluate and Validate only.
    """
    credentials_secret_ref: SecretName | None = None
    """
    Secret whose keys are the environment variables of the store's own tools, for example `AWS_ACCESS_KEY_ID` and
    `AWS_SECRET_ACCESS_KEY`. Default: the identity the cluster gives the pod.
    """
    endpoint: Annotated[
        str | None, Field(max_length=512, min_length=8, pattern='^https?://[^\\s]+$')
    ] = None
    """URL of a server that speaks S3 and is not Amazon's, for example `https://minio.storage.svc:9000`."""
    region: Annotated[str | None, Field(max_length=64, min_length=1)] = None
    """Region of the bucket. Default: what the server says."""


class PackageIndex(Spec):
    """
    The one server that graders may reach, to install packages; agents never reach it. None: graders reach nothing
    either, and tasks whose grading scripts install packages are named when a run begins.
    """

    url: Annotated[
        str,
        Field(
            max_length=253,
            min_length=8,
            pattern='^https?://[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[^@?#\\s]*)?$',
        ),
    ]
    """
    URL of the simple index, such as `http://pypi.packages.svc/simple`, without credentials and without a query.
    pip and uv of graders get it in their environment. Sandboxes have no DNS: the gateway looks the host up, and
    writes its addresses into their `/etc/hosts`.
    """
    cidr: Annotated[
        str | None,
        Field(
            max_length=43,
            min_length=4,
            pattern='^[0-9a-fA-F:.]+/(1[6-9]|[2-9][0-9]|1[01][0-9]|12[0-8])$',
        ),
    ] = None
    """
    Its addresses where it runs elsewhere, such as `10.1.2.3/32`: at most 65,536, so at least `/16`. Give these or
    `pods`.
    """
    pods: PackageIndexPods | None = None
    """The pods that serve it, where it runs in this cluster. Give these or `cidr`."""
    port: Annotated[int | None, Field(ge=1, le=65535)] = None
    """
    The port that a NetworkPolicy sees: behind a Service it is that of the pod, the Service's `targetPort`. Default:
    the port of the URL.
    """


class PackageIndexPods(Spec):
    """The pods that serve it, where it runs in this cluster. Give these or `cidr`."""

    match_labels: dict[str, str]
    """Labels that they carry, at least one."""
    namespace: Annotated[
        str | None,
        Field(max_length=63, min_length=1, pattern='^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'),
    ] = None
    """Their namespace. Default: the pool's."""


class PersistentVolumeClaim(Spec):
    """A volume that holds the model's files."""

    claim_name: Annotated[str, Field(max_length=253, min_length=1)]
    """Name of the PersistentVolumeClaim. It is mounted read-only."""
    path: Annotated[
        str | None, Field(max_length=512, min_length=1, pattern='^[^/].*$')
    ] = None
    """
    Path on the volume, without a leading slash. For a model the folder that holds `config.json`; for a dataset the
    file.
    """


class PodTemplate(Spec):
    """Laid over its pod."""

    metadata: PodTemplateMetadata | None = None
    """Labels and annotations added to the pods."""
    spec: PodTemplateSpec | None = None
    """Fields of the pods' spec."""


class PodTemplateMetadata(Spec):
    """Labels and annotations added to the pods."""

    annotations: dict[str, str] | None = None
    """Annotations."""
    labels: dict[str, str] | None = None
    """Labels; those of the operator win."""


class PodTemplateSpec(Spec):
    """Fields of the pods' spec."""

    image_pull_secrets: Annotated[
        list[PodTemplateSpecImagePullSecret] | None, Field(max_length=8)
    ] = None
    """Secrets with which images are pulled."""
    node_selector: dict[str, str] | None = None
    """Nodes must carry these labels."""
    priority_class_name: Annotated[str | None, Field(max_length=253, min_length=1)] = (
        None
    )
    """PriorityClass of the pods."""
    runtime_class_name: Annotated[str | None, Field(max_length=253, min_length=1)] = (
        None
    )
    """RuntimeClass of the pods, for example `gvisor`."""
    scheduler_name: Annotated[str | None, Field(max_length=253, min_length=1)] = None
    """Scheduler of the pods."""
    tolerations: Annotated[
        list[PodTemplateSpecToleration] | None, Field(max_length=32)
    ] = None
    """Taints that the pods tolerate."""


class PodTemplateSpecImagePullSecret(Spec):
    """LocalObjectReference contains enough information to let you locate the referenced object inside the same namespace."""

    name: str
    """Name of the referent. This field is effectively required, but due to backwards compatibility is allowed to be empty. Instances of this type with an empty value here are almost certainly wrong. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#names"""


class PodTemplateSpecToleration(Spec):
    """The pod this Toleration is attached to tolerates any taint that matches the triple <key,value,effect> using the matching operator <operator>."""

    effect: str | None = None
    """Effect indicates the taint effect to match. Empty means match all taint effects. When specified, allowed values are NoSchedule, PreferNoSchedule and NoExecute."""
    key: str | None = None
    """Key is the taint key that the toleration applies to. Empty means match all taint keys. If the key is empty, operator must be Exists; this combination means to match all values and all keys."""
    operator: str | None = None
    """Operator represents a key's relationship to the value. Valid operators are Exists, Equal, Lt, and Gt. Defaults to Equal. Exists is equivalent to wildcard for value, so that a pod can tolerate all taints of a particular category. Lt and Gt perform numeric comparisons (requires feature gate TaintTolerationComparisonOperators)."""
    toleration_seconds: int | None = None
    """TolerationSeconds represents the period of time the toleration (which must be of effect NoExecute, otherwise this field is ignored) tolerates the taint. By default, it is not set, which means tolerate the taint forever (do not evict). Zero and negative values will be treated as 0 (evict immediately) by the system."""
    value: str | None = None
    """Value is the taint value the toleration matches to. If the operator is Exists, the value should be empty, otherwise just a regular string."""


class ProcessSettings(Spec):
    """How the driver is run."""

    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """Added to its environment."""
    pod_template: PodTemplate | None = None
    """Laid over its pod."""
    resources: Resources | None = None
    """CPU and memory of its container."""


class PromptOverrides(Spec):
    """
    Problem statements in the place of those that rows have, by the names of tasks. Tasks that are not named
    keep theirs. What was shown is kept in the store.
    """

    config_map_ref: ConfigMapRef | None = None
    """A text of a ConfigMap: a JSON object of names and statements, or rows as in a file."""
    dataset: Dataset | None = None
    """A file of rows `{instance_id, problem_statement}`; other columns are ignored."""


class Resources(Spec):
    """CPU and memory of its container."""

    claims: list[ResourcesClaim] | None = None
    """
    Claims lists the names of resources, defined in spec.resourceClaims, that are used by this container.

    This field depends on the DynamicResourceAllocation feature gate.

    This field is immutable. It can only be set for containers.
    """
    limits: dict[str, int | str] | None = None
    """Limits describes the maximum amount of compute resources allowed. More info: https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"""
    requests: dict[str, int | str] | None = None
    """Requests describes the minimum amount of compute resources required. If Requests is omitted for a container, it defaults to Limits if that is explicitly specified, otherwise to an implementation-defined value. Requests cannot exceed Limits. More info: https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"""


class ResourcesClaim(Spec):
    """ResourceClaim references one entry in PodSpec.ResourceClaims."""

    name: str
    """Name must match the name of one entry in pod.spec.resourceClaims of the Pod where this field is used. It makes that resource available inside a container."""
    request: str | None = None
    """Request is the name chosen for a request in the referenced claim. If empty, everything from the claim is made available, otherwise only the result of this request."""


class ResumeFrom(Spec):
    """Begin with a checkpoint of another run instead of `model`'s weights. Left out: with the model."""

    path: Annotated[
        str,
        Field(
            max_length=512, min_length=1, pattern='^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$'
        ),
    ]
    """The other run's folder in the same store, for example `team/first-try`."""
    optimizer: bool | None = None
    """
    Take the optimizer's state as well; otherwise only the weights.
    Default: `true`.
    """
    step: Annotated[int | None, Field(ge=0, le=1000000)] = None
    """Step of the checkpoint. Default: its newest."""


class Reward(Spec):
    """What an episode is worth."""

    grade_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    Time of one grading.
    Default: `"15m"`.
    """
    http: RewardHttp | None = None
    """A service of your own that says what an episode is worth, in place of all of that. Left out: none."""
    process: RewardProcess | None = None
    """
    A judge of single turns, whose scores are added to the episode's reward. Left out: none. Refused: with
    `agent.cli`; leave it out: what came of a command-line agent's calls is not known turn by turn.
    """
    resolved: Annotated[float | None, Field(ge=-1000.0, le=1000.0)] = None
    """
    The patch makes the tests pass that should, and breaks none.
    Default: `1.0`.
    """
    shaping: RewardShaping | None = None
    """Added to that, and charged for the way to it. Left out: the verdict alone counts."""
    unresolved: Annotated[float | None, Field(ge=-1000.0, le=1000.0)] = None
    """
    Anything else the policy brought about.
    Default: `0.0`.
    """


class RewardHttp(Spec):
    """A service of your own that says what an episode is worth, in place of all of that. Left out: none."""

    url: Annotated[
        str, Field(max_length=1024, min_length=8, pattern='^https?://[^\\s]+$')
    ]
    """Where to, for example `http://rewards.team.svc/reward`."""
    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """
    Questions at the same time.
    Default: `16`.
    """
    timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    Time of one question.
    Default: `"1m"`.
    """
    token_secret_ref: SecretKey | None = None
    """Token that is sent along as `Authorization: Bearer`. Left out: none."""


class RewardProcess(Spec):
    """
    A judge of single turns, whose scores are added to the episode's reward. Left out: none. Refused: with
    `agent.cli`; leave it out: what came of a command-line agent's calls is not known turn by turn.
    """

    pool_ref: SecretName
    """The InferencePool (`grpo.dev`) of the same namespace that serves the judge. No run may claim it."""
    coefficient: Annotated[float | None, Field(ge=-1000.0, le=1000.0)] = None
    """
    Weight of the scores beside the verdict: an episode's reward is the verdict's + coefficient x the mean of its
    turns' scores; with `estimator: StepWise` a turn's is the verdict's + coefficient x its score.
    Default: `1.0`.
    """
    concurrency: Annotated[int | None, Field(ge=1, le=4096)] = None
    """
    Requests at the judge at the same time.
    Default: `32`.
    """
    history_steps: Annotated[int | None, Field(ge=0, le=1000)] = None
    """
    Earlier turns that the judge sees.
    Default: `8`.
    """
    lengths: RewardProcessLengths | None = None
    """
    Characters that the judge sees at most.
    Default: `{"historyOutput": 1000, "output": 4000, "problem": 8000, "response": 32768}`.
    """
    min_votes: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Votes that can be read which a score needs. A turn with fewer has no score: it adds nothing to the episode's
    reward, and with `estimator: StepWise` it is left out of the batch.
    Default: `1`.
    """
    prompt: Annotated[str | None, Field(max_length=16384, min_length=1)] = None
    """
    Template of what the judge is asked (minijinja). Variables: `problemStatement`, `historySteps`, `history`,
    `step` (from 1), `response`, `returnCode`, `output`. Default: the text of OpenClaw-RL's swe-rl.
    """
    sampling: Sampling | None = None
    """How the judge's tokens are drawn."""
    skip_submit: bool | None = None
    """
    The turn that submits is not judged.
    Default: `true`.
    """
    system: Annotated[str | None, Field(max_length=16384)] = None
    """Template of the judge's system text (minijinja), without variables. Default: the text of OpenClaw-RL's swe-rl."""
    votes: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    Votes for each turn; its score is the mean of those that can be read. A lost vote is a missing one, never a 0.
    Default: `3`.
    """


class RewardProcessLengths(Spec):
    """Characters that the judge sees at most."""

    history_output: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Of what came of each earlier turn.
    Default: `1000`.
    """
    output: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Of what came of it.
    Default: `4000`.
    """
    problem: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Of the problem statement.
    Default: `8000`.
    """
    response: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Of the answer of the turn that is judged.
    Default: `32768`.
    """


class RewardShaping(Spec):
    """Added to that, and charged for the way to it. Left out: the verdict alone counts."""

    calls: Annotated[
        list[RewardShapingCall] | None, Field(max_length=16, min_length=1)
    ] = None
    """Cost of calls of tools (`agent.tools`), by tool."""
    high: Annotated[float | None, Field(ge=-1000.0, le=1000.0)] = None
    """Largest reward."""
    low: Annotated[float | None, Field(ge=-1000.0, le=1000.0)] = None
    """Smallest reward."""
    pass_ratio: Annotated[float | None, Field(ge=0.0, le=1000.0)] = None
    """
    Weight of the share of the task's tests that pass, of those that should after the fix and those that should
    before and after. Without a patch that a grader can run, the share is 0.
    Default: `0.0`.
    """
    patch_lines: ShapingCost | None = None
    """Cost of lines that the patch adds or removes."""
    turns: ShapingCost | None = None
    """Cost of the episode's turns."""


class RewardShapingCall(Spec):
    """Cost of calls of one tool."""

    cost: ShapingCost
    """Of its calls."""
    tool: Annotated[str, Field(max_length=64, min_length=1)]
    """Its name, as the policy calls it."""


class Rollout(Spec):
    """How many episodes, and how they are sampled."""

    concurrency: Annotated[int | None, Field(ge=1, le=10000)] = None
    """Episodes at the same time. Default: as many as the sandbox pool has room for."""
    dynamic: RolloutDynamic | None = None
    """Which groups are worth a step. Left out: all."""
    iterations: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Iterations of the run: rollout, step, sync.
    Default: `1`.
    """
    max_staleness: Annotated[int | None, Field(ge=0, le=8)] = None
    """
    Steps that the sampling weights may lag behind the trained ones. 0: strictly on-policy. 1: the next rollout
    overlaps the step. More: so many batches may wait for the trainer.
    Default: `0`.
    """
    on_sync: Literal['Drain', 'Continue', 'Abort'] | None = None
    """
    Episodes still running when new weights come. Drain: they end before the engines are given the weights.
    Continue: their next turns are sampled by the new weights, and every token is recorded with the version that
    sampled it. Abort: they are given up and sampled again, from their beginning, by the new weights. An evaluation
    always ends under the weights that it measures.
    Default: `"Drain"`.
    """
    prompts: Annotated[int | None, Field(ge=1, le=4096)] = None
    """
    Tasks of one iteration.
    Default: `8`.
    """
    samples: Annotated[int | None, Field(ge=2, le=256)] = None
    """
    Episodes per task: one group, whose mean reward is the baseline.
    Default: `8`.
    """
    sampling: Sampling | None = None
    """How tokens are drawn."""


class RolloutDynamic(Spec):
    """Which groups are worth a step. Left out: all."""

    filter: Literal['NonZeroVariance'] | None = None
    """
    NonZeroVariance: groups whose rewards are all equal are dropped; with `estimator: StepWise`, groups in which the
    turns of one number have equal rewards, whichever the number.
    Default: `"NonZeroVariance"`.
    """
    limit: Annotated[float | None, Field(ge=1.0, le=64.0)] = None
    """
    Groups that are rolled out for one batch at most, as a multiple of `prompts`. When these are done, the step is
    made of the groups that teach something; if none does, of the first `prompts` others, whose advantages are 0.
    Default: `4.0`.
    """
    over_sample: Annotated[float | None, Field(ge=1.0, le=16.0)] = None
    """
    Groups that are rolled out at the same time, as a multiple of `prompts`. Over 1, groups that may turn out to be
    needed begin early; those that are not needed are stopped, and their tasks come again in the next iteration.
    Default: `1.0`.
    """
    pass_rate_band: RolloutDynamicPassRateBand | None = None
    """
    Only tasks whose share of resolved episodes lay in this band, ends included, when they were last rolled out;
    tasks that never were count as inside. Where no task is inside, all are taken.
    """


class RolloutDynamicPassRateBand(Spec):
    """
    Only tasks whose share of resolved episodes lay in this band, ends included, when they were last rolled out;
    tasks that never were count as inside. Where no task is inside, all are taken.
    """

    high: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Upper end.
    Default: `1.0`.
    """
    low: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Lower end.
    Default: `0.0`.
    """


class RunReference(Status):
    """The GrpoRun whose weights the pool follows, until that run ends."""

    name: Annotated[str, Field(max_length=253)]
    """Its name."""
    uid: Annotated[str, Field(max_length=64)]
    """Its uid: a later run of the same name is another one."""


class Sampling(Spec):
    """How the judge's tokens are drawn."""

    frequency_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    """
    Taken from the logit of a token once for every time it was sampled before in the answer; 0 is off. Refused: in
    `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate takes
    it.
    Default: `0.0`.
    """
    max_tokens_per_call: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """
    Tokens of one answer at most; less when the context has less left.
    Default: `4096`.
    """
    min_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Tokens less likely than this share of the likeliest one are left out, after the temperature; 0 is off. Refused:
    in `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate
    takes it.
    Default: `0.0`.
    """
    presence_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    """
    Taken from the logit of every token that was sampled before in the answer; 0 is off. Refused: in
    `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate takes
    it.
    Default: `0.0`.
    """
    repetition_penalty: Annotated[float | None, Field(ge=0.01, le=10.0)] = None
    """
    Divides the logit of every token of prompt and answer where it is positive, and multiplies it where it is
    negative; 1 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer computes no such
    distribution; mode Evaluate takes it.
    Default: `1.0`.
    """
    temperature: Annotated[float | None, Field(ge=0.0, le=10.0)] = None
    """
    Temperature; 0 takes the likeliest token.
    Default: `1.0`.
    """
    top_k: Annotated[int | None, Field(ge=0, le=1000000)] = None
    """
    Number of likeliest tokens; 0 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer
    computes no such distribution; mode Evaluate takes it.
    Default: `0`.
    """
    top_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """
    Nucleus; 1 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer computes no such
    distribution; mode Evaluate takes it.
    Default: `1.0`.
    """


class SandboxPoolSpec(Spec):
    """A pool of the run's own, deleted with it."""

    max: Annotated[int, Field(ge=1, le=10000)]
    """Sandboxes at the same time, leased and warm together."""
    agent_image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """
    Image with command-line agents, mounted at `/opt/agent` of every sandbox, read-only. A run whose
    `agent.cli.image` is another one cannot use the pool. Of a pool of a run's own the operator sets it.
    """
    allow_unenforced: bool | None = None
    """
    Lease sandboxes even if no probe has shown that the cluster enforces `network`. The pool's conditions report it.
    Default: `false`.
    """
    allowed_namespaces: Annotated[list[str] | None, Field(max_length=64)] = None
    """Namespaces whose runs may lease sandboxes, besides the pool's own."""
    gateway: ProcessSettings | None = None
    """How the gateway is run."""
    image_rewrites: Annotated[list[ImageRewrite] | None, Field(max_length=32)] = None
    """How image names of tasks are rewritten; the first that fits."""
    lease: Lease | None = None
    """
    Caps on what a lease may ask for.
    Default: `{"idleTimeout": "40m", "maxTTL": "2h"}`.
    """
    max_per_node: Annotated[int | None, Field(ge=1, le=1000)] = None
    """Sandboxes on one node. Default: as many as its resources allow."""
    network: Literal['None'] | None = None
    """
    What sandboxes may reach. None: nothing but their gateway, which reaches them.
    Default: `"None"`.
    """
    package_index: PackageIndex | None = None
    """
    The one server that graders may reach, to install packages; agents never reach it. None: graders reach nothing
    either, and tasks whose grading scripts install packages are named when a run begins.
    """
    pod_template: PodTemplate | None = None
    """Laid over the sandbox pods."""
    reset: Literal['Never', 'ContainerRestart'] | None = None
    """
    What becomes of a sandbox that is given back. Never: its pod is deleted. ContainerRestart: its container begins
    anew from the image, in the same pod, and may be leased again; needs Kubernetes 1.36, and on an older cluster
    the pod is deleted. A pod that could reach `packageIndex` is always deleted.
    """
    resources: Resources | None = None
    """
    CPU, memory and ephemeral storage of each sandbox. Every sandbox has a limit of each: what is left out here has
    that of the default. A limit of memory without a request is reserved in full, so that no neighbour brings the
    node to evict the sandbox.
    """
    user_namespaces: bool | None = None
    """
    Root inside a sandbox is an unprivileged user outside (`hostUsers: false`). Set false where nodes do not support
    this: root inside is then root outside, within the bounds of the baseline Pod Security level.
    Default: `true`.
    """
    warm: Warm | None = None
    """
    Sandboxes that are started before they are asked for.
    Default: `{"images": 16}`.
    """


class SandboxPoolStatus(Status):
    """How the pool is."""

    conditions: Annotated[list[Condition] | None, Field(max_length=16)] = None
    """Ready, EgressBlocked, LimitsEnforced, ImagesAvailable, SandboxesStart."""
    egress_blocked: Annotated[str | None, Field(max_length=16)] = None
    """Whether sandboxes were shown to reach nothing: True, False or Unknown."""
    leased: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Leases in the ledger.
    Default: `0`.
    """
    message: Annotated[str | None, Field(max_length=32768)] = None
    """The message of the condition that matters most now."""
    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    pending: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Sandboxes that start.
    Default: `0`.
    """
    ready: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """
    Sandboxes that run.
    Default: `0`.
    """


class Sandboxes(Spec):
    """Sandboxes that the agent and the graders work in. Needed by all modes but Finetune."""

    pool: SandboxPoolSpec | None = None
    """A pool of the run's own, deleted with it."""
    pool_ref: SandboxesPoolRef | None = None
    """
    A SandboxPool (`grpo.dev`) of the same namespace, which several runs may share. One of another namespace must
    allow this one.
    """


class SandboxesPoolRef(Spec):
    """
    A SandboxPool (`grpo.dev`) of the same namespace, which several runs may share. One of another namespace must
    allow this one.
    """

    name: Annotated[str, Field(max_length=253, min_length=1)]
    """Its name."""
    namespace: Annotated[str | None, Field(max_length=63, min_length=1)] = None
    """Its namespace. Default: the same."""


class SecretKey(Spec):
    """Token for a repository that is private or gated."""

    key: Annotated[
        str, Field(max_length=253, min_length=1, pattern='^[-._a-zA-Z0-9]+$')
    ]
    """Which of its values."""
    name: Annotated[str, Field(max_length=253, min_length=1)]
    """Name of the Secret."""


class SecretName(Spec):
    """
    Secret whose keys are the environment variables of the store's own tools, for example `AWS_ACCESS_KEY_ID` and
    `AWS_SECRET_ACCESS_KEY`. Default: the identity the cluster gives the pod.
    """

    name: Annotated[str, Field(max_length=253, min_length=1)]
    """Its name."""


class Select(Spec):
    """Which of the rows."""

    exclude: TaskList | None = None
    """Not these tasks."""
    instance_ids: TaskList | None = None
    """Only these tasks."""
    limit: Annotated[int | None, Field(ge=1, le=10000000)] = None
    """At most so many, the first of what is left."""
    pattern: Annotated[str | None, Field(max_length=1000, min_length=1)] = None
    """Only tasks whose whole name matches this regular expression, for example `django__django-1[12].*`."""
    repo: Annotated[str | None, Field(max_length=200, min_length=1)] = None
    """Only tasks of this repository, for example `django/django`."""
    repos: Annotated[list[str] | None, Field(max_length=100, min_length=1)] = None
    """Only tasks of these repositories."""
    shuffle_seed: Annotated[int | None, Field(ge=0, le=9007199254740991)] = None
    """Shuffles the rows by this seed before `slice` and `limit`. Left out: they are in the order of the file."""
    slice: SelectSlice | None = None
    """A share of the rows: several runs each take one, without overlap."""


class SelectSlice(Spec):
    """A share of the rows: several runs each take one, without overlap."""

    index: Annotated[int, Field(ge=0, le=9999)]
    """Which share, from 0."""
    of: Annotated[int, Field(ge=1, le=10000)]
    """How many shares there are."""


class ShapingCost(Spec):
    """Of its calls."""

    each: Annotated[float, Field(ge=0.0, le=1000.0)]
    """For each."""
    most: Annotated[float | None, Field(ge=0.0, le=1000.0)] = None
    """
    For all together at most.
    Default: `1000.0`.
    """


class StatusAttempts(Status):
    """Attempts of the pod groups."""

    driver: AttemptCounts | None = None
    """
    Attempts of a pod group, or of all groups of a pool.
    Default: `{"consecutiveFailures": 0, "created": false, "current": 0}`.
    """
    trainer: AttemptCounts | None = None
    """
    Attempts of a pod group, or of all groups of a pool.
    Default: `{"consecutiveFailures": 0, "created": false, "current": 0}`.
    """


class StatusPlan(Status):
    """Pods of one role."""

    pods: Annotated[str, Field(max_length=32)]
    """How many: `4`, or `0-64` for sandboxes that come and go."""
    role: Annotated[str, Field(max_length=32)]
    """driver, trainer, engine, gateway or sandbox."""
    each: Annotated[str | None, Field(max_length=256)] = None
    """What each takes: `8 GPUs, 96 CPUs, 1200Gi`."""
    running: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """How many run now. Left out for sandboxes, which come and go: their pool counts them."""


class StatusProgress(Status):
    """What a running run is doing. Written by the driver."""

    display: StatusProgressDisplay | None = None
    """The same numbers, as the columns of `kubectl get` show them."""
    episodes_done: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """Episodes of the current iteration or evaluation that have a verdict."""
    episodes_total: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """Episodes of the current iteration or evaluation."""
    evaluations: Annotated[
        list[StatusProgressEvaluation] | None, Field(max_length=64)
    ] = None
    """
    Finished evaluations, the newest of each set last. Of more than 64, the first of each set and the newest are
    kept.
    """
    fault: StatusProgressFault | None = None
    """A fault that ends the run."""
    iteration: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """The iteration that runs, counted from 1; 0 before the first."""
    iterations: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """How many there will be."""
    logprob_gap_max: float | None = None
    """Largest distance between a token's logprob at the engine and at the trainer."""
    loss: float | None = None
    """Loss of the last step."""
    message: Annotated[str | None, Field(max_length=1024)] = None
    """What is worth knowing now, in words."""
    resolved_rate: float | None = None
    """Share of resolved episodes."""
    revisions: Annotated[list[StatusProgressRevision] | None, Field(max_length=64)] = (
        None
    )
    """What the run downloads: commits of the hub's repositories, and objects of buckets."""
    reward: float | None = None
    """Mean reward."""
    run_uid: Annotated[str | None, Field(max_length=64)] = None
    """Uid of the run whose driver wrote this."""
    stage: Literal['Starting', 'Rollout', 'Grading', 'Training', 'Syncing', 'Evaluating', 'Finished'] | None = (
        None
    )
    """The foremost of `stages`."""
    stages: Annotated[
        list[Literal['Starting', 'Rollout', 'Grading', 'Training', 'Syncing', 'Evaluating', 'Finished']] | None,
        Field(max_length=8),
    ] = None
    """All stages that are active at the same time."""
    staleness: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """Largest staleness of a token that was trained on."""
    updated_at: str | None = None
    """When this was written."""
    void: Annotated[int | None, Field(ge=0, le=4294967295)] = None
    """Episodes lost to faults of the infrastructure, over the whole run."""
    weights: Annotated[str | None, Field(max_length=64)] = None
    """Version that samples, `base` or `<lineage>-v<step>`."""


class StatusProgressDisplay(Status):
    """The same numbers, as the columns of `kubectl get` show them."""

    episodes: Annotated[str | None, Field(max_length=32)] = None
    """`41/64`"""
    iteration: Annotated[str | None, Field(max_length=32)] = None
    """`3/10`"""
    loss: Annotated[str | None, Field(max_length=32)] = None
    """`-0.0132`"""
    resolved: Annotated[str | None, Field(max_length=32)] = None
    """`0.62`"""
    reward: Annotated[str | None, Field(max_length=32)] = None
    """`0.250`"""


class StatusProgressEvaluation(Status):
    """One finished evaluation: a set, under one version of the weights."""

    episodes: Annotated[int, Field(ge=0, le=4294967295)]
    """Episodes with a verdict."""
    resolved_rate: float
    """Share of resolved episodes."""
    set: Annotated[str, Field(max_length=63)]
    """Name in `tasks.evaluate`."""
    weights: Annotated[str, Field(max_length=64)]
    """Version of the weights."""


class StatusProgressFault(Status):
    """A fault that ends the run."""

    message: Annotated[str, Field(max_length=4096)]
    """What happened and what to do, in words."""
    reason: Annotated[str, Field(max_length=128)]
    """One word in CamelCase."""


class StatusProgressRevision(Status):
    """The bytes that a run takes of a model or dataset: a commit of a repository of the hub, or objects of a bucket."""

    commit: Annotated[str, Field(max_length=64)]
    """
    Of a repository the commit, 40 hexadecimal digits. Of an object store the sha256 of the listing: paths, sizes
    and ETags.
    """
    repo: Annotated[str, Field(max_length=1024)]
    """Owner and name of a repository, or the URL of a folder or file of an object store."""


class Store(Spec):
    """Where everything that is finished is kept."""

    object_store: ObjectStore | None = None
    """A bucket, which is never deleted by the operator."""
    path: Annotated[
        str | None,
        Field(
            max_length=512, min_length=1, pattern='^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$'
        ),
    ] = None
    """Folder on the volume or below the bucket's prefix. Default: `<namespace>/<name>`."""
    persistent_volume_claim: StorePersistentVolumeClaim | None = None
    """A volume that exists and is never deleted by the operator."""
    retain: bool | None = None
    """
    Keep the volume of `volumeClaimTemplate` when the run is deleted.
    Default: `false`.
    """
    volume_claim_template: StoreVolumeClaimTemplate | None = None
    """A volume of the run's own, deleted with it unless `retain` is set."""


class StorePersistentVolumeClaim(Spec):
    """A volume that exists and is never deleted by the operator."""

    claim_name: Annotated[str, Field(max_length=253, min_length=1)]
    """Its name."""


class StoreVolumeClaimTemplate(Spec):
    """A volume of the run's own, deleted with it unless `retain` is set."""

    resources: StoreVolumeClaimTemplateResources
    """`requests.storage` says how much."""
    access_modes: Annotated[
        list[Literal['ReadWriteOnce', 'ReadWriteMany']] | None,
        Field(max_length=4, min_length=1),
    ] = None
    """
    How the volume is mounted. The driver and the trainer's pods mount it, and ReadWriteOnce puts them on one node.
    Engines and sandboxes do not mount it, and may run on other nodes.
    Default: `["ReadWriteOnce"]`.
    """
    storage_class_name: Annotated[str | None, Field(max_length=253)] = None
    """StorageClass. Default: the cluster's default one."""


class StoreVolumeClaimTemplateResources(Spec):
    """`requests.storage` says how much."""

    requests: StoreVolumeClaimTemplateResourcesRequests
    """What the volume must have."""


class StoreVolumeClaimTemplateResourcesRequests(Spec):
    """What the volume must have."""

    storage: Annotated[str, Field(max_length=32, min_length=1)]
    """For example `20Gi`."""


class TaskList(Spec):
    """Not these tasks."""

    config_map_ref: ConfigMapRef | None = None
    """A text of a ConfigMap, one name a line."""
    inline: Annotated[list[str] | None, Field(max_length=1000, min_length=1)] = None
    """The names."""


class Tasks(Spec):
    """What the agent works on."""

    evaluate: Annotated[list[TasksEvaluate] | None, Field(max_length=16)] = None
    """Named fixed sets that are only measured. A set is never evaluated twice for one version of the weights."""
    train: TasksTrain | None = None
    """Tasks that are trained on."""


class TasksEvaluate(Spec):
    """A named fixed set that is only measured."""

    dataset: Dataset
    """Rows, one task each."""
    name: Annotated[
        str,
        Field(max_length=63, min_length=1, pattern='^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'),
    ]
    """Its name, in status, store and metrics."""
    at_end: bool | None = None
    """
    After the last iteration.
    Default: `true`.
    """
    at_start: bool | None = None
    """
    Before the first iteration, under the base weights.
    Default: `false`.
    """
    every: Annotated[int | None, Field(ge=1, le=1000000)] = None
    """After every so many iterations. Left out: only at start and end, as said below."""
    format: Literal['Auto', 'Compiled', 'SweBench', 'SweGym', 'R2E', 'KodCode', 'SweSmith', 'SweRebench', 'SweRebenchV2', 'SweBenchLive'] | None = (
        None
    )
    """
    What the rows are. Compiled: with image, eval script, log parser and lists of tests. SweBench, SweGym, R2E,
    SweSmith, SweRebench, SweRebenchV2, SweBenchLive, KodCode: as those datasets publish them; they are completed
    when the run begins, and the completed rows are kept in the store. Auto: told from the columns of each row.
    Default: `"Auto"`.
    """
    image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """
    Image of the tasks whose rows name none. Rows of KodCode name none: they need Python, pytest, git and the
    packages that the rows import. Left out: each format has its publisher's rule for the names of images.
    """
    prompt_fields: Annotated[
        list[Literal['patch', 'test_patch', 'FAIL_TO_PASS', 'PASS_TO_PASS', 'eval_script', 'setup']] | None,
        Field(max_length=6),
    ] = None
    """
    Fields that templates of prompts may use although they give the answer away, such as the test patch. Left out:
    none of them.
    """
    prompt_overrides: PromptOverrides | None = None
    """
    Problem statements in the place of those that rows have, by the names of tasks. Tasks that are not named
    keep theirs. What was shown is kept in the store.
    """
    samples: Annotated[int | None, Field(ge=1, le=256)] = None
    """
    Episodes per task; `kubectl grpo export` computes pass@k for every k up to it.
    Default: `1`.
    """
    seed: Annotated[int | None, Field(ge=0, le=9007199254740991)] = None
    """Seed of the sampling. Default: the run's."""
    select: Select | None = None
    """
    Which of the rows.
    Default: `{}`.
    """


class TasksTrain(Spec):
    """Tasks that are trained on."""

    dataset: Dataset
    """Rows, one task each."""
    format: Literal['Auto', 'Compiled', 'SweBench', 'SweGym', 'R2E', 'KodCode', 'SweSmith', 'SweRebench', 'SweRebenchV2', 'SweBenchLive'] | None = (
        None
    )
    """
    What the rows are; see `format` of a set in `evaluate`.
    Default: `"Auto"`.
    """
    image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """Image of the tasks whose rows name none; see `image` of a set in `evaluate`."""
    order: Literal['Shuffled', 'InOrder'] | None = None
    """
    Shuffled: another order in every pass, drawn from `seed`. InOrder: as in the file.
    Default: `"Shuffled"`.
    """
    prompt_fields: Annotated[
        list[Literal['patch', 'test_patch', 'FAIL_TO_PASS', 'PASS_TO_PASS', 'eval_script', 'setup']] | None,
        Field(max_length=6),
    ] = None
    """Hidden fields of the rows that prompts may show; see `promptFields` of a set in `evaluate`."""
    prompt_overrides: PromptOverrides | None = None
    """Other problem statements than the rows have; see `promptOverrides` of a set in `evaluate`."""
    seed: Annotated[int | None, Field(ge=0, le=9007199254740991)] = None
    """Seed of the order. Default: the run's."""
    select: Select | None = None
    """
    Which of the rows.
    Default: `{}`.
    """


class Trackers(Spec):
    """Where the curves are shown beside the viewer. Left out: nowhere."""

    mlflow: TrackersMlflow | None = None
    """A tracking server of MLflow. Left out: none."""
    wandb: TrackersWandb | None = None
    """
    Weights & Biases: a file in the store, which `wandb sync` uploads, and an upload while the run works. Left out:
    none.
    """


class TrackersMlflow(Spec):
    """A tracking server of MLflow. Left out: none."""

    url: Annotated[
        str, Field(max_length=1024, min_length=8, pattern='^https?://[^\\s]+$')
    ]
    """Its address, for example `http://mlflow.team.svc:5000`."""
    experiment: Annotated[str | None, Field(max_length=250, min_length=1)] = None
    """The experiment; it is created if it does not exist. Left out: the run's namespace."""
    token_secret_ref: SecretKey | None = None
    """
    Token that is sent along as `Authorization: Bearer`. A value with a colon is `user:password`, and is sent as
    `Authorization: Basic`. Left out: none.
    """


class TrackersWandb(Spec):
    """
    Weights & Biases: a file in the store, which `wandb sync` uploads, and an upload while the run works. Left out:
    none.
    """

    entity: Annotated[str | None, Field(max_length=128, min_length=1)] = None
    """The team or user. Left out: that of the one who uploads the file, or the default of the key's user."""
    project: Annotated[str | None, Field(max_length=128, min_length=1)] = None
    """The project. Left out: the run's namespace."""
    upload: TrackersWandbUpload | None = None
    """Sends the rows of the file to a server too, while the run works. Left out: only the file."""


class TrackersWandbUpload(Spec):
    """Sends the rows of the file to a server too, while the run works. Left out: only the file."""

    api_key_secret_ref: SecretKey
    """API key of a user or service account that may write to the project."""
    url: Annotated[
        str | None, Field(max_length=1024, min_length=8, pattern='^https?://[^\\s]+$')
    ] = None
    """
    Address of the server's API.
    Default: `"https://api.wandb.ai"`.
    """


class Trainer(Spec):
    """Pods that train. Needed by modes Train and Finetune."""

    colocate: bool | None = None
    """
    Trainer and engines take turns on the same GPUs: the engines sleep while the trainer steps, and the trainer
    keeps its state in the pods' memory while they sample. Needs an `inference.pool` of vllm or sglang whose
    replicas have as many GPUs as the trainer, and a cluster with NVIDIA's DRA driver. With `gpusPerNode: 0` an
    embedded engine and the trainer take the same turns on the CPU.
    Default: `false`.
    """
    deadlines: TrainerDeadlines | None = None
    """
    What may take how long before the pods are started again.
    Default: `{}`.
    """
    deterministic: bool | None = None
    """
    GPUs compute the same bits every time, so a step that is taken again after a crash gives the weights that were
    published. A step takes about twice as long. Without it the weights of such a step may differ in their last
    bits: the run then continues with them, in a new lineage where the step had been published. CPUs always compute
    the same bits.
    Default: `false`.
    """
    env: Annotated[list[EnvVar] | None, Field(max_length=64)] = None
    """Added to the environment, for example NCCL's settings."""
    gpus_per_node: Annotated[int | None, Field(ge=0, le=16)] = None
    """
    GPUs of each pod (`nvidia.com/gpu`); they need an `image` that is built for them. 0 trains on the CPU.
    Default: `0`.
    """
    image: Annotated[str | None, Field(max_length=512, min_length=1)] = None
    """Another trainer that keeps to the trainer contract. Default: the operator's own."""
    max_tokens_per_gpu: Annotated[int | None, Field(ge=64, le=10000000)] = None
    """
    Tokens that a rank computes at a time; rows are packed up to it. A longer row is computed alone. Default: 4,096
    on CPUs, 16,384 on GPUs.
    """
    network: TrainerNetwork | None = None
    """How ranks of different nodes talk."""
    nodes: Annotated[int | None, Field(ge=1, le=256)] = None
    """
    Pods; parameters, gradients and optimizer state are sharded over all their ranks.
    Default: `1`.
    """
    offload: TrainerOffload | None = None
    """
    What is kept in the pods' memory instead of the GPUs'.
    Default: `{"activations": false, "optimizer": false, "parameters": false}`.
    """
    pod_template: PodTemplate | None = None
    """Laid over the pods."""
    resources: Resources | None = None
    """CPU and memory of each pod; GPUs are added from `gpusPerNode`."""
    sequence_parallel: Annotated[int | None, Field(ge=1, le=16)] = None
    """
    Ranks of a node that share one sequence, so that longer ones fit.
    Default: `1`.
    """
    shard: Literal['All', 'Node'] | None = None
    """
    All: the state is sharded over all ranks. Node: over those of a node, and every node has a copy, which saves
    network for memory.
    Default: `"All"`.
    """


class TrainerDeadlines(Spec):
    """What may take how long before the pods are started again."""

    collective: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """One collective operation. Default: 2m."""
    start: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """From the last pod's start until all ranks are there. Waiting for nodes and images does not count. Default: 30m."""
    step: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """One optimizer step. A rank that hangs is named, and the next attempt prefers other nodes. Default: none."""


class TrainerNetwork(Spec):
    """How ranks of different nodes talk."""

    interface: Annotated[
        str | None,
        Field(max_length=64, min_length=1, pattern='^[A-Za-z0-9][A-Za-z0-9._@-]*$'),
    ] = None
    """Network interface of the pods that NCCL and Gloo use, for example `eth0`. Default: the one of the pods' address."""
    rdma: TrainerNetworkRdma | None = None
    """RDMA devices of each pod. The container runtime must not limit locked memory. Left out: TCP."""


class TrainerNetworkRdma(Spec):
    """RDMA devices of each pod. The container runtime must not limit locked memory. Left out: TCP."""

    resource: Annotated[
        str,
        Field(
            max_length=317,
            min_length=3,
            pattern='^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$',
        ),
    ]
    """The extended resource that a device plugin offers, for example `rdma/hca_shared_devices_a`."""
    count: Annotated[int | None, Field(ge=1, le=64)] = None
    """
    How many for each pod.
    Default: `1`.
    """


class TrainerOffload(Spec):
    """What is kept in the pods' memory instead of the GPUs'."""

    activations: bool | None = None
    """
    Inputs of the blocks, from which the backward pass computes them again. A GPU with memory for all activations
    keeps those, and offloads nothing.
    Default: `false`.
    """
    optimizer: bool | None = None
    """
    The optimizer's moments: 8 bytes for each parameter.
    Default: `false`.
    """
    parameters: bool | None = None
    """
    Parameters that no rank computes with at the moment.
    Default: `false`.
    """


class Update(Spec):
    """How replicas are replaced when the spec changes, and how they end."""

    drain_timeout: Annotated[
        str | None, Field(max_length=32, pattern='^([0-9]{1,8}(ms|s|m|h))+$')
    ] = None
    """
    How long a replica that is taken away may go on answering what it was asked before; new requests are refused
    meanwhile, and go to other replicas. Default: 10s for embedded, 2m for the others.
    """
    max_surge: Annotated[int | None, Field(ge=0, le=1024)] = None
    """
    Replicas above `replicas` while the spec's change goes through: they need devices of their own. 0: an old
    replica goes before its successor comes.
    Default: `0`.
    """
    max_unavailable: Annotated[int | None, Field(ge=0, le=1024)] = None
    """
    Replicas below `replicas` that may be missing while the spec's change goes through.
    Default: `1`.
    """


class Warm(Spec):
    """Sandboxes that are started before they are asked for."""

    ahead: Annotated[int | None, Field(ge=0, le=1000)] = None
    """
    Groups of episodes whose sandboxes are started before their turn comes. Default: as many episodes as run at the
    same time.
    """
    images: Annotated[int | None, Field(ge=0, le=1000)] = None
    """
    Maximum number of images that nodes pull and keep at a time for future sandboxes, while the pool has no room
    for the sandboxes themselves. The kubelet's image garbage collection removes images that are no longer wanted.
    0: the first sandbox of an image pulls it.
    Default: `16`.
    """
    max: Annotated[int | None, Field(ge=0, le=10000)] = None
    """Maximum number of warm sandboxes without a lease. 0 keeps none warm. Default: as many as `max` leaves room for."""
    min: Annotated[list[WarmMin] | None, Field(max_length=256)] = None
    """Sandboxes that are kept warm even if no run asks for them. None: an unused pool holds no sandbox."""


class WarmMin(Spec):
    """So many sandboxes of one image."""

    count: Annotated[int, Field(ge=1, le=10000)]
    """Unleased ones, as long as `max` leaves room for them."""
    image: Annotated[str, Field(max_length=512, min_length=1)]
    """As tasks name it, before `imageRewrites`."""


class WeightsCache(Spec):
    """
    Where each replica keeps versions of the weights: the one that serves and the next. Default: a scratch volume
    without a limit.
    """

    size_limit: int | str
    """
    Largest size. The pod requests so much of its node. While the next version comes, two versions and their deltas
    are on it: `kubectl grpo plan` adds them up. The kubelet evicts a replica that has more on its disk; a full
    volume in memory delays the version, and the replica keeps serving.
    """
    medium: Literal['Disk', 'Memory'] | None = None
    """What a scratch volume is on."""
