"""Runs whose records are read: frames and typed views of one run, and curves of several side by side."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex

import pandas as pd
from pydantic import TypeAdapter

from grpo import frames, programs
from grpo.errors import RecordsError, ViewerError
from grpo.models.views import (
    EpisodeDetail,
    GroupView,
    LogView,
    RunsView,
    RunView,
    ScopeView,
    SearchView,
    TaskView,
    TokensView,
)
from grpo.scopes import Iterations, Names, Scope, ScopeOf, chosen
from grpo.viewer import Progress, Viewer, quoted

if TYPE_CHECKING:
    # Of typing only from Python 3.11 on.
    from typing_extensions import Self

RUNS = TypeAdapter(RunsView)
RUN = TypeAdapter(RunView)
SCOPE = TypeAdapter(ScopeView)
GROUP = TypeAdapter(GroupView)
EPISODE = TypeAdapter(EpisodeDetail)
TOKENS = TypeAdapter(list[TokensView])
TASK = TypeAdapter(TaskView)
SEARCH = TypeAdapter(SearchView)
LOG = TypeAdapter(LogView)


# The plugin reads metrics after the journal, and no view says when it has them all. Without news for so long, it has.
QUIET_SECONDS = 3.0
# Then the viewer is asked whether it has a problem.
DOUBT_SECONDS = 1.0
SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 0.5


class _Opened:
    """Something that a plugin reads. It is a context manager that ends the plugin."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the plugin. It deletes its reader pod, if it made one."""
        self._viewer.close()


