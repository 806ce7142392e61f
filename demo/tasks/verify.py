"""Owns the proof that a task is one: in a chroot of its layers, with swebench's own grading of what its tests print."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))
import conversations as say  # noqa: E402
from swebench.harness.grading import get_eval_report  # noqa: E402
from swebench.harness.utils import make_test_spec  # noqa: E402

# In a mount namespace of its own, so that nothing stays mounted. $1 = scratch folder, $2 = lower folders.
MOUNT = """
set -e
mount -t tmpfs none "$1" && mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/up,workdir=$1/work" "$1/root"
mkdir -p "$1/root/dev" "$1/root/proc" "$1/root/tmp" && mount --bind /dev "$1/root/dev"
cat > "$1/root/tmp/check"
exec env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root F="$3" /usr/sbin/chroot "$1/root" /bin/bash /tmp/check
"""


def in_image(layers: list[Path], file: str, script: str) -> str:
    """Runs a script in the image that the layers (top first) make; returns its output, errors included."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["unshare", "-m", "bash", "-c", MOUNT, "mount", scratch, ":".join(map(str, layers)), file]
        done = subprocess.run(command, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.stdout


def grade(row: dict, log: str) -> dict:
    spec = make_test_spec(row)
    prediction = dict(instance_id=row["instance_id"], model_patch=row["patch"], model_name_or_path="check")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(log)
        file.flush()
        return get_eval_report(spec, prediction, file.name, True)[row["instance_id"]]


def script(row: dict, extra: str = "") -> str:
    first, last = row["lines"]
    old, new = row["repair"]
    cut = "echo ====="
    evaluate = f"bash /tmp/eval 2>&1; {cut}"
    return "\n".join(
        [
            "cd /testbed",
            f"cat > /tmp/eval <<'EOF_EVAL_SCRIPT'\n{make_test_spec(row).eval_script}\nEOF_EVAL_SCRIPT",
            f"cat > /tmp/gold <<'EOF_GOLD_PATCH'\n{row['patch']}EOF_GOLD_PATCH",
            f"git status --porcelain; git rev-parse HEAD; {cut}",
            f"{_command(say.look(first, last))}; {cut}",
            f"sh t; {cut}",
            evaluate,
            f"git apply --whitespace=nowarn /tmp/gold; sh t; {cut}",
            evaluate,
            f"git checkout -q .; git status --porcelain; sh t; {cut}",
            f"{_command(say.edit(first, last, old, new, True))}; git diff > /tmp/made; git apply -R --whitespace=nowarn /tmp/gold; git status --porcelain; {cut}",
            extra,
        ]
    )


def _command(turn: str) -> str:
    return turn.split("\n")[2]


def check(row: dict, layers: list[Path], excerpt: list[str]) -> str | None:
    """What is wrong with a task, or None."""
    parts = in_image(layers, row["file"], script(row)).split("=====\n")
    if len(parts) != 9:
        return f"the check broke off: {parts[-1][-300:]}"
    expected = {
        0: row["base_commit"] + "\n",
        1: say.numbered(excerpt, row["lines"][0]) + "\n",
        2: "1 failed\n",
        4: "1 passed\n",
        6: "1 failed\n",
        7: "1 passed\n",
    }
    for i, text in expected.items():
        if parts[i] != text:
            return f"step {i} printed {parts[i]!r}, not {text!r}"
    empty, gold = grade(row, parts[3]), grade(row, parts[5])
    if empty["resolved"] or not empty["patch_successfully_applied"]:
        return f"without a patch: {empty}"
    if empty["tests_status"]["FAIL_TO_PASS"]["success"] or empty["tests_status"]["PASS_TO_PASS"]["failure"]:
        return f"without a patch, other tests fail than should: {empty}"
    if not gold["resolved"]:
        return f"with the gold patch: {gold} {parts[5][-500:]}"
    return None


# Attempts to pass without repairing: each must stay unresolved.
FORGERIES = {
    "prints what the parser reads": "print('>>>>> Start Test Output\\n' + ''.join('PASSED %s\\n' % t for t in {tests!r}))",
    "leaves early and well": "import os; os._exit(0)",
    "leaves by SystemExit": "raise SystemExit(0)",
}


def forge(row: dict, layers: list[Path]) -> str | None:
    tests = json.loads(row["FAIL_TO_PASS"])
    for name, line in FORGERIES.items():
        code = line.format(tests=tests)
        body = f"cat > /tmp/eval <<'EOF_E'\n{make_test_spec(row).eval_script}\nEOF_E\ncd /testbed\nsed -i '1{{h;s/.*//;G}}' $F\ncat > /tmp/head <<'EOF_H'\n{code}\nEOF_H\n"
        log = in_image(layers, row["file"], body + "cat /tmp/head $F > /tmp/new; cp /tmp/new $F; bash /tmp/eval 2>&1")
        if grade(row, log)["resolved"]:
            return f"a tree that {name} was graded as resolved"
    tampered = f"cat > /tmp/eval <<'EOF_E'\n{make_test_spec(row).eval_script}\nEOF_E\necho > /opt/task/tests.txt; bash /tmp/eval 2>&1"
    if grade(row, in_image(layers, row["file"], tampered))["patch_successfully_applied"]:
        return "changed tests were taken for the image's"
    return None


def extract(tar: Path, into: Path) -> None:
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(into), "-xpf", str(tar)], check=True)
