"""Rows of SWE-rebench-V2: 20 languages, an image for each row, test commands and the name of a log parser in the row.

A row becomes complete by two scripts. `setup` brings the repository, /NAME for the repository OWNER/NAME, to its commit
in every sandbox, and removes the names of later commits. `eval_script` applies the test patch with the options of the
publisher's evaluation and runs the test commands, which end at the first one that fails.

The rule: a patch resolves a task if every test of both lists has the status PASSED. Names are compared without the
durations that some test programs append to them. The exit status of the commands does not count: tests that fail before
and after the fix are in no list.

Parsers are those of swebench 5 where both give the same tests the status PASSED; the others are below. A row that names
a further parser cannot be graded. Commands, durations and parsers follow scripts/eval.py and lib/agent/log_parsers.py
of <https://github.com/SWE-rebench/SWE-rebench-V2>, commit c71902a (MIT licence, Copyright (c) 2026 SWE-rebench).
"""

from __future__ import annotations

import functools
import re

from parts import (
    DELIMITER,
    END,
    START,
    RowFault,
    commands_of,
    image_of,
    script,
    structure,
    test_lists,
    test_patch_of,
    text,
)

# Sets these parsers apart from those of swebench 5 with the same names, for which XFAIL and SKIPPED may count too.
PREFIX = "swe_rebench_v2."
PASSED, FAILED, SKIPPED, ERROR = "PASSED", "FAILED", "SKIPPED", "ERROR"

SETUP = """set -e
cd {directory}
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
git reset -q --hard HEAD
git for-each-ref --format='delete %(refname)' --no-merged=HEAD | git update-ref --no-deref --stdin
rm -f .git/ORIG_HEAD .git/FETCH_HEAD
git reflog expire --expire=now --all
"""

# What a prompt may show. Texts of the pull request and its classification describe the fix.
SHOWN = ("instance_id", "repo", "language", "interface", "problem_statement", "created_at", "license")
SHOWN += ("base_commit", "patch", "test_patch")


def complete(row: dict) -> dict:
    config = structure(row, "install_config")
    if not isinstance(config, dict):
        raise RowFault("install_config", "not an object")
    commands = commands_of(config.get("test_cmd"), "install_config.test_cmd")
    parser = config.get("log_parser")
    if PREFIX + str(parser) not in PARSERS:
        raise RowFault("install_config.log_parser", f"the grader has no parser {parser!r}")
    image = image_of(row, "")
    if not image:
        raise RowFault("image_name", "missing or empty")
    directory = _directory(text(row, "repo"))
    # Patches are taken against it.
    text(row, "base_commit")
    return {
        **{field: row[field] for field in SHOWN if row.get(field) is not None},
        **test_lists(row),
        "version": "0",
        "image": image,
        "workdir": directory,
        "eval_script": _eval_script(directory, test_patch_of(row), commands),
        "log_parser": PREFIX + parser,
        "eval_type": "pass_and_fail",
        "setup": SETUP.format(directory=directory),
        "activate": "",
    }


def _directory(repo: str) -> str:
    named = re.fullmatch(r"[A-Za-z0-9_.-]+/([A-Za-z0-9_-][A-Za-z0-9_.-]*)", repo)
    if not named:
        raise RowFault("repo", f"{repo!r} is not of the form owner/name")
    return f"/{named[1]}"


def _eval_script(directory: str, patch: str, commands: list[str]) -> str:
    apply = "git apply -v --3way --recount --ignore-space-change --whitespace=nowarn -"
    lines = [
        # One stream, so that the markers stand around the output of the tests.
        "exec 2>&1",
        f"cd {directory}",
        f"git config --global --add safe.directory {directory}",
        # --3way wants the files that the policy changed in the index.
        "git add -u",
        f"{apply} <<'{DELIMITER}' || exit 1\n{patch}\n{DELIMITER}",
        "errors=$(mktemp)",
        START,
        # As the publisher runs them: a shell without other options, standard output before standard error.
        "(",
        "set +u +x +o pipefail -e",
        "export _JAVA_OPTIONS=-Djava.net.preferIPv6Addresses=false",
        *commands,
        ') 2> "$errors"',
        'cat "$errors"',
        END,
    ]
    return script(lines)


