"""A plugin that is missing, dies, prints nonsense, or hangs: each has an error with its cause, and no child is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo
from conftest import MakeProgram, recorded
from grpo import programs, viewer

Plugin = Callable[[str], Path]

# A viewer with faults: it gives its cookie, and answers paths from a table.
SERVER = """
import http.server, json, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/?token="):
            self.send_response(303)
            self.send_header("Set-Cookie", "grpo-ui-1=abc; HttpOnly; Path=/")
            self.end_headers()
            return
        assert self.headers["Cookie"] == "grpo-ui-1=abc", self.headers
        {special}
        status, body = ANSWERS.get(self.path, (404, '{{"message": "there is no such view"}}'))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *_):
        pass
ANSWERS = {answers}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{{server.server_port}}/?token=0f", flush=True)
print("Open this address", file=sys.stderr, flush=True)
server.serve_forever()
"""


def server(answers: dict[str, tuple[int, str]], special: str = "pass") -> str:
    return SERVER.format(answers=repr(answers), special=special)


def is_gone(pid: int) -> bool:
    """Whether no such process is left: a child that was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_missing_plugin_is_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRPO_KUBECTL_PLUGIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(grpo.ProgramMissing, match="make install-plugin"):
        grpo.open("demo")
    with pytest.raises(grpo.ProgramMissing, match="kubectl is not on the PATH"):
        grpo.runs()
    monkeypatch.setenv("GRPO_KUBECTL_PLUGIN", str(tmp_path / "none"))
    with pytest.raises(grpo.ProgramMissing, match="none, which is no executable file"):
        grpo.open("demo")


def test_a_program_for_another_machine_is_named(plugin: Plugin) -> None:
    plugin("").write_bytes(b"\x7fELF\x00\x00")
    with pytest.raises(grpo.ViewerError, match="Exec format error; set GRPO_KUBECTL_PLUGIN"):
        grpo.open("demo")


