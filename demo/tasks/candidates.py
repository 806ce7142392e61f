"""Owns the search for tasks: which tests call a function, which of its mutants they catch, and which of those are taken."""

from __future__ import annotations

import collections
import difflib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import flips
from packages import PYTHON, Package

# Kinds of bug that training and validation tasks never have; the warm start and held-out tasks do.
RESERVED = {"and/or", "any/all"}
WANTED = {"train": 120, "validation": 16, "heldout": 32}
PER_FUNCTION = {"train": 2, "validation": 2, "heldout": 2}
TESTS = 3
ALIKE = 0.85


@dataclass(frozen=True)
class Candidate:
    package: Package
    path: str  # of the file, in /testbed
    function: flips.Function
    repair: flips.Flip
    buggy: tuple[str, ...]
    choices: int
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]

    @property
    def order(self) -> str:
        """Decides between equals, the same way every time, without favouring names."""
        key = f"{self.path}:{self.function.qualname}:{self.repair.old}>{self.repair.new}"
        return hashlib.sha256(key.encode()).hexdigest()

    def buggy_file(self, original: str) -> str:
        lines = original.split("\n")
        lines[self.function.first - 1 : self.function.last] = self.buggy
        return "\n".join(lines)


def run_tests(task: Path, testbed: Path, tests: list[str], limit: float = 60) -> dict[str, bool] | None:
    """Runs tests of a laid-out package against a working tree, as an image would; None where they take too long."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for item in task.iterdir():
            (here / item.name).symlink_to(item)
        shutil.copy(task / "run.py", here / "run2.py")
        (here / "run.py").unlink()
        (here / "run2.py").rename(here / "run.py")
        (here / "tests.txt").write_text("\n".join(tests) + "\n")
        command = [PYTHON, "-S", "-s", "-B", str(here / "run.py"), "report", str(testbed)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=testbed, env=ENVIRONMENT)
        except subprocess.TimeoutExpired:
            return None
    pairs = [line.split() for line in done.stdout.splitlines()]
    return {t: word == "PASSED" for word, t in pairs}


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def find(package: Package, laid_out: Path, test_files: list[str]) -> list[Candidate]:
    """Every mutant of the package that at least one of its functions' tests catches."""
    task, testbed = laid_out / "opt/task", laid_out / "testbed"
    record = Path(__file__).resolve().parent / "record.py"
    command = [PYTHON, "-S", "-s", "-B", str(record), str(testbed), *test_files]
    recorded = subprocess.run(command, capture_output=True, text=True, cwd=task, check=True, env=ENVIRONMENT)
    sys.stderr.write(recorded.stderr)
    calls = {t: {tuple(c) for c in cs} for t, cs in json.loads(recorded.stdout).items()}
    jobs = []
    for file in sorted(testbed.rglob("*.py")):
        path, text = str(file.relative_to(testbed)), file.read_text()
        for function in flips.functions(text):
            starts = {(path, n) for n in range(function.whole[0], function.whole[1] + 1)}
            tests = sorted((len(cs), t) for t, cs in calls.items() if cs & starts)[:TESTS]
            if tests:
                jobs.append((path, text, function, sorted(t for _, t in tests)))
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda job: _caught(package, task, testbed, *job), jobs)
        return [c for cs in found for c in cs]


def _caught(package: Package, task: Path, testbed: Path, path: str, text: str, function: flips.Function, tests: list[str]) -> list[Candidate]:
    out = []
    mutants = flips.mutants(function)
    if not mutants:
        return out
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "testbed"
        shutil.copytree(testbed, tree)
        before = run_tests(task, tree, tests)
        tests = [t for t in tests if before and before.get(t)]
        if not tests:
            return out
        for repair, buggy, choices in mutants:
            candidate = Candidate(package, path, function, repair, tuple(buggy), len(choices), (), ())
            (tree / path).write_text(candidate.buggy_file(text))
            after = run_tests(task, tree, tests)
            if after is None or set(after) != set(tests) or all(after.values()):
                continue
            failing = tuple(t for t in tests if not after[t])
            passing = tuple(t for t in tests if after[t])
            out.append(Candidate(package, path, function, repair, tuple(buggy), len(choices), failing, passing))
    return out


def alike(one: Candidate, other: Candidate) -> bool:
    """True for two functions that are nearly the same text, such as bump_minor and bump_patch."""
    if one.function == other.function and one.path == other.path:
        return False
    texts = ["\n".join(c.function.lines) for c in (one, other)]
    return difflib.SequenceMatcher(None, *texts, autojunk=False).ratio() > ALIKE


def choose(found: list[Candidate], split: str) -> list[Candidate]:
    """Takes one mutant per function, then a second and so on, preferring kinds taken least so far; reserved kinds as `split` allows.

    In that order: the first rows of a split are of as many functions as they can be, which is what evaluations of its first rows need.
    """
    by_function = collections.defaultdict(list)
    for one in found:
        if one.repair.kind in RESERVED and split != "heldout":
            continue
        by_function[(one.path, one.function.qualname)].append(one)
    taken: list[Candidate] = []
    kinds: collections.Counter[str] = collections.Counter()
    for _ in range(PER_FUNCTION[split]):
        first = len(taken)
        for key in sorted(by_function, key=lambda k: (len(by_function[k]), min(c.order for c in by_function[k]) if by_function[k] else "")):
            left = by_function[key]
            if not left or len(taken) == WANTED[split] or any(alike(left[0], c) for c in taken):
                continue
            best = min(left, key=lambda c: (c.repair.kind not in RESERVED, kinds[c.repair.kind], c.order))
            # A second mutant of a function is of another kind than the first.
            by_function[key] = [c for c in left if c.repair.kind != best.repair.kind]
            kinds[best.repair.kind] += 1
            taken.append(best)
        # The fixed training tasks are the first rows: in no order, they are of every package.
        in_order = {"train": lambda c: c.order}.get(split, lambda c: (c.package.name, c.path, c.function.first, c.order))
        taken[first:] = sorted(taken[first:], key=in_order)
    return taken
