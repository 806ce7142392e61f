"""What the releases before swebench 5 and the package swesmith know of repositories: test commands and log parsers.

swebench 5 wants them in the row. swebench 4 has the same name as swebench 5, so 4 and swesmith lie apart, in the folder
`older` of the grader's packages (requirements-tables.txt). They are imported once, while the modules of 5 are set
aside; functions keep the modules that they were made with.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types

FOLDER = "older"
# Imported by modules that also build images or ask GitHub, which is never done here.
STAND_INS = {
    "docker": (),
    "docker.models": (),
    "docker.models.containers": ("Container",),
    "ghapi": (),
    "ghapi.all": ("GhApi",),
    "requests": (),
}


class TablesMissing(Exception):
    """The folder is not there."""


def _folder() -> str:
    for path in sys.path:
        folder = os.path.join(path, FOLDER)
        if os.path.isdir(os.path.join(folder, "swebench")):
            return folder
    raise TablesMissing(
        "swebench 4 and swesmith are not installed in the grader's folder older; "
        "install requirements-tables.txt there, or give rows with image, eval_script and log_parser"
    )


def _is_set_aside(name: str) -> bool:
    return name.split(".")[0] == "swebench"


@contextlib.contextmanager
def _tables_first():
    folder = _folder()
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_set_aside(name)}
    stand_ins = [name for name in STAND_INS if name not in sys.modules]
    for name in stand_ins:
        module = types.ModuleType(name)
        module.__path__ = []
        for attribute in STAND_INS[name]:
            setattr(module, attribute, type(attribute, (), {}))
        sys.modules[name] = module
    # Their own __init__ files import every runner.
    for name in ("swebench", "swebench.harness", "swesmith"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split("."))]
        sys.modules[name] = package
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if _is_set_aside(name)] + stand_ins:
            sys.modules.pop(name, None)
        sys.modules.update(aside)


@functools.cache
def swebench4() -> types.SimpleNamespace:
    with _tables_first():
        from swebench.harness.constants import FAIL_ONLY_REPOS, MAP_REPO_VERSION_TO_SPECS, NON_TEST_EXTS
        from swebench.harness.log_parsers import MAP_REPO_TO_PARSER
        from swebench.harness.test_spec.create_scripts import make_eval_script_list
        from swebench.harness.utils import get_modified_files

    return types.SimpleNamespace(
        specs=MAP_REPO_VERSION_TO_SPECS,
        parsers=MAP_REPO_TO_PARSER,
        fail_only=FAIL_ONLY_REPOS,
        non_test_extensions=NON_TEST_EXTS,
        eval_script_list=make_eval_script_list,
        modified_files=get_modified_files,
    )


@functools.cache
def swesmith_profiles():
    """swesmith's registry: from a row's repository to its profile."""
    with _tables_first():
        from swesmith.profiles import registry
    return registry
