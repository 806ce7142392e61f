"""The generated models: equal inputs give the committed files, and each field is reached by its name in JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo import api, views
from grpo.base import json_name

HERE = Path(__file__).resolve().parents[1]
needs_sources = pytest.mark.skipif(not (HERE / "generate.py").exists(), reason="generate.py is not beside these tests")


@needs_sources
def test_the_committed_files_are_what_the_generator_writes() -> None:
    pytest.importorskip("datamodel_code_generator")
    done = subprocess.run(
        [sys.executable, HERE / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_sources
def test_the_stamp_of_the_files_is_that_of_the_inputs() -> None:
    done = subprocess.run([sys.executable, HERE / "generate.py", "--stamp"], capture_output=True, text=True, check=True)
    for module in (api, views):
        assert module.__file__ is not None
        lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
        assert lines[1] == f"# inputs sha256: {done.stdout.strip()}"


@needs_sources
def test_every_view_of_the_schema_has_a_type() -> None:
    schema = json.loads((HERE / "schemas" / "views.json").read_text(encoding="utf-8"))
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            model = getattr(views, name)
            assert {json_name(field) for field in model.model_fields} == set(definition["properties"]), name