class Run(_Opened):
    """The records of one run. Made by `grpo.open`; a context manager that ends the plugin."""

    def __init__(self, viewer: Viewer, number: int, folder: Path | None, seconds: float) -> None:
        super().__init__(viewer)
        self._number = number
        self._folder = folder
        self._seconds = seconds
        self._settled = False

    @property
    def view(self) -> RunView:
        """The run as a whole, as it is now, once all its records so far have been read."""
        began = changed = time.monotonic()
        progress = Progress("reading the run's journal and metrics")
        known: tuple[int, int] | None = None
        pause = SHORTEST_PAUSE
        while True:
            view = self._viewer.get(f"{self._number}/run", RUN)
            now = time.monotonic()
            state = (view.sequence, sum(len(curve.x) for curve in view.curves))
            if state != known:
                known, changed = state, now
            if not view.reading and (self._settled or self._is_whole(view)):
                self._settled = True
                return view
            problem = self._viewer.problem(self._number) if now - changed >= DOUBT_SECONDS else None
            # The plugin connects to a cluster again, and a folder does not change.
            if problem is not None and (self._folder is not None or now - began >= self._seconds):
                raise RecordsError(f"reading the records: {problem}")
            if not view.reading and problem is None and now - changed >= QUIET_SECONDS:
                self._settled = True
                return view
            if now - began >= self._seconds:
                raise ViewerError(
                    f"the records are not read after {self._seconds:g} s: {view.sequence} journal entries were; "
                    "give `seconds` to wait longer, or copy the store (`kubectl grpo copy`) and open the folder"
                )
            progress.show(problem or f"{view.sequence} entries, {state[1]} points of curves")
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _is_whole(self, view: RunView) -> bool:
        """Whether metrics of all iterations and steps in the journal are in the curves."""
        if view.sequence == 0:
            return False
        if self._folder is not None and not (self._folder / "metrics").is_dir():
            return True
        last = {
            "iteration": max((line.iteration for line in view.iterations if line.batch is not None), default=0),
            "step": max((line.step or 0 for line in view.iterations if line.stepped is not None), default=0),
        }
        there = {
            of: max((curve.x[-1] for curve in view.curves if curve.of == of and curve.x), default=0) for of in last
        }
        return all(there[of] >= x for of, x in last.items())

    def curves(self, of: str | None = None, wide: bool = False) -> pd.DataFrame:
        """All metrics: rows `name, of, x, value`. `of` is `iteration`, `step`, or the name of a set.

        `wide=True` gives a column for each curve: `curves("step", wide=True)["loss"]`, and without `of`
        `curves(wide=True)["step"]["loss"]`.
        """
        return frames.curves(self.view.curves, of, wide)

    def iterations(self) -> pd.DataFrame:
        """A row for each iteration."""
        return frames.iterations(self.view.iterations)

    def evaluations(self) -> pd.DataFrame:
        """A row for each evaluation of a set."""
        return frames.evaluations(self.view.evaluations)

    def versions(self) -> pd.DataFrame:
        """A row for each version of the weights."""
        return frames.versions(self.view.versions)

    def episodes(self, iteration: Iterations = None, evaluation: Names = None, weights: Names = None) -> pd.DataFrame:
        """A row for each attempt of an episode: of an iteration, of an evaluation with `weights`, or of all."""
        return frames.episodes(self._scopes(iteration, evaluation, weights))

    def groups(self, iteration: Iterations = None, evaluation: Names = None, weights: Names = None) -> pd.DataFrame:
        """A row for each group: the samples of one task."""
        return frames.groups(self._scopes(iteration, evaluation, weights))

    def voids(self, iteration: Iterations = None, evaluation: Names = None, weights: Names = None) -> pd.DataFrame:
        """A row for each attempt that became void, with its cause."""
        return frames.voids(self._scopes(iteration, evaluation, weights))

    def _scopes(self, iteration: Iterations, evaluation: Names, weights: Names) -> Iterator[ScopeOf]:
        # Not lazily: wrong arguments are an error of the call.
        return self._read(chosen(self.view, iteration, evaluation, weights))

    def _read(self, scopes: Sequence[Scope]) -> Iterator[ScopeOf]:
        progress = Progress("reading episodes")
        for place, scope in enumerate(scopes):
            progress.show(f"{place} of {len(scopes)} iterations and evaluations")
            view = self._viewer.get(f"{self._number}/scope/{scope.path}", SCOPE)
            if view.cut:
                warnings.warn(
                    f"{view.title} has more episodes than the plugin shows: the others are left out", stacklevel=4
                )
            yield ScopeOf(scope, view)

    def group(
        self,
        number: SupportsIndex,
        iteration: SupportsIndex | None = None,
        evaluation: str | None = None,
        weights: str | None = None,
    ) -> GroupView:
        """The samples of a task side by side, with their turns and the first token that differs."""
        scopes = chosen(self.view, iteration, evaluation, weights)
        if len(scopes) != 1:
            raise ValueError(
                f"a group is part of one iteration or evaluation, and {len(scopes)} were named: "
                "give iteration=, or evaluation= and weights="
            )
        return self._viewer.get(f"{self._number}/group/{scopes[0].path}/{int(number)}", GROUP)

    def episode(self, path: str) -> EpisodeDetail:
        """One episode: turns, patch, verdict, reward in parts. `path`: as in the column `path` of `episodes`."""
        return self._viewer.get(f"{self._number}/episode/{quoted(path)}", EPISODE)

    def tokens(self, path: str) -> pd.DataFrame:
        """A row for each sampled token of an episode: the engine's logprob, and what the trainer's step computed."""
        views = self._viewer.get(f"{self._number}/tokens/{quoted(path)}", TOKENS)
        return frames.tokens(views)

    def task(self, instance: str) -> TaskView:
        """The episodes of a task over the run."""
        return self._viewer.get(f"{self._number}/task/{quoted(instance)}", TASK)

    def search(self, text: str) -> pd.DataFrame:
        """Episodes with all these words in their name, outcome or text, the newest first, at most 200.

        `attrs["all"]` is the number of all that fit. Texts are searched in a folder only; the call waits until they
        are read.
        """
        _ = self.view
        progress = Progress("reading the texts of episodes")
        began = time.monotonic()
        while True:
            found = self._viewer.get(f"{self._number}/search?q={quoted(text)}", SEARCH)
            if self._folder is None or found.read >= found.ended:
                break
            if time.monotonic() - began >= self._seconds:
                raise ViewerError(
                    f"the texts of {found.read} of {found.ended} episodes are read after {self._seconds:g} s; "
                    "search again, or give `seconds` to grpo.open"
                )
            progress.show(f"{found.read} of {found.ended}")
            time.sleep(LONGEST_PAUSE / 5)
        frame = frames.search(found.found)
        frame.attrs["all"] = found.all
        return frame

    def log(self, path: str, most: int = 16 << 20) -> str:
        """The grader's log of an episode. After `most` bytes it is cut, with a warning."""
        parts, start = [], 0
        while True:
            part = self._viewer.get(f"{self._number}/log/{quoted(path)}?from={start}", LOG)
            parts.append(part.text)
            if not part.more:
                return "".join(parts)
            if part.to >= most or part.to <= start:
                warnings.warn(f"the log of {path} is longer than {part.to} bytes: `most` reads more", stacklevel=2)
                return "".join(parts)
            start = part.to


