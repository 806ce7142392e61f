"""Rows of KodCode: the files of a small program with a bug, and its tests. No image, no commit, no list of tests.

A row becomes complete by two scripts. `setup` writes the files into /testbed and commits them, with the same commit id
in every sandbox. `eval_script` runs kodcode_check.py, which restores the row's own tests and reports what each of them
did; `parse_log` reads that report.

The rule: a patch resolves a task if every test of the row passes. Nothing says which tests fail today, so all are in
`FAIL_TO_PASS`. Their names come from the row's own copy of the tests. All cases of a parametrised test must pass. A
skipped or expectedly failing test counts as passed if it did the same on the tree without the patch.

What has no say: test files that the policy changed, files that pytest or Python read by themselves (conftest.py,
pytest.ini, setup.cfg, pyproject.toml, sitecustomize.py, modules named as those of Python or pytest), compiled files,
what the program prints, its exit status, and a process that ends early. What is not defended, as in every dataset of
this kind: the policy's code runs in the process of the tests, and can change pytest's objects there.
"""

from __future__ import annotations

import ast
import base64
import gzip
import json
import os
import posixpath
import re
import shlex
import sys
import textwrap

from parts import END, START, RowFault, script, structure, text

FILES = "extra_info.files"
MOST_FILES = 64
MOST_BYTES = 1 << 20
LONGEST_PATH = 200
# The case that stands for what no name says: everything that was collected has passed, and nothing is missing.
WHOLE = "every collected test"
# As kodcode_check.py begins the line with its report.
REPORT = "kodcode-report: "
PASSED, FAILED = "PASSED", "FAILED"
# Read by pytest and Python before any test: a row that has one asks for what is switched off.
READ_UNASKED = {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"}
READ_UNASKED |= {"sitecustomize.py", "usercustomize.py"}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kodcode_check.py"), "rb") as _file:
    # Small: every completed row has it.
    CHECK = gzip.compress(_file.read(), mtime=0)

SETUP = """set -e
mkdir -p /testbed
cd /testbed
find . -mindepth 1 -delete
umask 022
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=core.autocrlf GIT_CONFIG_VALUE_1=false
export GIT_AUTHOR_NAME=task GIT_AUTHOR_EMAIL=task GIT_COMMITTER_NAME=task GIT_COMMITTER_EMAIL=task
export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
{files}
git init -q --template= .
git symbolic-ref HEAD refs/heads/task
mkdir -p .git/info
printf '%s\\n' __pycache__/ .pytest_cache/ > .git/info/exclude
git add -f -- {paths}
git update-ref refs/heads/task "$(git commit-tree "$(git write-tree)" -m task)"
"""


def complete(row: dict) -> dict:
    image = row.get("image")
    if not isinstance(image, str) or not image:
        raise RowFault("image", "the row names none: set image beside format: KodCode in tasks.train or tasks.evaluate")
    info = structure(row, "extra_info")
    if not isinstance(info, dict):
        raise RowFault("extra_info", "not an object")
    files = _files(info)
    tests = _test_files(info, files)
    cases = [case for path in tests for case in _cases(path, files[path])]
    if not cases:
        raise RowFault(FILES, f"{', '.join(tests)} has no test function or method by name")
    return {
        "instance_id": text(row, "instance_id"),
        "repo": "KodCode",
        "version": "1",
        "problem_statement": _statement(row),
        "image": image,
        "FAIL_TO_PASS": [*dict.fromkeys(cases), WHOLE],
        "PASS_TO_PASS": [],
        "eval_script": _eval_script(tests),
        "log_parser": "parse_log_kodcode",
        "eval_type": "pass_and_fail",
        "setup": _setup(files),
        "test_command": f"python -m pytest --tb=short -sq {' '.join(shlex.quote(path) for path in tests)}",
        "activate": "",
        "imports": _imports(files),
    }


def _statement(row: dict) -> str:
    """The statement, or the text of the prompt's last message of the user."""
    if row.get("problem_statement"):
        return text(row, "problem_statement")
    messages = structure(row, "prompt") if row.get("prompt") else []
    said = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    if not said or not isinstance(said[-1], str) or not said[-1]:
        raise RowFault("problem_statement", "missing or empty, and prompt has no message of the user")
    return said[-1]


def _files(info: dict) -> dict[str, str]:
    listed = structure(info, "files")
    if not isinstance(listed, list) or len(listed) > MOST_FILES:
        raise RowFault(FILES, f"not a list of at most {MOST_FILES} files")
    files = {}
    for file in listed:
        path, content = (file.get("path"), file.get("content")) if isinstance(file, dict) else (None, None)
        if not isinstance(path, str) or not isinstance(content, str):
            raise RowFault(FILES, "a file without path and content, both texts")
        if not _is_safe(path):
            raise RowFault(FILES, f"the path {path[:80]!r} is not one of a file below /testbed")
        if posixpath.basename(path) in READ_UNASKED:
            raise RowFault(FILES, f"{path} configures pytest or Python, which is switched off when patches are graded")
        if path in files:
            raise RowFault(FILES, f"{path} is there twice")
        files[path] = content
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    if both := sorted(folders & files.keys()):
        raise RowFault(FILES, f"{both[0]} is a file and a folder")
    try:
        size = sum(len(content.encode()) for content in files.values())
    except UnicodeEncodeError as error:
        raise RowFault(FILES, f"a text that cannot be written as UTF-8: {error}") from error
    if size > MOST_BYTES:
        raise RowFault(FILES, f"{size} bytes together, more than {MOST_BYTES}")
    return files


def _is_safe(path: str) -> bool:
    parts = path.split("/")
    return (
        len(path) <= LONGEST_PATH
        and re.fullmatch(r"[A-Za-z0-9_.+ -]+(/[A-Za-z0-9_.+ -]+)*", path) is not None
        and not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
        and not path.startswith("-")
    )


def _test_files(info: dict, files: dict[str, str]) -> list[str]:
    """What `entrypoint` names, such as `python -m pytest -s test.py`; test.py if it names none."""
    entrypoint = info.get("entrypoint")
    words = entrypoint.split() if isinstance(entrypoint, str) else []
    named = [posixpath.normpath(word.split("::")[0]) for word in words if word.split("::")[0].endswith(".py")]
    tests = [path for path in dict.fromkeys(named) if path in files] or ["test.py"]
    if tests[0] not in files:
        raise RowFault(FILES, "no test.py, and extra_info.entrypoint names no other of the files")
    if not files.keys() - set(tests):
        raise RowFault(FILES, "nothing beside the tests")
    return tests


def _cases(path: str, content: str) -> list[str]:
    """Names of the tests that pytest finds by name in a file, as in its node ids without parameters."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise RowFault(FILES, f"{path} is not Python: {error}") from error
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    cases = []
    for node in tree.body:
        if isinstance(node, functions) and node.name.startswith("test") and not _is_fixture(node):
            cases.append(f"{path}::{node.name}")
        if isinstance(node, ast.ClassDef) and _is_collected(node):
            methods = [item for item in node.body if isinstance(item, functions) and not _is_fixture(item)]
            cases += [f"{path}::{node.name}::{m.name}" for m in methods if m.name.startswith("test")]
    return cases


def _is_fixture(function: ast.AST) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def _is_collected(kind: ast.ClassDef) -> bool:
    if any("TestCase" in ast.unparse(base) for base in kind.bases):
        return True
    if any(isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__test__" for item in kind.body):
        return False
    is_made = any(isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__") for item in kind.body)
    return kind.name.startswith("Test") and not is_made


def _imports(files: dict[str, str]) -> list[str]:
    """Modules that the image must have: not the row's own, not Python's. pytest runs the tests."""
    own = {re.sub(r"\.py$", "", path.split("/")[0]) for path in files}
    found = {"pytest"}
    for path, content in files.items():
        if path.endswith(".py"):
            found |= _imported(content)
    return sorted(found - own - set(getattr(sys, "stdlib_module_names", sys.builtin_module_names)))


def _imported(content: str) -> set[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        # The bug may be that it is not Python.
        return set(re.findall(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", content, re.MULTILINE))
    found, pending = set(), [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Try) and any(_is_for_imports(handler) for handler in node.handlers):
            # The program does without.
            pending += [*node.handlers, *node.orelse, *node.finalbody]
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        pending += ast.iter_child_nodes(node)
    return found


def _is_for_imports(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else ""
    return not caught or re.search(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b", caught) is not None


def _written(target: str, content: bytes) -> str:
    """A command that writes a file. Base64 has no line that could end it."""
    lines = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 76))
    return f"base64 -d <<'END_OF_FILE' {target}\n{lines}\nEND_OF_FILE"


def _setup(files: dict[str, str]) -> str:
    commands = []
    for path, content in files.items():
        if folder := posixpath.dirname(path):
            commands.append(f"mkdir -p {shlex.quote(folder)}")
        commands.append(_written(f"> {shlex.quote(path)}", content.encode()))
    return SETUP.format(files="\n".join(commands), paths=" ".join(shlex.quote(path) for path in files))


def _eval_script(tests: list[str]) -> str:
    """The check lies outside of /testbed, in a folder that did not exist when the patch was made."""
    commands = [
        # One stream, so that the markers stand around the report.
        "exec 2>&1",
        "cd /testbed",
        "check=$(mktemp -d)",
        _written('| gzip -d > "$check/check.py"', CHECK),
        START,
        f'python3 -I -B "$check/check.py" /testbed {" ".join(shlex.quote(path) for path in tests)}',
        END,
    ]
    return script(commands)


def parse_log(log: str, spec) -> dict[str, str]:
    """Statuses of the row's cases. Exactly one report: a second one would be somebody else's."""
    reports = [line for line in log.split("\n") if line.startswith(REPORT)]
    try:
        report = json.loads(reports[0][len(REPORT) :]) if len(reports) == 1 else {}
        return _statuses(report["before"], report["after"], spec.FAIL_TO_PASS)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        # Not what kodcode_check.py writes: the log tells nothing.
        return {}


def _statuses(before: dict, after: dict, wanted: list[str]) -> dict[str, str]:
    outcomes, collected = after["outcomes"], after["collected"]
    is_whole = after["ended"] and not after["broken"] and all(test in outcomes for test in collected)

    def has_passed(test: str) -> bool:
        outcome = outcomes.get(test)
        is_excused = outcome in ("skipped", "xfailed") and before["outcomes"].get(test) == outcome
        return is_whole and (outcome == "passed" or is_excused)

    cases = {}
    for test in collected:
        cases.setdefault(_case(test), []).append(has_passed(test))
    # Where the row's tests could be collected without the patch, they say what is a test and what only looks like one.
    known = {_case(test) for test in before["collected"]} if before["collected"] and not before["broken"] else None
    statuses = {}
    for case in wanted:
        if case == WHOLE:
            good = bool(collected) and all(all(tests) for tests in cases.values()) and (known or set()) <= cases.keys()
        else:
            good = all(cases[case]) if case in cases else known is not None and case not in known
        statuses[case] = PASSED if good else FAILED
    return statuses


def _case(test: str) -> str:
    """The name without parameters."""
    return test.split("[")[0]
