"""A store of the demo and its report, which the demo's own program computed from the records: the same numbers.

Runs when GRPO_STORE names the store (out/demo/store) and GRPO_DEMO_REPORT the report (demo-report.json).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import grpo


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    given = os.environ.get("GRPO_DEMO_REPORT")
    if not given:
        pytest.skip("GRPO_DEMO_REPORT names no demo-report.json")
    read: dict[str, Any] = json.loads(Path(given).read_text(encoding="utf-8"))
    return read


def known(values: pd.Series, x: int) -> float | None:
    """The value of a curve, if it has one there."""
    return float(values[x]) if x in values.index and pd.notna(values[x]) else None


def test_the_report_is_of_this_run(run: grpo.Run, report: dict[str, Any]) -> None:
    view = run.view
    assert report["run"] == f"{view.namespace}/{view.name}"
    assert report["seed"] == view.seed
    assert report["void"] == sum(count.count for count in view.voids)
    assert (report["phase"] == "Succeeded") == (view.end is not None and view.end.succeeded)


def test_iterations_are_equal(run: grpo.Run, report: dict[str, Any]) -> None:
    frame = run.iterations().set_index("iteration")
    assert frame.index.tolist() == [one["iteration"] for one in report["iterations"]]
    for one in report["iterations"]:
        line = frame.loc[one["iteration"]]
        assert line["weights"] == one["weights"]
        assert (line["verdicts"], line["resolved"]) == (one["episodes"], one["resolved"])
        assert line["dropped"] == one["groups_dropped"]
        if one["seconds"] is not None and run.view.drivers == 1:
            assert (line["stepped"] - line["began"]).total_seconds() == one["seconds"]


def test_curves_by_iteration_are_equal(run: grpo.Run, report: dict[str, Any]) -> None:
    curves = run.curves("iteration", wide=True)
    for one in report["iterations"]:
        x = one["iteration"]
        # The plugin reads the driver's file, whose last binary digit a parser may round.
        assert known(curves["resolved_rate"], x) == pytest.approx(one["rate"], rel=1e-15), x
        assert known(curves["episodes"], x) == one["episodes"], x
        assert known(curves["resolved"], x) == one["resolved"], x
        assert known(curves["voids"], x) == one["void"], x
        # The demo's reward is 1 for a resolved episode and 0 for another.
        assert known(curves["reward_mean"], x) == pytest.approx(one["rate"], rel=1e-15), x


def test_curves_by_step_are_equal(run: grpo.Run, report: dict[str, Any]) -> None:
    curves = run.curves("step", wide=True)
    steps = run.iterations().set_index("iteration")["step"]
    gaps = []
    for one in report["iterations"]:
        step = steps[one["iteration"]]
        if pd.isna(step):
            assert one["loss"] is None
            continue
        assert known(curves["loss"], int(step)) == one["loss"], step
        assert known(curves["logprob_gap_max"], int(step)) == one["logprob_gap_max"], step
        gaps.append(one["logprob_gap_max"])
    assert report["logprob_gap_max"] == max(gap for gap in gaps if gap is not None)


def test_the_mean_reward_is_that_of_the_episodes(run: grpo.Run, report: dict[str, Any]) -> None:
    curves = run.curves("iteration", wide=True)
    for one in report["iterations"]:
        episodes = run.episodes(one["iteration"])
        verdicts = episodes[episodes["outcome"].isin(["Resolved", "Unresolved"])]
        assert len(verdicts) == one["episodes"]
        assert verdicts["reward"].mean() == pytest.approx(curves["reward_mean"][one["iteration"]], abs=1e-12)


def test_sets_are_equal(run: grpo.Run, report: dict[str, Any]) -> None:
    """A rate of the report is the mean over tasks of the share of resolved samples, without voids."""
    for name, one in report["sets"].items():
        first, last = one["weights"]
        for weights, rate in ((first, one["before"]), (last, one["after"])):
            if not weights or rate is None:
                continue
            episodes = run.episodes(evaluation=name, weights=weights)
            verdicts = episodes[episodes["outcome"].isin(["Resolved", "Unresolved"])]
            shares = (verdicts["outcome"] == "Resolved").groupby(verdicts["instance"]).mean()
            assert len(shares) == one["tasks"]
            assert shares.mean() == pytest.approx(rate["value"], abs=1e-12), (name, weights)
    for name in ("train", "heldout"):
        if name in report["sets"] and report["sets"][name]["before"] is not None:
            assert report[name]["before"] == report["sets"][name]["before"]["value"]
