"""Records what the tools of SWE-PDB answer, for the test that compares agent.tools with them.

    python record.py CHECKOUT PYTHON_BIN > answers.json

CHECKOUT: a clone of https://github.com/p81sunshine/Issta-2026 at 8a491e3. PYTHON_BIN: the folder of the Python and pytest
that the tests use. Needs the packages gitignore_parser, numpy, requests, tenacity and tqdm. Only answers are recorded;
none of that project's code is.
"""

import importlib
import json
import os
import re
import sys
import tempfile
import types
from pathlib import Path

CHECKOUT, PYTHON_BIN = sys.argv[1:3]
PACKAGE = os.path.join(CHECKOUT, "swe-pdb-agent")


class Quiet:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


# Its packages import every backend: these are the same packages without that.
for name in ["debug_gym", "debug_gym.gym", "debug_gym.gym.tools", "debug_gym.gym.terminals", "debug_gym.gym.envs"]:
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(PACKAGE, name.replace(".", "/"))]
    sys.modules[name] = module
logger = types.ModuleType("debug_gym.logger")
logger.DebugGymLogger = Quiet
sys.modules["debug_gym.logger"] = logger
os.environ["PATH"] = f"{PYTHON_BIN}:{os.environ['PATH']}"
os.environ["TERM"] = "dumb"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.environ.pop("COLUMNS", None)


def of(path):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(f"debug_gym.gym.{module}"), name)


LocalTerminal = of("terminals.local.LocalTerminal")
Base = of("envs.env.RepoEnv")
ToolCall = of("tools.tool.ToolCall")
TOOLS = ["view.ViewTool", "eval.EvalTool", "rewrite.RewriteTool", "pdb.PDBTool", "grep.GrepTool"]
utils = importlib.import_module("debug_gym.gym.utils")
EvalOutput = of("entities.EvalOutput")


class Env(Base):
    """As its environment of KodCode evaluates."""

    def eval(self, **_):
        success, output = self.terminal.run(self.entrypoint, timeout=self.run_timeout)
        output = utils.summarize_pytest_traceback(utils.cleanup_pytest_output(output))
        self.last_eval = EvalOutput(success, output)
        return self.last_eval

    def calculate_max_score(self, _):
        return 10**6


def env_of(folder):
    env = Env(
        entrypoint="python -m pytest --tb=short -sq test.py",
        terminal=LocalTerminal(logger=Quiet()),
        run_timeout=30,
        auto_list=False,
        logger=Quiet(),
    )
    env.workspace.working_dir = Path(folder)
    env.terminal.working_dir = folder
    env.workspace.setup_file_filters()
    env._reset_env_state()
    for tool in TOOLS:
        env.add_tool(of(f"tools.{tool}")())
    env.workspace.display_files = lambda *_: ""
    return env


def recorded(files, steps):
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        for path, text in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        env = env_of(folder)
        answers = []
        for name, arguments in steps:
            told = json.loads(json.dumps(arguments).replace("/testbed", folder))
            info = env.step(ToolCall(id="c", name=name, arguments=told))
            answer = str(info.step_observation.observation)
            # What differs by place and time, and the line ends of its terminal.
            answer = answer.replace("\r\n", "\n").replace(folder, "/testbed")
            answer = re.sub(r"/[\w./-]*/lib/python3\.\d+/", "/python/", answer)
            answer = re.sub(r"0x[0-9a-f]+", "0xADDRESS", answer)
            answers.append(re.sub(r"in \d+\.\d+s", "in TIME", answer))
        env.workspace.cleanup = lambda: None
        env.close()
    return {
        "files": files,
        "steps": [{"name": n, "arguments": a, "answer": o} for (n, a), o in zip(steps, answers)],
    }


BUGGY = """import math


def area(radius):
    # The area of a circle.
    result = math.pi * radius
    return result


class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self, number):
        if number < 0:
            number = -number
        self.value -= number
        return self.value


def total(numbers):
    counter = Counter()
    for number in numbers:
        counter.add(number)
    return counter.value


if __name__ == "__main__":
    print(total([1, 2, 3]))
"""
TESTS = """from solution import Counter, area, total


def test_area():
    assert round(area(2), 2) == 12.57


def test_total():
    assert total([1, 2, 3]) == 6


def test_counter():
    counter = Counter(5)
    assert counter.add(1) == 6
"""
FILES = {"solution.py": BUGGY, "test.py": TESTS}
LONG = "".join(f"value_{n} = {n}\n" for n in range(1, 351))


