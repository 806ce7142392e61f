"""Owns which packages tasks come from, in which split, and what of their source distributions goes into an image."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    name: str  # as imported, and as problem statements call it
    repo: str
    archive: str  # of the source distribution, without .tar.gz
    split: str
    source: str  # the importable file or folder in the archive
    tests: tuple[str, ...]  # globs

    @property
    def version(self) -> str:
        return self.archive.rsplit("-", 1)[1]


PACKAGES = [
    Package("boltons", "mahmoud/boltons", "boltons-26.2.0", "train", "boltons", ("tests/test_*.py",)),
    Package("more_itertools", "more-itertools/more-itertools", "more_itertools-11.2.1", "train", "more_itertools", ("tests/test_*.py",)),
    Package("pydash", "dgilland/pydash", "pydash-8.1.0", "train", "src/pydash", ("tests/test_*.py", "tests/helpers.py")),
    Package("funcy", "Suor/funcy", "funcy-2.1", "validation", "funcy", ("tests/test_*.py",)),
    Package("jsonpointer", "stefankoegl/python-json-pointer", "jsonpointer-3.12", "validation", "jsonpointer.py", ("tests.py",)),
    Package("toolz", "pytoolz/toolz", "toolz-1.2.0", "heldout", "toolz", ("toolz/tests/test_*.py",)),
    Package("semver", "python-semver/python-semver", "semver-3.1.1", "heldout", "src/semver", ("tests/test_*.py",)),
    Package("humanize", "python-humanize/humanize", "humanize-4.17.0", "heldout", "src/humanize", ("tests/test_*.py",)),
    Package("slugify", "un33k/python-slugify", "python_slugify-9.2.0", "heldout", "slugify", ("tests/test_*.py",)),
    Package("inflection", "jpvanhal/inflection", "inflection-0.5.1", "heldout", "inflection", ("test_*.py",)),
]
# Pure-Python modules that a package or its tests import: package -> (wheel, files).
TEST_HELPERS = {
    "funcy": ("whatever-0.7-py3-none-any.whl", ("whatever.py",)),
    "pydash": ("typing_extensions-4.16.0-py3-none-any.whl", ("typing_extensions.py",)),
}
PYTHON = "/usr/bin/python3"  # Debian's, the one inside the images
SKIPPED = shutil.ignore_patterns("tests", "__pycache__", "*.pyc", "locale", "*.pyi", "py.typed")


def unpack(sdists: Path, into: Path) -> None:
    for package in PACKAGES:
        with tarfile.open(sdists / f"{package.archive}.tar.gz") as tar:
            tar.extractall(into, filter="data")
    for wheel, files in TEST_HELPERS.values():
        with zipfile.ZipFile(sdists / wheel) as archive:
            archive.extractall(into / wheel, files)


def lay_out(package: Package, unpacked: Path, image_files: Path, into: Path) -> list[str]:
    """Writes into/testbed and into/opt/task as the package's layer will hold them; returns the test files' paths."""
    top = unpacked / package.archive
    testbed, task = into / "testbed", into / "opt/task"
    (task / "tests").mkdir(parents=True)
    testbed.mkdir(parents=True)
    source = top / package.source
    if source.is_dir():
        shutil.copytree(source, testbed / source.name, ignore=SKIPPED)
    else:
        shutil.copy(source, testbed)
    for file in sorted(image_files.glob("*.py")):
        shutil.copy(file, task)
    names = []
    for pattern in package.tests:
        for file in sorted(top.glob(pattern)):
            name = file.name.replace("-", "_")
            if name == "tests.py":  # would be taken for the folder it lies in
                name = f"test_{package.name}.py"
            # They are imported as modules of their own, not as parts of a package.
            text = file.read_text().replace("from . import ", "import ")
            (task / "tests" / name).write_text(text)
            names.append(f"tests/{name}")
    if package.name in TEST_HELPERS:
        wheel, files = TEST_HELPERS[package.name]
        for file in files:
            shutil.copy(unpacked / wheel / file, task)
    precompile(testbed, into)
    precompile(task, into)
    for path in into.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return names


def precompile(what: Path, image: Path) -> None:
    """Writes bytecode beside the sources of a file or folder in the image's tree: compiling them was half of what a test took.

    It carries its source's hash, so that an edited file is compiled anew; git ignores it.
    """
    command = [PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "-s", str(image), "-p", "/", str(what)]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"})


def bytecode(source: Path) -> Path:
    """Where Python looks for a source's bytecode."""
    return source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
