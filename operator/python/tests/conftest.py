"""What several tests need: recorded views, programs with faults, and the real plugin with a real store."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import grpo

HERE = Path(__file__).resolve().parent
# The examples are beside the tests in the repository only.
EXAMPLES = HERE.parents[2] / "docs" / "examples"

MakeProgram = Callable[[str, str], Path]


def recorded(name: str) -> str:
    """A view that the plugin sent for a store made for tests."""
    return (HERE / "recorded" / f"{name}.json").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path: Path) -> MakeProgram:
    """Makes an executable file from Python code, for a fault that the real program does not have at will."""

    def make(name: str, code: str) -> Path:
        file = tmp_path / name
        file.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return make


@pytest.fixture
def plugin(program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a program that stands for kubectl-grpo."""

    def make(code: str) -> Path:
        file = program("kubectl-grpo", code)
        monkeypatch.setenv("GRPO_KUBECTL_PLUGIN", str(file))
        return file

    return make


@pytest.fixture(scope="session")
def real_plugin() -> str:
    given = os.environ.get("GRPO_KUBECTL_PLUGIN")
    if not given:
        pytest.skip("GRPO_KUBECTL_PLUGIN names no kubectl-grpo")
    return given


@pytest.fixture(scope="session")
def real_store(real_plugin: str) -> Path:
    given = os.environ.get("GRPO_STORE")
    if not given:
        pytest.skip("GRPO_STORE names no folder with a run's store")
    return Path(given)


@pytest.fixture(scope="module")
def run(real_store: Path) -> Iterator[grpo.Run]:
    with grpo.open(folder=real_store) as opened:
        yield opened
