"""Commands on a cluster. Programs stand for kubectl and for the plugin where a cluster would be needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import grpo
from conftest import EXAMPLES, MakeProgram
from grpo.cluster import frame_of_runs
from test_manifests import RUN

Plugin = Callable[[str], Path]

ITEM = {
    "metadata": {"name": "demo", "namespace": "team", "creationTimestamp": "2026-01-02T03:04:05Z"},
    "spec": {"novel": True},
    "status": {
        "phase": "Running",
        "message": "",
        "progress": {
            "stage": "Rollout",
            "void": 3,
            "weights": "l1-v2",
            "display": {"iteration": "3/12", "episodes": "41/64", "resolved": "0.48", "reward": "0.516"},
        },
    },
}
NEW = {"metadata": {"name": "new", "namespace": "team"}, "spec": {}}


def test_runs_are_rows_with_numbers() -> None:
    frame = frame_of_runs([ITEM, NEW])
    demo = frame.iloc[0]
    assert (demo["phase"], demo["iteration"], demo["resolved"], demo["void"]) == ("Running", "3/12", 0.48, 3)
    assert demo["created"] == pd.Timestamp("2026-01-02T03:04:05Z")
    assert frame.iloc[1].drop(["namespace", "name"]).isna().all()
    assert frame_of_runs([]).dtypes.to_dict() == frame.dtypes.to_dict()


@pytest.fixture
def kubectl(program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program that stands for kubectl: it writes its arguments and its input to files."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def make(code: str) -> Path:
        program(
            "kubectl",
            f"import sys; open({str(tmp_path / 'words')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
            f"given = '' if sys.stdin.isatty() else sys.stdin.read()\n"
            f"open({str(tmp_path / 'given')!r}, 'w').write(given)\n{code}",
        )
        return tmp_path

    return make


def test_runs_asks_kubectl(kubectl: Callable[[str], Path]) -> None:
    folder = kubectl(f"print({json.dumps(json.dumps({'items': [ITEM]}))})")
    frame = grpo.runs("team", context="dev", kubeconfig="config")
    assert frame["name"].tolist() == ["demo"]
    words = (folder / "words").read_text()
    assert words == "get grporuns.grpo.dev -o json --namespace team --context dev --kubeconfig config"
    grpo.runs(all_namespaces=True)
    assert (folder / "words").read_text() == "get grporuns.grpo.dev -o json --all-namespaces"


def test_apply_sends_yaml_and_returns_what_the_server_has(kubectl: Callable[[str], Path]) -> None:
    objects = grpo.loads(RUN)
    answer = objects[0].to_dict() | {"status": {"phase": "Pending"}}
    folder = kubectl(f"print({json.dumps(json.dumps({'kind': 'List', 'items': [answer, answer]}))})")
    applied = grpo.apply([*objects, *objects], namespace="team", dry_run=True)
    assert [one.name for one in applied] == ["demo", "demo"]
    assert isinstance(applied[0], grpo.GrpoRun) and applied[0].status is not None
    words = (folder / "words").read_text()
    assert words.startswith(
        "apply --server-side --field-manager=grpo-python -f - -o json --namespace team --dry-run=server"
    )
    assert grpo.loads((folder / "given").read_text()) == [*objects, *objects]


def test_a_refusal_of_kubectl_is_told(kubectl: Callable[[str], Path]) -> None:
    kubectl("sys.exit('Error from server (Forbidden): grporuns.grpo.dev is forbidden')")
    with pytest.raises(grpo.CommandFailed, match=r"exit status 1: Error from server \(Forbidden\)") as caught:
        grpo.runs()
    assert caught.value.status == 1
    kubectl("print('hello')")
    with pytest.raises(grpo.CommandFailed, match="malformed answer of `kubectl get`"):
        grpo.runs()


@pytest.mark.parametrize(
    ("status", "kind"), [(3, grpo.RunFailed), (4, grpo.RunNotEnded), (1, grpo.CommandFailed), (2, grpo.CommandFailed)]
)
def test_wait_has_an_error_for_each_exit_status(
    plugin: Plugin, status: int, kind: type[grpo.CommandFailed], capfd: pytest.CaptureFixture[str]
) -> None:
    plugin(f"import sys; print('Running\\nerror: GrpoRun demo: why\\nnext step', file=sys.stderr); sys.exit({status})")
    with pytest.raises(grpo.CommandFailed, match=r"^GrpoRun demo: why\nnext step$") as caught:
        grpo.wait("demo", 5)
    assert type(caught.value) is kind and caught.value.status == status
    assert "Running" in capfd.readouterr().err


def test_wait_returns_the_line_of_success(plugin: Plugin, capfd: pytest.CaptureFixture[str]) -> None:
    plugin("import sys; print('GrpoRun demo succeeded', sys.argv[1:]); print('Running', file=sys.stderr)")
    assert grpo.wait("demo", timeout=90, namespace="team", quiet=True) == (
        "GrpoRun demo succeeded ['wait', '--namespace', 'team', '--timeout=90s', '--', 'demo']"
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("timeout", "said"),
    [(1_209_600, "1209600s"), (1e7, "10000000s"), (0.00001, "0.00001s"), (90.25, "90.25s"), ("2h", "2h")],
)
def test_a_timeout_is_given_without_an_exponent(plugin: Plugin, timeout: float | str, said: str) -> None:
    plugin("import sys; print(sys.argv[2])")
    assert grpo.wait("demo", timeout, quiet=True) == f"--timeout={said}"


def test_a_malformed_plan_is_told(plugin: Plugin) -> None:
    plugin("print('{}')")
    with pytest.raises(grpo.CommandFailed, match=r"(?s)malformed answer.*problems: Field required.*same version"):
        grpo.plan(grpo.loads(RUN))
    plugin("import sys; sys.exit('error: no')")
    with pytest.raises(grpo.CommandFailed, match="plan` failed: error: no"):
        grpo.plan(grpo.loads(RUN))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_plan_of_an_example_is_typed_as_a_whole(real_plugin: str, file: Path) -> None:
    objects = grpo.load(file)
    plan = grpo.plan(objects)
    assert [one.name for one in plan.manifests] == [one.name for one in objects]
    assert plan.pods and not any(one.refused for one in plan.manifests)
    # Some examples show fields of a later version.
    assert len(plan.problems) == sum(len(one.not_executed) for one in plan.manifests)
    # Types that ignore a field would hide that the plugin has a new one.
    from grpo import programs

    words = [programs.plugin(), "plan", "-f", "-", "-o", "json"]
    answer = json.loads(programs.run(words, given=grpo.to_yaml(objects), accepted=(0, 1)).stdout)
    assert json.loads(plan.model_dump_json(by_alias=True, exclude_unset=True)) == answer


def test_a_plan_with_problems_is_no_error(real_plugin: str) -> None:
    (run,) = grpo.loads(RUN)
    plan = grpo.plan(run)
    assert plan.problems and plan.manifests[0].refused
