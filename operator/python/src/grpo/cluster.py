"""Manifests and a cluster: read files, plan, apply, list runs, wait for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from pydantic import ValidationError

from grpo import documents, programs
from grpo.errors import CommandFailed, ManifestError, RunFailed, RunNotEnded, faults
from grpo.frames import table
from grpo.objects import Manifest, typed
from grpo.plan import Plan
from grpo.programs import Cluster

# The plugin's exit statuses of `wait`.
FAILED = 3
NOT_ENDED = 4
# After its own timeout the plugin gets so long to end.
GRACE_SECONDS = 60.0


def load(path: str | os.PathLike[str]) -> list[Manifest]:
    """The objects of a YAML file. Those of grpo.dev have types, and are refused if a field does not exist."""
    place = os.fspath(path)
    try:
        with open(place, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"reading {place}: {error}; give the path of a YAML file") from error
    return loads(text, place)


def loads(text: str, place: str = "the text") -> list[Manifest]:
    """The objects of a text with YAML documents."""
    return [typed(value, place) for value in documents.read(text, place)]


def to_yaml(objects: Manifest | Iterable[Manifest]) -> str:
    """Objects as one text with a document for each."""
    return documents.write([one.to_dict() for one in _listed(objects)])


def _listed(objects: Manifest | Iterable[Manifest]) -> list[Manifest]:
    found = [objects] if isinstance(objects, Manifest) else list(objects)
    if not found:
        raise ManifestError("there is no object: give at least one, as grpo.load returns them")
    return found


def plan(
    objects: Manifest | Iterable[Manifest],
    *,
    nodes: str | os.PathLike[str] | None = None,
    server: bool = False,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
) -> Plan:
    """The effect of manifests, as `kubectl grpo plan` computes it. A run that cannot run has `problems`.

    `nodes` is a file with the output of `kubectl get nodes -o yaml`; `server=True` reads the nodes of the cluster.
    """
    words = [programs.plugin(), "plan", "-f", "-", "-o", "json", *Cluster(namespace, context, kubeconfig).flags()]
    words += [] if nodes is None else [f"--nodes={os.fspath(nodes)}"]
    words += ["--server"] if server else []
    # Exit status 1 with a plan: it has problems. Without one: an error.
    done = programs.run(words, given=to_yaml(objects), accepted=(0, 1))
    if done.returncode == 1 and not done.stdout.lstrip().startswith("{"):
        cause = programs.shown(done.stderr) or "it printed no cause; run it in a terminal"
        raise CommandFailed(f"`kubectl-grpo plan` failed: {cause}", done.returncode)
    try:
        return Plan.model_validate_json(done.stdout)
    except ValidationError as error:
        raise CommandFailed(
            f"malformed answer of `kubectl-grpo plan -o json`:\n{faults(error)}\n"
            "Install kubectl-grpo and this package from the same version of grpo-operator",
            done.returncode,
        ) from error


def apply(
    objects: Manifest | Iterable[Manifest],
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    force_conflicts: bool = False,
    field_manager: str = "grpo-python",
) -> list[Manifest]:
    """Applies objects on the server (`kubectl apply --server-side`), and returns them as the server has them."""
    given = to_yaml(objects)
    words = [programs.kubectl(), "apply", "--server-side", f"--field-manager={field_manager}", "-f", "-", "-o", "json"]
    words += Cluster(namespace, context, kubeconfig).flags()
    words += ["--dry-run=server"] if dry_run else []
    words += ["--force-conflicts"] if force_conflicts else []
    answer = _json(programs.run(words, given=given), "kubectl apply")
    items = answer["items"] if answer.get("kind") == "List" else [answer]
    return [typed(item, "the cluster") for item in items]


RUNS = {
    "namespace": "string",
    "name": "string",
    "phase": "string",
    "stage": "string",
    "iteration": "string",
    "episodes": "string",
    "resolved": "float64",
    "reward": "float64",
    "loss": "float64",
    "void": "Int64",
    "staleness": "Int64",
    "weights": "string",
    "created": "datetime64[s, UTC]",
    "message": "string",
}


def runs(
    namespace: str | None = None,
    all_namespaces: bool = False,
    *,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """A row for each GrpoRun of the cluster, with the columns of `kubectl get grporuns -o wide`."""
    words = [programs.kubectl(), "get", "grporuns.grpo.dev", "-o", "json"]
    words += Cluster(namespace, context, kubeconfig).flags()
    words += ["--all-namespaces"] if all_namespaces else []
    return frame_of_runs(_json(programs.run(words), "kubectl get")["items"])


def frame_of_runs(items: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """GrpoRuns as rows. Their specs are not looked at: a newer operator may have fields that this package lacks."""
    rows = []
    for item in items:
        metadata, status = item["metadata"], item.get("status") or {}
        progress = status.get("progress") or {}
        display = progress.get("display") or {}
        created = pd.Timestamp(metadata["creationTimestamp"]) if metadata.get("creationTimestamp") else None
        rows.append(
            [
                metadata.get("namespace"),
                metadata["name"],
                status.get("phase"),
                progress.get("stage"),
                display.get("iteration"),
                display.get("episodes"),
                *(_number(display.get(key)) for key in ("resolved", "reward", "loss")),
                progress.get("void"),
                progress.get("staleness"),
                progress.get("weights"),
                None if created is None else int(created.timestamp()),
                status.get("message"),
            ]
        )
    return table(RUNS, rows)


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _json(done: subprocess.CompletedProcess[str], what: str) -> dict[str, Any]:
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise CommandFailed(f"malformed answer of `{what}`: {error}; run it in a terminal", done.returncode) from error
    if not isinstance(answer, dict):
        raise CommandFailed(f"malformed answer of `{what}`: it is no object; run it in a terminal", done.returncode)
    return answer


def _seconds(seconds: float) -> str:
    """A number of seconds as the plugin reads it: without an exponent, which `str` and `g` write."""
    if float(seconds).is_integer():
        return f"{int(seconds)}s"
    # A nanosecond is the smallest part that the plugin knows.
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def wait(
    name: str,
    timeout: float | str | None = None,
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> str:
    """Waits until a run has ended, and returns the plugin's line about its success.

    `timeout` is in seconds, or a text such as `"2h"`; None waits without limit. Phases and iterations are shown on
    standard error, unless `quiet`. A run that fails raises RunFailed, one that has not ended RunNotEnded.
    """
    words = [programs.plugin(), "wait", *Cluster(namespace, context, kubeconfig).flags()]
    words += [] if timeout is None else [f"--timeout={timeout if isinstance(timeout, str) else _seconds(timeout)}"]
    process = subprocess.Popen(
        [*words, "--", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    said: list[str] = []

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            del said[:-100]
            if not quiet and not line.startswith("error: "):
                print(programs.shown(line), file=sys.stderr, flush=True)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        assert process.stdout is not None
        output = process.stdout.read()
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait(GRACE_SECONDS)
        raise
    follower.join(GRACE_SECONDS)
    if status == 0:
        return programs.shown(output)
    text = "".join(said)
    cause = programs.shown(text[text.rfind("error: ") :].removeprefix("error: ") if "error: " in text else text)
    kinds: dict[int, type[CommandFailed]] = {FAILED: RunFailed, NOT_ENDED: RunNotEnded}
    message = cause or f"`kubectl-grpo wait {name}` ended with exit status {status} and no cause; run it in a terminal"
    raise kinds.get(status, CommandFailed)(message, status)
