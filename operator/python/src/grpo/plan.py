"""What `kubectl grpo plan -o json` answers. Amounts are in bytes, and in thousandths of a CPU."""

from __future__ import annotations

from pydantic import Field

from grpo.base import View


class PlannedManifest(View):
    """The judgement of the API server and the operator on a manifest."""

    kind: str
    name: str
    file: str
    refused: list[str]
    """Refused by schema or CEL rules."""
    unchecked: list[str]
    """Rules that could not be evaluated."""
    not_executed: list[str]
    """Fields that this version does not execute."""


class PlannedPods(View):
    """Pods of one role of one owner. Requests are those of each pod."""

    of: str
    role: str
    count: int
    gpus: int
    shared_gpus: int = 0
    """GPUs that each pod shares with other pods."""
    cpu_millis: int
    memory_bytes: int
    others: dict[str, int] = Field(default_factory=dict)
    from_: str
    """The fields of the manifest behind them."""


class PlannedSandboxes(View):
    """Sandboxes of a pool, which its gateway creates when they are leased."""

    of: str
    at_most: int
    cpu_millis: int
    memory_bytes: int
    limits: dict[str, str]
    fit: int | None = None
    """The number that fits beside all other pods of the plan."""


class PlannedMemory(View):
    """The memory of a rank, of a trainer's pod beside its GPUs, or of an engine's GPU."""

    of: str
    each: str
    bytes: int | None = None
    has_bytes: int | None = None
    parts: list[tuple[str, int]]
    notes: list[str]


class PlannedSpeed(View):
    """A trainer GPU's speed, by arithmetic."""

    of: str
    gpu: str
    gpus: int
    row: int
    tokens_per_second: int
    kept: bool
    """Whether activations fit into memory; otherwise blocks are computed twice."""


class PlannedDownload(View):
    """Bytes that are downloaded."""

    of: str
    what: str
    bytes: int
    times: int
    at_most: bool
    """Pods of one node share a download."""


class PlannedDisk(View):
    """Bytes that are written to a claim."""

    of: str
    place: str
    bytes: int
    parts: list[tuple[str, int]]
    has_bytes: int | None = None


class PlannedWeights(View):
    """Network traffic of weights in each iteration."""

    of: str
    version_bytes: int
    pulls: int
    iteration_bytes: int


class PlannedFit(View):
    """Whether the pods of a run, or of pools that no run owns, fit all at once."""

    of: str
    fits: bool
    places: dict[str, list[str]]
    reason: str | None = None
    message: str | None = None


class PlannedNodes(View):
    """The nodes, and what fits on them."""

    from_: str
    count: int
    gpus: int
    pods_known: bool
    fits: list[PlannedFit]


class Plan(View):
    """The effect of manifests before they are applied."""

    manifests: list[PlannedManifest]
    pods: list[PlannedPods]
    sandboxes: list[PlannedSandboxes]
    shared_gpus: int = 0
    """GPUs that a trainer and engines share, each counted once."""
    memory: list[PlannedMemory]
    speed: list[PlannedSpeed]
    downloads: list[PlannedDownload]
    disk: list[PlannedDisk]
    weights: list[PlannedWeights]
    needs: list[str]
    """Objects that must exist and are not in the manifests."""
    nodes: PlannedNodes | None = None
    warnings: list[str]
    """Reasons why a run may wait, or end later."""
    problems: list[str]
    """Reasons why a run cannot run, each with the next step."""
