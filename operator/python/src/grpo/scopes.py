"""The parts of a run that have episodes: its iterations, and the evaluations of its sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import NamedTuple, SupportsIndex

from grpo.errors import NotFound
from grpo.models.views import RunView, ScopeView

Iterations = SupportsIndex | Iterable[SupportsIndex] | None
Names = str | Iterable[str] | None


@dataclass(frozen=True)
class Scope:
    """An iteration, or an evaluation of a set with a version of the weights."""

    path: str
    iteration: int | None = None
    evaluation: str | None = None
    version: str | None = None


class ScopeOf(NamedTuple):
    """A scope with its view."""

    scope: Scope
    view: ScopeView


def _numbers(given: Iterations) -> list[int]:
    # A number of a frame is NumPy's, and no int. An array of them has __index__ too.
    if isinstance(given, Iterable):
        return [index(number) for number in given]
    return [] if given is None else [index(given)]


def _names(given: Names) -> list[str] | None:
    return [given] if isinstance(given, str) else None if given is None else list(given)


def chosen(
    view: RunView,
    iteration: Iterations,
    evaluation: Names,
    weights: Names,
) -> list[Scope]:
    """The scopes that a user named. Without a name: all."""
    if iteration is not None and (evaluation is not None or weights is not None):
        raise ValueError("iteration and evaluation exclude each other: weights= chooses the version of an evaluation")
    iterations = [Scope(line.scope, iteration=line.iteration) for line in view.iterations]
    evaluations = [Scope(line.scope, evaluation=line.set, version=line.weights) for line in view.evaluations]
    if iteration is not None:
        wanted = _numbers(iteration)
        found = [scope for scope in iterations if scope.iteration in wanted]
        missing = set(wanted) - {scope.iteration for scope in found}
        if missing:
            there = ", ".join(str(scope.iteration) for scope in iterations[-20:]) or "none yet"
            raise NotFound(f"run {view.name} has no iteration {', '.join(map(str, sorted(missing)))}; it has: {there}")
        return found
    if evaluation is not None or weights is not None:
        sets, versions = _names(evaluation), _names(weights)
        found = [
            scope
            for scope in evaluations
            if (sets is None or scope.evaluation in sets) and (versions is None or scope.version in versions)
        ]
        if not found:
            there = ", ".join(f"{scope.evaluation} with {scope.version}" for scope in evaluations) or "none yet"
            raise NotFound(
                f"run {view.name} has no evaluation {evaluation or ''} with {weights or 'any weights'}; it has: {there}"
            )
        return found
    return iterations + evaluations
