"""Frames of views that the real plugin sent for a store made for tests."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from pydantic import TypeAdapter

from conftest import recorded
from grpo import frames, views
from grpo.errors import NotFound
from grpo.scopes import Scope, ScopeOf, chosen

RUN = views.RunView.model_validate_json(recorded("run"))


def scopes() -> list[ScopeOf]:
    names = ["iteration", "evaluation"]
    found = [views.ScopeView.model_validate_json(recorded(name)) for name in names]
    return [ScopeOf(scope, view) for scope, view in zip(chosen(RUN, None, None, None), found, strict=True)]


def test_curves_are_rows_or_columns() -> None:
    long = frames.curves(RUN.curves, None, wide=False)
    assert list(long.columns) == ["name", "of", "x", "value"]
    assert len(long) == sum(len(curve.x) for curve in RUN.curves)
    rewards = long[(long["name"] == "reward_mean") & (long["of"] == "iteration")]
    assert rewards["value"].tolist() == [0.5]
    wide = frames.curves(RUN.curves, "iteration", wide=True)
    assert wide.index.tolist() == [1] and wide["reward_mean"][1] == 0.5
    both = frames.curves(RUN.curves, None, wide=True)
    assert both["heldout"]["resolved_rate"][0] == 1.0
    assert math.isnan(both["heldout"]["resolved_rate"][1])


def test_every_value_of_every_curve_is_in_the_wide_frame() -> None:
    wide = frames.curves(RUN.curves, None, wide=True)
    for curve in RUN.curves:
        assert wide[(curve.of, curve.name)].dropna().to_dict() == dict(zip(curve.x, curve.y, strict=True))


def test_iterations_and_evaluations_have_rates_and_times() -> None:
    iterations = frames.iterations(RUN.iterations)
    assert iterations["resolved_rate"].tolist() == [0.5]
    assert iterations["began"][0] == pd.Timestamp(1006, unit="s", tz="UTC")
    assert frames.evaluations(RUN.evaluations)["resolved_rate"].tolist() == [1.0]
    versions = frames.versions(RUN.versions)
    assert versions["published"].isna().tolist() == [True, False]
    assert versions["from_iteration"].tolist() == [pd.NA, 1]


def test_episodes_of_all_parts_have_where_they_belong() -> None:
    episodes = frames.episodes(scopes())
    assert episodes["outcome"].tolist() == ["Resolved", "Unresolved", "Void", "Unfinished", "Resolved"]
    assert episodes["iteration"].tolist() == [1, 1, 1, 1, pd.NA]
    assert episodes["evaluation"].tolist() == [pd.NA] * 4 + ["heldout"]
    assert episodes["version"].tolist() == [pd.NA] * 4 + ["a-v0"]
    assert episodes["advantage"].tolist()[:2] == [0.5, -0.5]
    assert episodes["reward"].isna().tolist() == [False, False, True, True, False]
    assert episodes["void_reason"].tolist()[2] == "SandboxLost"


def test_groups_count_their_episodes_by_outcome() -> None:
    groups = frames.groups(scopes())
    counts = groups[["episodes", "resolved", "unresolved", "void", "unfinished"]].to_numpy().tolist()
    assert counts == [[4, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert groups["reward_std"].tolist() == [0.5, 0.0]


def test_voids_have_their_cause() -> None:
    voids = frames.voids(scopes())
    assert voids[["reason", "message", "iteration"]].to_numpy().tolist() == [["SandboxLost", "node n1 is gone", 1]]


def test_tokens_have_a_text_only_with_a_tokenizer() -> None:
    found = TypeAdapter(list[views.TokensView]).validate_json(recorded("tokens"))
    tokens = frames.tokens(found)
    assert tokens["id"].tolist() == [token for view in found for token in view.ids]
    assert tokens["logprob"].tolist() == [logprob for view in found for logprob in view.logprobs]
    assert tokens["text"].isna().all()
    with_text = found[0].model_copy(update={"has_text": True, "texts": ["a", "b"]})
    assert frames.tokens([with_text])["text"].tolist() == ["a", "b"]


def test_tokens_have_the_trainers_numbers_once_their_step_is_done() -> None:
    found = TypeAdapter(list[views.TokensView]).validate_json(recorded("tokens"))
    tokens = frames.tokens(found)
    assert tokens["trainer_logprob"].tolist() == [-0.5, -0.125, -0.5, -0.1]
    assert tokens["clipped"].tolist() == [False, True, False, False]
    before = frames.tokens([found[0].model_copy(update={"trainer": None})])
    assert before[["trainer_logprob", "ratio", "clipped"]].isna().all(axis=None)
    assert before.dtypes.to_dict() == tokens.dtypes.to_dict()


def test_without_rows_the_columns_and_their_types_stay() -> None:
    for empty, full in [
        (frames.episodes([]), frames.episodes(scopes())),
        (frames.groups([]), frames.groups(scopes())),
        (frames.voids([]), frames.voids(scopes())),
        (frames.iterations([]), frames.iterations(RUN.iterations)),
        (frames.curves([], None, False), frames.curves(RUN.curves, None, False)),
    ]:
        assert empty.empty
        assert empty.dtypes.to_dict() == full.dtypes.to_dict()


def test_parts_of_a_run_are_chosen_by_number_set_and_version() -> None:
    for iteration in (1, [1], pd.Series([1], dtype="Int64").iloc[0], pd.Series([1]), pd.Series([1]).to_numpy()):
        assert chosen(RUN, iteration, None, None) == [Scope("rollouts/iter-000001", iteration=1)]
    heldout = Scope("evaluations/heldout/a-v0", evaluation="heldout", version="a-v0")
    for evaluation, weights in [("heldout", None), (["heldout"], "a-v0"), (None, ["a-v0"])]:
        assert chosen(RUN, None, evaluation, weights) == [heldout]
    with pytest.raises(NotFound, match="no iteration 7; it has: 1"):
        chosen(RUN, [1, 7], None, None)
    with pytest.raises(NotFound, match="no evaluation train with any weights; it has: heldout with a-v0"):
        chosen(RUN, None, "train", None)
    with pytest.raises(ValueError, match="exclude each other"):
        chosen(RUN, 1, "heldout", None)


def test_a_newer_plugin_may_send_more_and_leave_out_what_is_optional() -> None:
    sent = json.loads(recorded("run"))
    sent["novel"] = {"a": 1}
    del sent["end"], sent["iterations"][0]["rewardMean"]
    view = views.RunView.model_validate(sent)
    assert view.end is None and view.iterations[0].reward_mean is None
    assert frames.iterations(view.iterations)["reward_mean"].isna().all()


def test_a_number_that_json_cannot_write_is_nan() -> None:
    curve = views.Curve.model_validate({"name": "loss", "of": "step", "x": [1, 2], "y": [0.5, None]})
    assert math.isnan(curve.y[1])
