"""The real plugin on a real store: every view is read, and frames agree with each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import grpo


def test_the_view_is_that_of_a_run_that_has_been_read(run: grpo.Run) -> None:
    view = run.view
    assert view.name and not view.reading and view.sequence > 0


def test_curves_have_every_iteration_and_step_with_metrics(run: grpo.Run) -> None:
    view, curves = run.view, run.curves()
    assert len(curves) == sum(len(curve.x) for curve in view.curves)
    with_batch = [line.iteration for line in view.iterations if line.batch is not None]
    rates = curves[(curves["of"] == "iteration") & (curves["name"] == "resolved_rate")]
    assert rates["x"].tolist() == with_batch
    wide = run.curves("step", wide=True)
    steps = [line.step for line in view.iterations if line.stepped is not None]
    assert wide.index.tolist() == steps
    assert wide["loss"].notna().all()


def test_the_curve_of_a_rate_is_the_mean_of_its_episodes(run: grpo.Run) -> None:
    rates = run.curves("iteration", wide=True)
    for iteration in rates.index[[0, -1]]:
        episodes = run.episodes(iteration)
        verdicts = episodes[episodes["outcome"].isin(["Resolved", "Unresolved"])]
        assert (verdicts["outcome"] == "Resolved").mean() == pytest.approx(rates["resolved_rate"][iteration])
        assert verdicts["reward"].mean() == pytest.approx(rates["reward_mean"][iteration])
        assert len(verdicts) == rates["episodes"][iteration]


def test_all_episodes_are_those_of_all_parts(run: grpo.Run) -> None:
    episodes, groups = run.episodes(), run.groups()
    assert len(episodes) == groups["episodes"].sum()
    assert set(episodes["scope"]) == set(run.iterations()["scope"]) | set(run.evaluations()["scope"])
    assert episodes["path"].is_unique
    line = run.evaluations().iloc[0]
    of_set = run.episodes(evaluation=line["set"], weights=line["weights"])
    assert (of_set["outcome"] == "Resolved").sum() == line["resolved"]
    assert len(run.voids()) == sum(count.count for count in run.view.voids)


def test_each_episode_of_a_group_has_its_tokens(run: grpo.Run) -> None:
    first = run.groups().iloc[0]
    group = run.group(first["group"], iteration=first["iteration"])
    assert group.instance == first["instance"]
    for sample in group.samples:
        detail = run.episode(sample.episode.path)
        assert detail.episode.path == sample.episode.path
        tokens = run.tokens(sample.episode.path)
        assert len(tokens) == sum(turn.sampled_tokens for turn in detail.turns)
        for turn in detail.turns:
            of_turn = tokens[tokens["turn"] == turn.turn]
            assert of_turn["logprob"].sum() == pytest.approx(turn.logprob)
        assert (tokens["logprob"] <= 0).all()


def test_a_task_and_a_search_find_the_episodes_of_a_name(run: grpo.Run) -> None:
    line = run.episodes(1).iloc[0]
    task = run.task(line["instance"])
    paths = {found.path for scope in task.scopes for found in scope.episodes}
    assert line["path"] in paths
    found = run.search(line["instance"])
    assert found.attrs["all"] >= len(found) > 0
    assert run.search("no_episode_has_this_word").empty


def test_what_a_run_lacks_is_named(run: grpo.Run) -> None:
    with pytest.raises(grpo.NotFound, match="no iteration 999999; it has: "):
        run.episodes(999999)
    for path in ("rollouts/iter-000001/none__g0__i0", "../../etc/passwd", "rollouts/iter-000001/a?b#c"):
        with pytest.raises(grpo.NotFound):
            run.episode(path)
        with pytest.raises(grpo.GrpoError):
            run.log(path)


def test_a_log_is_cut_with_a_warning(run: grpo.Run, real_store: Path) -> None:
    path = run.episodes(1)["path"].iloc[0]
    log = real_store / path / "grade.log"
    if not log.exists():
        with pytest.raises(grpo.NotFound, match=r"grade\.log"):
            run.log(path)
        return
    if log.stat().st_size > 2 << 20:
        with pytest.warns(UserWarning, match="is longer than"):
            text = run.log(path, most=1 << 20)
        assert 1 << 19 < len(text) < 1 << 21
    else:
        assert run.log(path)


def test_runs_are_compared_in_one_plugin(real_store: Path) -> None:
    with grpo.compare(folders=[real_store, real_store]) as runs:
        assert len(runs) == 2 and len(set(runs.names)) == 2
        curves = runs.curves("step")
        assert curves["run"].unique().tolist() == runs.names
        wide = runs.curves("step", wide=True)
        assert wide[runs.names[0]].equals(wide[runs.names[1]])
        assert len(runs.iterations()) == 2 * len(runs[0].iterations())
        assert len(runs.evaluations()) == 2 * len(runs[0].evaluations())


def test_a_folder_without_records_is_refused(real_plugin: str, tmp_path: Path) -> None:
    with pytest.raises(grpo.ViewerError, match=r"exit status 1: error: .* is no copy of a run's store"):
        grpo.open(folder=tmp_path)


def test_an_empty_journal_is_an_empty_run(real_plugin: str, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with grpo.open(folder=tmp_path) as run:
        assert run.view.sequence == 0
        assert run.curves().empty and run.episodes().empty and run.iterations().empty


def test_a_damaged_journal_is_an_error_of_its_reading(real_plugin: str, real_store: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    entries = sorted((real_store / "journal").iterdir())
    for entry in entries[:3]:
        (journal / entry.name).write_bytes(entry.read_bytes())
    # One that only begins is passed over: it was being written when its driver died.
    (journal / entries[1].name).write_text("nonsense", encoding="utf-8")
    with grpo.open(folder=tmp_path, seconds=10) as run, pytest.raises(grpo.RecordsError, match="reading the records: "):
        run.curves()


def test_a_run_of_a_cluster_that_is_away_is_an_error(
    real_plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(grpo.ViewerError, match=r"exit status 1: error: "):
        grpo.open("demo", kubeconfig=tmp_path / "none")


def test_a_program_that_ends_without_closing_leaves_no_viewer(real_store: Path) -> None:
    code = f"import grpo; run = grpo.open(folder={str(real_store)!r}); print(run._viewer._process.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