def test_the_plugin_on_the_path_is_found(program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    file = program("kubectl-grpo", "")
    monkeypatch.delenv("GRPO_KUBECTL_PLUGIN", raising=False)
    monkeypatch.setenv("PATH", str(file.parent))
    assert programs.plugin() == str(file)


def test_a_plugin_that_dies_says_why(plugin: Plugin) -> None:
    plugin("import sys; sys.exit('error: there is no GrpoRun (grpo.dev) demo in namespace \\x1b[31mteam')")
    with pytest.raises(grpo.ViewerError, match=r"ui .*-- demo` ended with exit status 1: error: there is no .* team"):
        grpo.open("demo", namespace="team")
    plugin("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(grpo.ViewerError, match="was ended by signal 9: it printed no cause"):
        grpo.open("demo")


@pytest.mark.parametrize("line", ["hello", "https://example.com/?token=0f", "x" * 100_000, "\\xff\\x00\\x1b[2J"])
def test_a_plugin_that_prints_nonsense_is_ended(plugin: Plugin, line: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    plugin(
        f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); print('{line}', flush=True); time.sleep(60)"
    )
    with pytest.raises(grpo.ViewerError, match=r"printed '.*in place of an address"):
        grpo.open("demo")
    assert is_gone(int(pid.read_text()))


@pytest.mark.parametrize("deaf", [False, True])
def test_a_plugin_that_hangs_is_ended(
    plugin: Plugin, deaf: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "INTERRUPT_SECONDS", 0.3)
    monkeypatch.setattr(viewer, "TERMINATE_SECONDS", 0.3)
    pid = tmp_path / "pid"
    ignore = (
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    )
    plugin(
        f"import os, signal, sys, time; {ignore}\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "print('a pod reads its store', file=sys.stderr, flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(
        grpo.ViewerError, match=r"has not printed its address after 1 s; it said: a pod reads its store"
    ):
        grpo.open("demo", start_seconds=1.0)
    assert time.monotonic() - began < 10
    assert is_gone(int(pid.read_text()))


@pytest.mark.parametrize("refusal", [ValueError("Unsupported signal: 2"), PermissionError("not permitted")])
def test_a_signal_that_cannot_be_sent_is_followed_by_the_next_and_hides_no_error(
    plugin: Plugin, refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def send_signal(process: subprocess.Popen[bytes], number: int) -> None:
        asked.append(process.pid)
        if number == signal.SIGINT:
            raise refusal
        os.kill(process.pid, number)

    plugin(server({}))
    with pytest.raises(RuntimeError, match="of the caller"), grpo.open("demo"):
        monkeypatch.setattr(subprocess.Popen, "send_signal", send_signal)
        raise RuntimeError("of the caller")
    assert len(asked) == 2
    assert is_gone(asked[0])


def test_a_slow_start_shows_its_progress(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(viewer, "FIRST_PROGRESS_SECONDS", 0.5)
    plugin("import sys, time; print('a pod reads its store', file=sys.stderr, flush=True); time.sleep(60)")
    with pytest.raises(grpo.ViewerError):
        grpo.open("demo", start_seconds=2.0)
    assert "waiting for the address of `kubectl-grpo ui" in capfd.readouterr().err


def test_another_program_behind_the_address_is_refused(plugin: Plugin) -> None:
    plugin(SERVER.format(answers="{}", special="pass").replace("self.send_response(303)", "self.send_response(200)"))
    with pytest.raises(grpo.ViewerError, match="answered 200 to its own token"):
        grpo.open("demo")


def test_a_viewer_that_dies_later_says_why(plugin: Plugin) -> None:
    plugin(server({}, special="print('error: the node is gone', file=sys.stderr, flush=True); os._exit(1)"))
    with (
        grpo.open("demo") as run,
        pytest.raises(grpo.ViewerError, match=r"exit status 1: (.|\n)*error: the node is gone"),
    ):
        run.curves()


def test_a_viewer_that_does_not_answer_is_given_up(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(server({}, special="time.sleep(60)"))
    with grpo.open("demo") as run:
        monkeypatch.setattr(viewer, "REQUEST_SECONDS", 0.5)
        with pytest.raises(grpo.ViewerError, match="has not answered /api/0/run within 0 s"):
            run.curves()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((200, "hello"), "malformed response from .* at 0/run"),
        ((200, '{"name": "demo"}'), r"malformed response(.|\n)*curves: Field required(.|\n)*the same version"),
        ((502, '{"message": "the journal is damaged"}'), "reading run: the journal is damaged"),
        ((500, "hello"), "answered 500 to 0/run without a cause"),
    ],
)
def test_a_malformed_answer_is_no_view(plugin: Plugin, answer: tuple[int, str], cause: str) -> None:
    plugin(server({"/api/0/run": answer}))
    with grpo.open("demo") as run, pytest.raises(grpo.GrpoError, match=cause):
        run.curves()


def test_records_that_are_never_read_end_the_call(plugin: Plugin) -> None:
    reading = recorded("run").replace('"reading": false', '"reading": true')
    assert reading != recorded("run")
    plugin(server({"/api/0/run": (200, reading)}))
    with grpo.open("demo", seconds=0.5) as run:
        with pytest.raises(grpo.ViewerError, match=r"not read after 0\.5 s: 14 journal entries were"):
            run.iterations()


def test_the_problem_of_a_folder_is_told_at_once(plugin: Plugin, tmp_path: Path) -> None:
    event = 'data: {"run": 0, "change": 1, "live": false, "problem": {"message": "entry 3 is damaged"}}\n\n'
    reading = recorded("run").replace('"reading": false', '"reading": true')
    plugin(server({"/api/0/run": (200, reading), "/events": (200, event)}))
    with grpo.open(folder=tmp_path) as run, pytest.raises(grpo.RecordsError, match="entry 3 is damaged"):
        run.iterations()


def test_metrics_that_come_after_the_journal_are_waited_for(plugin: Plugin) -> None:
    """The journal is read before the metrics, and the curves of a half-read run would be wrong."""
    before, after = views_without_curves(), recorded("run")
    count = "global N; N = globals().get('N', 0) + 1"
    plugin(
        server(
            {"/api/0/run": (200, recorded("run"))},
            special=f"{count}; ANSWERS['/api/0/run'] = (200, {before!r} if N < 5 else {after!r})",
        )
    )
    with grpo.open("demo") as run:
        assert not run.curves("step").empty


def views_without_curves() -> str:
    view = grpo.views.RunView.model_validate_json(recorded("run"))
    return view.model_copy(update={"curves": []}).model_dump_json(by_alias=True)


def test_a_closed_run_is_not_read(plugin: Plugin) -> None:
    plugin(server({"/api/0/run": (200, recorded("run"))}))
    run = grpo.open("demo")
    run.close()
    run.close()
    with pytest.raises(grpo.ViewerError, match="this run is closed"):
        run.curves()


def test_arguments_that_name_no_run_are_refused() -> None:
    for arguments in ({}, {"name": "demo", "folder": "out"}):
        with pytest.raises(ValueError, match="give the name of a run, or folder="):
            grpo.open(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a list"):
        grpo.compare("demo")
    with pytest.raises(ValueError, match="give a list"):
        grpo.compare()
