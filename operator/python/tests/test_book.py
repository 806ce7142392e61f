"""The Python of the book's page runs as it is printed, with the real plugin and a real store in place of the reader's.

A block under the line `<!-- not run: REASON -->` is left out, as in the book's other pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import EXAMPLES

DOCS = EXAMPLES.parent
PAGE = DOCS / "src" / "python.md"
BLOCK = re.compile(r"(<!-- not run: [^\n]* -->\n)?```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.skipif(not PAGE.exists(), reason="the book is not beside these tests")
def test_the_page_runs_as_printed(
    real_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "demo-records").symlink_to(real_store.resolve())
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert sum(not left_out for left_out, _, _ in blocks) >= 5, "the page's blocks were not found"
    for left_out, code, output in blocks:
        if left_out:
            continue
        capsys.readouterr()
        exec(compile(code, str(PAGE), "exec"), names)
        # Output of a run depends on its records; a plan's does not.
        if output and "plan" in code:
            assert capsys.readouterr().out == output
