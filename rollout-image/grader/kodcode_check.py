"""Runs the tests of a row in a grader's sandbox, and prints what each of them did as one line of JSON.

    python3 -I -B check.py FOLDER TEST...

First the row's own files, as setup committed them, then FOLDER with the row's own tests put back. Each run is a
process of its own, which reports through a pipe while it runs; what it prints is shown with a prefix. A process that
ends without saying so has not finished its tests. Nothing of FOLDER is imported here.

kodcode.py carries this text into the sandbox, and says what is defended. It needs Python 3.9 and pytest 7.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPORT = "kodcode-report: "
# What setup committed. A patch changes files and no commits.
COMMIT = "refs/heads/task"
# Of the tests without the patch, in seconds: a bug may be an endless loop. With the patch the grader's own limit holds.
BEFORE_LIMIT = 30
# How much of a run's output is shown, in bytes.
SHOWN = 32 << 10
# How much a run may report, in bytes.
MOST_REPORTED = 4 << 20


def committed(folder):
    """The row's own files: contents by path."""

    def git(*arguments):
        command = ["git", "-c", "safe.directory=*", "-C", folder, *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout

    paths = git("ls-tree", "-r", "-z", "--name-only", COMMIT).decode().split("\0")
    return {path: git("cat-file", "blob", COMMIT + ":" + path) for path in paths if path}


def put(folder, path, content):
    """Writes a file in the place of anything that lies there: a link would lead elsewhere."""
    place = folder
    for part in path.split("/")[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place) or (os.path.exists(place) and not os.path.isdir(place)):
            os.unlink(place)
        os.makedirs(place, exist_ok=True)
    file = os.path.join(folder, path)
    if os.path.isdir(file) and not os.path.islink(file):
        shutil.rmtree(file)
    elif os.path.lexists(file):
        os.unlink(file)
    with open(file, "wb") as out:
        out.write(content)


def restore(folder, files, tests):
    """The row's tests as they were; a package of a test's name would be imported in its place."""
    for path in tests:
        stem = path[: -len(".py")]
        package = os.path.join(folder, stem)
        if os.path.islink(package):
            os.unlink(package)
        elif os.path.isdir(package) and not any(own.startswith(stem + "/") for own in files):
            shutil.rmtree(package)
        put(folder, path, files[path])


def run(title, folder, asked, limit):
    """What the tests in a folder did: {collected, outcomes, broken, ended}."""
    print("--- " + title, flush=True)
    report_end, process_end = os.pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    environment.update(PYTHONDONTWRITEBYTECODE="1", COLUMNS="200")
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", os.path.abspath(__file__), "--inside", folder, str(process_end), asked],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[process_end],
        start_new_session=True,
    )
    os.close(process_end)
    printed, reported = follow(process, report_end, limit)
    for line in printed.decode("utf-8", "replace").splitlines():
        # No line of the program is one of ours, and none is a marker of the log.
        print("| " + line.replace(">>>>>", "> > > > >"))
    return read(reported)


def follow(process, report_end, limit):
    """Reads until the process has ended: processes that it left behind may keep the pipes open for longer."""
    pipes = {process.stdout.fileno(): bytearray(), report_end: bytearray()}
    printed, reported = pipes.values()
    selector = selectors.DefaultSelector()
    for pipe in pipes:
        os.set_blocking(pipe, False)
        selector.register(pipe, selectors.EVENT_READ)
    until = time.monotonic() + limit if limit else None
    ended = False
    while selector.get_map():
        ready = selector.select(0 if ended else 0.2)
        for key, _ in ready:
            try:
                piece = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not piece:
                selector.unregister(key.fd)
            pipes[key.fd] += piece
        del printed[: max(0, len(printed) - SHOWN)]
        del reported[MOST_REPORTED:]
        is_late = until is not None and time.monotonic() > until
        if ended:
            if is_late or not ready:
                break
        elif is_late:
            print("ended after %s s" % limit, flush=True)
            end(process)
        if not ended and process.poll() is not None:
            # What is in the pipes is still read.
            ended, until = True, time.monotonic() + 1
            end(process)
    end(process)
    return printed, reported


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def read(reported):
    """What was reported. The process may have written anything: only what is well formed counts."""
    found = {"collected": [], "outcomes": {}, "broken": False, "ended": False, "pytest": None}
    for line in bytes(reported).split(b"\n"):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(said, dict):
            continue
        if isinstance(said.get("collected"), list):
            found["collected"] = [test for test in said["collected"] if isinstance(test, str)]
        if isinstance(said.get("test"), str) and isinstance(said.get("outcome"), str):
            found["outcomes"][said["test"]] = said["outcome"]
        if isinstance(said.get("pytest"), str):
            found["pytest"] = said["pytest"]
        found["broken"] = found["broken"] or "broken" in said
        found["ended"] = found["ended"] or said.get("ended") is True
    return found


