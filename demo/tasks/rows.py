"""Owns what a task is: its repository with the bug committed, its SWE-bench-shaped row and its evaluation script."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from candidates import Candidate
from packages import bytecode, precompile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))
import conversations as say  # noqa: E402

IMAGE = "grpo.dev/demo/task/{}:1"
COMMITTED = {
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@grpo.dev",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@grpo.dev",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "PATH": os.environ["PATH"],
}

EVALUATE = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
# The tests lie outside the tree. Where they are not the ones of the image, nothing they say counts.
if [ "$(cd /opt/task && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64)" != "{digest}" ]; then
  echo '>>>>> Reset Failed'
  exit 1
fi
echo '>>>>> Start Test Output'
env -i PATH=/usr/bin:/bin LANG=C.UTF-8 PYTHONHASHSEED=0 python3 -S -s -B /opt/task/run.py report
echo '>>>>> End Test Output'
"""


def evaluation(digest: str) -> str:
    return EVALUATE.format(digest=digest)


def instance_id(one: Candidate) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", f"{Path(one.path).stem} {one.function.qualname} {one.repair.kind}".lower()).strip("-")
    return f"{one.package.name}__{name}-{one.order[:4]}"


def task_digest(*folders: Path) -> str:
    """What the evaluation script computes over /opt/task once the layers lie over each other."""
    files = {}
    for folder in folders:
        for path in sorted((folder / "opt/task").rglob("*")):
            if path.is_file():
                files["./" + str(path.relative_to(folder / "opt/task"))] = path
    lines = [f"{hashlib.sha256(files[n].read_bytes()).hexdigest()}  {n}\n" for n in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_task(one: Candidate, package_folder: Path, image_files: Path, into: Path) -> dict:
    """Writes the task's own layer to `into` and returns its row."""
    original = (package_folder / "testbed" / one.path).read_text()
    buggy = one.buggy_file(original)
    testbed = into / "testbed"
    shutil.copytree(package_folder / "testbed", testbed)
    (testbed / one.path).write_text(buggy)
    commit = _commit(testbed)
    precompile(testbed / one.path, into)
    own = {testbed / one.path, bytecode(testbed / one.path)}
    # The package's layer holds the other files.
    for path in sorted(testbed.rglob("*"), reverse=True):
        inner = path.relative_to(testbed)
        if inner.parts[0] == ".git" or path in own:
            continue
        if path.is_file():
            path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
    shutil.copy(image_files / "t", testbed / "t")
    (into / "opt/task").mkdir(parents=True)
    tests = sorted(one.fail_to_pass + one.pass_to_pass)
    (into / "opt/task/tests.txt").write_text("\n".join(tests) + "\n")
    diff = difflib.unified_diff(
        buggy.splitlines(keepends=True), original.splitlines(keepends=True), f"a/{one.path}", f"b/{one.path}"
    )
    name = instance_id(one)
    first, last = one.function.first, one.function.last
    return {
        "instance_id": name,
        "repo": one.package.repo,
        "version": one.package.version,
        "base_commit": commit,
        "environment_setup_commit": commit,
        "created_at": "2026-01-01T00:00:00Z",
        "problem_statement": say.problem(one.package.name, one.function.name, first, last),
        "hints_text": "",
        "patch": f"diff --git a/{one.path} b/{one.path}\n" + "".join(diff),
        "test_patch": "",
        "FAIL_TO_PASS": json.dumps(list(one.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(list(one.pass_to_pass)),
        "image": IMAGE.format(name),
        "eval_script": evaluation(task_digest(package_folder, into)),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "split": one.package.split,
        "package": one.package.name,
        "function": f"{one.package.name}:{one.path}:{one.function.qualname}",
        "file": one.path,
        "lines": [first, last],
        "bug_kind": one.repair.kind,
        "repair": [one.repair.old, one.repair.new],
        "possible_flips": one.choices,
    }


def _commit(testbed: Path) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=testbed, env=COMMITTED, check=True, capture_output=True, text=True).stdout

    git("init", "-q", "-b", "main", "--template=")
    (testbed / ".git/info").mkdir()
    (testbed / ".git/info/exclude").write_text("/t\n__pycache__/\n")
    git("add", "-A")
    git("commit", "-q", "-m", "Base")
    commit = git("rev-parse", "HEAD").strip()
    # An index without file times, so that the layer repeats.
    (testbed / ".git/index").unlink()
    git("read-tree", "HEAD")
    shutil.rmtree(testbed / ".git/logs", ignore_errors=True)
    (testbed / ".git/COMMIT_EDITMSG").unlink()
    return commit
