"""Runs a task's tests without pytest: each in a forked child whose output nobody sees, and says what became of them.

`run.py short` prints `1 failed` or `1 passed` for the lot, and stops at the first failure; `run.py report` prints a line per
test that swebench's pytest parser reads, and exits 1 unless all passed. A child counts as passed only if it says a word the parent made up, after the
test returned: leaving early with exit status 0, or printing PASSED, is of no use.
"""

import importlib
import inspect
import os
import resource
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# A flip may have made a loop endless, and then every attempt at the task burns a test's whole allowance: a sound test takes 0.2 s.
CPU_SECONDS, WALL_SECONDS, MEMORY = 0.75, 20, 1 << 30


def place(root):
    """Lets tests import the stand-in for pytest, each other and the package under test; the tree cannot shadow the former."""
    sys.path[:0] = [HERE, os.path.join(HERE, "tests"), root]


def find(test_id):
    """The module's and the test's names behind `tests/test_x.py::[Class::]test`."""
    path, *names = test_id.split("::")
    module = importlib.import_module(os.path.basename(path)[: -len(".py")])
    return module, names


def collect(path):
    """The ids of a file's tests that need nothing but their parametrization."""
    module, _ = find(path)
    for name, thing in sorted(vars(module).items()):
        if name.startswith("test") and inspect.isfunction(thing) and thing.__module__ == module.__name__:
            if runnable(thing, 0):
                yield f"{path}::{name}"
        elif inspect.isclass(thing) and thing.__module__ == module.__name__:
            case = any(c.__name__ == "TestCase" for c in thing.__mro__)
            if not case and not name.startswith("Test"):
                continue
            for inner in sorted(n for n in dir(thing) if n.startswith("test")):
                if inspect.isfunction(getattr(thing, inner)) and runnable(getattr(thing, inner), 1):
                    yield f"{path}::{name}::{inner}"


def runnable(function, bound):
    if hasattr(function, "unsupported"):
        return False
    wanted = list(inspect.signature(function).parameters.values())[bound:]
    given = set().union(*(c.keys() for c in getattr(function, "cases", [{}])))
    return all(p.name in given or p.default is not p.empty for p in wanted)


def call(test_id):
    """Runs one test in this process; an exception is its failure."""
    module, names = find(test_id)
    if len(names) == 1:
        function = getattr(module, names[0])
        for case in getattr(function, "cases", [{}]):
            function(**case)
        return
    owner, name = getattr(module, names[0]), names[1]
    if hasattr(owner, "addCleanup"):
        import unittest

        result = unittest.TestResult()
        owner(name).run(result)
        assert result.testsRun == 1 and result.wasSuccessful() and not result.skipped, result.errors + result.failures
        return
    for case in getattr(getattr(owner, name), "cases", [{}]):
        instance = owner()
        getattr(instance, "setup_method", lambda *_: None)(None)
        getattr(instance, name)(**case)


def passes(test_id, root="/testbed"):
    """True when the test, run in a child, comes back with the word."""
    word = os.urandom(16)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            void = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(void, fd)
            signal.alarm(WALL_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            place(root)
            call(test_id)
            os.write(writer, word)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    said = b""
    while chunk := os.read(reader, 64):
        said += chunk
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return status == 0 and said == word


def main():
    with open(os.path.join(HERE, "tests.txt")) as listed:
        tests = listed.read().split()
    root = sys.argv[2] if len(sys.argv) > 2 else "/testbed"
    if sys.argv[1] == "report":
        results = [(t, passes(t, root)) for t in tests]
        good = all(ok for _, ok in results)
        for test_id, ok in results:
            print("PASSED" if ok else "FAILED", test_id)
    else:
        good = all(passes(t, root) for t in tests)  # no further than the first failure
        print("1 passed" if good else "1 failed")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
