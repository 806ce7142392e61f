"""A client of grpo-operator: records of runs as DataFrames, and typed manifests.

It asks the programs `kubectl-grpo` and `kubectl`, which must be installed.
"""

from grpo.cluster import apply, load, loads, plan, runs, to_yaml, wait
from grpo.errors import (
    CommandFailed,
    GrpoError,
    ManifestError,
    NotFound,
    ProgramMissing,
    RecordsError,
    RunFailed,
    RunNotEnded,
    ViewerError,
)
from grpo.models import api, views
from grpo.objects import GrpoRun, InferencePool, Manifest, Metadata, SandboxPool
from grpo.plan import Plan
from grpo.run import Run, Runs, compare, open

__all__ = [
    "CommandFailed",
    "GrpoError",
    "GrpoRun",
    "InferencePool",
    "Manifest",
    "ManifestError",
    "Metadata",
    "NotFound",
    "Plan",
    "ProgramMissing",
    "RecordsError",
    "Run",
    "RunFailed",
    "RunNotEnded",
    "Runs",
    "SandboxPool",
    "ViewerError",
    "api",
    "apply",
    "compare",
    "load",
    "loads",
    "open",
    "plan",
    "runs",
    "to_yaml",
    "views",
    "wait",
]