DURATIONS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\s*\[\s*\d+(\.\d+)?\s*m?s\s*\]\s*$",
        r"\s+in\s+\d+(\.\d+)?\s+m?sec\b",
        r"\s*\(\s*\d+(\.\d+)?\s*m?s\s*\)\s*$",
    )
]


def without_duration(test: str) -> str:
    for duration in DURATIONS:
        test = duration.sub("", test)
    return test.strip()


def judged(name: str, log: str, spec) -> dict[str, str]:
    """Statuses of the row's tests, by the parser of this name. A test without a result is FAILED.

    The same holds if no test has one: tests that do not compile print none. That is the patch's fault, and in many rows
    the empty patch has the same log.
    """
    parse = OWN.get(name) or _of_swebench(name)
    try:
        statuses = parse(log)
    except Exception:  # noqa: BLE001 - some parsers break on the output of a test program that crashed
        statuses = {}
    found = {without_duration(test): status for test, status in statuses.items()}
    wanted = [*spec.FAIL_TO_PASS, *spec.PASS_TO_PASS]
    return {test: PASSED if found.get(without_duration(test)) == PASSED else FAILED for test in wanted}


def _of_swebench(name: str):
    # The worker makes the package importable before it asks.
    from swebench.harness.log_parsers import PARSER_REGISTRY

    parser = PARSER_REGISTRY[name]
    return lambda log: parser(log, None)


def pytest(log: str) -> dict[str, str]:
    """Lines of the short summary: a status, then the name of the test up to the first space."""
    statuses = {}
    for line in log.split("\n"):
        words = line.replace(" - ", " ").split() if line.startswith(FAILED) else line.split()
        if line.startswith((PASSED, FAILED, SKIPPED, ERROR)) and len(words) > 1:
            statuses[words[1]] = words[0]
    return statuses


def pytest_v2(log: str) -> dict[str, str]:
    """As `pytest`, without colours and control characters; in lines of older versions the status is at the end."""
    statuses = {}
    for line in log.split("\n"):
        line = re.sub(r"[\x01-\x1f]", "", re.sub(r"\[\d+m", "", line))
        begins, words = line.startswith((PASSED, FAILED, SKIPPED, ERROR)), line.split()
        if begins and line.startswith(FAILED):
            words = line.replace(" - ", " ").split()
        if len(words) < 2:
            continue
        if begins:
            statuses[words[1]] = words[0]
        elif line.endswith((PASSED, FAILED, SKIPPED, ERROR)):
            statuses[words[0]] = words[1]
    return statuses


def gradle(log: str) -> dict[str, str]:
    """`suite > test PASSED`, perhaps with a duration in seconds after it."""
    pattern = re.compile(r"([^>].+?)\s+(PASSED|FAILED)(\s+\(\d+(\.\d+)?s\))?")
    found = (pattern.fullmatch(line.strip()) for line in log.split("\n"))
    return {line[1]: line[2] for line in found if line}


TEST_CASE = re.compile(r"<testcase\b([^>]*)>")


def junit(log: str) -> dict[str, str]:
    """Elements `testcase` of XML reports anywhere in the log, named by class and test."""
    statuses, at = {}, 0
    while begin := TEST_CASE.search(log, at):
        at = begin.end()
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', begin[1]))
        if not attributes.get("name"):
            continue
        inner = ""
        if not begin[1].strip().endswith("/"):
            end = log.find("</testcase>", at)
            # Of a report that was cut off, so much counts.
            inner = log[at : at + 4096] if end < 0 else log[at:end]
            at = at if end < 0 else end + len("</testcase>")
        tags = (("<failure", FAILED), ("<error", ERROR), ("<skipped", SKIPPED))
        status = next((status for tag, status in tags if tag in inner), PASSED)
        kind = attributes.get("classname", "")
        statuses[f"{kind} {attributes['name']}".strip() if kind else attributes["name"]] = status
    return statuses


