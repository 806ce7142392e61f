"""From rows as their publishers have them to complete ones, which swebench 5 grades: a function for each format.

A complete row says by itself how it is graded: `image`, `eval_script`, `log_parser`, `eval_type` and the lists of
tests. `setup` is a script that every sandbox of the task runs before anything else, `hide` names what is then removed
where the policy works, `activate` is the environment of its commands, `workdir` the folder of the repository, if it is
not /testbed.
"""

from __future__ import annotations

import re
import shlex

import kodcode
import swe_rebench_v2
import tables
from parts import (
    DELIMITER,
    END,
    START,
    RowFault,
    commands_of,
    image_by_instance,
    image_of,
    script,
    structure,
    test_lists,
    test_patch_of,
    text,
)

CONDA = ". /opt/miniconda3/bin/activate && conda activate testbed"


def _eval_script(row: dict, specs: dict) -> str:
    """As swebench 4 made it: test files of the base commit, the test patch, the repository's test command."""
    arguments = (row, specs, "testbed", "/testbed", text(row, "base_commit"), text(row, "test_patch"))
    return script(tables.swebench4().eval_script_list(*arguments))


def swe_bench(row: dict) -> dict:
    """The columns of SWE-bench before version 5: test commands and parsers are those of swebench 4's tables."""
    known = tables.swebench4()
    repo, version = text(row, "repo"), text(row, "version")
    if repo not in known.specs or repo not in known.parsers:
        raise RowFault("repo", f"swebench 4 has no test command for {repo}, and the row has no eval_script")
    if "test_cmd" not in known.specs[repo].get(version, {}):
        raise RowFault("version", f"swebench 4 has no test command for version {version} of {repo}")
    return {
        **row,
        **test_lists(row),
        "image": image_of(row, image_by_instance("swebench", row, "_1776_")),
        "eval_script": _eval_script(row, known.specs[repo][version]),
        "log_parser": known.parsers[repo].__name__,
        "eval_type": "fail_only" if repo in known.fail_only else "pass_and_fail",
    }


