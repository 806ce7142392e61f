"""Reads the SGLang command lines in golden files with SGLang's own parser: `parse_sglang.py FOLDER FILE...`, where FOLDER is its unpacked wheel.

SGLang does not run on a CPU alone, and its parser is asked for nothing but words. So packages of its that are not installed (kernels,
CUDA) are replaced by empty ones, and its own `__init__`, which loads everything, is left out. What is read is SGLang's: the fields of
`ServerArgs`, their types and choices, and `add_cli_args`. A flag it does not know ends the program with the parser's words.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import pathlib
import sys
import types
from unittest.mock import MagicMock

from golden import command_lines

COMMAND = ["python3", "-m", "sglang.launch_server"]


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: it supplies empty packages where files of SGLang import one that no other finder has found."""

    names: set[str] = set()

    def __init__(self, folder: pathlib.Path):
        self.folder = str(folder)

    def find_spec(self, name, path=None, target=None):
        first = name.split(".")[0]
        if first == "sglang" or not (first in self.names or self.imported_by_sglang()):
            return None
        self.names.add(first)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def imported_by_sglang(self) -> bool:
        """Other packages try imports that are meant to fail."""
        frame = sys._getframe(2)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        return frame.f_code.co_filename.startswith(self.folder)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def server_args(folder: pathlib.Path):
    """`ServerArgs` out of the package in `folder`."""
    package = types.ModuleType("sglang")
    package.__path__ = [str(folder / "sglang")]
    sys.modules["sglang"] = package
    sys.meta_path.append(Empty(folder))
    from sglang.srt.server_args import ServerArgs

    return ServerArgs


def version(folder: pathlib.Path) -> str:
    return next(folder.glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info")


def refuses(parser) -> bool:
    """Whether the parser is a real one: it must refuse a flag that does not exist."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(["--model-path", "x", "--no-such-flag"])
    except SystemExit:
        return True
    return False


def main(folder: pathlib.Path, paths: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    server_args(folder).add_cli_args(parser)
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert refuses(parser), "the parser takes anything"
    read = 0
    for name, arguments in command_lines(paths, COMMAND):
        parsed = parser.parse_args(arguments)
        assert parsed.host == "127.0.0.1" and parsed.sampling_defaults == "openai", parsed
        assert parsed.weight_version == "base" and parsed.random_seed == 0, parsed
        # argparse takes a beginning of a flag for the flag, until another one begins alike.
        short = [each for each in arguments if each.startswith("--") and each.split("=")[0] not in known]
        assert not short, f"{name}: {short} are not spelt out"
        print(f"{name}: {len(arguments)} arguments are understood")
        read += 1
    assert read > 0, "no command line of SGLang was found"
    print(f"SGLang {version(folder)}: {read} command lines, {len(known)} flags known; empty in its place: {', '.join(sorted(Empty.names)) or 'nothing'}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:])