# Durations at the end of names in logs of JavaScript, with or without parentheses.
JS_DURATION = re.compile(r"\s*(\(\s*)?\d+(\.\d+)?\s*m?s\s*\)?\s*$", re.IGNORECASE)
# The first that fits a line wins.
MOCHA = [(r"-\s+(.*)", SKIPPED), (r"\d+\)\s+(.*):", FAILED)]
MOCHA += [(r"\[W\]\s*\d+\)\s+(.*)", FAILED), (r"✔\s+(.*)", PASSED)]
MOCHA_2 = [(r"-\s+(.*)", SKIPPED), (r"\d+\)\s+(.*)", FAILED), (r"✔\s+(.*)", PASSED)]
SYMBOLS = {**dict.fromkeys("✔✓", PASSED), **dict.fromkeys("✘✖×", FAILED), **dict.fromkeys("○◌◦⚪", SKIPPED)}
SKIP_MARKS = ("(skipped)", "[skip]", "[skipped]", "[pending]", "[todo]")


def _note(statuses: dict[str, str], name: str, status: str) -> None:
    """Another status of the same name, before or after, is stronger than PASSED."""
    name = JS_DURATION.sub("", name.strip()).strip()
    if name and (status != PASSED or name not in statuses):
        statuses[name] = status


def mocha(patterns: list[tuple[str, str]], log: str) -> dict[str, str]:
    statuses = {}
    for line in map(str.strip, log.splitlines()):
        fits = ((re.fullmatch(pattern, line), status) for pattern, status in patterns)
        if fit := next(((found, status) for found, status in fits if found), None):
            _note(statuses, fit[0][1], fit[1])
    return statuses


def symbols(log: str) -> dict[str, str]:
    """A sign for the status, perhaps `[project]:`, then the name; or a line with a mark that says: skipped."""
    statuses = {}
    for line in filter(None, map(str.strip, log.splitlines())):
        if status := SYMBOLS.get(line[0]):
            name = line[1:].strip()
            if name.startswith("[") and "]:" in name:
                name = name.split("]:", 1)[1].strip()
            _note(statuses, name.removeprefix(":"), status)
        elif any(mark in line.lower() for mark in SKIP_MARKS):
            for mark in SKIP_MARKS:
                line = line.replace(mark, "")
            _note(statuses, line, SKIPPED)
    return statuses


OWN = {
    "parse_log_pytest": pytest,
    "parse_log_pytest_v2": pytest_v2,
    "parse_log_gradle_custom": gradle,
    "parse_log_junit": junit,
    "parse_log_sbt": junit,
    "parse_log_js": functools.partial(mocha, MOCHA),
    "parse_log_js_2": functools.partial(mocha, MOCHA_2),
    "parse_log_js_4": symbols,
}
# Of swebench 5, where they find the same tests PASSED.
OF_SWEBENCH = (
    "parse_log_ant",
    "parse_log_cargo",
    "parse_log_cucumber",
    "parse_log_doctest",
    "parse_log_googletest",
    "parse_log_gotest",
    "parse_log_jest",
    "parse_log_jest_json",
    "parse_log_jq",
    "parse_log_karma",
    "parse_log_micropython_test",
    "parse_log_minitest",
    "parse_log_phpunit",
    "parse_log_pytest_options",
    "parse_log_redis",
    "parse_log_rspec_transformed_json",
    "parse_log_ruby_unit",
    "parse_log_tap",
    "parse_log_vitest",
)
PARSERS = {PREFIX + name: functools.partial(judged, name) for name in (*OWN, *OF_SWEBENCH)}