def view(path="solution.py", start=None, end=None, numbers=True):
    arguments = {"path": path, "start": start, "end": end, "include_line_numbers_and_breakpoints": numbers}
    return ("view", arguments)


def rewrite(path, start, end, code):
    return ("rewrite", {"path": path, "start": start, "end": end, "new_code": code})


def pdb(command, runner=None, file=None):
    return ("pdb", {"command": command, "runner": runner, "file": file})


def grep(pattern, path=None, most=100):
    return ("grep", {"pattern": pattern, "path": path, "max_results": most})


def cases():
    odd = {"empty.py": "", "one.py": "x = 1", "long.py": LONG, "deep/er/a.txt": "α = 'β'\n\ttab\n", "wide.txt": "w" * 400}
    yield {**FILES, **odd}, [
        *[view(start=start, end=end) for start in (None, 1, 4, 30, 31) for end in (None, 1, 6, 30, 99)],
        *[view(start=start, end=end) for start, end in ((0, 3), (-2, 3), (9, 3), (None, 0), (None, -1))],
        *[view(numbers=False, start=start, end=start + 3) for start in (1, 5, 9)],
        view("long.py"),
        view("long.py", 100, 250),
        view("long.py", 990, None),
        view("long.py", 341),
        view("long.py", 1, 110),
        view("long.py", 1, 111, False),
        view("empty.py"),
        view("one.py"),
        view(" one.py "),
        view("deep/er/a.txt"),
        view("./deep/er/a.txt"),
        view("/testbed/one.py"),
        view("missing.py"),
        view("../etc/passwd"),
        view("/etc/passwd"),
        view(""),
        ("view", {"start": 1}),
        ("view", {"path": "one.py", "lines": 3}),
        ("eval", {"fast": True}),
        ("unknown", {}),
        ("", {}),
        ("view", "not json"),
        ("view", [1]),
        # Of one file each: in which order grep finds files is nowhere said.
        grep("def area"),
        grep("def ", "solution.py"),
        grep("value_1[0-9]+ ", "long.py"),
        grep("value_", None, 7),
        grep("value", "long.py", 1),
        grep("nothing here"),
        grep("nothing here", "one.py"),
        grep("w+"),
        grep("[", "one.py"),
        grep("(a", "one.py"),
        grep("x", "missing.py"),
        grep(""),
        grep("β"),
        grep("it's", "one.py"),
        grep("value_3$|value_30 ", "long.py"),
        ("grep", {"pattern": "CLASS", "case_sensitive": False}),
        ("grep", {"pattern": "x", "line_numbers": False, "path": "one.py"}),
        ("grep", {}),
    ]
    # Every kind of range, each on the file that the last one left.
    yield FILES, [
        rewrite("solution.py", 6, None, "    result = math.pi * radius**2"),
        rewrite("solution.py", 17, 17, "        self.value += number"),
        rewrite("solution.py", 15, 16, "        # Of either sign."),
        rewrite("solution.py", 1, 1, "import math\nimport sys"),
        rewrite("solution.py", 2, 2, ""),
        rewrite("solution.py", 400, None, "# The end."),
        rewrite("solution.py", 31, 29, "x"),
        rewrite("solution.py", 0, 3, "x"),
        rewrite("solution.py", -5, -3, "x"),
        rewrite("solution.py", 3, 0, "# Three."),
        rewrite("missing.py", None, None, "x"),
        rewrite("../out.py", None, None, "x"),
        rewrite("solution.py", 20, 9999, "def total(numbers):\n    return sum(numbers)\n"),
        rewrite("test.py", 5, 5, "    assert True\n"),
        rewrite("test.py", None, None, "def test_all():\n    assert True\n"),
        rewrite("test.py", None, None, "def test_all():\n    assert True\n"),
        view("test.py"),
        view(),
        ("rewrite", {"new_code": "x"}),
        ("rewrite", {"path": "solution.py", "line": 3}),
        # It passes, which ends an episode.
        ("eval", {}),
    ]
    words = ["alpha\n", "beta\n", "gamma\n", "\n", "    delta()\n", "    pass\n"]
    state = 7

    def some(count):
        nonlocal state
        chosen = []
        for _ in range(count):
            state = (state * 1103515245 + 12345) % 2**31
            chosen.append(words[state >> 16 & 7] if (state >> 16 & 7) < 6 else f"line {state >> 20}\n")
        return "".join(chosen)

    # Diffs of texts that repeat themselves; above 200 lines frequent ones begin no match.
    steps = []
    for number in range(24):
        lines = [3, 8, 20, 60, 150, 260][number % 6]
        first = some(lines)
        old = first.splitlines(True)
        kept = [line for at, line in enumerate(old) if at % (3 + number % 5)]
        steps += [
            rewrite("a.txt", None, None, first),
            rewrite("a.txt", None, None, "".join(kept)),
            rewrite("a.txt", max(1, len(kept) // 3), max(1, len(kept) // 2), some(4)),
        ]
    yield {"a.txt": "", **FILES}, steps
    yield FILES, [("eval", {}), rewrite("solution.py", 17, 17, "        self.value += number"), ("eval", {})]
    yield {**FILES, "solution.py": BUGGY.replace("import math\n", "import maths\n")}, [("eval", {})]
    yield {**FILES, "solution.py": BUGGY.replace("    return result", "    return result(")}, [("eval", {})]
    noisy = BUGGY.replace("    counter = Counter()", "    print('seen')\n    print('x' * 50)\n    counter = Counter()")
    yield {**FILES, "solution.py": noisy}, [("eval", {})]
    yield FILES, [
        pdb("c"),
        pdb(""),
        pdb("start"),
        pdb("start", None, "test.py"),
        pdb("start", "python"),
        pdb("start", "ruby", "solution.py"),
        pdb("start", "python", "missing.py"),
        pdb("start", "python", "solution.py"),
        pdb("b"),
        *[pdb(f"b solution.py:{line}") for line in (4, 5, 3, 10, 11, 14, 99, 0, 6, 17)],
        pdb("b solution.py:x"),
        pdb("break solution.py:24"),
        view(start=1, end=20),
        pdb("b"),
        pdb("c"),
        pdb("p numbers"),
        pdb("n"),
        pdb("p number"),
        pdb("p number; p counter"),
        pdb("n; n"),
        pdb("n\nn"),
        pdb("s"),
        pdb("pp self"),
        pdb("w"),
        pdb("l"),
        pdb("a"),
        pdb("p unknown"),
        pdb("b missing.py:3"),
        pdb("b total"),
        pdb("cl solution.py:24"),
        pdb("cl"),
        pdb("b"),
        pdb("c"),
        pdb("print('a;b')"),
        pdb("b solution.py:17"),
        view(start=15, end=18),
    ]
    yield FILES, [
        pdb("start", "pytest", "test.py"),
        pdb("b solution.py:17"),
        pdb("c"),
        pdb("p self.value"),
        pdb("u"),
        pdb("cl 1"),
        pdb("b test.py:9"),
        pdb("c"),
    ]
    yield FILES, [
        pdb("start", "pytest", "test.py::test_total"),
        pdb("l"),
        pdb("b solution.py:23"),
        pdb("c"),
        pdb("p counter.value, number"),
        rewrite("solution.py", 1, 2, "import math\n\n\n"),
        pdb("start", "pytest", "test.py::test_total"),
        pdb("b"),
        pdb("c"),
        view(start=20, end=28),
        rewrite("solution.py", 24, 25, "        pass"),
        pdb("start", "pytest", "test.py::test_total"),
        rewrite("solution.py", None, None, "def total(numbers):\n    return sum(numbers)\n"),
        view(),
        pdb("start", "pytest", "test.py::test_missing"),
    ]
    yield FILES, [pdb("start", "python", "solution.py"), *[pdb(f"b solution.py:{line}") for line in range(1, 31)], pdb("b")]


print(json.dumps([recorded(files, steps) for files, steps in cases()], indent=1, ensure_ascii=False))
