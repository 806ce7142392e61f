"""Judges logs with the official swebench package: JSON lines in, JSON lines out, for as long as stdin is open.

`{"id", "op": "prepare", "row"}`             -> `{"id", "ok": true, "evalScript"}`
`{"id", "op": "complete", "format", "row"}`  -> `{"id", "ok": true, "row"}`, a row that can be graded (rows.py)
`{"id", "op": "grade", "row", "patch", "log"}` -> `{"id", "ok": true, "resolved", "status", "failToPass", "passToPass", "infraFailure"}`
anything that goes wrong                     -> `{"id", "ok": false, "error", "field"}`

`log` is a path. `status` is `Judged` when the log told what every test did and `NoReport` when it did not (no markers, nothing
parsed, or an exit code that contradicts it). The verdict is get_eval_report's, unchanged.

The package's `harness/__init__` imports every runner, and with them docker, modal and datasets. Grading uses none of
them, so `swebench.harness` is entered here without running that file, and the names that `harness.utils` imports for its
other functions are stood in for by ones that say so when called.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types

PLACEHOLDERS = {
    "datasets": ("Dataset", "load_dataset", "load_from_disk"),
    "dotenv": ("load_dotenv",),
    "tqdm": ("tqdm",),
}


def _placeholder(module: str, names: tuple[str, ...]) -> None:
    if importlib.util.find_spec(module) is not None:
        return
    stand_in = types.ModuleType(module)
    for name in names:
        def absent(*_args, _name=name, **_kwargs):
            raise RuntimeError(f"{module}.{_name} is not installed: the grading worker judges logs and does nothing else")
        setattr(stand_in, name, absent)
    sys.modules[module] = stand_in


def _enter_swebench() -> None:
    spec = importlib.util.find_spec("swebench")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("swebench is not installed on PYTHONPATH; install grader/requirements.txt with --no-deps --target")
    harness = types.ModuleType("swebench.harness")
    harness.__path__ = [os.path.join(where, "harness") for where in spec.submodule_search_locations]
    sys.modules["swebench.harness"] = harness
    for module, names in PLACEHOLDERS.items():
        _placeholder(module, names)
    # harness.utils calls this one while it is imported.
    if not hasattr(sys.modules.get("dotenv"), "__file__") and "dotenv" in sys.modules:
        sys.modules["dotenv"].load_dotenv = lambda *_args, **_kwargs: False


_enter_swebench()

import rows  # noqa: E402
import swebench  # noqa: E402
from parts import RowFault  # noqa: E402
from swebench.harness.constants import EvalType  # noqa: E402
from swebench.harness.grading import get_eval_report  # noqa: E402
from swebench.harness.log_parsers import PARSER_REGISTRY  # noqa: E402
from swebench.harness.utils import make_test_spec  # noqa: E402

PARSER_REGISTRY.update(rows.PARSERS)


def _test_spec(row: dict):
    try:
        spec = make_test_spec(row)
    except KeyError as missing:
        raise RowFault(str(missing.args[0]), f"the row has no {missing.args[0]}") from missing
    except (TypeError, ValueError) as error:
        raise RowFault("FAIL_TO_PASS", f"the row's test lists cannot be read: {error}") from error
    if not isinstance(spec.log_parser, str) or spec.log_parser not in PARSER_REGISTRY:
        raise RowFault("log_parser", f"swebench {swebench.__version__} has no log parser {spec.log_parser!r}")
    if spec.eval_type not in {kind.value for kind in EvalType}:
        raise RowFault("eval_type", f"swebench {swebench.__version__} has no eval type {spec.eval_type!r}")
    for field in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        tests = getattr(spec, field)
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise RowFault(field, f"{field} is not a list of test names")
    return spec


def _of_row(operation):
    """A row that breaks a function of swebench's is one that cannot be graded, and not a worker that does not answer."""

    def asked(message: dict) -> dict:
        try:
            return operation(message)
        except RowFault:
            raise
        except Exception as error:  # noqa: BLE001
            raise RowFault("(row)", f"{type(error).__name__}: {error}") from error

    return asked


@_of_row
def prepare(message: dict) -> dict:
    return {"evalScript": _test_spec(message["row"]).eval_script}


@_of_row
def complete(message: dict) -> dict:
    row = rows.complete(message["format"], message["row"])
    _test_spec(row)
    return {"row": row}


def grade(message: dict) -> dict:
    spec = _test_spec(message["row"])
    prediction = {"instance_id": spec.instance_id, "model_patch": message["patch"], "model_name_or_path": "policy"}
    report = get_eval_report(spec, prediction, message["log"], include_tests_status=True)[spec.instance_id]
    tests = report.get("tests_status", {})

    def counts(kind: str) -> dict:
        of = tests.get(kind, {})
        return {"passed": len(of.get("success", [])), "failed": len(of.get("failure", []))}

    return {
        "resolved": bool(report["resolved"]),
        "status": "Judged" if report["patch_successfully_applied"] else "NoReport",
        "failToPass": counts("FAIL_TO_PASS"),
        "passToPass": counts("PASS_TO_PASS"),
        "infraFailure": report.get("infra_failure_reason"),
    }


def main() -> None:
    operations = {"prepare": prepare, "complete": complete, "grade": grade}
    # The output that a parser prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"ready": True, "swebench": swebench.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        message = {}
        try:
            message = json.loads(line)
            answer = {"ok": True, **operations[message["op"]](message)}
        except RowFault as fault:
            answer = {"ok": False, "error": str(fault), "field": fault.field}
        except Exception as error:  # noqa: BLE001 - one bad message must not end the worker
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}", "field": None}
        print(json.dumps({"id": message.get("id"), **answer}), file=answers, flush=True)


if __name__ == "__main__":
    main()
