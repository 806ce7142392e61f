"""A real API server with the CRDs, which GRPO_API_SERVER names by its kubeconfig. It needs no nodes and no operator.

What the server refuses, the models refuse; what it returns, with all its defaults, they read.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo
from conftest import EXAMPLES
from grpo import api, programs
from test_manifests import RUN


@pytest.fixture(scope="module")
def kubeconfig() -> str:
    given = os.environ.get("GRPO_API_SERVER")
    if not given:
        pytest.skip("GRPO_API_SERVER names no kubeconfig of an API server with the CRDs")
    return given


@pytest.fixture
def namespace(kubeconfig: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"python-{os.getpid()}-{abs(hash(request.node.name)) % 100000}"
    kubectl(kubeconfig, "create", "namespace", name)
    yield name
    kubectl(kubeconfig, "delete", "grporuns,inferencepools,sandboxpools", "--all", "-n", name, "--wait=false")
    kubectl(kubeconfig, "delete", "namespace", name, "--wait=false")


def kubectl(kubeconfig: str, *words: str) -> None:
    subprocess.run([programs.kubectl(), f"--kubeconfig={kubeconfig}", *words], check=True, capture_output=True)


def set_status(kubeconfig: str, namespace: str, name: str, status: dict[str, object]) -> None:
    patch = json.dumps({"status": status})
    words = ["patch", "grporun", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch]
    kubectl(kubeconfig, *words)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_an_example_is_accepted_and_read_back(kubeconfig: str, namespace: str, file: Path) -> None:
    objects = grpo.load(file)
    for one in objects:
        one.metadata.namespace = namespace
    for dry_run in (True, False):
        applied = grpo.apply(objects, kubeconfig=kubeconfig, dry_run=dry_run)
        assert [(type(one), one.name) for one in applied] == [(type(one), one.name) for one in objects]
    for given, had in zip(objects, applied, strict=True):
        # The server adds defaults, and changes nothing that was given.
        assert contains(had.to_dict()["spec"], given.to_dict()["spec"])
        # Also what the server returns comes back as it was.
        (again,) = grpo.loads(had.to_yaml())
        assert again.to_dict() == had.to_dict()


def contains(whole: object, part: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(contains, whole, part))
    return whole == part


def test_an_object_that_was_changed_is_applied_again(kubeconfig: str, namespace: str) -> None:
    objects = grpo.load(EXAMPLES / "demo.yaml")
    (run,) = grpo.apply(objects, namespace=namespace, kubeconfig=kubeconfig)
    assert isinstance(run, grpo.GrpoRun) and run.spec.algorithm is not None
    assert run.spec.algorithm.aggregation == "TokenMean" and run.spec.failure_policy is not None
    (changed,) = objects
    assert isinstance(changed, grpo.GrpoRun)
    changed.spec.suspend = True
    (run,) = grpo.apply(changed, namespace=namespace, kubeconfig=kubeconfig)
    assert isinstance(run, grpo.GrpoRun) and run.spec.suspend is True


def test_a_rule_between_fields_is_refused_by_the_server(kubeconfig: str, namespace: str) -> None:
    (run,) = grpo.loads(RUN)
    assert isinstance(run, grpo.GrpoRun)
    run.spec.agent = api.Agent(bash=api.AgentBash(), tools=api.AgentTools())
    with pytest.raises(grpo.CommandFailed, match=r"GrpoRun.*demo.*is invalid"):
        grpo.apply(run, namespace=namespace, kubeconfig=kubeconfig)


def test_runs_of_a_namespace_are_listed(kubeconfig: str, namespace: str) -> None:
    assert grpo.runs(namespace, kubeconfig=kubeconfig).empty
    grpo.apply(grpo.load(EXAMPLES / "demo.yaml"), namespace=namespace, kubeconfig=kubeconfig)
    progress = {"stage": "Rollout", "weights": "l1-v2", "void": 1, "display": {"iteration": "3/12", "resolved": "0.48"}}
    set_status(kubeconfig, namespace, "demo", {"phase": "Running", "progress": progress})
    (line,) = grpo.runs(namespace, kubeconfig=kubeconfig).to_dict("records")
    assert (line["name"], line["phase"], line["resolved"], line["void"]) == ("demo", "Running", 0.48, 1)
    assert namespace in grpo.runs(all_namespaces=True, kubeconfig=kubeconfig)["namespace"].tolist()


def test_wait_tells_how_a_run_ended(real_plugin: str, kubeconfig: str, namespace: str) -> None:
    with pytest.raises(grpo.CommandFailed, match="there is no GrpoRun"):
        grpo.wait("demo", namespace=namespace, kubeconfig=kubeconfig)
    grpo.apply(grpo.load(EXAMPLES / "demo.yaml"), namespace=namespace, kubeconfig=kubeconfig)
    with pytest.raises(grpo.RunNotEnded, match="has not ended after 1s"):
        grpo.wait("demo", 1, namespace=namespace, kubeconfig=kubeconfig)

    def succeed() -> None:
        time.sleep(1)
        set_status(kubeconfig, namespace, "demo", {"phase": "Succeeded"})

    ending = threading.Thread(target=succeed)
    ending.start()
    assert grpo.wait("demo", "1m", namespace=namespace, kubeconfig=kubeconfig).startswith("GrpoRun demo succeeded")
    ending.join()
    set_status(kubeconfig, namespace, "demo", {"phase": "Failed", "message": "no GPUs"})
    with pytest.raises(grpo.RunFailed, match="GrpoRun demo failed: Failed: no GPUs"):
        grpo.wait("demo", namespace=namespace, kubeconfig=kubeconfig)


def test_a_run_that_the_cluster_lacks_is_named(real_plugin: str, kubeconfig: str, namespace: str) -> None:
    cause = f"exit status 1: error: there is no GrpoRun .*demo in namespace {namespace}"
    with pytest.raises(grpo.ViewerError, match=cause):
        grpo.open("demo", namespace=namespace, kubeconfig=kubeconfig)
