"""Views as pandas DataFrames. Pure: the same views give the same frames, with the same columns also without rows."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel

from grpo.models.views import (
    Curve,
    EpisodeLine,
    EvaluationLine,
    Found,
    GroupLine,
    IterationLine,
    TokensView,
    VersionLine,
    VoidLine,
)
from grpo.scopes import Scope, ScopeOf

# Unix seconds in views; 0 is the time of what has not happened.
TIMES = frozenset({"at", "began", "batch", "stepped", "published", "promoted"})
TIME = "datetime64[s, UTC]"


def dtype_of(annotation: Any) -> str:
    """The dtype of a column. Columns that may lack values have dtypes with a missing value."""
    arguments = typing.get_args(annotation)
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    optional = is_union and type(None) in arguments
    if optional:
        kinds = [one for one in arguments if one is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else object
    if annotation is bool:
        return "boolean" if optional else "bool"
    if annotation is int:
        return "Int64" if optional else "int64"
    if annotation is float:
        return "float64"
    return "string" if annotation is str else "object"


def table(columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """Rows with these columns, by name and dtype."""
    rows = list(rows)
    data = {}
    for place, (name, dtype) in enumerate(columns.items()):
        values = [row[place] for row in rows]
        if dtype == TIME:
            times = pd.to_datetime(pd.Series([value or None for value in values], dtype="Int64"), unit="s", utc=True)
            data[name] = times.dt.as_unit("s")
        elif dtype == "float64":
            data[name] = pd.Series([float("nan") if value is None else value for value in values], dtype="float64")
        else:
            data[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(data, columns=list(columns))


def columns_of(model: type[BaseModel], without: Iterable[str] = ()) -> dict[str, str]:
    """The columns of a view's fields, in their order."""
    left_out = set(without)
    return {
        name: TIME if name in TIMES else dtype_of(field.annotation)
        for name, field in model.model_fields.items()
        if name not in left_out
    }


def lines(model: type[BaseModel], views: Iterable[BaseModel], without: Iterable[str] = ()) -> pd.DataFrame:
    """A row for each view."""
    columns = columns_of(model, without)
    return table(columns, ([getattr(view, name) for name in columns] for view in views))


def curves(found: Iterable[Curve], of: str | None, wide: bool) -> pd.DataFrame:
    """Curves as rows `name, of, x, value`; wide: a column for each curve, and a row for each x."""
    rows = [
        (one.name, one.of, x, y) for one in found if of in (None, one.of) for x, y in zip(one.x, one.y, strict=True)
    ]
    long = table({"name": "string", "of": "string", "x": "int64", "value": "float64"}, rows)
    return spread(long, of is not None) if wide else long


def spread(long: pd.DataFrame, single: bool) -> pd.DataFrame:
    """Long curves as columns: named by curve if all are of one kind, else by kind and curve."""
    columns = ["name"] if single else ["of", "name"]
    columns = [*(["run"] if "run" in long.columns else []), *columns]
    return long.pivot_table(index="x", columns=columns if len(columns) > 1 else columns[0], values="value", sort=True)


def iterations(found: Iterable[IterationLine]) -> pd.DataFrame:
    frame = lines(IterationLine, found)
    frame.insert(list(frame.columns).index("resolved") + 1, "resolved_rate", frame["resolved"] / frame["verdicts"])
    return frame


def evaluations(found: Iterable[EvaluationLine]) -> pd.DataFrame:
    frame = lines(EvaluationLine, found)
    frame.insert(list(frame.columns).index("resolved") + 1, "resolved_rate", frame["resolved"] / frame["verdicts"])
    return frame


def versions(found: Iterable[VersionLine]) -> pd.DataFrame:
    return lines(VersionLine, found)


SCOPE = {"scope": "string", "iteration": "Int64", "evaluation": "string", "version": "string"}


def _scope(of: Scope) -> list[Any]:
    return [of.path, of.iteration, of.evaluation, of.version]


# The other fields of an episode follow in their order.
FIRST = ("path", "instance", "group", "sample", "attempt", "outcome", "void_reason", "reward", "advantage", "end")


def episodes(found: Iterable[ScopeOf]) -> pd.DataFrame:
    """A row for each attempt of an episode. `dropped`: why its group is not in the batch."""
    known = columns_of(EpisodeLine)
    fields = {name: known[name] for name in (*FIRST, *(name for name in known if name not in FIRST))}
    rows = (
        [*_scope(scope), group.dropped, *(getattr(line, name) for name in fields)]
        for scope, view in found
        for group in view.groups
        for line in group.episodes
    )
    return table({**SCOPE, "dropped": "string", **fields}, rows)


def groups(found: Iterable[ScopeOf]) -> pd.DataFrame:
    """A row for each group, with its numbers of episodes by outcome."""
    fields = columns_of(GroupLine, without=["episodes"])
    counts = {"episodes": "int64", "resolved": "int64", "unresolved": "int64", "void": "int64", "unfinished": "int64"}
    rows = []
    for scope, view in found:
        for group in view.groups:
            outcomes = [line.outcome.lower() for line in group.episodes]
            numbers = [len(outcomes), *(outcomes.count(name) for name in list(counts)[1:])]
            rows.append([*_scope(scope), *(getattr(group, name) for name in fields), *numbers])
    return table({**SCOPE, **fields, **counts}, rows)


def voids(found: Iterable[ScopeOf]) -> pd.DataFrame:
    """A row for each void attempt."""
    fields = columns_of(VoidLine)
    rows = ([*_scope(scope), *(getattr(line, name) for name in fields)] for scope, view in found for line in view.voids)
    return table({**SCOPE, **fields}, rows)


def tokens(found: Iterable[TokensView]) -> pd.DataFrame:
    """A row for each sampled token. Without a tokenizer, `text` has missing values; without a step that had the
    episode, so have the trainer's columns."""
    columns = {
        "turn": "int64",
        "place": "int64",
        "id": "int64",
        "text": "string",
        "logprob": "float64",
        "weights": "string",
        "trainer_logprob": "float64",
        "entropy": "float64",
        "ratio": "float64",
        "clipped": "boolean",
        "left_out": "boolean",
    }
    rows = (
        (view.turn, place, token, text, logprob, view.weights, *_of_trainer(view, place))
        for view in found
        for place, (token, logprob, text) in enumerate(
            zip(view.ids, view.logprobs, view.texts if view.has_text else [None] * len(view.ids), strict=True)
        )
    )
    return table(columns, rows)


def _of_trainer(view: TokensView, place: int) -> tuple[float | bool | None, ...]:
    if view.trainer is None:
        return (None, None, None, None, None)
    of = view.trainer
    return (of.logprobs[place], of.entropies[place], of.ratios[place], of.clipped[place], of.left_out[place])


def search(found: Iterable[Found]) -> pd.DataFrame:
    return lines(Found, found)