def swe_rebench(row: dict) -> dict:
    """SWE-bench's columns, and `install_config` in the place of the tables."""
    config = structure(row, "install_config")
    if row.get("language") or (row.get("image_name") and not row.get("docker_image")):
        raise RowFault("(row)", "is one of SWE-rebench-V2: set format to SweRebenchV2, or leave it out")
    if not isinstance(config, dict) or not isinstance(config.get("test_cmd"), str):
        raise RowFault("install_config", "test_cmd is not a command")
    repo, version = text(row, "repo"), str(row.get("version") or "0")
    known, patch = tables.swebench4(), text(row, "test_patch")
    # Its test files are those that the patch leaves behind.
    deleted = set(re.findall(r"^diff --git a/(\S+) b/\S+\ndeleted file", patch, re.MULTILINE))
    files = [file for file in re.findall(r"^diff --git a/\S+ b/(\S+)$", patch, re.MULTILINE) if file not in deleted]
    files = [file for file in files if not file.endswith(tuple(known.non_test_extensions))]
    reset = " ".join(["git checkout", text(row, "base_commit"), *known.modified_files(patch)])
    commands = ["source /opt/miniconda3/bin/activate", "conda activate testbed", "cd /testbed"]
    commands += config.get("eval_commands") or []
    commands += ["git config --global --add safe.directory /testbed"]
    if config.get("install"):
        commands.append(config["install"])
    commands += [reset, f"git apply -v - <<'{DELIMITER}'\n{patch}\n{DELIMITER}"]
    commands += [START, " ".join([config["test_cmd"], *files]), END, reset]
    return {
        **row,
        **test_lists(row),
        "repo": repo,
        "version": version,
        "image": image_of(row, image_by_instance("swerebench", row, "_1776_")),
        "eval_script": script(commands),
        "log_parser": config.get("log_parser") or "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def swe_bench_live(row: dict) -> dict:
    """The Python tasks of SWE-bench-Live: commands in the row, pytest's log, no conda environment in the image.

    The script is that of <https://github.com/microsoft/SWE-bench-Live>, branch python-only (MIT licence).
    """
    commands = commands_of(row.get("test_cmds"), "test_cmds")
    if row.get("log_parser") != "pytest":
        raise RowFault(
            "log_parser",
            "not pytest: the grader does not run the programs in rows of SWE-bench-Live/MultiLang and Windows; "
            "use SWE-bench-Live/SWE-bench-Live",
        )
    patch = test_patch_of(row)
    files = tables.swebench4().modified_files(patch)
    reset = [" ".join(["git checkout", text(row, "base_commit"), *map(shlex.quote, files)])] if files else []
    script_lines = ["cd /testbed", "git config --global --add safe.directory /testbed", *reset]
    script_lines += [f"git apply --verbose --reject - <<'{DELIMITER}'\n{patch}\n{DELIMITER}"]
    script_lines += [START, *commands, END, *reset]
    shown = ("instance_id", "repo", "base_commit", "problem_statement", "hints_text", "created_at")
    shown += ("patch", "test_patch")
    return {
        **{field: row[field] for field in shown if row.get(field) is not None},
        **test_lists(row),
        "version": str(row.get("version") or "0"),
        "image": image_of(row, image_by_instance("starryzhang", row, "_1776_")),
        "eval_script": script(script_lines),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        # Its images have names like SWE-bench's, but its evaluation activates no environment.
        "activate": "",
    }


def swe_gym(row: dict) -> dict:
    """An evaluation script without markers, which ends at the first command that fails."""
    repo = text(row, "repo")
    if not row.get("eval_script"):
        raise RowFault(
            "eval_script",
            "missing, and the harness that makes it has no release; SumanthRH/SWE-Gym-Subset has rows with it",
        )
    if repo.lower() == "pydantic/pydantic":
        raise RowFault("repo", "SWE-Gym reads the logs of pydantic with a parser of its own, which has no release")
    lines = text(row, "eval_script").strip().split("\n")
    # Results are compared test by test, so one that fails must not hide the others.
    lines = [line for line in lines if line != "#!/bin/bash" and not re.fullmatch(r"set -[a-z]+( pipefail)?", line)]
    ends = [at for at, line in enumerate(lines) if line == DELIMITER]
    after = ends[-1] + 1 if ends else len(lines)
    reset = next((at for at in range(after, len(lines)) if lines[at].startswith("git checkout ")), len(lines))
    if not any(line.strip() for line in lines[after:reset]):
        raise RowFault("eval_script", f"no test command after the test patch, which ends with {DELIMITER}")
    # Theirs run without -u.
    marked = ["set +u", *lines[:after], START, *lines[after:reset], END, *lines[reset:]]
    return {
        **row,
        **test_lists(row),
        "image": image_of(row, image_by_instance("xingyaoww", row, "_s_")),
        "eval_script": script(marked),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


R2E_SETUP = """set -e
cd /testbed
mkdir -p .git/info
printf '%s\\n' /.venv /run_tests.sh /r2e_tests >> .git/info/exclude
mkdir -p /r2e
cp run_tests.sh /r2e/run_tests.sh
"""


def r2e(row: dict) -> dict:
    """R2E-Gym: hidden tests in the image, and the status that each of them has once the bug is fixed."""
    expected = _r2e_names(structure(row, "expected_output_json"))
    if not expected:
        raise RowFault("expected_output_json", "no test in it")
    statement = text(row, "problem_statement")
    issue = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.DOTALL)
    # pytest ends with 1 where a test fails, also where that is expected.
    fails = any(status != "PASSED" for status in expected.values())
    run = "bash /r2e/run_tests.sh || test $? -eq 1" if fails else "bash /r2e/run_tests.sh"
    commands = [
        "cd /testbed",
        'export PATH="/testbed/.venv/bin:$PATH"',
        "find . /r2e_tests -name '*.pyc' -delete",
        "rm -rf r2e_tests",
        "ln -s /r2e_tests r2e_tests",
        START,
        run,
        END,
        "rm -rf r2e_tests",
    ]
    return {
        "instance_id": text(row, "instance_id"),
        "repo": text(row, "repo_name"),
        "version": text(row, "commit_hash"),
        "problem_statement": issue.group(1).strip() if issue else statement,
        "image": image_of(row, "") or text(row, "docker_image"),
        "FAIL_TO_PASS": _r2e_cases(expected),
        "PASS_TO_PASS": [],
        "eval_script": script(commands),
        "log_parser": "parse_log_r2e",
        "eval_type": "pass_and_fail",
        "setup": R2E_SETUP,
        "hide": ["/r2e", "/r2e_tests", "/testbed/r2e_tests", "/testbed/run_tests.sh"],
        "activate": ". /testbed/.venv/bin/activate",
    }


def _r2e_names(statuses: dict) -> dict[str, str]:
    if not isinstance(statuses, dict):
        raise RowFault("expected_output_json", "not an object of tests and statuses")
    return {re.sub(r"\x1b\[\d+m", "", name).split(" - ")[0]: status for name, status in sorted(statuses.items())}


def _r2e_cases(statuses: dict[str, str]) -> list[str]:
    # A line without a test, such as an error of collection, counts by its number alone.
    return [f"{status} {name}" for name, status in statuses.items() if name] + [f"number of tests: {len(statuses)}"]


def parse_log_r2e(log: str, spec) -> dict[str, str]:
    """Equal sets of equal statuses: each test counts with its status in its name, and so does their number."""
    _, found, summary = re.sub(r"\x1b\[[0-9;]*m|\r", "", log).partition("short test summary info")
    statuses = {}
    for line in summary.split("\n") if found else []:
        status = next((status for status in ("PASSED", "FAILED", "ERROR") if status in line), None)
        # The script's own commands are in the log too.
        if status and not line.startswith("+"):
            statuses[".".join(line.split("::")[1:])] = status
    statuses = _r2e_names(statuses)
    if not statuses:
        return {}
    return {case: "PASSED" if case in spec.FAIL_TO_PASS else "FAILED" for case in _r2e_cases(statuses)}


# One commit without parents, the same in every sandbox: the commits before it have the code without the bug.
SMITH_SETUP = """set -e
cd /testbed
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_AUTHOR_NAME=task GIT_AUTHOR_EMAIL=task GIT_COMMITTER_NAME=task GIT_COMMITTER_EMAIL=task
export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
git update-index -q --refresh || true
git apply --index - <<'{delimiter}'
{patch}
{delimiter}
commit=$(git commit-tree "$(git write-tree)" -m task)
git symbolic-ref HEAD refs/heads/task
git for-each-ref --format='delete %(refname)' | git update-ref --no-deref --stdin
git update-ref refs/heads/task "$commit"
git remote | xargs -r -n1 git remote remove
rm -f .git/ORIG_HEAD .git/FETCH_HEAD
git reflog expire --expire=now --all
git gc -q --prune=now
"""


# Files with nothing but tests. The policy sees and can change them, and only some profiles name them.
SMITH_TESTS = [f"**/{name}/**" for name in ("test", "tests", "__tests__", "spec", "specs")]
SMITH_TESTS += [f"**/{name}" for name in ("test_*", "*_test.*", "*.test.*", "*Test.*", "*Tests.*")]
SMITH_TESTS += ["**/*_spec.*", "**/*.spec.*"]


def _smith_restore(files: list[str], patch: str) -> list[str]:
    # git restores no file of a command that names one it does not know: then each has a command of its own.
    quoted = " ".join(shlex.quote(file) for file in files)
    named = [f'git checkout HEAD -- {quoted} || for file in {quoted}; do git checkout HEAD -- "$file"; done']
    # The fix is in the files of the bug.
    bugs = sorted(set(re.findall(r"^(?:---|\+\+\+) [ab]/([^\t\n]+)", patch, re.MULTILINE)))
    but = [shlex.quote(f":(exclude,literal){file}") for file in bugs]
    tests = [" ".join(["git checkout HEAD --", shlex.quote(f":(glob){tests}"), *but]) for tests in SMITH_TESTS]
    return (named if files else []) + tests


def swe_smith(row: dict) -> dict:
    """SWE-smith: `patch` makes the bug; command and parser are the repository's profile."""
    tests, patch = test_lists(row), text(row, "patch")
    if DELIMITER in patch:
        raise RowFault("patch", f"has the line {DELIMITER}")
    profile = _profile(text(row, "repo"))
    command, _ = profile.get_test_cmd({**row, **tests})
    files = sorted({file for kind in profile.get_test_files({**row, **tests}) for file in kind})
    named = row.get("image_name")
    named = named if isinstance(named, str) and "/" in named else f"docker.io/{profile.image_name}:latest"
    return {
        "instance_id": text(row, "instance_id"),
        "repo": row["repo"],
        "version": profile.commit[:8],
        "problem_statement": text(row, "problem_statement"),
        "image": row.get("image") or named,
        **tests,
        "eval_script": script(["cd /testbed", *_smith_restore(files, patch), START, command, END]),
        "log_parser": "parse_log_swesmith",
        "eval_type": "pass_and_fail",
        "setup": SMITH_SETUP.format(delimiter=DELIMITER, patch=patch.rstrip("\n")),
        "activate": CONDA,
    }


def _profile(repo: str):
    try:
        return tables.swesmith_profiles().get(repo)
    except KeyError as error:
        raise RowFault("repo", f"swesmith has no profile of {repo}") from error


def parse_log_swesmith(log: str, spec) -> dict[str, str]:
    return _profile(spec.repo).log_parser(log)


FORMATS = {
    "SweBench": swe_bench,
    "SweGym": swe_gym,
    "R2E": r2e,
    "SweRebench": swe_rebench,
    "SweRebenchV2": swe_rebench_v2.complete,
    "SweBenchLive": swe_bench_live,
    "SweSmith": swe_smith,
    "KodCode": kodcode.complete,
}
PARSERS = {
    "parse_log_r2e": parse_log_r2e,
    "parse_log_swesmith": parse_log_swesmith,
    "parse_log_kodcode": kodcode.parse_log,
    **swe_rebench_v2.PARSERS,
}


def complete(format: str, row: dict) -> dict:
    try:
        return FORMATS[format](row)
    except tables.TablesMissing as error:
        raise RowFault("eval_script", f"missing, and cannot be made: {error}") from error
    except RowFault:
        raise
    except Exception as error:  # noqa: BLE001 - a row that breaks a table's function is one that cannot be graded
        raise RowFault("(row)", f"completing it failed: {type(error).__name__}: {error}") from error