class Reporter:
    """A plugin of pytest: reports through the pipe, and lets the folder be imported from once pytest is set up."""

    def __init__(self, pipe, folder, own):
        self.pipe, self.folder, self.own = pipe, folder, own
        self.outcomes = {}

    def say(self, **said):
        rest = (json.dumps(said) + "\n").encode()
        while rest:
            rest = rest[os.write(self.pipe, rest) :]

    def pytest_configure(self, config):
        # Compiled files that lie in the folder are not looked for: they may say anything.
        sys.pycache_prefix = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compiled")
        # Last, so that no file of the folder is taken for a module of Python, pytest or another package ...
        sys.path.append(self.folder)
        # ... but for the row's own modules, which may have such names.
        own, folder = self.own, self.folder

        class Own:
            @staticmethod
            def find_spec(name, path=None, target=None):
                from importlib.machinery import PathFinder

                return PathFinder.find_spec(name, [folder]) if not path and name in own else None

        sys.meta_path.insert(0, Own)

    def pytest_collection_finish(self, session):
        self.say(collected=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report):
        if report.failed:
            self.say(broken=report.nodeid)

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            outcome = "xfailed"
        if outcome == "passed" and report.when != "call":
            return
        # A test that passed may still fail while it is torn down; one that failed stays so.
        if self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = outcome
            self.say(test=report.nodeid, outcome=outcome)

    def pytest_sessionfinish(self, session, exitstatus):
        self.say(ended=True)


def inside(folder, pipe, asked):
    """The process of the tests."""
    os.set_inheritable(pipe, False)
    asked = json.loads(asked)
    import pytest

    reporter = Reporter(pipe, folder, set(asked["own"]))
    reporter.say(pytest=pytest.__version__)
    options = ["-c", asked["settings"], "--rootdir", folder, "--noconftest", "-p", "no:cacheprovider"]
    options += ["--import-mode=importlib", "--tb=short", "--color=no", "-q"]
    tests = [os.path.join(folder, path) for path in asked["tests"]]
    sys.argv = ["pytest"]
    return pytest.main(options + tests, plugins=[reporter])


def main(folder, tests):
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    folder, work = os.path.realpath(folder), tempfile.mkdtemp()
    files = committed(folder)
    settings, base = os.path.join(work, "empty.ini"), os.path.join(work, "base")
    os.mkdir(base)
    with open(settings, "w", encoding="utf-8") as file:
        file.write("[pytest]\n")
    for path, content in files.items():
        put(base, path, content)
    tops = {path.split("/")[0] for path in files if path.endswith(".py") and path not in tests}
    own = sorted(top[: -len(".py")] if top.endswith(".py") else top for top in tops)
    asked = json.dumps({"tests": tests, "own": own, "settings": settings})
    before = run("the row's tests without the patch", base, asked, BEFORE_LIMIT)
    if not before["pytest"]:
        print("pytest is not installed for " + sys.executable + ": nothing can be graded in this image")
        return 3
    restore(folder, files, tests)
    after = run("the row's tests with the patch", folder, asked, None)
    print(REPORT + json.dumps({"before": before, "after": after}), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        sys.exit(inside(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