class Runs(_Opened):
    """Several runs in one plugin. Made by `grpo.compare`; a context manager that ends the plugin."""

    def __init__(self, viewer: Viewer, runs: Sequence[Run], names: Sequence[str]) -> None:
        super().__init__(viewer)
        self._runs = list(runs)
        self.names = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names)]
        """What the column `run` calls them, in the order in which they were given: folders first."""

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, place: int) -> Run:
        return self._runs[place]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def curves(self, of: str | None = None, wide: bool = False) -> pd.DataFrame:
        """The curves of all runs, with their names in the column `run`; wide: above the columns."""
        long = self._joined([run.curves(of) for run in self._runs])
        return frames.spread(long, of is not None) if wide else long

    def iterations(self) -> pd.DataFrame:
        """The iterations of all runs."""
        return self._joined([run.iterations() for run in self._runs])

    def evaluations(self) -> pd.DataFrame:
        """The evaluations of all runs."""
        return self._joined([run.evaluations() for run in self._runs])

    def _joined(self, found: list[pd.DataFrame]) -> pd.DataFrame:
        for name, frame in zip(self.names, found, strict=True):
            frame.insert(0, "run", pd.Series([name] * len(frame), dtype="string"))
        return pd.concat(found, ignore_index=True)


def _start(
    names: Sequence[str],
    folders: Sequence[str | os.PathLike[str]],
    cluster: programs.Cluster,
    reader_image: str | None,
    start_seconds: float,
    seconds: float,
) -> tuple[Viewer, list[Run]]:
    words = [programs.plugin(), "ui", "--port", "0", *cluster.flags()]
    words += [f"--from={os.fspath(folder)}" for folder in folders]
    words += [] if reader_image is None else [f"--reader-image={reader_image}"]
    words += ["--", *names] if names else []
    viewer = Viewer(words, start_seconds)
    # The plugin numbers folders first.
    places = [*(Path(folder) for folder in folders), *(None for _ in names)]
    return viewer, [Run(viewer, number, folder, seconds) for number, folder in enumerate(places)]


def open(
    name: str | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
    reader_image: str | None = None,
    start_seconds: float = 300.0,
    seconds: float = 600.0,
) -> Run:
    """Opens the records of a run of the cluster, or of a copied store (`kubectl grpo copy`).

    `start_seconds` bounds the start of the plugin, which may wait for a reader pod; `seconds` bounds the reading of
    the journal and metrics.
    """
    if (name is None) == (folder is None):
        raise ValueError("give the name of a run, or folder= with a copied store")
    cluster = programs.Cluster(namespace, context, kubeconfig)
    names, folders = ([], [folder]) if folder is not None else ([name or ""], [])
    _, runs = _start(names, folders, cluster, reader_image, start_seconds, seconds)
    return runs[0]


def compare(
    names: Sequence[str] = (),
    *,
    folders: Sequence[str | os.PathLike[str]] = (),
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
    reader_image: str | None = None,
    start_seconds: float = 300.0,
    seconds: float = 600.0,
) -> Runs:
    """Opens several runs at once. Folders come first, then runs of the cluster."""
    if isinstance(names, str) or not (names or folders):
        raise ValueError("give a list with the names of runs, or folders= with copied stores")
    cluster = programs.Cluster(namespace, context, kubeconfig)
    viewer, runs = _start(names, folders, cluster, reader_image, start_seconds, seconds)
    try:
        shown = viewer.get("runs", RUNS).runs
    except BaseException:
        viewer.close()
        raise
    return Runs(viewer, runs, shown)
